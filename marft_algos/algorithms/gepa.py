"""GEPA: what is learnt are the agents' profiles; somebody who has read episodes rewrites one (arXiv 2507.19457).

No weight moves, so every policy may be hosted. A candidate is a profile for each agent; the first is the team as it is.

    1. each start of an iteration is played twice: by a parent and by its child, who differ in one agent's profile
    2. the child becomes a candidate if its mean score on these prompts is above the parent's
    3. parent of the next child: drawn by the number of kinds of starts at which a candidate is the best
    4. next agent in turn: the proposer reads its profile and some of the parent's episodes, and writes another profile

With a credit rule that replays (``credit = {rule = "blame", failures = 4}``), the next agent is drawn by how much its
turns cost in the parent's failures, and the proposer reads the credit of every turn. That is worth its cost in teams of
eight agents or so (docs/why-did-my-team-fail.md).

The candidate with the highest mean score over all that it played, each mean drawn towards 1/2 by two episodes, is what
the team is prompted with when it is evaluated.

Departures. The paper's front is over single instances of a set that every candidate plays whole; here a kind of starts
(a task's id up to its last ``/``) stands for an instance, and a candidate's scores are those of the starts that it has
played anyway. There is no merge of two candidates. The proposer is a function, or a hosted model that is asked once an
iteration.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Annotated, Any, ClassVar

import numpy as np

from marft_algos import seeds
from marft_algos.algorithms.base import Algorithm, GroupConfig, register
from marft_algos.ranges import COUNT
from marft_algos.types import Estimates, SamplingParams, Trajectory
from marft_envs.errors import ConfigError
from marft_envs.registration import named_function

Proposer = Callable[[str, str, Sequence[Mapping[str, Any]]], str]
"""(agent, its profile, episodes) -> another profile. An episode has ``task_id``, ``score``, ``success`` and ``turns``:
of each turn the agent, its prompt from the task (``observation``), its ``text``, what came of it (``result``), and its
``credit`` if a rule has replayed it."""
_FENCED = re.compile(r"```[^\n]*\n(.*?)```", re.DOTALL)
_ASKED = (resources.files("marft_algos.algorithms") / "gepa.txt").read_text(encoding="utf-8").rstrip()
_CHARS = 4000
"""Of an episode, most characters that a hosted proposer is shown."""


@dataclass(frozen=True)
class GEPAConfig(GroupConfig):
    """Settings of GEPA; of those that algorithms share, the ones about weights have no effect."""

    group_size: Annotated[int, COUNT] = 2
    """Parent and child: 2."""
    proposer: str | dict[str, Any] = ""
    """Who writes profiles: ``module:function``, or the table of a hosted model, ``{kind="openai", model="…"}``."""
    credit: str | dict[str, Any] = "broadcast"
    """Credit rule; with one that replays, ``{rule = "blame", failures = 4}``, the agent to blame is rewritten next."""
    shown: Annotated[int, COUNT] = 4
    """Episodes that the proposer reads, those with the lowest scores first, and the best one last."""
    proposal_tokens: Annotated[int, COUNT] = 1024
    """Longest answer of a hosted proposer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.group_size != 2:
            raise ConfigError(f"group_size is {self.group_size}; gepa plays each start by parent and child: 2.")


