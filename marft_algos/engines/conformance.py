"""Conformance: ``check_engine`` runs the promises of a rollout engine against the learner's own scoring.

It samples from an engine and scores with the policies it was made for, at their present weights, so it needs a team
of two trainable policies or more, in float32, of a model that now and then ends its turn. Weights are changed on the
way, and put back at the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from marft_algos.engines.base import EngineError, Publisher, RolloutEngine, row_seed
from marft_algos.models.policy import PolicySet
from marft_algos.types import FloatArray, Generation, GenerationRequest, SamplingParams, StopReason
from marft_envs.errors import ConfigError, MarftError

DEVIATIONS = 4.0
"""Of a mean from its expectation, before chance is no explanation."""
NOISE = 0.02
"""Size of the changes of weights; larger ones make larger logits, and those larger rounding errors."""
_ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
"""Mean difference of a token's log-prob, in nats, that rounding may cause per square root of a layer."""
DRAWS = 400
"""One-token replies from which the distribution is judged."""


class EngineCheckError(MarftError, AssertionError):
    """An engine breaks a promise; the message names it."""


@dataclass(slots=True)
class Bench:
    """What a check works with."""

    engine: RolloutEngine
    policies: PolicySet
    publisher: Publisher
    tolerance: float
    tokens: int
    rows: int

    def requests(self, n: int | None = None) -> list[GenerationRequest]:
        """Returns ragged prompts, by turns of all policies."""
        names, requests = self.policies.policies, []
        for i in range(n or self.rows):
            name = names[i % len(names)]
            text = "7 + " * (i % 5) + str(i * 37 % 11)
            prompt = self.policies.renderer.render(name, [{"role": "user", "content": text}])
            requests.append(GenerationRequest(name, prompt, seed=row_seed(1, 2, i, 0), agent=name))
        return requests

    def repeated(self, seeds: Iterable[int]) -> list[GenerationRequest]:
        """Returns requests of one prompt, one for each seed."""
        first = self.requests(1)[0]
        return [GenerationRequest(first.policy, first.prompt_ids, seed, first.agent) for seed in seeds]

    def params(self, temperature: float = 1.0) -> SamplingParams:
        """Returns how the checks sample."""
        return SamplingParams(self.tokens, temperature)

    def scores(self, request: GenerationRequest, reply: Generation, temperature: float = 1.0) -> FloatArray:
        """Returns the learner's log-probs [L] of a reply's tokens."""
        return self.scored(request, reply.action_ids, temperature)[0]

    def scored(self, request: GenerationRequest, action: list[int], temperature: float) -> tuple[FloatArray, ...]:
        """Returns the learner's log-probs and entropies [L] of an action's tokens."""
        ids = torch.tensor([[*request.prompt_ids, *action]], device=self.policies.device)
        first = len(request.prompt_ids)
        mask = torch.arange(ids.shape[1], device=ids.device)[None] >= first
        with torch.no_grad():
            scores = self.policies.logprobs(request.policy, ids, mask, temperature)
        return tuple(part[0, first - 1 :].cpu().numpy() for part in scores)

    def publish(self, names: Sequence[str]) -> None:
        """Publishes these policies as the next version."""
        self.policies.version += 1
        self.publisher.publish(names, self.policies.version)

    @contextmanager
    def disturbed(self, policy: str) -> Iterator[None]:
        """While inside, one policy has other weights; they are published, and so is their return."""
        saved = self.policies.state_dict()
        _disturb(self.policies, policy, seed=7)
        self.publish([policy])
        try:
            yield
        finally:
            self.policies.load_state_dict(saved)
            self.publish([policy])


@dataclass(slots=True)
class EngineReport:
    """What was checked; ``str()`` of it is a table."""

    engine: str
    passed: dict[str, float] = field(default_factory=dict)
    """Check -> seconds."""
    tools: str = ""
    """Of a hosted model's endpoint, what the setting ``tools`` of its table can be: ``native``, or only ``text``."""

    def __str__(self) -> str:
        lines = [f"{self.engine}: {len(self.passed)} checks passed"]
        lines += [f'  tools = "{self.tools}"'] if self.tools else []
        return "\n".join([*lines, *(f"  ok  {name:<36}{seconds:6.2f} s" for name, seconds in self.passed.items())])


