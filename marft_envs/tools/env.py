"""FlexEnv with tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from marft_envs.core import FlexEnv
from marft_envs.observation import Part
from marft_envs.types import Episode, Outcome

if TYPE_CHECKING:
    from marft_envs.tools.compact import Records


class ToolEnv(FlexEnv):
    """A :class:`FlexEnv` whose task is a :class:`marft_envs.tools.task.ToolTask`."""

    records: Records | None = None
    """Where set (:mod:`marft_envs.tools.compact`), agents read each other's turns as records."""

    def _start(self) -> None:
        super()._start()
        if self.records is not None:
            self.records.start()

    def _book(self, outcome: Outcome) -> None:
        if self.records is not None:
            log = self.task.live.log  # type: ignore[attr-defined]
            self.records.book(self._view, self._shown, outcome, log, self._tags)
        super()._book(outcome)

    def _seen_by(self, agent: str, sees: Sequence[int]) -> list[tuple[Part, ...]]:
        seen = super()._seen_by(agent, sees)
        if self.records is None:
            return seen
        history, shown = self._view.history, self.records.shown
        return [parts if history[i].agent == agent else shown(i, sees) for i, parts in zip(sees, seen, strict=True)]

    @property
    def _selective(self) -> bool:  # type: ignore[override]
        """A record leaves a turn out that has nothing left to say: no words, and calls that later ones made old."""
        return self.records is not None

    @property
    def episode(self) -> Episode:
        """The record so far; the team's numbers are those of when it was last paid."""
        found, paid = super().episode, self.task.last_paid  # type: ignore[attr-defined]
        if paid is not None:
            found.metrics = {**paid.numbers(self.task), **found.metrics}
        return found

    @property
    def tools(self) -> dict[str, list[dict[str, Any]]]:
        """Agent -> the tools that it can call now, as OpenAI's chat API takes them."""
        return {name: self.task.tools_of(name) for name in self.possible_agents}  # type: ignore[attr-defined]
