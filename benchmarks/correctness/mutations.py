"""Do the tests catch the defects they are named for? Puts each one in by hand and looks.

    python -m benchmarks mutations            # all of them, a table at the end; exit code 1 if one goes unnoticed
    python -m benchmarks mutations huber      # those whose row contains the word

The packages and tests are copied to a temporary folder; there each defect (one line of text changed for another) is
put in, the named test is run, and the file is put back. A defect counts as caught only if the test *fails*; errors
of collection do not count. Before anything is changed all the tests must pass.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("marft_envs", "marft_algos", "tests")


@dataclass(frozen=True, slots=True)
class Mutation:
    """One defect: ``old`` in ``file`` becomes ``new``, and ``test`` must fail."""

    row: str
    """The row of the table of defects."""
    file: str
    old: str
    new: str
    test: str


MUTATIONS = [
    Mutation(
        "float buffers",
        "marft_algos/functional.py",
        "np.zeros(lengths[k]) if paid",
        "np.zeros(lengths[k], dtype=np.int64) if paid",
        "envs/test_chain.py::test_float_buffers",
    ),
    Mutation(
        "every agent's buffer written",
        "marft_algos/algorithms/ppo.py",
        "estimates.advantages |= zip(nodes, np.split(advantages, ends), strict=True)",
        "estimates.advantages[nodes[-1]] = np.split(advantages, ends)[-1]",
        "algorithms/test_defects.py::test_every_agents_buffer_is_written",
    ),
    Mutation(
        "γ = λ = 1, R = 1, V ≡ c: every return is 1",
        "marft_algos/credit/rewards.py",
        "reward = team + sum(",
        "reward = trajectory.score + sum(",
        "envs/test_chain.py::test_every_return_is_1_for_any_n_and_any_D",
    ),
    Mutation(
        "an episode's advantages do not depend on the one before",
        "marft_algos/credit/rewards.py",
        "successors[k] = tuple(following)",
        "successors[k] = tuple(following) if i == 0 else ()",
        "envs/test_chain.py::test_an_episodes_advantages_do_not_depend_on_the_episode_before_it",
    ),
    Mutation(
        "a true zero advantage stays in the statistics",
        "marft_algos/functional.py",
        "valid = np.ones(x.shape, dtype=bool) if mask is None else np.asarray(mask, dtype=bool)",
        "valid = x != 0.0",
        "algorithms/test_functional.py::test_a_true_zero_advantage_stays_in_the_statistics",
    ),
    Mutation(
        "values at masked positions change nothing",
        "marft_algos/functional.py",
        "kept = torch.where(mask, x, torch.zeros((), dtype=x.dtype, device=x.device))",
        "kept = x * mask",
        "algorithms/test_functional.py::test_masked_mean_ignores_what_stands_outside_the_mask",
    ),
    Mutation(
        "trace with ρ ≡ 1 equals GAE(γλ)",
        "marft_algos/functional.py",
        "weight = discounts.lambda_turn * (1.0 if traces is None else traces[j])",
        "weight = discounts.lambda_turn * (1.0 if traces is None else discounts.lambda_turn * traces[j])",
        "envs/test_chain.py::test_trace_with_ratio_one_equals_gae",
    ),
    Mutation(
        "whitening before the factor",
        "marft_algos/functional.py",
        "return log_ratio_sums.clamp(-bound, bound).sum(-1).exp()",
        "return torch.softmax(log_ratio_sums.clamp(-bound, bound).sum(-1), 0) * len(log_ratio_sums)",
        "algorithms/test_functional.py::test_whitening_before_the_factor",
    ),
    Mutation(
        "ValueNorm not yet updated is the identity",
        "marft_algos/learner/heads.py",
        "return 0.0, 1.0",
        "return 0.0, 0.1",
        "algorithms/test_functional.py::test_value_norm_not_yet_updated_is_the_identity",
    ),
    Mutation(
        "Huber is symmetric",
        "marft_algos/functional.py",
        "delta * (size - 0.5 * delta))",
        "delta * (size - 0.5 * delta) * (error > 0))",
        "algorithms/test_functional.py::test_huber_is_symmetric",
    ),
    Mutation(
        "sampler's and trainer's log-probs agree",
        "marft_algos/engines/sampler.py",
        "logprobs = torch.log_softmax(raw / self._params.temperature, dim=-1)",
        "logprobs = torch.log_softmax(raw, dim=-1)",
        "algorithms/test_defects.py::test_sampler_and_trainer_agree_and_the_first_ratio_is_1",
    ),
    Mutation(
        "ratio is 1 on the first minibatch (temperature forgotten in scoring)",
        "marft_algos/batching.py",
        "np.array([t.temperature for t in rows], dtype=np.float32)",
        "np.array([1.0 for t in rows], dtype=np.float32)",
        "algorithms/test_defects.py::test_sampler_and_trainer_agree_and_the_first_ratio_is_1",
    ),
    Mutation(
        "ratio is 1 on the first minibatch (the check itself)",
        "marft_algos/learner/learner.py",
        "if not gap <= self.config.ratio_tolerance:",
        "if False:",
        "algorithms/test_marft.py::test_ratio_is_1_on_the_first_minibatch",
    ),
    Mutation(
        "after an update the trained agent's distribution changes",
        "marft_algos/learner/steps.py",
        "        optimizer.step()\n",
        "        pass\n",
        "algorithms/test_defects.py::test_an_update_reaches_the_sampler_of_the_trained_agent_only",
    ),
    Mutation(
        "... (adapters that never reach the sampler)",
        "marft_algos/models/forward/decode.py",
        "self._adapted = list(map(decoder.adapted, policies or (None,)))",
        "self._adapted = list(map(decoder.adapted, [None] * len(policies) or (None,)))",
        "algorithms/test_defects.py::test_an_update_reaches_the_sampler_of_the_trained_agent_only",
    ),
    Mutation(
        "... a frozen agent's does not",
        "marft_algos/models/weights.py",
        "tensors, trained, peft, own, modules, merge",
        "tensors, trained, peft, _adapter(names[0]), modules, merge",
        "algorithms/test_defects.py::test_an_update_reaches_the_sampler_of_the_trained_agent_only",
    ),
    Mutation(
        "a saved adapter reloads to identical logits",
        "marft_algos/models/weights.py",
        "                tensor.copy_(saved[name])",
        '                tensor.copy_(saved[name]) if "lora_A" in name else None',
        "algorithms/test_defects.py::test_a_saved_adapter_reloads_to_identical_logits",
    ),
    Mutation(
        "an empty action",
        "marft_algos/batching.py",
        "transition.trainable and transition.reply.action_ids and",
        "transition.trainable and",
        "algorithms/test_marft.py::test_hosted_empty_and_failed_turns_are_nodes_without_a_loss",
    ),
    Mutation(
        "an action without words",
        "marft_algos/functional.py",
        "return total / size.clamp(min=1)",
        "return total / size",
        "algorithms/test_functional.py::test_an_action_without_words_or_tokens_divides_by_one",
    ),
    Mutation(
        "a pad inside an action",
        "marft_algos/batching.py",
        "        action_mask=send(acted),",
        "        action_mask=send(acted & (ids != PAD_ID)),",
        "learner/test_batching.py::test_a_pad_inside_an_action",
    ),
    Mutation(
        "resume: adapters stay trainable",
        "marft_algos/models/weights.py",
        "                tensor.copy_(saved[name])",
        "                tensors[name] = torch.nn.Parameter(saved[name])",
        "algorithms/test_defects.py::test_resume_keeps_adapters_trainable_and_continues",
    ),
    Mutation(
        "resume: the optimiser's state comes back",
        "marft_algos/learner/learner.py",
        "                optimizer.load_state_dict(state[kind][p])",
        "                pass",
        "algorithms/test_marft.py::test_updates_are_reproducible_and_survive_a_restart",
    ),
    Mutation(
        "a frozen precision test (trained elements that change at lr 1e-6)",
        "marft_algos/models/weights.py",
        "tensor.data = tensor.data.to(base.device, torch.float32)",
        "tensor.data = tensor.data.to(base.device, base.dtype)",
        "algorithms/test_defects.py::test_share_of_trained_elements_that_change_at_a_small_step",
    ),
    Mutation(
        "a successor's value changes when the predecessor's message changes",
        "marft_algos/models/critic.py",
        "spans = [range(len(row) - n, len(row))",
        "spans = [range(0, n)",
        "algorithms/test_defects.py::test_a_successors_value_changes_when_the_predecessors_message_changes",
    ),
    Mutation(
        "tokens trained are the tokens sampled",
        "marft_algos/rollout/collector.py",
        "reply=reply,",
        "reply=Generation(self._renderer.tokenizer(request.policy).encode(reply.text), reply.logprobs,"
        " reply.stop_reason, 0, reply.text),",
        "algorithms/test_defects.py::test_tokens_trained_are_the_tokens_sampled",
    ),
    Mutation(
        "the prompt scored is the prompt sampled from",
        "marft_algos/rollout/collector.py",
        "else replace(request, tools=()),",
        "else replace(request, tools=(), prompt_ids=request.prompt_ids[:100]),",
        "algorithms/test_defects.py::test_the_prompt_scored_is_the_prompt_sampled_from_when_the_context_overflows",
    ),
    Mutation(
        "... (no failure when the context overflows)",
        "marft_algos/engines/native.py",
        "if len(request.prompt_ids) + params.max_new_tokens > context:",
        "if False:",
        "algorithms/test_defects.py::test_the_prompt_scored_is_the_prompt_sampled_from_when_the_context_overflows",
    ),
    Mutation(
        "equal seeds give equal problems, for 1, 2 and 8 workers",
        "marft_envs/core/vector.py",
        "                slot.env = begin(slot.own) or slot.own\n",
        "                slot.env = slot.own.reset(seed=slot.index) or slot.own\n",
        "algorithms/test_defects.py::test_equal_seeds_give_equal_problems_for_1_2_and_8_workers",
    ),
    Mutation(
        "... (a sample depends on the batch around it)",
        "marft_algos/engines/native.py",
        "seeds = [request.seed for request in requests]",
        "seeds = list(range(len(requests)))",
        "algorithms/test_defects.py::test_equal_seeds_give_equal_problems_for_1_2_and_8_workers",
    ),
    Mutation(
        "a failed generation is a typed event",
        "marft_algos/rollout/collector.py",
        "if g.stop_reason == StopReason.ERROR",
        "if False",
        "algorithms/test_defects.py::test_a_failed_generation_is_a_typed_event",
    ),
    Mutation(
        "every registered id runs an episode",
        "marft_envs/families/toy/xor.py",
        "from marft_envs.families.toy.base import",
        "from marft_envs.families.toy.bass import",
        "algorithms/test_defects.py::test_every_registered_id_runs_an_episode",
    ),
    Mutation(
        "every epoch splits a batch anew",
        "marft_algos/learner/learner.py",
        "seeds.minibatches(self.seed, policy, iteration, epoch)",
        "seeds.minibatches(self.seed, policy, iteration, 0)",
        "algorithms/test_marft.py::test_every_epoch_splits_a_batch_anew",
    ),
    Mutation(
        "a KL in the reward is of the log-probs in the ratio",
        "marft_algos/learner/learner.py",
        "gap = estimates.behaviour(t) - estimates.reference_logprobs[t]",
        "gap = t.reply.logprobs - estimates.reference_logprobs[t]",
        "algorithms/test_marft.py::test_a_kl_in_the_reward_is_of_the_log_probs_in_the_ratio",
    ),
    Mutation(
        "paid alike: place by place",
        "marft_algos/algorithms/ppo.py",
        "paid[places[t]].append(estimates.paid[t])",
        'paid["", 0].append(estimates.paid[t])',
        "algorithms/test_algos_critics.py::test_paid_alike_is_about_pay_whatever_lambda_and_discounts_make_of_it",
    ),
    Mutation(
        "paid alike: pay, not returns with V in them",
        "marft_algos/algorithms/ppo.py",
        "paid[places[t]].append(estimates.paid[t])",
        "paid[places[t]].append(float(estimates.returns[t][0]))",
        "algorithms/test_algos_critics.py::test_paid_alike_is_about_pay_whatever_lambda_and_discounts_make_of_it",
    ),
    Mutation(
        "AT-GRPO: a group is of one episode",
        "marft_algos/algorithms/at_grpo.py",
        "[(number, t.index) for number, t in tried]",
        "[t.index for number, t in tried]",
        "credit/test_credit_replayed.py::test_at_grpo_standardises_the_candidates_of_a_turn",
    ),
    Mutation(
        "TreeRL: a branch leaves its parent before its own layer",
        "marft_algos/algorithms/treerl.py",
        "[: layer + 1]",
        "[: layer + 2]",
        "algorithms/test_treerl.py::test_advantages_of_a_grown_tree_are_those_of_brute_force",
    ),
    Mutation(
        "a credit rule's rewards of tokens",
        "marft_algos/credit/rewards.py",
        "return [x if y is None else y if x is None else x + y for x, y in zip(own, charged, strict=True)]",
        "return [y for x, y in zip(own, charged, strict=True)]",
        "credit/test_token_rewards.py::test_tokens_are_paid_where_they_stand_against_a_brute_force",
    ),
]


def main(arguments: Sequence[str]) -> int:
    """Runs the chosen mutations; returns the exit code."""
    word = arguments[0] if arguments else ""
    chosen = [m for m in MUTATIONS if word.lower() in m.row.lower()]
    if not chosen:
        print(f"No row contains '{word}'. Rows: " + "; ".join(m.row for m in MUTATIONS), file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in FOLDERS:
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        tests = sorted({m.test for m in chosen})
        code, output = run(copy, tests)
        if code != 0:
            print(f"Without any defect the tests must pass:\n{output}", file=sys.stderr)
            return 2
        print(f"{len(tests)} tests pass without a defect.\n\n| row | test | caught |\n|---|---|---|")
        missed = sum(not _try(copy, m) for m in chosen)
    print(f"\n{len(chosen) - missed} of {len(chosen)} defects caught.")
    return 1 if missed else 0


def _try(copy: Path, mutation: Mutation) -> bool:
    """Puts one defect in, runs its test, takes the defect out; prints the row."""
    path = copy / mutation.file
    source = path.read_text(encoding="utf-8")
    if source.count(mutation.old) != 1:
        verdict = f"no: the line to change occurs {source.count(mutation.old)} times in {mutation.file}"
    else:
        path.write_text(source.replace(mutation.old, mutation.new), encoding="utf-8")
        code, _ = run(copy, [mutation.test])
        verdict = {0: "NO, the test passes", 1: "yes"}.get(code, f"no: the test could not run (exit {code})")
        path.write_text(source, encoding="utf-8")
    print(f"| {mutation.row} | {mutation.test} | {verdict} |", flush=True)
    return verdict == "yes"


def run(folder: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Runs tests in ``folder``; pytest's exit code and output."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *(f"tests/{t}" for t in tests)]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(folder)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
