"""Five tiny tasks whose answer to *does the team beat one agent, and does D matter?* is known, for ``marft versus``.

One digit, 0 or 1, is to be said; a case says who sees it, and what that costs. A turn is paid a half for a digit that
was seen and is said, so that toys learn in seconds. The single agent of ``dear`` needs few tokens an episode to be read
and many to be sampled, so that equal sampled tokens are few episodes for it, and equal processed ones are many.

| case | team | single agent | team needed? | does D matter? |
|---|---|---|---|---|
| ``spare`` | both see the digit, the second answers | the second alone: sees it, too | no | no |
| ``halves`` | the digit is on one of two pages, an agent reads each | the first alone: its page only | yes | no |
| ``relay`` | the first sees the digit, the second answers | the second alone: sees nothing | yes | yes |
| ``told`` | the first sees the digit, the second answers | the first alone: sees it, and answers | no | yes |
| ``dear`` | as ``halves``, under long instructions | one agent, who turns pages until the digit comes | too dear | no |

Try one: ``marft play examples.planted:planted-v0 --env-kwargs case=relay``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import marft_envs
from marft_envs import AgentSpec, Chain, FlexEnv, Outcome, TurnRecord
from marft_envs.errors import ConfigError, did_you_mean
from marft_envs.toy.base import ToyTask, digit

CASES = ("spare", "halves", "relay", "told", "dear")
SIZE = 2
FIRST, SECOND = "planner_0", "solver_0"
SAY = f"Say one digit from 0 to {SIZE - 1}."
PAGES = 8
"""That the single agent of ``dear`` turns: it speaks at each."""
LONG = " ".join(["Read all of this first, and then once more: whoever reads pays for what is read."] * 2)
"""What makes the team of ``dear`` dear: every agent reads it at every turn."""


class Planted(ToyTask):
    """One digit to be said, or in ``dear`` two; the case says who sees what.

    Args:
        case: One of ``CASES``.
        solo: The single agent of ``dear``: it says something at every page, and the last of ``PAGES`` holds the digit.
    """

    name = "planted"
    sizes = dict.fromkeys((FIRST, SECOND), SIZE)

    def __init__(self, case: str, solo: bool) -> None:
        self.case, self.solo = case, solo
        pages = 2 if case in ("halves", "dear") else 1
        self.states = tuple((page, x) for page in range(pages) for x in range(SIZE))
        self.rounds = PAGES if solo else 1
        super().__init__()

    def observe(self, agent: str) -> str:
        """Shows the digit to whom the case shows it."""
        known = self._seen(agent, len(self._said))
        return "digit ?" if known is None else f"digit {known}"

    def on_layer(self, turns: Sequence[TurnRecord]) -> Outcome:
        """Pays half for a digit that was seen and is said."""
        seen = {turn.index: self._seen(turn.agent, len(self._said)) for turn in turns}
        super().on_layer(turns)
        faithful = [t.index for t in turns if seen[t.index] is not None and digit(t.text, SIZE) == seen[t.index]]
        return Outcome(turn_rewards=dict.fromkeys(faithful, 0.5))

    def right(self, turns: Sequence[TurnRecord]) -> bool:
        """Whether the answer is the digit: that of the page's reader, or of the last who spoke."""
        by_page = self.case in ("halves", "dear") and not self.solo
        reader = (FIRST, SECOND)[self.state[0]]
        answers = [digit(turn.text, SIZE) for turn in turns if not by_page or turn.agent == reader]
        return bool(answers) and answers[-1] == self.state[1]

    def gold_turns(self) -> list[tuple[str, str]]:
        """Everybody says the digit, all the time."""
        said = str(self.state[1])
        return [(FIRST, said)] * PAGES if self.solo else [(FIRST, said), (SECOND, said)]

    def _seen(self, agent: str, spoken: int) -> int | None:
        """Returns the digit if an agent sees it."""
        page, x = self.state
        if self.solo:
            sees = spoken == PAGES - 1
        elif self.case in ("halves", "dear"):
            sees = agent == (FIRST, SECOND)[page]
        else:
            sees = agent == FIRST or self.case == "spare"
        return x if sees else None


def make(case: str = "relay", solo: bool = False, dependency: Any = None, **flex: Any) -> FlexEnv:
    """Builds a case.

    Args:
        case: One of ``CASES``.
        solo: The single agent's version of ``dear``.
        dependency: Another D; ``"independent"`` cuts it.
        **flex: FlexEnv's settings.

    Raises:
        ConfigError: No such case.
    """
    if case not in CASES:
        raise ConfigError(f"There is no case '{case}'. {did_you_mean(case, CASES)}")
    if solo and case != "dear":
        raise ConfigError(f"solo is the single agent of case=dear, not of {case}: there, let one agent act alone.")
    prompt = f"{LONG} {SAY}" if case == "dear" and not solo else SAY
    team = [AgentSpec(FIRST, "planner", prompt, with_answer=solo)]
    team += [] if solo else [AgentSpec(SECOND, "solver", prompt, with_answer=True)]
    rounds: Mapping[str, Any] = {"max_rounds": PAGES} if solo else {}
    return FlexEnv(team, Planted(case, solo), Chain() if dependency is None else dependency, **{**rounds, **flex})


marft_envs.register("planted-v0", make, summary="example: five cases with known answers, for marft versus")
