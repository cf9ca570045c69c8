"""MARFT in the shape of released research code, as the baseline of ``perf_iteration`` and ``perf_quickstart``.

The mathematics is ``marft_algos``'s own (credit, surrogate, value loss); what differs is how it is computed, after
the released code: ``generate`` writes the replies; the sampled tokens' log-probs come from another forward pass over
whole sequences; so do the values, from a critic trunk that is run again in every epoch although it is frozen; the
output head runs on every position, in the trunk's pass for values, too; each minibatch makes a second forward pass of
the policy whose result is thrown away (its seconds are counted apart, in ``discarded``); logits, log-probs and
entropies of all [B, T, V] are held; each agent has a base model of its own, the critic another one; texts are padded
to the longest.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Adam

from marft_algos.algos.marft import MARFT, MARFTConfig
from marft_algos.batching import decision_points, minibatches, pack
from marft_algos.engines.base import EngineBase
from marft_algos.functional import value_loss
from marft_algos.policy import PolicySet
from marft_algos.types import Generation, GenerationRequest, SamplingParams, StopReason, Trajectory, Transition


class PlainEngine(EngineBase):
    """``generate`` with left padding, a policy at a time; log-probs by a second pass over what was written."""

    def __init__(self, learner: PlainMARFT) -> None:
        self._learner = learner

    def generate(self, requests: Sequence[GenerationRequest], params: SamplingParams) -> list[Generation]:
        """Returns one generation per request, in order."""
        found: dict[int, Generation] = {}
        for policy in dict.fromkeys(r.policy for r in requests):
            rows = [i for i, r in enumerate(requests) if r.policy == policy]
            found |= zip(rows, self._generate(policy, [requests[i].prompt_ids for i in rows], params), strict=True)
        return [found[i] for i in range(len(requests))]

    @torch.no_grad()
    def _generate(self, policy: str, prompts: list[list[int]], params: SamplingParams) -> list[Generation]:
        base, model = self._learner.policies.base(policy), self._learner.actors[policy]
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(row)) + row for row in prompts])
        kept = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in prompts])
        how = {"do_sample": False} if params.greedy else {"do_sample": True, "top_k": 0}
        if not params.greedy:
            how["temperature"] = params.temperature
        ends = list(base.end_ids) or None
        whole = model.generate(
            input_ids=ids, attention_mask=kept, max_new_tokens=params.max_new_tokens, eos_token_id=ends,
            pad_token_id=0, **how,
        )  # fmt: skip
        logits = model(input_ids=whole, attention_mask=_attended(kept, whole), position_ids=_positions(kept, whole))
        scores = torch.log_softmax(logits.logits[:, :-1].float() / params.temperature, -1)
        scores = scores.gather(-1, whole[:, 1:, None])[..., 0][:, width - 1 :].numpy()
        made = []
        for row, score in zip(whole[:, width:].tolist(), scores, strict=True):
            n = next((i + 1 for i, token in enumerate(row) if token in base.end_ids), len(row))
            reason = StopReason.EOS if row[n - 1] in base.end_ids else StopReason.LENGTH
            text = base.tokenizer.decode(row[:n], skip_special_tokens=True)
            made.append(Generation(row[:n], score[:n].copy(), reason, 0, text))
        return made


class PlainMARFT:
    """The learner: one PEFT model per agent, a critic with a trunk of its own, full logits everywhere."""

    def __init__(self, policies: PolicySet, config: MARFTConfig, hidden: int = 64) -> None:
        self.policies, self.config, self.algorithm = policies, config, MARFT(config)
        self.discarded = 0.0
        """CPU seconds spent so far on forward passes whose results nobody uses."""
        lora = {"r": 8, "lora_alpha": 16, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}
        self.actors: dict[str, nn.Module] = {}
        self.critics: dict[str, tuple[nn.Module, nn.Module]] = {}
        for policy in policies.policies:
            base = policies.base(policy).model
            actor = get_peft_model(copy.deepcopy(base), LoraConfig(**lora)).eval()
            actor.generation_config.eos_token_id = None
            self.actors[policy] = actor
            head = nn.Sequential(nn.Linear(base.config.hidden_size, hidden), nn.ReLU(), nn.Linear(hidden, 1))
            self.critics[policy] = (copy.deepcopy(base), head)
        self.optimizers = {
            p: Adam([w for w in a.parameters() if w.requires_grad], lr=config.lr) for p, a in self.actors.items()
        }
        self.value_optimizers = {p: Adam(c[1].parameters(), lr=config.critic_lr) for p, c in self.critics.items()}

    def update(self, trajectories: Sequence[Trajectory], iteration: int) -> None:
        """One iteration's learning."""
        turns = [t for trajectory in trajectories for t in trajectory.transitions]
        rows = {p: [t for t in turns if t.policy == p] for p in self.actors}
        for policy, own in rows.items():
            with torch.no_grad():
                values = self._values(policy, own)
            for t, value in zip(own, values, strict=True):
                t.values = value.numpy().astype(np.float32)
        self.algorithm.credit(trajectories)
        rng = np.random.default_rng(iteration)
        for policy, own in rows.items():
            for _ in range(self.config.epochs):
                for part in minibatches(own, self.config.minibatches, rng):
                    self._fit(policy, part)
            for _ in range(self.config.critic_epochs):
                for part in minibatches(own, self.config.critic_minibatches, rng):
                    self._fit_critic(policy, part)

    def _fit(self, policy: str, part: list[Transition]) -> None:
        batch = pack(part, self.algorithm.level)
        start = time.process_time()
        with torch.no_grad():
            self.actors[policy](input_ids=batch.input_ids, attention_mask=batch.attention_mask.long())
        self.discarded += time.process_time() - start
        logits = self.actors[policy](input_ids=batch.input_ids, attention_mask=batch.attention_mask.long()).logits
        scores = torch.log_softmax(logits[:, :-1].float() / batch.temperature[:, None, None], -1)
        entropy = -(scores.exp() * scores).sum(-1)
        logprobs = scores.gather(-1, batch.input_ids[:, 1:, None])[..., 0]
        loss, _ = self.algorithm.surrogate(logprobs * batch.mask, batch)
        loss = loss - self.config.entropy_coef * batch.mean(entropy)
        self._step(self.optimizers[policy], loss)

    def _fit_critic(self, policy: str, part: list[Transition]) -> None:
        values = torch.cat(self._values(policy, part))
        returns = torch.from_numpy(np.concatenate([t.returns for t in part if t.returns is not None])).float()
        before = torch.from_numpy(np.concatenate([t.values for t in part if t.values is not None])).float()
        loss = value_loss(values, returns, before, self.config.value_clip, self.config.huber_delta).mean()
        self._step(self.value_optimizers[policy], loss)

    def _step(self, optimizer: Adam, loss: Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        clip_grad_norm_(
            [p for group in optimizer.param_groups for p in group["params"]], self.config.max_grad_norm or np.inf
        )
        optimizer.step()

    def _values(self, policy: str, rows: list[Transition]) -> list[Tensor]:
        """V of every decision point, from the states before it: a pass of the critic's own trunk, and of its head."""
        trunk, head = self.critics[policy]
        level = self.algorithm.level
        batch = pack([_bare(t) for t in rows], level)
        with torch.no_grad():
            output = trunk(
                input_ids=batch.input_ids, attention_mask=batch.attention_mask.long(), output_hidden_states=True
            )
        values = head(output.hidden_states[-1])[..., 0]
        starts = [len(t.prompt_ids) - 1 for t in rows]
        counts = [decision_points(t, level) for t in rows]
        return [values[i, start : start + n] for i, (start, n) in enumerate(zip(starts, counts, strict=True))]


def _bare(t: Transition) -> Transition:
    """The turn without its advantages, which are not there yet when it is first looked at."""
    bare = copy.copy(t)
    bare.advantages = None
    return bare


def _attended(kept: Tensor, whole: Tensor) -> Tensor:
    return torch.cat([kept, kept.new_ones(len(whole), whole.shape[1] - kept.shape[1])], dim=1)


def _positions(kept: Tensor, whole: Tensor) -> Tensor:
    return (_attended(kept, whole).cumsum(1) - 1).clamp(min=0)
