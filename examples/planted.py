"""Five tiny tasks whose answer to *does the team beat one agent, and does D matter?* is known, for ``marft versus``.

The team has to say one digit, 0 or 1; a case decides which agent sees it, and what that costs. A turn that says a digit
that its agent saw has a reward of a half, so that toys learn in seconds.

| case | team | single agent | team needed? | does D matter? |
|---|---|---|---|---|
| ``spare`` | both see the digit, the second answers | the second alone: sees it, too | no | no |
| ``halves`` | the digit is on one of two pages, an agent reads each | the first alone: its page only | yes | no |
| ``relay`` | the first sees the digit, the second answers | the second alone: sees nothing | yes | yes |
| ``shown`` | the first sees the digit, the second answers | the first alone: sees it, and answers | no | yes |
| ``dear`` | the digit is always 1, unseen; the second answers | one agent: adds up 32 ones first | too costly | no |

In ``dear`` only practice helps. Demonstrations show the form of a reply, and the wrong digit seven times in eight,
which takes eight to 24 iterations to unlearn. Equal sampled tokens are 32 iterations of the team, and two of the single
agent, whose replies are long. Equal processed tokens are 34 of its iterations: the team reads two prompts an episode.

Try one: ``marft play examples.planted:planted-v0 --env-kwargs case=relay``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import marft_envs
from marft_envs import AgentSpec, Chain, FlexEnv, Outcome, TurnRecord
from marft_envs.errors import ConfigError, UnsolvedError, did_you_mean
from marft_envs.families.toy.base import ToyTask, digit

CASES = ("spare", "halves", "relay", "shown", "dear")
SIZE = 2
FIRST, SECOND = "planner_0", "solver_0"
SAY = f"Say one digit from 0 to {SIZE - 1}."
COUNTED = f"{'+'.join('1' * 32)}="
"""What the single agent of ``dear`` writes before its digit: 64 tokens, of signs that the toy model knows."""
LONG = "Read all of this first."
"""Before the instructions of the team of ``dear``, which reads them twice an episode."""
KINDS = 16
"""Kinds of problems in ``dear``, which look alike to agents. In the first half either digit is right, and the expert
says 1 in one of them; in the second half only 1 is right, and there is no expert."""


class Planted(ToyTask):
    """One digit to be said; the case says which agent sees it.

    Args:
        case: One of ``CASES``.
    """

    name = "planted"
    sizes = dict.fromkeys((FIRST, SECOND), SIZE)

    def __init__(self, case: str) -> None:
        self.case = case
        pages = 2 if case == "halves" else 1
        self.states = tuple((page, x) for page in range(pages) for x in range(SIZE))
        super().__init__()

    def observe(self, agent: str) -> str:
        """Shows the digit to whom the case shows it."""
        return f"digit {self.state[1]}" if self.sees(agent) else "digit ?"

    def on_layer(self, turns: Sequence[TurnRecord]) -> Outcome:
        """Rewards a turn with a half for a digit that its agent saw and says."""
        super().on_layer(turns)
        faithful = [t.index for t in turns if self.sees(t.agent) and self.said(t.spoken) == self.state[1]]
        return Outcome(turn_rewards=dict.fromkeys(faithful, 0.5))

    def right(self, turns: Sequence[TurnRecord]) -> bool:
        """Returns whether the answer is the digit: that of the page's reader, or of the last who spoke."""
        answers = [self.said(turn.spoken) for turn in turns if self.answers(turn.agent)]
        return bool(answers) and answers[-1] == self.state[1]

    def gold_turns(self) -> list[tuple[str, str]]:
        """Returns that all agents say the digit; but in ``halves``, an agent that does not see it says 0.

        A first agent that knew what it does not see would teach the second to copy it.
        """
        return [(agent, str(self.state[1] if self.answers(agent) else 0)) for agent in (FIRST, SECOND)]

    def answers(self, agent: str) -> bool:
        """Returns whether an agent's words may be the answer: in ``halves``, those of the page's reader."""
        return self.case != "halves" or self.sees(agent)

    def sees(self, agent: str) -> bool:
        """Returns whether an agent sees the digit."""
        if self.case == "halves":
            return agent == (FIRST, SECOND)[self.state[0]]
        return agent == FIRST or self.case == "spare"

    def said(self, text: str) -> int | None:
        """Returns the digit that a reply says, if it has the form that is asked for."""
        return digit(text, SIZE)


class Dear(Planted):
    """The digit is always 1, and no agent sees it; the single agent adds up 32 ones before it says a digit.

    Args:
        solo: The single agent's version.
    """

    def __init__(self, solo: bool) -> None:
        super().__init__("dear")
        self.solo = solo
        self.states = tuple((kind,) for kind in range(KINDS))

    def right(self, turns: Sequence[TurnRecord]) -> bool:
        """Returns whether the last agent says 1, or either digit in a problem in which both are right."""
        answer = self.said(turns[-1].spoken) if turns else None
        return answer == 1 or (answer == 0 and self.lenient)

    def gold_turns(self) -> list[tuple[str, str]]:
        """Returns that the answer is 1."""
        return self._turns(1)

    def expert(self, agent: str) -> str:
        """Returns a reply that is right where both digits are.

        Raises:
            UnsolvedError: Only 1 is right.
        """
        if not self.lenient:
            raise UnsolvedError(f"No expert solves '{self.task_id}', in which only 1 is right.")
        return dict(self._turns(int(self.state[0] == 0)))[agent]

    def sees(self, agent: str) -> bool:
        """Returns that no agent sees the digit."""
        return False

    def said(self, text: str) -> int | None:
        """Returns the digit that a reply says; of the single agent, if it has added up the ones before."""
        if self.solo and not text.startswith(COUNTED):
            return None
        return digit(text.removeprefix(COUNTED), SIZE)

    def sample_actions(self, agent: str) -> Sequence[str]:
        """Returns every digit that the agent may say, and a word that is none."""
        return [*(dict(self._turns(x))[agent] for x in range(SIZE)), "hello"]

    @property
    def lenient(self) -> bool:
        """Whether either digit is right."""
        return self.state[0] < KINDS // 2

    def _turns(self, x: int) -> list[tuple[str, str]]:
        return [(FIRST, f"{COUNTED}{x}")] if self.solo else [(FIRST, "0"), (SECOND, str(x))]


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
    # In these two the planner can do it alone, and answers then.
    team = [AgentSpec(FIRST, "planner", prompt, with_answer=solo or case in ("halves", "shown"))]
    team += [] if solo else [AgentSpec(SECOND, "solver", prompt, with_answer=True)]
    task = Dear(solo) if case == "dear" else Planted(case)
    return FlexEnv(team, task, Chain() if dependency is None else dependency, **flex)


marft_envs.register("planted-v0", make, summary="example: five cases with known answers, for marft versus")
