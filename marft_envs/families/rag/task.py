"""Answering by retrieval: who searches, what comes of it, and what an answer is worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from marft_envs.core.routing import parse_assignments
from marft_envs.core.teams import check_answerer
from marft_envs.core.types import AgentSpec, Outcome, TurnRecord
from marft_envs.errors import ConfigError, UnsolvedError, check_known
from marft_envs.families.rag.data import Searcher
from marft_envs.families.rag.question import OpenQuestion, cited, composed, names
from marft_envs.families.rag.teams import ROLES
from marft_envs.problems.answers import REWARDS, boxed, em, f1, normal
from marft_envs.problems.sets import Drawn, ProblemSet

NOTHING = "No passage was found."
QUERY = 1000
"""Characters of a search; what is said beyond them is neither looked up nor shown."""


class RagTask(Drawn[OpenQuestion]):
    r"""Draws a question; searches for what its searchers say, and compares the box of an answering agent.

    A search is what stands in a reply's last ``\boxed{}``, else its first line (of one agent alone: its first line, and
    a box is its answer). The passages are the result of that turn, for everybody who sees it.

    Args:
        problems: Where questions come from.
        search: Finds passages.
        team: Who works; the role says at what (see ``docs/retrieval.md``).
        k: Passages that a search returns.
        reward: The team's reward for its answer: ``em``, ``f1`` or ``substring``.
        recall_reward: A search's turn reward for all needed documents; for a share of them, that share of it.

    Raises:
        ConfigError: An agent has a role that the family does not know, no agent answers, or a setting is out of range.
    """

    def __init__(
        self,
        problems: ProblemSet[OpenQuestion],
        search: Searcher,
        team: Sequence[AgentSpec],
        k: int,
        reward: str = "em",
        recall_reward: float = 0.0,
    ) -> None:
        check_known([agent.role for agent in team], ROLES, "No retrieval agent has the role '{}'.")
        check_known([reward], REWARDS, "There is no reward '{}'.")
        check_answerer(team, "the team")
        if type(k) is not int or k < 1:
            raise ConfigError(f"k is {k!r}; expected how many passages a search returns, 1 or more.")
        if recall_reward and not problems[0].needed:
            raise ConfigError("These questions do not say what is needed to answer them. Next: without recall_reward.")
        self.problems, self.slow = problems, search.search is not None
        self._search, self._k, self._reward, self._recall_reward = search, k, reward, recall_reward
        self._roles = {agent.name: agent.role for agent in team}
        self._searchers = [agent.name for agent in team if agent.role == "searcher"]
        self._answerers = frozenset(agent.name for agent in team if agent.with_answer)
        self.corpus = search.index.corpus if search.index is not None else ""

    def reset(self, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
        """Takes the question ``options["task_id"]``, else draws one."""
        self.draw(rng, options)
        self._found, self._searches, self._last = set[str](), 0, ""

    def pose(self, text: str) -> None:
        """Puts a user's words in the place of the problem."""
        self._problem, self.task_id = replace(self.problem, id="asked", question=text), "asked"

    def observe(self, agent: str) -> str:
        """Returns the question."""
        return self.problem.question

    def show(self, turn: TurnRecord, reader: str, sees: Sequence[int]) -> tuple[str, str] | None:
        """Shows a search with its passages, a reply's note, of a plan a searcher's own part; a router's words not."""
        role = self._roles[turn.agent]
        if role == "planner" and reader in self._searchers:
            parts, i = parse_assignments(turn.spoken) or [], self._searchers.index(reader)
            return f"Your search: {parts[i]}" if i < len(parts) else turn.spoken, ""
        words = "" if role == "router" else self._query(turn) or boxed(turn.spoken)
        return None if words is None else (words, turn.result)

    def _query(self, turn: TurnRecord) -> str:
        """Returns what a turn searches for; "" for nothing."""
        role, said = self._roles[turn.agent], turn.spoken
        box = boxed(said)
        if role not in ("solo", "searcher") or (role == "solo" and box is not None):
            return ""
        return (said.strip().partition("\n")[0] if box is None else box)[:QUERY].strip()

    def _missing(self) -> list[int]:
        return [i for i, name in enumerate(self.problem.needed) if composed(name) not in self._found]

    def on_layer(self, turns: Sequence[TurnRecord]) -> Outcome:
        """Searches, rewards searches for needed documents that they found, and grades an answer."""
        results, paid = dict[int, str](), dict[int, float]()
        for turn in turns:
            self._last = self._roles[turn.agent]
            if query := self._query(turn):
                missed = len(self._missing())
                try:
                    passages = self._search(query, self._k)
                except Exception as error:  # whatever a search raises is no agent's doing
                    reason = "world_hung" if isinstance(error, TimeoutError) else "world_crashed"
                    why = {"world_error": f"{type(error).__name__}: {error}"}
                    return Outcome(fault="world", stop_reason=reason, info=why)
                self._searches += 1
                self._found.update(*(names(name) for passage in passages for name in (passage.id, passage.title)))
                results[turn.index] = "\n".join(map(str, passages)) or NOTHING
                if self._recall_reward:
                    share = (missed - len(self._missing())) / len(self.problem.needed)
                    paid[turn.index] = self._recall_reward * share
        answer = next((turn.spoken for turn in reversed(turns) if turn.agent in self._answerers), "")
        out = Outcome() if boxed(answer) is None else self._graded(answer)
        out.results, out.turn_rewards = results, paid
        return out

    def on_round(self, turns: Sequence[TurnRecord]) -> Outcome:
        """Says what was found, where nobody has answered yet."""
        return self._graded("")

    def _graded(self, answer: str) -> Outcome:
        box, needed = boxed(answer), set(map(composed, self.problem.needed))
        named = [names(name) for name in cited(answer)]
        scores = {name: score(box or "", self.problem.answers) for name, score in REWARDS.items()}
        metrics = {**scores, "parsed": float(box is not None), "searches": float(self._searches)}
        if needed:
            right, recall = needed & set[str]().union(*named), 1 - len(self._missing()) / len(self.problem.needed)
            metrics |= {"recall": recall, "cited": len(right) / len(needed)}
            metrics |= {"cited_precision": sum(not needed.isdisjoint(n) for n in named) / len(named)} if named else {}
        reward, ends = scores[self._reward], box is not None
        return Outcome(team_reward=reward, success=scores["em"] == 1, terminated=ends, metrics=metrics)

    # Experts and checks -------------------------------------------------------------------------------

    def expert(self, agent: str) -> str:
        """Returns what somebody says who knows the facts: the next search, the last note, or the answer.

        Raises:
            UnsolvedError: The question was not generated here, so its hops are not known.
        """
        question, role = self.problem, self._roles[agent]
        if not question.steps:
            raise UnsolvedError(f"No expert knows the hops of '{question.id}', which was not made here.")
        hops = len(question.steps)
        known = min([*self._missing(), hops])
        if role in ("searcher", "planner") or (role == "solo" and known < hops):
            return question.steps[min(known, hops - 1)][0]
        if role == "router":
            return "reader" if self._last == "searcher" else "answerer" if known == hops else "searcher"
        note = question.steps[known - 1][1] if known else "-"
        if role == "checker" and known < hops:
            return note
        named = "".join(f" [{name}]" for name in question.needed if "[" in note)
        return rf"\boxed{{{note}}}" if role == "reader" else rf"\boxed{{{question.answers[0]}}}{named}"

    def sample_actions(self, agent: str) -> Sequence[str]:
        """Returns replies as models give them: searches, notes, answers, routes, and nothing."""
        gold, asked = ("x", "y") if self._problem is None else (self.problem.answers[0], self.problem.question)
        replies = (asked, rf"\boxed{{{gold}}} [1]", "one thing; another", r"\boxed{-}", "searcher", "answerer", "")
        return replies[4:] if self._roles[agent] == "router" else replies

    def gold(self) -> str:
        r"""Returns the answer as a reply gives it. The bare answer stands in a passage."""
        return rf"\boxed{{{self.problem.answers[0]}}}"

    def answer_key(self, text: str) -> str:
        """Returns what a reply answers: its last box, else its whole text. Votes count equal ones."""
        return normal(boxed(text) or text)

    def validate(self) -> None:
        """Checks on a sample that the answer counts, silence does not, and an expert's searches find what is needed.

        Raises:
            ConfigError: Naming the first question for which it does not hold.
        """
        for question in map(self.problems.get, self.evaluation_set(16)):
            if not em(question.answers[0], question.answers) or f1("", question.answers):
                raise ConfigError(f"The answer of {question.id} does not count, or silence does. Check the data.")
            for (query, _), needed in zip(question.steps, question.needed, strict=False):
                if needed not in [passage.id for passage in self._search(query, self._k)]:
                    raise ConfigError(f"The search for {query!r} of {question.id} does not find {needed}. Raise k.")
