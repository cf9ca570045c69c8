"""The math task: a problem, a boxed answer, a binary score."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from marft_envs.core.types import Outcome, TurnRecord
from marft_envs.errors import ConfigError
from marft_envs.families.math.data import ProblemSet
from marft_envs.families.math.grader import extract_boxed, grade
from marft_envs.families.math.problem import MathProblem
from marft_envs.problems.sets import Drawn

_BOX = re.compile(r"\s*\\boxed\{.*\}\s*\.?\s*$", re.DOTALL)
_STEP = re.compile(r"(?<=[.,;])\s+")
_VERDICT = {True: "Your team's answer was right.", False: "Your team's answer was wrong. Try again."}


class MathTask(Drawn[MathProblem]):
    """Draws a problem; the last action of an answering agent is graded at the end of each round.

    A round's reward is ``score - previous score``. So the return is the score of the last answer (the paper's binary
    reward, section 5.1), however many rounds are played and whichever limit ends them.

    Args:
        problems: Where problems come from.
        answerers: Names of the agents whose action counts as the team's answer.
        oracle: Tell the agents after each round whether they were right, and stop when they are. Off by
            default: a verdict from the gold answer is an oracle that no deployed team has.
        specialists: Subject -> role of who knows it best, where somebody else names the one who shall answer.
    """

    problems: ProblemSet
    slow = True  # What the grader's fast tiers leave open waits for a worker process.

    def __init__(
        self,
        problems: ProblemSet,
        answerers: Sequence[str],
        oracle: bool = False,
        specialists: Mapping[str, str] | None = None,
    ) -> None:
        self.problems = problems
        self.answerers = frozenset(answerers)
        self.oracle = oracle
        self.specialists = dict(specialists or {})
        self._score = 0.0
        self._prepared = False  # whether somebody who does not answer has worked on the problem in this episode

    def reset(self, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
        """Takes the problem ``options["task_id"]``, else draws one."""
        self.draw(rng, options)
        self._score, self._prepared = 0.0, False

    def pose(self, text: str) -> None:
        """Puts a user's words in the place of the problem.

        Raises:
            ConfigError: An oracle would have to know the answer.
        """
        if self.oracle:
            raise ConfigError("oracle=True needs a gold answer, and a user's problem has none. Next: oracle=False.")
        self._problem, self.task_id = replace(self.problem, id="asked", problem=text), "asked"

    def observe(self, agent: str) -> str:
        """Returns the problem's text."""
        return self.problem.problem

    def on_layer(self, turns: Sequence[TurnRecord]) -> Outcome:
        """Gives no reward: a math problem has no intermediate verdict."""
        self._prepared |= not self.specialists and not {turn.agent for turn in turns} <= set(self.answerers)
        return Outcome()

    def on_round(self, turns: Sequence[TurnRecord]) -> Outcome:
        """Grades the round's last answer; without one the score is 0 and the status ``no_answer``."""
        answer = next((turn for turn in reversed(turns) if turn.agent in self.answerers), None)
        if answer is None:
            score, info = 0.0, {"status": "no_answer", "tier": ""}
        else:
            verdict = grade(answer.spoken, self.problem.answer, self.problem.problem)
            score, info = float(verdict.score), {"status": str(verdict.status), "tier": str(verdict.tier)}
        right = score >= 1.0
        paid, self._score = score - self._score, score
        return Outcome(
            team_reward=paid,
            success=right,
            terminated=self.oracle and right,
            feedback=dict.fromkeys(self.answerers, _VERDICT[right]) if self.oracle else {},
            metrics={
                "accuracy": score,
                "parsed": float(bool(answer) and info["status"] in ("correct", "wrong", "restated")),
                "timeout": float(info["status"] == "timeout"),
            },
            info=info,
        )

    def sample_actions(self, agent: str) -> Sequence[str]:
        """Returns replies as models give them: right, wrong, and without a closed box."""
        gold = self.problem.answer
        return (f"Therefore \\boxed{{{gold}}}.", "\\boxed{0}", "First add the two numbers.", "So \\boxed{12", "")

    def expert(self, agent: str) -> str:
        r"""Returns the worked solution: who answers gives its last step in a box, and all of it if nobody else spoke.

        Others give the steps before the last one, or the only one; among specialists, they name the one who answers.
        """
        if self.specialists and agent not in self.answerers:
            return self.specialists.get(self.problem.subject, next(iter(self.specialists.values())))
        steps = [step for step in _STEP.split(_BOX.sub("", self.problem.solution).strip()) if step]
        if agent not in self.answerers:
            return " ".join(steps[:-1] or steps) or f"The answer is ${self.problem.answer}$."
        return " ".join([*(steps[-1:] if self._prepared else steps), rf"\boxed{{{self.problem.answer}}}"])

    def answer_key(self, text: str) -> str:
        """Returns what a reply answers, without spaces: its last box, else its whole text. Votes count equal ones."""
        boxed = extract_boxed(text)
        return "".join((text if boxed is None else boxed).split())

    def gold(self) -> str:
        """Returns the gold answer, for conformance tests; no observation may hold it."""
        return self.problem.answer

    def validate(self) -> None:
        """Checks on a sample of problems that the boxed gold scores 1 and silence scores 0.

        Raises:
            ConfigError: Naming the first problem for which it does not hold.
        """
        for problem_id in self.evaluation_set(16):
            problem = self.problems.get(problem_id)
            if grade(f"\\boxed{{{problem.answer}}}", problem.answer, problem.problem).score != 1:
                raise ConfigError(
                    f"The gold answer of {problem.id} does not score 1: {problem.answer!r}. Check the data's gold."
                )
            if grade("", problem.answer).score != 0:
                raise ConfigError(f"An empty reply to {problem.id} scores above 0. Check the grader.")
