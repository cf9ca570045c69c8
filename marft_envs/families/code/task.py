"""The coding task: programs, public tests as feedback, hidden tests as reward."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from marft_envs.core.types import AgentSpec, Outcome, TurnRecord
from marft_envs.errors import ConfigError, DataError, UnsolvedError, check_known
from marft_envs.families.code import feedback, rewards
from marft_envs.families.code.extract import Extraction, extract, proposed_tests
from marft_envs.families.code.judge import VERDICTS, Judge, Report
from marft_envs.families.code.problem import CodeProblem, Test
from marft_envs.families.code.teams import TESTER
from marft_envs.problems.sets import Drawn
from marft_envs.sandbox import Limits, Sandbox

if TYPE_CHECKING:
    from marft_envs.families.code.data import ProblemSet

CODE_BLOCKS = ("lenient", "strict")


def main_step(program: str) -> str:
    """Returns the longest line inside a program's functions, of all of it if it has none: what a planner would name.

    Found without a parser, since solutions come from data files. Headers, imports and comments are no steps.
    """
    lines = [line for line in program.splitlines() if not re.match(r"\s*(#|def |class |import |from |@|$)", line)]
    inside = [line for line in lines if line[0].isspace()] if re.search(r"^def |^class ", program, re.M) else []
    return max(inside or lines or [program], key=lambda line: len(line.strip())).strip()


class CodeTask(Drawn[CodeProblem]):
    """Draws a problem; runs every program on the public tests, and the last program of a round on the hidden ones.

    Results of public tests are feedback to all agents. The episode ends with the round after which all of them pass.
    Results of hidden tests are the reward, and stand in no observation and no record. The module
    :mod:`marft_envs.families.code.rewards` has the rewards.

    Args:
        problems: Where problems come from.
        agents: The team. Agents tagged ``with_answer`` write programs; those with the role ``tester`` propose tests,
            which are run on the team's program and are feedback only.
        sandbox: Where programs run.
        limits: Of one test; a problem's own take precedence.
        reward: One of :data:`marft_envs.families.code.rewards.REWARDS`.
        format_penalty: What a turn of a writer costs, in the turn channel, if its reply holds no program.
        code_block: ``lenient`` or ``strict``, see :func:`marft_envs.families.code.extract.extract`.
        feedback: Tell the agents what public tests say.

    Raises:
        ConfigError: If a setting does not exist.
    """

    problems: ProblemSet
    slow = True  # Programs run in the sandbox's processes.

    def __init__(
        self,
        problems: ProblemSet,
        agents: Sequence[AgentSpec],
        sandbox: Sandbox,
        limits: Limits,
        reward: str = "mixed",
        format_penalty: float = 0.0,
        code_block: str = "lenient",
        feedback: bool = True,
    ) -> None:
        rewards.check(reward, format_penalty)
        check_known([code_block], CODE_BLOCKS, "There is no code_block '{}'.")
        self.problems = problems
        self.agents = tuple(agent.name for agent in agents)
        self.writers = frozenset(agent.name for agent in agents if agent.with_answer)
        self.testers = frozenset(agent.name for agent in agents if agent.role == TESTER and not agent.with_answer)
        self.judge = Judge(sandbox, limits)
        self.reward, self.format_penalty, self.code_block = reward, format_penalty, code_block
        self.tells = feedback
        self._start()

    def _start(self) -> None:
        self._found = Extraction("", "no_code")  # what the last writer's reply holds
        self._public = Report(())
        self._hidden: Report | None = None  # of the last program; None while it has not been judged
        self._proposed: list[Test] = []
        self._tried = Report(())
        self._score = 0.0
        self._advised: dict[str, None] = {}  # who has spoken since the last program, in order
        self._written = self._formatted = 0

    def reset(self, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
        """Takes the problem ``options["task_id"]``, else draws one.

        Raises:
            DataError: The problem has no hidden test.
        """
        problem = self.draw(rng, options)
        if not problem.hidden:
            raise DataError(f"'{problem.id}' has no hidden test, which decide the reward. Give it at least one test.")
        self._start()

    def observe(self, agent: str) -> str:
        """Returns the statement with the public tests."""
        return feedback.statement(self.problem)

    # An episode ------------------------------------------------------------------------------------

    def on_layer(self, turns: Sequence[TurnRecord]) -> Outcome:
        """Runs a new program on the public tests and the tester's, and a known one on new tests of the tester."""
        written = next((turn for turn in reversed(turns) if turn.agent in self.writers), None)
        words = [turn.spoken for turn in turns if turn.agent in self.testers]
        tests = [test for text in words for test in proposed_tests(text, self.problem)]
        if tests:
            self._proposed = list(dict.fromkeys(tests))
        own: dict[int, float] = {}
        for turn in turns:
            if turn.agent in self.writers:
                extraction = extract(turn.spoken, self.code_block)
                self._written, self._formatted = self._written + 1, self._formatted + (extraction.status == "ok")
                if extraction.status != "ok" and self.format_penalty:
                    own[turn.index] = -self.format_penalty
                if turn is written:
                    self._found, self._hidden = extraction, None
        advice: dict[str, float] = {}
        if written is not None:
            self._public = self._report(self.problem.public)
            if self.reward == "difference":
                change = self._change()
                own[written.index] = own.get(written.index, 0.0) + change
                advice = dict.fromkeys(self._advised, change)
            self._advised = {}
        self._advised.update(dict.fromkeys(turn.agent for turn in turns if turn.agent not in self.writers))
        if not self._written or (written is None and not tests):
            return Outcome(turn_rewards=own)
        self._tried = self._report(self._proposed)
        said = feedback.feedback(self.problem, self._public, self._proposed, self._tried, self._found.status)
        receivers = self.agents if self.tells else ()
        return Outcome(turn_rewards=own, agent_rewards=advice, feedback=dict.fromkeys(receivers, said))

    def on_round(self, turns: Sequence[TurnRecord]) -> Outcome:
        """Runs the last program on the hidden tests; the reward is the change of score since the round before."""
        change = 0.0 if self.reward == "difference" else self._change()
        hidden = self._judged()
        return Outcome(
            team_reward=change,
            success=hidden.all_passed,
            terminated=self._public.all_passed,
            metrics=self._metrics(turns, hidden),
            info={
                "verdict": hidden.verdict,
                "hidden_verdicts": hidden.counts,
                "public_verdicts": self._public.counts,
                "reply": self._found.status,
                "sandbox": self.judge.sandbox.layer,
            },
        )

    def _report(self, tests: Sequence[Test]) -> Report:
        """What the last program makes of these tests."""
        if self._found.status != "ok":
            return Report.same("too_large" if self._found.status == "too_large" else "no_code", len(tests))
        return self.judge.report(self.problem, self._found.program, tests)

    def _judged(self) -> Report:
        if self._hidden is None:
            # A run of its own: a program that snoops on the inputs of later calls must not find hidden ones
            # while it answers public ones, whose values are shown.
            self._hidden = self._report(self.problem.hidden)
        return self._hidden

    def _change(self) -> float:
        """The score of the last program less that of the one before."""
        before, self._score = self._score, rewards.score(self.reward, self._judged())
        return self._score - before

    def _metrics(self, turns: Sequence[TurnRecord], hidden: Report) -> dict[str, float]:
        metrics = {
            "pass": float(hidden.all_passed),
            "fraction": hidden.fraction,
            "public_pass": float(self._public.all_passed),
            "format": self._formatted / self._written if self._written else 0.0,
            "format_penalty": self.format_penalty * (self._written - self._formatted),
            "rounds": float(turns[-1].round + 1) if turns else 0.0,
        }
        if self.testers:
            metrics["proposed"] = float(len(self._proposed))
            metrics["proposed_agree"] = self._tried.fraction
        return metrics | {f"verdict/{verdict}": float(verdict == hidden.verdict) for verdict in VERDICTS}

    # For drivers and tests -------------------------------------------------------------------------

    def sample_actions(self, agent: str) -> Sequence[str]:
        """Returns replies as models give them: right, wrong, broken, cut off, without a program; tests; advice."""
        problem = self.problem
        if agent in self.testers:
            name = problem.entry_point.rpartition(".")[2] or "f"
            return (f"- `{name}(1) == 1`\n{name}(2, 3) == 5", '"1 2\\n" == "3\\n"', "Try an empty list.", "")
        if agent not in self.writers:
            return ("First read the input, then add it up.", "The case n = 0 is missed.", "")
        name = problem.entry_point.rpartition(".")[2]
        wrong = f"def {name}(*args):\n    return None\n" if problem.mode == "function" else "print(0)\n"
        right = problem.solution or wrong
        cut = f"```python\n{right}"
        broken = "```py\nreturn (\n```"
        return (f"```python\n{right}\n```", f"So:\n```python\n{wrong}```\nDone.", broken, cut, "I give up.", "")

    def expert(self, agent: str) -> str:
        """Returns the canonical solution as who writes, a public test as who tests, and its main step as an adviser.

        Raises:
            UnsolvedError: The problem has no canonical solution.
        """
        problem = self.problem
        if not problem.solution.strip():
            raise UnsolvedError(
                f"'{problem.id}' has no canonical solution, and so no demonstration. Expected problems with one,"
                " or recorded episodes (a JSONL file, a run)."
            )
        if agent in self.writers:
            return f"```python\n{problem.solution.strip()}\n```"
        if agent in self.testers and problem.public:
            test = problem.public[0]
            stdio = f"{json.dumps(test.input)} == {json.dumps(test.expected)}"
            return stdio if test.kind == "stdio" else feedback.example(problem, test)
        return f"The main step: {main_step(problem.solution)}"

    def gold(self) -> str:
        """Returns the canonical solution, for conformance tests; where there is none, the hidden tests."""
        return self.problem.solution or "\n".join(f"{test.input}\n{test.expected}" for test in self.problem.hidden)

    def validate(self) -> None:
        """Checks on a sample of problems that the canonical solution passes every test, and that silence scores 0.

        Problems without a canonical solution can only be checked for the latter.

        Raises:
            ConfigError: Naming the first problem for which it does not hold, or what keeps programs from running.
        """
        if rewards.score(self.reward, Report.same("no_code", 1)) != 0 or extract("", self.code_block).status == "ok":
            raise ConfigError("An empty reply scores above 0. Check marft_envs.families.code.rewards and extract.")
        for problem_id in self.evaluation_set(16):
            problem = self.problems.get(problem_id)
            if not problem.solution:
                continue
            reply = extract(f"```python\n{problem.solution}\n```", "strict")
            report = self.judge.report(problem, reply.program, [*problem.public, *problem.hidden])
            if not report.all_passed:
                raise ConfigError(
                    f"The canonical solution of '{problem.id}' does not pass its tests: {report.counts}. Check the "
                    "data, or give programs more time and memory (cpu_s, memory_mb)."
                )
