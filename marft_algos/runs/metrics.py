"""Every key of metrics.jsonl, with its unit and what it says: the one place, from which docs/metrics.md is made.

A part ``*`` of a key stands for a name: of an agent, a policy, a reason, a number. What an algorithm or credit rule of
somebody else's logs besides is a number without a description.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Metric:
    """What a number is."""

    unit: str
    """Empty: a pure number."""
    meaning: str


_EPISODES = {
    "iteration": ("", "Updates done; 0 is the untrained team."),
    "episodes": ("episodes", "Episodes of the iteration, those that an outage took included."),
    "episodes_played": ("episodes", "Episodes played, with those that refilled dropped groups."),
    "return": ("reward", "Mean return of the team, over episodes that no outage took."),
    "success": ("share", "Episodes that the task calls solved."),
    "turns": ("turns", "Mean turns of an episode."),
    "prompts_cut": ("turns", "Turns whose prompt was cut to fit the model's context, the oldest input first."),
    "prompts_rewritten": (
        "turns",
        "Turns whose prompt does not begin with what their agent last read and said: it is read as a whole.",
    ),
    "failed": ("share", "Episodes that could not go on, for whatever reason."),
    "infra": ("episodes", "Episodes that an outage took; they are in no other number."),
    "infra_rate": ("share", "The same, of all played."),
    "task_errors": ("episodes", "Episodes in which the task's code raised."),
    "starts": ("", "Distinct starts among the iteration's groups."),
    "distinct": ("", "Mean number of different transcripts of a group."),
    "groups": ("groups", "Groups that were learnt from."),
    "groups_dropped": ("groups", "Groups that were left out, as all of their episodes earned the same."),
    "branches": ("branches", "Replayed continuations that credit was taken from."),
    "branches_lost": ("branches", "Of these, those that an outage took."),
    "task/*": ("", "What the task itself measures, its mean over episodes."),
    "agent/*/length": ("tokens", "Mean length of an agent's replies."),
    "agent/*/cut": ("share", "Replies of an agent that ended at the limit of tokens."),
    "pool/return": ("reward", "What the present team was paid in episodes against past ones."),
    "pool/episodes": ("episodes", "Episodes against past teams."),
    "rejected": ("episodes", "Demonstrations that were left out since the run began."),
    "rejected/*": ("episodes", "The same, by reason."),
    "left_out/*": ("pairs", "Pairs of episodes that were left out since the run began, by reason."),
}
_COST = {
    "tokens": ("tokens", "Tokens sampled in the iteration's episodes."),
    "tokens_played": ("tokens", "The same, with episodes that were dropped."),
    "tokens_processed": ("tokens", "Tokens of prompts and replies."),
    "tokens_kept": ("tokens", "Of prompts, those that the engine had read for an earlier turn: not read again."),
    "tokens_read": ("tokens", "Tokens of the texts that the update's passes were asked to read, adapters on or off."),
    "tokens_computed": ("tokens", "The same without those that another text began with as well."),
    "tokens_replayed": ("tokens", "Tokens sampled in branches."),
    "latency_played": ("tokens", "The critical paths of all episodes played, added up."),
    "critical_path": ("tokens", "Sum over an episode's layers of the longest reply; mean over episodes."),
    "tokens_total": ("tokens", "Tokens sampled for training since the run began: what a budget counts."),
    "time_rollout": ("s", "Time in which episodes were waited for."),
    "time_wait": ("s", "Time in which rank 0 waited for episodes that workers play."),
    "time_publish": ("s", "Time in which new weights were put into the store or sent to servers."),
    "time_restart": ("s", "Time from the last line before a restart until the ranks were ready to go on."),
    "time_ranks": ("s", "A list: each rank's time in calls that all ranks make."),
    "time_players": ("", "A list: what each rank or worker has played (name, chunks, episodes, tokens, seconds)."),
    "time_update": ("s", "Time of the update."),
    "time_eval": ("s", "Time of the evaluation."),
    "time_total": ("s", "Time of the whole iteration."),
    "time_elapsed": ("s", "Time of the run, over all of its sessions."),
    "time_cpu": ("s", "CPU time of this process since it was started."),
    "engine/requests": ("requests", "Replies that servers were asked for."),
    "engine/retries": ("requests", "Attempts beyond a request's first."),
    "engine/failed": ("requests", "Requests that were given up."),
    "engine/empty": ("replies", "Replies without text; they score as any wrong reply."),
    "engine/refused": ("replies", "Of these, prompts that were refused: too long, or against the endpoint's policy."),
    "engine/tokens_in": ("tokens", "Tokens of prompts, as servers count them."),
    "engine/tokens_out": ("tokens", "Tokens of replies, as servers count them."),
    "engine/cost": ("currency", "What replies cost, in the currency of the prices given."),
    "engine/servers_down": ("servers", "Servers that do not answer."),
    "engine/workers": ("workers", "Workers that are ready."),
    "engine/restarts": ("workers", "Workers that were replaced."),
    "engine/chunks_redone": ("chunks", "Chunks that were given to another worker."),
    "engine/chunks_lost": ("chunks", "Chunks that were given up; their episodes count as lost."),
    "engine/publish_bytes": ("bytes", "Weights sent to workers."),
    "engine/ranks": ("ranks", "Processes that learn."),
    "engine/rank_restarts": ("", "How often the launcher has started all ranks again."),
    "engine/*": ("", "What an engine of somebody else's counts."),
}
_POLICY = {
    "loss": ("", "Mean of the loss over the update's minibatches."),
    "entropy": ("nats/token", "Entropy of the policy at the sampled tokens."),
    "kl": ("nats/token", "KL(old‖new), the k3 estimate; 0 where an update is one step."),
    "kl_reference": ("nats/token", "KL to where the policy started, as the loss has it."),
    "kl_stopped": ("", "1 if the update was ended by kl_stop."),
    "clip_share": ("share", "Tokens or turns whose ratio the clip bound."),
    "ratio_max": ("", "Largest ratio of new to old probability."),
    "ess": ("share", "Effective sample size of the ratios, of all tokens."),
    "sampler_gap": ("nats", "Largest difference of log-probs between sampler and learner, before the first step."),
    "tis_weight": ("", "Mean truncated importance weight, of the learner's probability to the sampler's."),
    "grad_norm": ("", "Norm of the gradient, before it is clipped."),
    "rows": ("turns", "Turns that the policy learnt from."),
    "tokens": ("tokens", "Tokens that it learnt from."),
    "steps": ("steps", "Steps of its optimiser."),
    "value_loss": ("reward²", "Loss of the value head, in units of normalised returns."),
    "explained_variance": ("share", "1 − Var(returns − values)/Var(returns); 0 says as much as the mean does."),
    "factor": ("", "Mean factor by which the updates of earlier policies weigh advantages."),
    "nll": ("nats/token", "Negative log-likelihood of the demonstrations."),
    "margin": ("nats", "Mean of what the better reply of a pair is preferred by."),
    "accuracy": ("share", "Pairs whose better reply is preferred."),
    "reward_better": ("nats", "Implicit reward of the better reply."),
    "reward_worse": ("nats", "Implicit reward of the worse reply."),
    "pairs": ("pairs", "Pairs that the policy learnt from."),
}
_CREDIT = {
    "kl_reward": ("nats/token", "KL to where the policies started, as it was taken from the reward."),
    "group_std": ("reward", "Standard deviation of returns within a group, its mean."),
    "group_flat": ("share", "Groups whose episodes all earned the same: they teach nothing."),
    "return_std": ("reward", "Standard deviation of returns over the batch."),
    "baseline": ("reward", "What returns are compared with: their running mean."),
    "baseline/*": ("reward", "The same, of a role."),
    "player_std/*": ("reward", "Standard deviation of a player's returns."),
    "lambda": ("", "Mean λ, which follows the length of replies."),
    "correct": ("share", "Episodes that the positive-example loss took as right."),
    "policy/*/factor_ess": ("share", "Effective sample size of those factors."),
    "unseen": ("share", "Earlier turns that a reply's prompt did not show, though the chain has them."),
    "vtrace/c": ("", "Mean truncated weight of a decision."),
    "vtrace/turn": ("", "Mean product of a turn's weights."),
    "vtrace/others": ("", "Mean weight of what others say beside a turn."),
    "behind/*/share": ("share", "Turns that were sampled so many versions ago."),
    "behind/*/gap": ("nats", "Largest difference of log-probs between their sampler and the learner."),
    "credit/judged": ("turns", "Turns that were replayed to judge the credit given."),
    "credit/context_variance": ("reward²", "Mean variance of the outcome over replies at one state."),
    "credit/rank_correlation": ("", "Spearman's, of a turn's advantage with its replayed credit."),
    "credit/influence/*": ("share", "Of that variance, what goes back to what the agent said."),
}
_EVAL = {
    "success": ("share", "Solved episodes of the panel; the mean return where the task does not say."),
    "low": ("share", "Lower end of its 95 % interval."),
    "high": ("share", "Upper end of its 95 % interval."),
    "n": ("episodes", "Episodes in it."),
    "instances": ("problems", "Distinct problems among them; 0 where the task names none."),
    "held_out": ("", "1 if none of them is trained on."),
    "gain": ("share", "Paired difference to the untrained team."),
    "gain_low": ("share", "Lower end of its 95 % interval."),
    "gain_high": ("share", "Upper end of its 95 % interval."),
}
SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Episodes": _EPISODES,
    "Tokens, time and engines": _COST,
    "Policies": {f"policy/*/{key}": what for key, what in _POLICY.items()},
    "Credit": _CREDIT,
    "Evaluation": {f"eval/{key}": what for key, what in _EVAL.items()},
}
"""Title -> key -> unit and meaning."""
METRICS = {key: Metric(*what) for part in SECTIONS.values() for key, what in part.items()}
_PATTERNS = {re.compile(re.escape(key).replace(r"\*", "[^/]+")): metric for key, metric in METRICS.items()}


@functools.cache
def describe(key: str) -> Metric | None:
    """Says what a key of metrics.jsonl is; None: nothing here logs it.

    >>> describe("policy/actor_0/kl").unit
    'nats/token'
    """
    if key in METRICS:
        return METRICS[key]
    found = next((metric for pattern, metric in _PATTERNS.items() if pattern.fullmatch(key)), None)
    if found is None and key.startswith("eval/"):  # an evaluation's own count of what iterations count
        return describe(key.removeprefix("eval/"))
    if found is None and key.startswith("task/"):
        return METRICS["task/*"]
    return found


def page() -> str:
    """Writes docs/metrics.md."""
    lines = [
        "# Metrics",
        "",
        "`runs/NAME/metrics.jsonl` has one line for each iteration, and one for the untrained team; `marft view` draws",
        "them. `*` stands for a name. An evaluation also logs `eval/` with `tokens`, `infra`, `task_errors`,",
        "`agent/*/…` and `task/*`, of its own episodes. `python -m marft_algos.runs.metrics > docs/metrics.md` makes",
        "this page.",
    ]
    for title, part in SECTIONS.items():
        lines += ["", f"## {title}", "", "| key, unit | what it says |", "|---|---|"]
        lines += [f"| `{key}`{unit and f', {unit}'} | {meaning} |" for key, (unit, meaning) in part.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    from marft_algos.terminal import say

    say(page(), end="")