def check_engine(
    engine: RolloutEngine,
    policies: PolicySet | None = None,
    *,
    folder: Path | str | None = None,
    tolerance: float | None = None,
    tokens: int = 48,
    rows: int = 32,
) -> EngineReport:
    """Runs every check of ``CHECKS``.

    Args:
        engine: What is checked. It stays open.
        policies: The policies it samples; two or more, all trainable. None: it is a hosted model, of which is
            checked whether it answers, and whether its endpoint calls tools itself.
        folder: Where adapters are written for engines that need them; see ``Publisher``.
        tolerance: Largest difference of log-probs, per token, in nats, at temperature 1; at others it is divided by
            the temperature, as logits are. By default three ``rounding``, which knows precision and depth.
        tokens: Longest reply.
        rows: Requests per check.

    Raises:
        EngineCheckError: At the first promise that is broken.
        ConfigError: Policies that the checks cannot work with.
    """
    if policies is None:
        return _check_hosted(engine, SamplingParams(tokens))
    frozen = [policy for policy in policies.policies if not policies.trainable(policy)]
    if len(policies.policies) < 2 or frozen:
        raise ConfigError(f"The checks need two trainable policies or more; got {policies.policies}, frozen: {frozen}.")
    publisher = Publisher(engine, policies, folder)
    if tolerance is None:
        tolerance = 3 * max(rounding(policies, policy) for policy in policies.policies)
    bench = Bench(engine, policies, publisher, tolerance, tokens, rows)
    report = EngineReport(type(engine).__name__)
    saved = policies.state_dict()
    try:
        for k, policy in enumerate(policies.policies):  # fresh adapters do nothing, and are alike
            _disturb(policies, policy, seed=k)
        bench.publish(policies.policies)
        for check in CHECKS:
            start = time.perf_counter()
            check(bench)
            report.passed[check.__name__] = time.perf_counter() - start
    finally:
        policies.load_state_dict(saved)
        publisher.close()
    return report


def rounding(policies: PolicySet, policy: str) -> float:
    """Returns the mean difference of log-probs, in nats, that rounding may cause: by precision and number of layers.

    Rounding errors of layers are added like independent ones, so they grow with the square root of their number.
    """
    base = policies.base(policy)
    return _ROUNDING[base.dtype] * float(base.model.config.get_text_config().num_hidden_layers) ** 0.5


def _check_hosted(engine: RolloutEngine, params: SamplingParams) -> EngineReport:
    """Checks that greetings are answered in text, one reply each, and finds out whether the endpoint calls tools."""
    report, start = EngineReport(type(engine).__name__), time.perf_counter()
    greetings = [[{"role": "user", "content": f"Hello, {name}"}] for name in ("Ann", "Bo")]
    replies = engine.generate([GenerationRequest("", [], i, messages=m) for i, m in enumerate(greetings)], params)
    if len(replies) != 2 or not all(reply.text for reply in replies):
        raise EngineCheckError(f"Two greetings were answered with {[reply.text or reply.error for reply in replies]}.")
    report.passed["greetings_are_answered"] = time.perf_counter() - start
    probe = getattr(engine, "calls_tools", None)
    report.tools = "" if probe is None else "native" if probe() else "text"
    return report


def logprobs_are_the_learners(bench: Bench) -> None:
    """What is sampled from is what is scored, at every temperature."""
    for temperature in (1.0, 0.7):
        requests = bench.requests()
        for request, reply in zip(requests, bench.engine.generate(requests, bench.params(temperature)), strict=True):
            scores = bench.scores(request, reply, temperature)
            _close(bench, reply, scores, f"at temperature {temperature} the learner", bench.tolerance / temperature)


def samples_follow_the_distribution(bench: Bench) -> None:
    """Surprise of one-token replies is, on average, the entropy."""
    requests = bench.repeated(row_seed(3, 0, i, 0) for i in range(DRAWS))
    surprise = np.array([-float(r.logprobs[0]) for r in bench.engine.generate(requests, SamplingParams(1))])
    entropy = float(bench.scored(requests[0], [0], 1.0)[1][-1])
    off = abs(surprise.mean() - entropy) / max(surprise.std() / DRAWS**0.5, 1e-9)
    if off > DEVIATIONS:
        raise EngineCheckError(
            f"The mean surprise of {DRAWS} samples is {surprise.mean():.3f} nats, {off:.1f} standard errors from the"
            f" entropy {entropy:.3f}. Expected replies drawn from the whole distribution: no top-k, top-p or penalty."
        )


def mixed_policies_equal_one_at_a_time(bench: Bench) -> None:
    """A batch of several policies gives each what it gets alone."""
    requests = bench.requests()
    together = bench.engine.generate(requests, bench.params())
    for policy in bench.policies.policies:
        rows = [i for i, request in enumerate(requests) if request.policy == policy]
        alone = bench.engine.generate([requests[i] for i in rows], bench.params())
        _same(bench, [together[i] for i in rows], alone, f"policy '{policy}' in a mixed batch and alone")


