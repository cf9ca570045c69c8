"""The search task: a puzzle, answers to it, and whether the last one is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from marft_envs.core.types import AgentSpec, Outcome, TurnRecord
from marft_envs.errors import ConfigError
from marft_envs.families.search.puzzles import Puzzle, PuzzleKind
from marft_envs.problems.dice import Dice
from marft_envs.problems.sets import Drawn, ProblemSet


class SearchTask(Drawn[Puzzle]):
    """Draws a puzzle; the last answer in the last reply of an answering agent is the team's.

    Everybody sees the puzzle. What a checker sees of proposals is D's business.

    Args:
        kind: What is asked.
        problems: Puzzles of this kind.
        agents: The team. Agents tagged ``with_answer`` answer for it; those with the role ``checker`` write checks.
        tries: Agent -> how many answers an expert tries in one reply.
    """

    problems: ProblemSet[Puzzle]
    slow = False

    def __init__(
        self,
        kind: PuzzleKind,
        problems: ProblemSet[Puzzle],
        agents: Sequence[AgentSpec],
        tries: Mapping[str, int] | None = None,
    ) -> None:
        self.kind, self.problems = kind, problems
        self.answerers = frozenset(agent.name for agent in agents if agent.with_answer)
        self.checkers = frozenset(agent.name for agent in agents if agent.role == "checker")
        self.tries = dict(tries or {})
        self._proposed: list[str] = []

    def reset(self, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
        """Takes the puzzle ``options["task_id"]``, else draws one."""
        self.draw(rng, options)
        self._proposed = []

    def observe(self, agent: str) -> str:
        """Returns the puzzle."""
        return self.problem.text

    def on_layer(self, turns: Sequence[TurnRecord]) -> Outcome:
        """Pays nothing, and keeps what was proposed."""
        self._proposed += [self.kind.answer(turn.text) for turn in turns if turn.agent not in self.checkers]
        return Outcome()

    def on_round(self, turns: Sequence[TurnRecord]) -> Outcome:
        """Pays 1 if the last answer is right. ``offered``: a right one was proposed, whoever was believed."""
        last = next((turn for turn in reversed(turns) if turn.agent in self.answerers), None)
        answer = self.kind.answer(last.text) if last is not None else ""
        right = answer in self.problem.answers
        offered = any(proposal in self.problem.answers for proposal in self._proposed)
        metrics = {"parsed": float(bool(answer)), "offered": float(offered), "turns": float(len(turns))}
        return Outcome(team_reward=float(right), success=right, terminated=True, metrics=metrics)

    def answer_key(self, text: str) -> str:
        """Returns the answer that a reply gives, in its one spelling; votes count equal ones."""
        return self.kind.answer(text)

    def expert(self, agent: str) -> str:
        """Returns a right answer as who proposes, wrong ones and their checks before it as who tries several.

        A checker who answers checks what was proposed, up to the first right answer, and where none is, answers itself;
        another checks the last proposal. That a count is right there is no way to show: its check is a verdict alone.
        """
        puzzle, dice = self.problem, Dice(f"{self.task_id}/expert", 0)
        right = dice.choice(puzzle.answers)
        if agent in self.checkers:
            answers = agent in self.answerers
            heard = [said for said in (self._proposed if answers else self._proposed[-1:]) if said]
            return self.checked([*heard, *([right] if answers else [])])
        wrong = [self.kind.near(puzzle, dice) for _ in range(dice.below(self.tries.get(agent, 1)))]
        return self.checked([*wrong, right]) if agent in self.tries else right

    def checked(self, answers: Sequence[str]) -> str:
        """Returns answers with their checks, a line each, up to the first right one."""
        lines = []
        for answer in answers:
            lines.append(self.kind.check(self.problem, answer))
            if answer in self.problem.answers:
                break
        return "\n".join(lines)

    def sample_actions(self, agent: str) -> Sequence[str]:
        """Returns replies as models give them: right, wrong, checked, and without an answer."""
        puzzle = self.problem
        wrong = self.kind.near(puzzle, Dice(f"{self.task_id}/sample", 0))
        both = self.checked([wrong, puzzle.answers[0]])
        return (puzzle.answers[0], wrong, both, self.kind.check(puzzle, wrong), "I see none.", "")

    def gold(self) -> str:
        """Returns a right answer, for conformance tests, with its check: so no observation holds it by chance."""
        return self.kind.check(self.problem, self.problem.answers[0])

    def validate(self) -> None:
        """Checks on a sample of puzzles that right answers are read as right, near ones and silence as wrong.

        Raises:
            ConfigError: Naming the first puzzle for which it does not hold.
        """
        for problem_id in self.eval_panel(16):
            puzzle = self.problems.get(problem_id)
            for answer in puzzle.answers:
                if self.kind.answer(self.kind.check(puzzle, answer)) != answer:
                    raise ConfigError(f"The right answer '{answer}' to '{puzzle.id}' is not read as it is written.")
            near = self.kind.near(puzzle, Dice(puzzle.id, 0))
            if "" in puzzle.answers or self.kind.answer(near) in puzzle.answers:
                raise ConfigError(f"Silence or the wrong answer '{near}' to '{puzzle.id}' would be right.")
