"""Reading a long document by a team: which agent sees which part, what is handed over, and what counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from marft_envs.core.types import AgentSpec, Outcome, TurnRecord
from marft_envs.errors import ConfigError, UnsolvedError
from marft_envs.families.docs.document import Document, pages_of, plan_of, right
from marft_envs.families.docs.kinds import KINDS, NOTHING
from marft_envs.families.docs.procedural import Made
from marft_envs.families.docs.teams import ASKED, READERS, ROLES
from marft_envs.problems.answers import boxed
from marft_envs.problems.sets import Drawn, ProblemSet


class DocsTask(Drawn[Document]):
    r"""Draws a document; the last reply of an answering agent is compared with the answer, for 1 or 0.

    A reply's note is what stands in its last ``\boxed{}``; others are shown the note alone, or, where there is none,
    the whole reply. Readers deal the entries evenly in order, unless a boss has named their pages.

    Args:
        problems: Where documents come from.
        team: The agents; the role says what an agent is shown (see ``docs/long-documents.md``).
        sources: Of a tree, the agents whose notes each joiner reads, for the expert; others join all readers' notes.
        parts: In how many parts an agent with a memory reads; None: page by page.
        terse: Experts say the note alone, without the working.
        note_chars: What is kept of a writer's note; None: all.

    Raises:
        ConfigError: An agent has a role that the family does not know, or no agent answers.
    """

    slow = False
    problems: Made | ProblemSet[Document]

    def __init__(
        self,
        problems: Made | ProblemSet[Document],
        team: Sequence[AgentSpec],
        sources: Mapping[str, Sequence[str]] | None = None,
        parts: int | None = None,
        terse: bool = False,
        note_chars: int | None = None,
    ) -> None:
        self.problems, self._sources, self._parts, self._terse = problems, sources or {}, parts, terse
        self._kept = note_chars
        for agent in team:
            if agent.role not in ROLES:
                raise ConfigError(f"No reader has the role '{agent.role}'. Expected one of {', '.join(ROLES)}.")
        self._roles = {agent.name: agent.role for agent in team}
        self._readers = [agent.name for agent in team if agent.role in READERS]
        self._answerers = frozenset(agent.name for agent in team if agent.with_answer)
        if not self._answerers:
            raise ConfigError("No agent of the team answers. Give one agent with_answer=True.")
        self._begin()

    def _begin(self) -> None:
        self._plan: list[str] | None = None
        self._planned = False
        self._page = 0
        self._note = ""
        self._written = 0

    def reset(self, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
        """Takes the document ``options["task_id"]``, else draws one."""
        self.draw(rng, options)
        self._begin()

    # What agents see ----------------------------------------------------------------------------------

    def observe(self, agent: str) -> str:
        """Returns the question, and what this agent reads: the document, a part of it, or how many pages it has."""
        document, role = self.problem, self._roles[agent]
        if role == "reducer" or (role == "boss" and self._planned):
            return document.question
        if role == "boss":
            return f"{document.question}\n{len(document.pages)} pages"
        note = f"{self._note}\n" if role in ("memory", "writer") and self._note else ""
        if role == "answerer":
            return f"{document.question}\n{self._note}"
        question = "" if role == "writer" else f"{document.question}\n"
        return f"{question}{note}{document.text(*self._span(agent))}"

    def _span(self, agent: str) -> tuple[int, int]:
        """Returns the entries (start, stop) that an agent reads now."""
        document, role = self.problem, self._roles[agent]
        if role in ("memory", "writer"):
            return document.share(self._page, self._parts) if self._parts else document.page(self._page)
        if role not in READERS:
            return 0, len(document.entries)
        i = self._readers.index(agent)
        if self._plan is None:
            return document.share(i, len(self._readers))
        return document.page(*pages_of(self._plan[i])) if i < len(self._plan) else (0, 0)

    def show(self, turn: TurnRecord, reader: str, sees: Sequence[int]) -> tuple[str, str] | None:
        """Shows a reply's note; of a boss's plan, the reader's own pages."""
        if self._roles[turn.agent] == "boss" and reader in self._readers:
            i, plan = self._readers.index(reader), plan_of(turn.spoken)
            if plan is not None:
                return (plan[i] if i < len(plan) else ""), ""
        note = boxed(turn.spoken)
        return None if note is None else (note, "")

    # What counts --------------------------------------------------------------------------------------

    def on_layer(self, turns: Sequence[TurnRecord]) -> Outcome:
        """Takes a boss's first words as the plan of who reads what."""
        plans = [turn.spoken for turn in turns if self._roles[turn.agent] == "boss"]
        if plans and not self._planned:
            self._planned, self._plan = True, plan_of(plans[0])
        return Outcome()

    def on_round(self, turns: Sequence[TurnRecord]) -> Outcome:
        """Compares the answer; an agent with a memory turns the page first, until there is none left."""
        if writer := next((turn for turn in turns if self._roles[turn.agent] == "writer"), None):
            self._page, self._note = self._page + 1, (boxed(writer.spoken) or "")[: self._kept]
            self._written += writer.processed
            return Outcome(success=False, info={ASKED: self._page >= len(self.problem.pages)})
        answer = next((turn for turn in reversed(turns) if turn.agent in self._answerers), None)
        read, parts = self._page + 1, self._parts or len(self.problem.pages)
        if answer is not None and self._roles[answer.agent] == "memory" and read < parts:
            self._page, self._note = read, boxed(answer.spoken) or ""
            return Outcome(success=False)
        success = answer is not None and right(self.problem, answer.spoken)
        spans = {self._span(turn.agent) for turn in turns if turn.agent in self._readers}
        metrics = {
            "accuracy": float(success),
            "parsed": float(answer is not None and boxed(answer.spoken) is not None),
            "pages": float(len(self.problem.pages)),
            "readers": float(len({turn.agent for turn in turns if turn.agent in self._readers})),
        }
        if self._readers:
            read_entries = {i for start, stop in spans for i in range(start, stop)}
            metrics["read"] = len(read_entries) / len(self.problem.entries)
        if self._written and answer is not None:
            metrics |= {"written": float(self._written), "recalled": float(answer.processed)}
        return Outcome(team_reward=float(success), success=success, terminated=True, metrics=metrics)

    # Experts and checks -------------------------------------------------------------------------------

    def expert(self, agent: str) -> str:
        """Returns what a faultless reader says; a boss sends a reader to every page, as far as there are readers.

        Raises:
            UnsolvedError: The document was not generated here, so it has no steps to the answer.
        """
        document, role = self.problem, self._roles[agent]
        if not document.facts:
            raise UnsolvedError(f"No expert reads '{document.id}', which was not made here.")
        kind, (start, stop) = KINDS[document.kind], self._span(agent)
        if role == "writer":  # who does not know what will be asked keeps all
            return rf"\boxed{{{'; '.join(document.entries[:stop])}}}"
        if role == "boss" and not self._planned:
            return rf"\boxed{{{'; '.join(self._even_plan())}}}"
        if role in ("boss", "reducer", "answerer"):
            notes = [kind.read(document.facts[a:b], None, document.target)[1] for a, b in self._spans(agent)]
            words, note = kind.merge(notes)
        else:
            alone = role == "mapper" or start == 0
            before = None if alone else kind.read(document.facts[:start], None, document.target)[1]
            words, note = kind.read(document.facts[start:stop], before, document.target)
        if agent in self._answerers and (role in ("boss", "reducer", "answerer") or stop == len(document.entries)):
            more, box = kind.conclude(note, document.target)
            words = " ".join(part for part in (words, more) if part)
        else:
            box = kind.written(note)
        return f"{words}. \\boxed{{{box}}}" if words and not self._terse else rf"\boxed{{{box}}}"

    def _spans(self, agent: str) -> list[tuple[int, int]]:
        """Returns what those have read whose notes it joins; where not all is read, or nobody, the whole document."""
        if sources := self._sources.get(agent):
            return [self._under(name) for name in sources]
        spans = [self._span(reader) for reader in self._readers]
        whole = {i for start, stop in spans for i in range(start, stop)} == set(range(len(self.problem.entries)))
        return [span for span in spans if span[0] < span[1]] if whole else [(0, len(self.problem.entries))]

    def _under(self, agent: str) -> tuple[int, int]:
        """Returns the entries (start, stop) that an agent's note is about: its own part, or those of its sources."""
        sources = self._sources.get(agent)
        return (self._under(sources[0])[0], self._under(sources[-1])[1]) if sources else self._span(agent)

    def _even_plan(self) -> list[str]:
        """Returns a reader a page, or as few pages each as there are readers for."""
        pages = len(self.problem.pages)
        n = min(pages, len(self._readers))
        bounds = [(i * pages // n + 1, (i + 1) * pages // n) for i in range(n)]
        return [str(first) if first == last else f"{first}-{last}" for first, last in bounds]

    def sample_actions(self, agent: str) -> Sequence[str]:
        """Returns replies as models give them: answers, notes, plans good and bad, and no box at all."""
        gold = self.problem.answers[0] if self._problem is not None else "7"
        common = (rf"It is \boxed{{{gold}}}.", r"3+4=7. \boxed{7}", rf"\boxed{{{NOTHING}}}", "No idea.", "")
        if self._roles[agent] != "boss":
            return common
        return (r"\boxed{1; 2}", r"All: \boxed{1-2}", r"\boxed{9-7}", r"\boxed{1; two}", *common)

    def gold(self) -> str:
        r"""Returns the answer as a reply gives it. The bare answer may well stand in a document."""
        return rf"\boxed{{{self.problem.answers[0]}}}"

    def answer_key(self, text: str) -> str:
        """Returns what a reply answers: its last box, else its whole text. Votes count equal ones."""
        box = boxed(text)
        return " ".join((text if box is None else box).casefold().split())

    def validate(self) -> None:
        """Checks on a sample of documents that the answer in a box counts, silence does not, and experts are right.

        Raises:
            ConfigError: Naming the first document for which it does not hold.
        """
        for document_id in self.evaluation_set(16):
            document = self.problems.get(document_id)
            if not right(document, rf"\boxed{{{document.answers[0]}}}") or right(document, ""):
                raise ConfigError(f"The answer of {document.id} does not count, or silence does. Check the data.")
            if document.facts:
                kind = KINDS[document.kind]
                note = kind.read(document.facts, None, document.target)[1]
                if kind.conclude(note, document.target)[1] != document.answers[0]:
                    raise ConfigError(f"The expert's answer to {document.id} is wrong.")
