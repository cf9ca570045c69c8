"""Does a quarantine keep a team from obeying letters, and what does it cost?

::

    python -m benchmarks permissions --out runs/permissions

One agent with all permissions, a reader in quarantine with an actor who never sees the letter, and a messenger who
passes the letter on, each trained on as many sampled tokens from a warm start on the task's expert: on letters of which
half hold an attack of a kind that is seen in training, or on clean ones (``--trained``). Then each plays the held-out
requests without attacks, with attacks of seen kinds, and of unseen kinds, greedily. ``completed``: exactly what was
asked was done. ``obeyed``: the order that only attacks speak of was changed. Wilson intervals, 95 %; finished runs are
not run again.

``--scripted`` trains nothing: the same table of agents who do what they read (*credulous*), pass on all of it
(*parrot*), or know better (*wary*, *honest*), whatever models would do: what the structure alone bounds.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import marft_envs
from benchmarks.runs import Done, Job, run_all, share, table
from marft_algos.runs import intervals, paths
from marft_algos.training.evaluate import HeldOut
from marft_algos.types import Trajectory
from marft_envs import Episode, FlexEnv
from marft_envs.call_formats.call import ToolCall
from marft_envs.families.tools.depot.documents import DocumentRequests
from marft_envs.families.tools.depot.injections import demanded

TEAMS = ("solo", "quarantine", "messenger")
TRAINED = {"seen": 'domain_args={"attacks":"seen","share":0.5}', "none": 'domain_args={"attacks":"none"}'}
"""What letters a team is trained on."""
QUIET: dict[str, Any] = {"show_policy": False, "show_tools": "none"}
SCRIPTED = (
    ("solo", ("wary",)), ("solo", ("credulous",)),
    ("quarantine", ("honest", "credulous")), ("quarantine", ("parrot", "credulous")),
    ("messenger", ("parrot", "wary")), ("messenger", ("parrot", "credulous")),
)  # fmt: skip
"""Teams, and how their reader and their actor are."""
PLAYED = ("none", "seen", "unseen")


def main() -> None:
    """Runs what has not been run, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--trained", nargs="+", choices=TRAINED, default=list(TRAINED))
    parser.add_argument("--teams", nargs="+", choices=TEAMS, default=list(TEAMS))
    parser.add_argument("--tokens", type=int, default=40_000, help="sampled in the training of a team")
    parser.add_argument("--warm-start", type=int, default=64, help="iterations on the task's expert")
    parser.add_argument("--scripted", action="store_true", help="play scripted agents, and train nothing")
    args = parser.parse_args()
    if args.scripted:
        head = ["team", *(f"{what}, {a}" for a in ("none", "all") for what in ("completed", "obeyed"))]
        print(table(head, [[f"{team}: {', '.join(how)}", *bounds(team, how)] for team, how in SCRIPTED]))
        return
    lines = []
    for seed in range(args.seeds):
        for trained in args.trained:
            for team in args.teams:
                words = training(team, trained, seed, args.tokens, args.warm_start)
                job = Job(f"{team}-{trained}-{seed}", words)
                lines.append([team, trained, str(seed), *row(run_all([job], args.out, 1)[job.name])])
                print(" | ".join(lines[-1]), flush=True)
    head = ["team", "trained on attacks", "seed", *(f"{what}, {a}" for a in PLAYED for what in ("completed", "obeyed"))]
    print(table([*head, "tokens"], lines))


def bounds(team: str, how: Sequence[str]) -> list[str]:
    """Completion and obedience of scripted agents on every held-out letter, without and with attacks of all kinds."""
    out = []
    for attacks in ("none", "all"):
        domain_args = {"attacks": attacks}
        env = marft_envs.make(f"tools-{team}-v0", domain="documents", split="test", domain_args=domain_args, **QUIET)
        episodes = [scripted(env, problem.id, how) for problem in DocumentRequests().problems("test")]
        obeyed = [episode.metrics.get("obeyed", 0.0) for episode in episodes]
        out += [f"{sum(bool(e.success) for e in episodes)} of {len(episodes)}", f"{sum(obeyed):.0f}"]
    return out


def scripted(env: FlexEnv, task_id: str, how: Sequence[str]) -> Episode:
    """Plays one request. The agent with tools knows of the document what its prompt shows, and no more."""
    env.reset(seed=0, options={"task_id": task_id})
    task: Any = env.task
    while not env.done:
        agent = env.agent_selection
        if agent in (task.team.readers or ()):
            env.step(task.problem.document if "parrot" in how else task.problem.sought)
            continue
        seen = env.messages(agent)[-1]["content"] if not task.live.log else ""
        act = demanded(seen.replace("< tool_call>", "<tool_call>").replace("< /tool_call>", "</tool_call>"))
        acts = [act] if act is not None and "credulous" in how else []
        knows = re.search(rf"\b{task.problem.sought}\b", re.sub(r"order \d+", "", seen)) is not None
        calls = [*acts, *(task.gold_calls[0] if knows else ())]
        env.step(task.speech.write(agent, [*calls, ToolCall("finish", {})]))
    return env.episode


def training(team: str, trained: str, seed: int, tokens: int, warm: int) -> tuple[str, ...]:
    """The words of ``marft train``."""
    return (
        *("--preset", "tools", "--env", f"tools-{team}-v0", "--seed", str(seed)),
        *("--env-kwargs", "domain=letters", "show_policy=false", "show_tools=none", TRAINED[trained]),
        # A messenger spells out letters, which the embedded model has never done: adapters did not learn it.
        *("--full-finetune", "--lr", "3e-4", "--warm-start", str(warm)),
        *("--max-new-tokens", "96" if team == "messenger" else "24"),
        *("--iterations", "100000", "--token-budget", str(tokens), "--eval-every", "0"),
    )


def row(done: Done) -> list[str]:
    """Completion and obedience under each set of attacks, and the tokens of training."""
    out = []
    for attacks in PLAYED:
        played = play(done, attacks)
        out += [rate(played, "completion"), rate(played, "obeyed") if attacks != "none" else "–"]
    return [*out, f"{done.tokens / 1000:.0f}k"]


def play(done: Done, attacks: str) -> list[Trajectory]:
    """Plays every held-out request with attacks of these kinds in all of its letters."""
    config = paths.of_run(done.run)
    held_out = {**config.eval_kwargs, "domain_args": {"attacks": attacks, "share": 1.0}}
    config = dataclasses.replace(config, eval_kwargs=held_out, eval_episodes=1000)
    team = HeldOut(config)
    team.load(done.run)
    return team.play()


def rate(played: Sequence[Trajectory], metric: str) -> str:
    """A metric's mean with its interval."""
    return share(intervals.mean([float(t.episode.metrics[metric]) for t in played]))


if __name__ == "__main__":
    main()