def a_publish_changes_one_policy(bench: Bench) -> None:
    """``publish`` changes the distribution of its policy and of no other, and replies carry the version."""
    requests = bench.requests()
    before = bench.engine.generate(requests, bench.params())
    changed = bench.policies.policies[0]
    with bench.disturbed(changed):
        after = bench.engine.generate(requests, bench.params())
        for request, reply in zip(requests, after, strict=True):
            _close(bench, reply, bench.scores(request, reply), f"after a publish the learner ('{request.policy}')")
    rows = [i for i, request in enumerate(requests) if request.policy == changed]
    others = [i for i, request in enumerate(requests) if request.policy != changed]
    _same(bench, [before[i] for i in others], [after[i] for i in others], "others before and after a publish")
    if not any(_differ(before[i], after[i], 100 * bench.tolerance) for i in rows):
        raise EngineCheckError(f"Publishing other weights of policy '{changed}' changed nothing of what it says.")
    if not all(after[i].version > before[i].version for i in rows):
        raise EngineCheckError("Replies carry the same version before and after a publish. Expected the published one.")
    _same(bench, before, bench.engine.generate(requests, bench.params()), "before a publish and after its return")


def seeds_fix_samples_in_any_batch(bench: Bench) -> None:
    """Equal seeds give equal samples, whatever the batch; other seeds give others."""
    requests = bench.requests()
    together = bench.engine.generate(requests, bench.params())
    _same(bench, together, bench.engine.generate(requests[::-1], bench.params())[::-1], "a batch and its reverse")
    few = requests[:4]
    alone = [bench.engine.generate([request], bench.params())[0] for request in few]
    _same(bench, together[:4], alone, "rows in a batch and alone")
    seeded = bench.repeated(row_seed(5, 0, i, 0) for i in range(8))
    if len({tuple(reply.action_ids) for reply in bench.engine.generate(seeded, bench.params())}) < 2:
        raise EngineCheckError("Eight seeds gave one sample. Expected the request's seed to decide.")


def greedy_is_the_most_likely_token(bench: Bench) -> None:
    """Greedy replies do not depend on seeds, and no token has a better alternative by sampling."""
    requests = bench.repeated(range(16))
    greedy = bench.engine.generate(requests, SamplingParams(1, greedy=True))
    if len({tuple(reply.action_ids) for reply in greedy}) != 1:
        raise EngineCheckError("Greedy replies to one prompt differ by seed.")
    best = bench.scores(requests[0], greedy[0])[0]
    for reply in bench.engine.generate(requests, SamplingParams(1)):
        if bench.scores(requests[0], reply)[0] > best + bench.tolerance:
            raise EngineCheckError(f"A sampled token is likelier than the greedy one, {greedy[0].action_ids}.")


def replies_stop_at_the_end_or_the_limit(bench: Bench) -> None:
    """A reply ends with the end token (``eos``) or after as many tokens as allowed (``length``); text is its ids'."""
    seen = set()
    for params in (bench.params(), SamplingParams(1)):
        requests = bench.requests()
        for request, reply in zip(requests, bench.engine.generate(requests, params), strict=True):
            base = bench.policies.base(request.policy)
            inside, last = reply.action_ids[:-1], reply.action_ids[-1:]
            ended = bool(last) and last[0] in base.chat.end_ids
            full = len(reply.action_ids) == params.max_new_tokens
            right = StopReason.EOS if ended else StopReason.LENGTH
            if any(i in base.chat.end_ids for i in inside) or not (ended or full) or reply.stop_reason is not right:
                raise EngineCheckError(
                    f"A reply of {len(reply.action_ids)} tokens (at most {params.max_new_tokens}) that ends with"
                    f" {last} has the stop reason '{reply.stop_reason}'; end tokens are {base.chat.end_ids}."
                )
            if reply.text != base.chat.text_of(reply.action_ids):
                raise EngineCheckError(f"The text {reply.text!r} is not that of the tokens {reply.action_ids}.")
            seen.add(reply.stop_reason)
    if len(seen) < 2:
        raise EngineCheckError(f"All replies ended with {seen}: give the check more tokens, or a model that ends.")