@dataclass(slots=True)
class Candidate:
    """Profiles of a team, and what it came to with them."""

    profiles: dict[str, str]
    scores: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Kind of starts -> sum of scores, and episodes."""
    episodes: list[dict[str, Any]] = field(default_factory=list)
    """Of its last iteration, for the proposer."""

    def mean(self, kind: str | None = None) -> float:
        """Returns the mean score, drawn towards 1/2 by two episodes: of one kind, or of all."""
        of = [(total, n) for name, (total, n) in self.scores.items() if kind in (None, name)]
        return (1.0 + sum(total for total, _ in of)) / (2.0 + sum(n for _, n in of))


@register("gepa")
class GEPA(Algorithm):
    """Rewrites profiles, and keeps what scores higher."""

    Config = GEPAConfig
    config: GEPAConfig
    needs = frozenset({"groups"})
    trains: ClassVar[bool] = False

    def __init__(self, config: GEPAConfig | None = None, sampling: SamplingParams | None = None) -> None:
        super().__init__(config, sampling)
        self.pool: list[Candidate] = [Candidate({})]
        self.parent, self.child, self.turn = 0, dict[str, str](), 0
        self.base: dict[str, str] = {}
        """Agent -> its profile where a candidate has none, of those that are trained."""

    def profiles(self, member: int | None) -> Mapping[str, str]:
        """Returns the parent's profiles (member 0), the child's (1), or the best candidate's (None).

        Raises:
            ConfigError: There is no proposer: nothing is played in vain.
        """
        if isinstance(self.config.proposer, str):
            _function(self.config.proposer)
        if member is None:
            return max(self.pool, key=Candidate.mean).profiles
        return self.child if member and self.child else self.pool[self.parent].profiles

    def order(self, rows: Any, estimates: Estimates, iteration: int) -> list[list[str]]:
        """Returns no policy: no weight is updated."""
        return []

    def credit(self, trajectories: Sequence[Trajectory], estimates: Estimates) -> dict[str, float]:
        """Judges the child, and lets the proposer write the next one."""
        parent, child = self.pool[self.parent], Candidate(dict(self.child))
        told = {False: parent, True: child}
        pairs: dict[int, dict[bool, float]] = {}
        parent.episodes = []
        for d in trajectories:
            if not d.episode.options.get("profiles") and not self.base:
                self.base = {agent.name: agent.prompt for agent in d.episode.agents if agent.trained}
            is_child = bool(self.child) and dict(d.episode.options.get("profiles", {})) == self.child
            kind, score = d.task_id.rpartition("/")[0], _score(d)
            total, n = told[is_child].scores.get(kind, (0.0, 0))
            told[is_child].scores[kind] = total + score, n + 1
            told[is_child].episodes.append(_shown(d))
            pairs.setdefault(d.group, {})[is_child] = score
        gains = [of[True] - of[False] for of in pairs.values() if len(of) == 2]
        accepted = bool(gains) and float(np.mean(gains)) > 0.0
        if accepted:
            self.pool.append(child)
        metrics = {"gepa/gain": float(np.mean(gains))} if gains else {}
        self._next()
        best = max(self.pool, key=Candidate.mean)
        return metrics | {
            "gepa/accepted": float(accepted),
            "gepa/candidates": float(len(self.pool)),
            "gepa/best": best.mean(),
        }

    def _next(self) -> None:
        """Draws a parent, and has one agent's profile rewritten."""
        kinds = sorted({kind for c in self.pool for kind in c.scores})
        best = [int(np.argmax([c.mean(kind) for c in self.pool])) for kind in kinds]
        rng = seeds.generator(seeds.parents(self.seed, self.turn))
        self.parent = int(rng.choice(best)) if best else 0
        parent = self.pool[self.parent]
        if not (agents := list(self.base)):
            return  # every episode was lost to an infrastructure error
        agent, failed = agents[self.turn % len(agents)], [e["turns"] for e in parent.episodes if not e["success"]]
        credits = [(turn["agent"], turn.get("credit", 0.0)) for turns in failed for turn in turns]
        costs = np.maximum([-sum(credit for name, credit in credits if name == own) for own in agents], 0.0)
        if costs.any():
            agent = str(rng.choice(agents, p=costs / costs.sum()))
        self.turn += 1
        profile = parent.profiles.get(agent, self.base[agent])
        ranked = sorted(parent.episodes, key=lambda e: (e["score"], not any("credit" in turn for turn in e["turns"])))
        shown = ranked[: self.config.shown - 1] + ranked[-1:] if len(ranked) > self.config.shown else ranked
        written = self._propose(agent, profile, shown)
        self.child = {**parent.profiles, agent: written} if written.strip() and written != profile else {}

    def _propose(self, agent: str, profile: str, episodes: Sequence[Mapping[str, Any]]) -> str:
        """Asks the proposer for another profile; its words are text, and nothing else.

        Raises:
            ConfigError: There is no proposer.
            EngineError: A hosted one does not answer; see ``ask``.
        """
        if isinstance(self.config.proposer, str):
            return _function(self.config.proposer)(agent, profile, episodes)
        if self.ask is None:
            raise ConfigError("A hosted proposer is asked by the project's trainer. Give proposer='module:function'.")
        told = "\n\n".join(_written(episode) for episode in episodes)
        asked = _ASKED.format(agent=agent, profile=profile, episodes=told)
        fenced = _FENCED.findall(self.ask(asked, self.config.proposal_tokens))
        return fenced[-1].strip() if fenced else ""

    def state_dict(self) -> dict[str, Any]:
        """Returns the candidates, and who is tried next."""
        kept = [{"profiles": c.profiles, "scores": c.scores, "episodes": c.episodes} for c in self.pool]
        return {"candidates": kept, "base": self.base, "parent": self.parent, "child": self.child, "turn": self.turn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores ``state_dict``."""
        self.pool, self.base = [Candidate(**kept) for kept in state["candidates"]], state["base"]
        self.parent, self.child, self.turn = state["parent"], state["child"], state["turn"]


def _function(name: str) -> Proposer:
    """Returns the function that ``module:function`` names."""
    if (found := named_function(name)) is None:
        raise ConfigError(
            f"gepa has no proposer '{name}'. Expected module:function, or a table: --proposer"
            ' \'{kind="openai", model="…"}\'.'
        )
    return found


def _score(trajectory: Trajectory) -> float:
    """Returns the task's verdict, else the team's return."""
    return trajectory.score if trajectory.success is None else float(trajectory.success)


def _shown(trajectory: Trajectory) -> dict[str, Any]:
    """Returns what a proposer is shown of an episode; it never holds the gold answer."""
    turns: list[dict[str, Any]] = [
        {"agent": t.agent, "observation": t.observation or "", "text": t.turn.text, "result": t.turn.result}
        for t in trajectory.transitions
    ]
    for turn, credit in zip(turns, trajectory.replayed, strict=False) if any(trajectory.replayed) else ():
        turn["credit"] = credit
    return {"task_id": trajectory.task_id, "score": _score(trajectory), "success": trajectory.success, "turns": turns}


def _written(episode: Mapping[str, Any]) -> str:
    """Writes an episode down for a hosted proposer."""
    lines = [f"Score {episode['score']:.3g}."]
    for turn in episode["turns"]:
        prompt = f"[prompt of {turn['agent']}]\n{turn['observation']}\n" if turn["observation"] else ""
        came = f"\n[result]\n{turn['result']}" if turn["result"] else ""
        credit = f", which changed the expected score by {turn['credit']:+.3f}" if "credit" in turn else ""
        lines.append(f"{prompt}[reply of {turn['agent']}{credit}]\n{turn['text']}{came}")
    return "\n".join(lines)[:_CHARS]
