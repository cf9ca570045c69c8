"""Answering by retrieval: who searches, what comes of it, and what an answer is worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from marft_envs.core.routing import parse_assignments
from marft_envs.core.types import AgentSpec, Outcome, TurnRecord
from marft_envs.errors import ConfigError, UnsolvedError
from marft_envs.families.docs.document import boxed
from marft_envs.families.rag.corpus import Searcher
from marft_envs.families.rag.index import Passage
from marft_envs.families.rag.question import Question, cited, em, f1, substring
from marft_envs.families.rag.teams import ROLES, SEARCHING
from marft_envs.problems.sets import Drawn, ProblemSet

REWARDS = {"em": em, "f1": f1, "substring": substring}
NOTHING = "No passage was found."
QUERY = 1000
"""Characters of a search; what is said beyond them is neither looked up nor shown."""


class RagTask(Drawn[Question]):
    r"""Draws a question; searches for what its searchers say, and compares the box of who answers.

    A search is what stands in a reply's last ``\boxed{}``, else its first line (of one agent alone: its first line, and
    a box is its answer). The passages are the result of that turn, for everybody who sees it.

    Args:
        problems: Where questions come from.
        search: Finds passages.
        team: Who works; the role says at what (see ``docs/retrieval.md``).
        k: Passages that a search returns.
        reward: What the team is paid for its answer: ``em``, ``f1`` or ``substring``.
        recall_reward: What a search is paid for all that is needed; for a part of it, that part.

    Raises:
        ConfigError: An agent has a role that the family does not know, nobody answers, or a setting is out of range.
    """

    problems: ProblemSet[Question]
    worst_return = 0.0

    def __init__(
        self,
        problems: ProblemSet[Question],
        search: Searcher,
        team: Sequence[AgentSpec],
        k: int,
        reward: str = "em",
        recall_reward: float = 0.0,
    ) -> None:
        self.problems, self._search, self._k = problems, search, k
        self._reward, self._recall_reward = reward, recall_reward
        self.slow = search.search is not None
        for agent in team:
            if agent.role not in ROLES:
                raise ConfigError(
                    f"No agent of a team that retrieves has the role '{agent.role}'. Known: {', '.join(ROLES)}."
                )
        if reward not in REWARDS:
            raise ConfigError(f"There is no reward '{reward}'. Expected one of {', '.join(REWARDS)}.")
        if type(k) is not int or k < 1:
            raise ConfigError(f"k is {k!r}; expected how many passages a search returns, 1 or more.")
        if recall_reward and not problems[0].needed:
            raise ConfigError("recall_reward needs to know which documents are needed, and these questions do not say.")
        self._roles = {agent.name: agent.role for agent in team}
        self._searchers = [agent.name for agent in team if agent.role == "searcher"]
        self._answerers = frozenset(agent.name for agent in team if agent.with_answer)
        if not self._answerers:
            raise ConfigError("Nobody of the team answers. Give one agent with_answer=True.")
        self._begin()

    def _begin(self) -> None:
        self._found: set[str] = set()
        """Ids and titles of the passages that were found."""
        self._searches, self._last = 0, ""

    def reset(self, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
        """Takes the question ``options["task_id"]``, else draws one."""
        self.draw(rng, options)
        self._begin()

    def observe(self, agent: str) -> str:
        """Returns the question."""
        return self.problem.question

    def show(self, turn: TurnRecord, reader: str, sees: Sequence[int]) -> tuple[str, str] | None:
        """Shows a search with its passages, a reply's note, of a plan a searcher's own part; a router's words not."""
        role = self._roles[turn.agent]
        if role == "router":
            return "", ""
        if role == "planner" and reader in self._searchers:
            parts, i = parse_assignments(turn.text) or [], self._searchers.index(reader)
            return f"Your search: {parts[i]}" if i < len(parts) else turn.text, ""
        words = self._query(turn) if role in SEARCHING else boxed(turn.text)
        return None if words is None else (words, turn.result)

    def _query(self, turn: TurnRecord) -> str | None:
        """Returns what a turn searches for; "" for nothing, None where it does not search."""
        if self._roles[turn.agent] not in SEARCHING:
            return None
        box = boxed(turn.text)
        if self._roles[turn.agent] == "solo" and box is not None:
            return None
        return (turn.text.strip().partition("\n")[0] if box is None else box)[:QUERY].strip()

    @property
    def _recall(self) -> float:
        needed = self.problem.needed
        return len(self._found.intersection(needed)) / len(needed) if needed else 0.0

    def on_layer(self, turns: Sequence[TurnRecord]) -> Outcome:
        """Searches, pays searchers for what they found of what is needed, and grades an answer."""
        results: dict[int, str] = {}
        paid: dict[int, float] = {}
        for turn in turns:
            self._last = self._roles[turn.agent]
            query = self._query(turn)
            if query is None:
                continue
            before = self._recall
            try:
                passages = self._search(query, self._k) if query else []
            except Exception as error:  # whatever a search raises is no agent's doing
                why = {"world_error": f"{type(error).__name__}: {error}"}
                hung = isinstance(error, TimeoutError)
                return Outcome(fault="world", stop_reason="world_hung" if hung else "world_crashed", info=why)
            self._searches += 1
            self._found.update(name for passage in passages for name in (passage.id, passage.title) if name)
            results[turn.index] = "\n".join(map(str, passages)) or NOTHING
            if self._recall_reward:
                paid[turn.index] = self._recall_reward * (self._recall - before)
        answer = next((turn for turn in reversed(turns) if turn.agent in self._answerers), None)
        if answer is None or (box := boxed(answer.text)) is None:
            return Outcome(results=results, turn_rewards=paid)
        golds = self.problem.answers
        scores = {name: score(box, golds) for name, score in REWARDS.items()}
        metrics = {**self._metrics(answer.text), **scores, "parsed": 1.0}
        done = Outcome(team_reward=scores[self._reward], success=bool(scores["em"]), terminated=True, metrics=metrics)
        done.results, done.turn_rewards = results, paid
        return done

    def on_round(self, turns: Sequence[TurnRecord]) -> Outcome:
        """Notes what was found, where nobody has answered yet."""
        return Outcome(success=False, metrics={**self._metrics(""), **dict.fromkeys((*REWARDS, "parsed"), 0.0)})

    def _metrics(self, answer: str) -> dict[str, float]:
        metrics = {"searches": float(self._searches)}
        if needed := self.problem.needed:
            named = cited(answer)
            right = len(named.intersection(needed))
            metrics |= {"recall": self._recall, "cited": right / len(needed)}
            if named:
                metrics["cited_precision"] = right / len(named)
        return metrics

    # Experts and checks -------------------------------------------------------------------------------

    def expert(self, agent: str) -> str:
        """Returns what somebody says who knows the facts: the next search, the last note, or the answer.

        Raises:
            UnsolvedError: Nobody knows the hops of this question: it was not made here.
        """
        question, role = self.problem, self._roles[agent]
        if not question.steps:
            raise UnsolvedError(f"No expert knows the hops of '{question.id}', which was not made here.")
        hops = len(question.steps)
        known = next((i for i, name in enumerate(question.needed) if name not in self._found), hops)
        search = question.steps[min(known, hops - 1)][0]
        if role in ("searcher", "planner") or (role == "solo" and known < hops):
            return search
        if role == "router":
            return {"searcher": "reader"}.get(self._last) or ("answerer" if known == hops else "searcher")
        note = question.steps[known - 1][1] if known else "-"
        if role == "reader":
            return rf"\boxed{{{note}}}"
        if role == "checker" and known < hops:
            return note
        named = "" if question.id.split("/")[2] == "0" else "".join(f" [{name}]" for name in question.needed)
        return rf"\boxed{{{question.answers[0]}}}{named}"

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
        box = boxed(text)
        return " ".join((text if box is None else box).casefold().split())

    def validate(self) -> None:
        """Checks on a sample that the answer counts, silence does not, and an expert's searches find what is needed.

        Raises:
            ConfigError: Naming the first question for which it does not hold.
        """
        for question_id in self.eval_panel(16):
            question = self.problems.get(question_id)
            if not em(question.answers[0], question.answers) or f1("", question.answers):
                raise ConfigError(f"The answer of {question.id} does not count, or silence does. Check the data.")
            for (query, _), needed in zip(question.steps, question.needed, strict=False):
                found: list[Passage] = self._search(query, self._k)
                if needed not in [passage.id for passage in found]:
                    raise ConfigError(f"The search for {query!r} of {question.id} does not find {needed}. Raise k.")