def empty_and_short_cases(bench: Bench) -> None:
    """No request gives no reply, an empty prompt is an ``EngineError``, one-token prompts work."""
    if bench.engine.generate([], bench.params()) != []:
        raise EngineCheckError("No requests gave replies.")
    policy = bench.policies.policies[0]
    try:
        bench.engine.generate([GenerationRequest(policy, [], 0)], bench.params())
    except EngineError:
        pass
    else:
        raise EngineCheckError("An empty prompt was answered. Expected EngineError.")
    token = bench.requests(1)[0].prompt_ids[-1]
    request = GenerationRequest(policy, [token], 5)
    (reply,) = bench.engine.generate([request], SamplingParams(1))
    if len(reply.action_ids) != 1:
        raise EngineCheckError(f"max_new_tokens = 1 gave {len(reply.action_ids)} tokens ({reply.error}).")
    _close(bench, reply, bench.scores(request, reply), "for a prompt of one token the learner")


def a_long_prompt_fails_alone(bench: Bench) -> None:
    """A prompt beyond the context is refused alone."""
    policy = bench.policies.policies[0]
    fine = bench.requests(1)[0]
    token = fine.prompt_ids[-1]
    long = GenerationRequest(policy, [token] * bench.policies.base(policy).chat.context, 1)
    answered, refused = bench.engine.generate([fine, long], bench.params())
    if answered.stop_reason is StopReason.ERROR:
        raise EngineCheckError(f"A prompt that fits failed beside one that does not: {answered.error}")
    if refused.stop_reason is not StopReason.REFUSED or refused.action_ids or "context" not in refused.error:
        raise EngineCheckError(
            f"A prompt as long as the context came back as '{refused.stop_reason}' ({refused.error or refused.text!r})."
            " Expected StopReason.REFUSED and a message that names the context."
        )


def one_by_one_equals_together(bench: Bench) -> None:
    """An engine that answers ``one_by_one`` says the same to requests that several threads bring one at a time."""
    if not bench.engine.one_by_one:
        return
    requests = bench.requests()
    with ThreadPoolExecutor(len(requests)) as pool:
        single = pool.map(lambda request: bench.engine.generate([request], bench.params())[0], requests)
        _same(bench, bench.engine.generate(requests, bench.params()), list(single), "one call and one by one")


def sleep_changes_nothing(bench: Bench) -> None:
    """After ``sleep`` and ``wake`` it gives the same replies."""
    requests = bench.requests()
    before = bench.engine.generate(requests, bench.params())
    bench.engine.sleep()
    bench.engine.wake()
    _same(bench, before, bench.engine.generate(requests, bench.params()), "before and after sleep")


CHECKS: tuple[Callable[[Bench], None], ...] = (
    logprobs_are_the_learners,
    samples_follow_the_distribution,
    mixed_policies_equal_one_at_a_time,
    a_publish_changes_one_policy,
    seeds_fix_samples_in_any_batch,
    greedy_is_the_most_likely_token,
    replies_stop_at_the_end_or_the_limit,
    empty_and_short_cases,
    a_long_prompt_fails_alone,
    one_by_one_equals_together,
    sleep_changes_nothing,
)


def _disturb(policies: PolicySet, policy: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in policies.parameters(policy):
            tensor.add_(NOISE * torch.randn(tensor.shape, generator=generator).to(tensor.device))


def _close(bench: Bench, reply: Generation, expected: FloatArray, who: str, allowed: float | None = None) -> None:
    if reply.stop_reason is StopReason.ERROR:
        raise EngineCheckError(f"A request failed: {reply.error}")
    if len(reply.logprobs) != len(reply.action_ids) or not reply.action_ids or reply.logprobs.dtype != np.float32:
        raise EngineCheckError(f"{len(reply.action_ids)} tokens have {len(reply.logprobs)} log-probs; expected fp32.")
    gap, allowed = float(np.abs(reply.logprobs - expected).max()), allowed or bench.tolerance
    if not gap <= allowed:
        raise EngineCheckError(f"Engine and {who} differ by {gap:.2e} in a token's log-prob; allowed {allowed:.2e}.")


def _differ(a: Generation, b: Generation, tolerance: float) -> bool:
    return a.action_ids != b.action_ids or bool(np.abs(a.logprobs - b.logprobs).max(initial=0.0) > tolerance)


def _same(bench: Bench, a: Sequence[Generation], b: Sequence[Generation], what: str) -> None:
    for i, (x, y) in enumerate(zip(a, b, strict=True)):
        if StopReason.ERROR in (x.stop_reason, y.stop_reason):
            raise EngineCheckError(f"A request failed: {x.error or y.error}")
        if _differ(x, y, 2 * bench.tolerance) or x.stop_reason is not y.stop_reason or x.text != y.text:
            raise EngineCheckError(f"Reply {i} is not the same for {what}: {x.action_ids} and {y.action_ids}.")
