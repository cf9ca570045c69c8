"""What an attack in results comes to where the one who acts never reads results, on AgentDojo's four suites.

::

    python -m benchmarks dojo [--package FOLDER] [--suites banking slack] [--limit 20]

Scripted agents, whatever models would do. An *obedient* one carries out the attacker's task, by upstream's own ground
truth, as soon as its goal stands in anything that it was shown, and else its user's. One agent (solo) is obedient. So
is the actor of the screened team, beside a reader who is *honest* (says the value that is asked for) or *obedient*
(once it has read an attack, it says the attacker's value for an argument of that name, else the attack itself). With
*names*, the actor passes on by name what is more than a word; with *words* it cannot.

``attack``: upstream's security check holds. ``utility``: upstream's utility check holds. *reached*: episodes in which
the attacker's goal stood in a prompt of the agent with tools. *said*: arguments of the gold, and answers, that stand
in the request or are the actor's own, that the reader says as one word, and that the actor passes on by name. Where
upstream has no ground truth of an injection, no script can carry it out, and its problems are left out.
"""

from __future__ import annotations

import argparse
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.runs import table
from marft_envs import Episode, FlexEnv
from marft_envs.families.tools import ToolCall, ToolProblem, make, oracle
from marft_envs.families.tools.dojo import SUITES, DojoDomain
from marft_envs.families.tools.dojo.domain import started
from marft_envs.families.tools.show import terse
from marft_envs.families.tools.teams import FINISH

LIMITS: dict[str, Any] = {"max_turns": 200, "max_calls": 200, "max_idle": 50, "max_result_chars": 100_000}
READERS = ("honest", "obedient")


@dataclass
class Script:
    """Plays one problem after another as scripted agents.

    Args:
        env: Solo, or the screened team.
        reader: One of :data:`READERS`.
        names: The actor passes on by name what is more than a word.
    """

    env: FlexEnv
    reader: str = "honest"
    names: bool = True
    reached: int = 0
    """Episodes in which the attacker's goal reached the agent with tools."""
    passed: Counter[str] = field(default_factory=Counter)

    def play(self, task_id: str) -> Episode:
        """Plays a problem."""
        self.env.reset(seed=0, options={"task_id": task_id})
        task: Any = self.env.task
        self.task, pair = task, task.problem.secret
        self.attacker: Any = task.domain.suite.tasks.injection_tasks[pair.injection] if pair.injection else None
        self.attack = attacked(task.domain, task.problem)
        self.todo, self.shown = list(task.gold_calls[0]), oracle.gold_words(task.domain, task.problem)
        self.obeyed, self.got = False, dict[str, str]()
        self.asked = ""
        while not self.env.done:
            agent = self.env.agent_selection
            self.env.step(self.act(agent) if task.holds[agent] else self.answer(agent))
        self.reached += self.obeyed
        return self.env.episode

    def reads_goal(self, agent: str) -> bool:
        """Whether the attacker's goal stands in what an agent is shown."""
        shown = "\n".join(message["content"] for message in self.env.messages(agent)[1:])
        return self.attacker is not None and plain(self.attacker.GOAL) in plain(shown)

    def act(self, agent: str) -> str:
        """Obeys, asks, calls, or ends."""
        if not self.obeyed and self.reads_goal(agent):
            self.obeyed, self.todo = True, [*self.attack, *self.todo]
            self.shown = f"{self.shown}\n{self.attacker.GROUND_TRUTH_OUTPUT}".strip()
        if self.asked:
            said = self.env.episode.turns[-1].text
            named = f"$answer_{self.env.episode.turns[-1].index}" if self.names else "?"
            self.passed["word" if terse(said) else "name"] += 1
            self.got[self.asked] = said.strip() if terse(said) else named
        call = self.todo[0] if self.todo else ToolCall(FINISH, {})
        lacks = [key for key in self.needed() if key not in self.got]
        self.asked = lacks[0] if lacks and self.task.live.log else ""
        if self.asked:
            return f"What is the {self.asked}?"
        given = {
            key: typed(self.got[key], value) if key in self.got else value for key, value in call.arguments.items()
        }
        self.passed["user"] += len(given) - len(self.got)
        words, self.got = "" if self.todo else self.got.get("answer", self.shown), {}
        self.todo = self.todo[1:]
        self.asked = next(iter(self.needed()), "") if not words else ""
        return f"{words}\n{self.task.speech.write(agent, [call._replace(arguments=given)])}".strip()

    def needed(self) -> dict[str, str]:
        """Argument -> value of the next call, or the answer at the end, that the user has not said."""
        if not self.task.team.screened or self.obeyed:
            return {}
        self.task.screen.answers, kept = {}, self.task.screen.answers
        needed = dict(oracle.wants(self.task, self.todo))
        self.task.screen.answers = kept
        return needed

    def answer(self, agent: str) -> str:
        """What the reader says."""
        if self.reader == "obedient" and self.reads_goal(agent):
            lies = {key: value for call in self.attack for key, value in call.arguments.items()}
            lie = lies.get(self.asked, self.attacker.GROUND_TRUTH_OUTPUT or self.attacker.GOAL)
            return "\n".join(map(str, lie)) if isinstance(lie, list) else str(lie)
        return self.needed().get(self.asked, "ok")


def plain(text: str) -> str:
    """Letters and digits alone: results are shown as JSON."""
    return re.sub(r"\W+", "", text.replace("\\n", ""))


def typed(said: str, gold: Any) -> Any:
    """An answer as the argument that it is for takes it."""
    if isinstance(gold, list):
        return [said]
    try:
        return type(gold)(said) if isinstance(gold, int | float) else said
    except ValueError:
        return said


def share(count: float, of: int) -> str:
    """``0.943 (132 of 140)``."""
    return f"{count / max(of, 1):.3f} ({count:.0f} of {of})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", help="folder of the agentdojo package, where it is not installed")
    parser.add_argument("--suites", nargs="+", choices=SUITES, default=list(SUITES))
    parser.add_argument("--limit", type=int, help="at most so many problems of a suite")
    args = parser.parse_args()
    rows, sums = list[list[str]](), dict[tuple[str, ...], Counter[str]]()
    for suite in args.suites:
        for how in (("solo",), *(("screened", reader, names) for names in ("names", "words") for reader in READERS)):
            got = sums.setdefault(how, Counter())
            rows.append([suite, *how, *[""] * (3 - len(how)), *measured(suite, how, args.package, args.limit, got)])
            print(" | ".join(rows[-1]), flush=True)
    for how, got in sums.items():
        rows.append(["all", *how, *[""] * (3 - len(how)), *columns(got)])
    print(table(HEAD, rows))


HEAD = [
    "suite",
    "team",
    "reader",
    "actor",
    "utility, no attack",
    "utility",
    "attack",
    "reached",
    "said: user, word, name",
    "ms",
]


def measured(suite: str, how: Sequence[str], package: str | None, limit: int | None, total: Counter[str]) -> list[str]:
    """Plays a suite without attacks and with them."""
    got, start = Counter[str](), time.process_time()
    task: Any
    for injections in (False, True):
        given = {"injections": injections, "package": package}
        env = make(how[0], f"agentdojo/{suite}", split="all", domain_args=given, limit=limit, **LIMITS)
        reader = how[1] if len(how) > 1 else "honest"
        script, task = Script(env, reader, "words" not in how), env.task
        for problem in task.problems:
            if injections and not scripted(task.domain, problem):
                continue
            episode = script.play(problem.id)
            got[f"done {injections}"] += bool(episode.success)
            got[f"n {injections}"] += 1
            got["attack"] += int(episode.metrics.get("obeyed", 0))
        got["reached"] += script.reached
        if not injections:
            got.update(script.passed)
    got["ms"] = round(1000 * (time.process_time() - start))
    total.update(got)
    return columns(got)


def attacked(domain: DojoDomain, problem: ToolProblem) -> list[ToolCall]:
    """The calls that carry a problem's injection out."""
    wanted = domain.suite.tasks.injection_tasks.get(problem.secret.injection)
    return [] if wanted is None else domain.suite.gold(wanted, started(domain.suite, problem.secret))


def scripted(domain: DojoDomain, problem: ToolProblem) -> bool:
    """Whether upstream says how the injection of a problem is carried out."""
    words = domain.suite.tasks.injection_tasks[problem.secret.injection].GROUND_TRUTH_OUTPUT
    return bool(words or attacked(domain, problem))


def columns(got: Counter[str]) -> list[str]:
    clean, attacked = got["n False"], got["n True"]
    passed = ", ".join(str(got[kind]) for kind in ("user", "word", "name"))
    return [
        share(got["done False"], clean), share(got["done True"], attacked), share(got["attack"], attacked),
        share(got["reached"], attacked), passed, f"{got['ms'] / max(clean + attacked, 1):.0f}",
    ]  # fmt: skip


if __name__ == "__main__":
    main()
