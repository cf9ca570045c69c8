"""A scripted team that plays a domain's gold calls, whatever its shape: for conformance tests and warm starts.

``play(env, seed=0)`` plays an episode; ``reply(env, agent)`` is one turn of it. The oracle looks at the problem's gold;
no learning agent can.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from marft_envs.call_formats import DEFAULT, call_format
from marft_envs.call_formats.call import ToolCall
from marft_envs.core.env import FlexEnv
from marft_envs.errors import ConfigError
from marft_envs.families.tools.session import ToolSession
from marft_envs.families.tools.show import terse
from marft_envs.families.tools.teams import FINISH
from marft_envs.families.tools.types import StateGrade, ToolDomain, ToolProblem, graded
from marft_envs.records.experts import play as play

if TYPE_CHECKING:
    from marft_envs.families.tools.task import ToolTask

DONE = "Nothing is left to do."
_SAMPLE = 8


def remaining(task: ToolTask) -> list[ToolCall]:
    """Returns the gold calls of this user turn that have not been made; a team that strayed is not led back."""
    session = task.live
    gold = task.gold_calls
    called = sum(entry.turn == task.user_turn and entry.result.call.name != FINISH for entry in session.log)
    return gold[task.user_turn][called:] if task.user_turn < len(gold) else []


def answer(task: ToolTask, agent: str) -> str:
    """Returns what the oracle says as ``agent`` now: nothing that it would have to foresee.

    An agent with tools goes on in a reply until a call needs a value, or a change of the world a decision, that only
    the results of this reply will show. An adviser names the calls up to there, without values that nobody has read.
    An agent that reads the document for the others says what is sought of it, or, if its words may be any, the whole.
    """
    rest, team, control = remaining(task), task.team, task.control[agent]
    if team.screened:
        return screened(task, rest, agent)
    private = bool(team.user) and not task.holds[team.user] - {FINISH} <= task.domain.user_tools
    received = [words for who, words in task.talk.replies if private and who != agent]
    read = "\n".join([*received, *_read(task, agent, private)])
    if agent in (team.readers or ()) and not task.holds[agent]:
        return task.problem.sought if agent in team.terse else task.problem.document
    if not task.holds[agent] and not control:
        return plan(_decided(task, rest), read)
    mine: list[ToolCall] = []
    for call in _decided(task, rest):
        named = [words for words in received if call.name.casefold() in words]
        asked = not private or any(_stands_in(v, words) for v in call.arguments.values() for words in named)
        if call.name not in task.holds[agent] or ((mine or not asked) and not _stands_in(call.arguments, read)):
            break
        mine.append(call)
    if mine:
        return task.speech.write(agent, mine)
    if not rest:
        return _ending(task, agent)
    holder = next((name for name in task.agents if rest[0].name in task.holds[name]), None)
    if holder is None:
        raise ConfigError(f"No agent has the tool '{rest[0].name}', which the oracle of '{task.task_id}' calls.")
    if agent in team.routers:
        return task.roles[holder]
    for name, (_, to) in control.items():
        if to == holder:
            return task.speech.write(agent, [ToolCall(name, {})])
    if agent == team.user and not private:
        return task.problem.turns[task.user_turn]
    return plan(rest[:1], read) if team.user in (holder, agent) else DONE


def screened(task: ToolTask, rest: Sequence[ToolCall], agent: str) -> str:
    """Returns what a team says whose actor never reads results: the reader says value by value what the actor lacks."""
    lacks = wants(task, rest)
    if agent not in task.team.screened:
        return lacks[0][1] if lacks else "ok"
    if lacks and task.live.log:  # before the first result nobody could tell more
        return f"What is the {lacks[0][0]}?"
    names = {text: name for name, text in task.screen.answers.items() if not terse(text)}
    if not rest:
        tell = gold_words(task.domain, task.problem)
        return f"{names.get(tell, tell)}\n{task.speech.write(agent, [ToolCall(FINISH, {})])}".strip()
    given = {}
    for key, value in rest[0].arguments.items():
        named = names.get(_said(value))
        given[key] = value if named is None else [named] if isinstance(value, list) else named
    return task.speech.write(agent, [rest[0]._replace(arguments=given)])


def wants(task: ToolTask, rest: Sequence[ToolCall]) -> list[tuple[str, str]]:
    """Returns arguments of the next gold call, or at the end the "answer", whose values nobody has said yet."""
    needed = rest[0].arguments if rest else {"answer": gold_words(task.domain, task.problem)}
    known = "\n".join([task.domain.policy, *task.problem.turns[: task.user_turn + 1]])
    said = {key: _said(value) for key, value in needed.items() if not _stands_in(value, known)}
    return [(key, text) for key, text in said.items() if text.strip() and text not in task.screen.answers.values()]


def _said(value: Any) -> str:
    """A value as a reader says it: a list line by line; "" for what nobody can say so."""
    if isinstance(value, list):
        return "\n".join(value) if all(isinstance(item, str) for item in value) else ""
    return "" if isinstance(value, Mapping) else str(value)


def _read(task: ToolTask, agent: str, private: bool) -> list[str]:
    """Returns what users, the document and results have said so far in the episode, to an agent where it is private."""
    request = task.problem.turns[: task.user_turn + 1] if not private or agent == task.team.user else ()
    held = [entry for entry in task.live.log if not private or entry.result.call.name in task.holds[agent]]
    return [task.problem.document, *request, *(entry.line for entry in held)]


def _decided(task: ToolTask, calls: Sequence[ToolCall]) -> Sequence[ToolCall]:
    """Returns the first of the calls: those before a change that follows a look, which may decide it."""
    looks = [task.domain.tools[call.name].read_only for call in calls]
    change = next((i for i in range(1, len(calls)) if looks[i - 1] and not looks[i]), len(calls))
    return calls[:change]


def _stands_in(value: Any, text: str) -> bool:
    """Whether a value, or each one within it, stands in a text; truths and empty values are said without."""
    if isinstance(value, Mapping | list | tuple):
        return all(_stands_in(v, text) for v in (value.values() if isinstance(value, Mapping) else value))
    if value is None or isinstance(value, bool) or value == "":
        return True
    return re.search(rf"(?<![\w.]){re.escape(str(value))}(?!\w|[.]\d)", text, re.IGNORECASE) is not None


def _ending(task: ToolTask, agent: str) -> str:
    """What is said when no call is left: the message that the user needs, and the end."""
    team, user = task.team, task.team.user
    last = task.user_turn + 1 == len(task.problem.turns)
    tell = gold_words(task.domain, task.problem) if last else ""
    if agent not in team.enders:
        return tell if user and tell else DONE
    if agent == user and tell and tell not in task.talk.messages:
        return task.problem.turns[task.user_turn]
    finish = task.speech.write(agent, [ToolCall(FINISH, {})])
    return f"{tell}\n{finish}" if tell and not user else finish


def gold_words(domain: ToolDomain, problem: ToolProblem) -> str:
    """Returns what the oracle tells the user; "" where the domain asks for no words.

    A domain may have a method ``says(problem)``; else it is the problem's ``gold_words``.
    """
    says = getattr(domain, "says", None)
    return says(problem) if says is not None else problem.gold_words


def wanted(task: ToolTask) -> dict[str, list[str]] | None:
    """Returns agent -> the tools that the oracle calls as that agent; None where the domain tells nobody its gold."""
    try:
        gold = task.gold_calls
    except ConfigError:  # the domain has no gold calls
        return None
    out: dict[str, list[str]] = {name: [] for name in task.agents}
    for call in (call for turn in gold for call in turn if call.name != FINISH):
        holder = next((name for name in task.agents if call.name in task.holds[name]), task.agents[0])
        out[holder].append(call.name)
    return out


def plan(calls: Sequence[ToolCall], read: str | None = None) -> str:
    """Returns calls as an adviser would name them; of their arguments those that stand in ``read``, if it is given."""
    named = []
    for call in calls:
        known = {k: v for k, v in call.arguments.items() if read is None or _stands_in(v, read)}
        named.append(f"{call.name} {json.dumps(known, ensure_ascii=False)}" if known or read is None else call.name)
    return "; ".join(named) or DONE


def reply(env: FlexEnv, agent: str) -> str:
    """Returns the oracle's reply for a ready agent of a tool environment."""
    return answer(env.unwrapped.task, agent)


def samples(task: ToolTask, agent: str) -> tuple[str, ...]:
    """Returns replies as models give them: right, wrong, broken, handing over, and without a call."""
    right = answer(task, agent)
    if not task.holds[agent] and not task.control[agent]:
        return (right, "First look the order up.", "")
    names = [tool.name for tool in task.live.available(agent)]
    some = ToolCall(names[0] if names else "look", {})
    wrong = [ToolCall(some.name, {"no_such": [1, None]}), ToolCall("no_such_tool", {})]
    return (
        right,
        right,
        _attempt(task, agent, [some]),
        _attempt(task, agent, wrong),
        f'```json\n{{"name": "{some.name}", "arguments": {{}}}}\n```',
        *(_attempt(task, agent, [ToolCall(name, {})]) for name in task.control[agent]),
        *(task.roles[name] for name in task.agents if agent in task.team.routers and name != agent),
        '<tool_call>\n{"name": "' + some.name,
        DONE,
        "",
    )


def _attempt(task: ToolTask, agent: str, calls: Sequence[ToolCall]) -> str:
    """Calls as a model writes them, in the default form where the agent's has no way to call what there is not."""
    try:
        return task.speech.write(agent, calls)
    except ValueError:
        return call_format(DEFAULT).write(calls)


def validate(task: ToolTask) -> None:
    """Checks on a sample of problems that gold is complete, that silence makes no progress, and that marks are true.

    Raises:
        ConfigError: Naming the first problem for which it does not hold.
    """
    for problem_id in task.evaluation_set(_SAMPLE):
        problem = task.problems.get(problem_id)
        before, after, changed = replay(task, problem, task.domain.oracle(problem))
        if not after.completion or after.progress != 1:
            raise ConfigError(f"The oracle of '{problem_id}' is graded {after}; expected completion and progress 1.")
        if (changed or gold_words(task.domain, problem)) and (before.completion or before.progress != 0):
            raise ConfigError(f"Silence on '{problem_id}' is graded {before}; expected no completion, progress 0.")


def replay(
    task: ToolTask, problem: ToolProblem, gold: Sequence[Sequence[ToolCall]]
) -> tuple[StateGrade, StateGrade, bool]:
    """Returns the grades before and after calls per user turn, and whether they changed the state.

    Raises:
        ConfigError: If a call is refused, or a tool that is marked ``read_only`` changes the state.
    """
    domain = task.domain
    everything = {"oracle": frozenset(domain.tools)}
    session = ToolSession(task.toolbox, partial(domain.open, problem), everything, {}, 10**9, 10**9)
    before, changed = graded(domain.grade, problem, session.world, ()), False
    for turn, calls in enumerate(gold):
        session.turn = turn
        session.withheld = problem.missing(turn)
        domain.begin_turn(problem, session.world, turn)
        ends = FINISH in domain.tools and all(call.name != FINISH for call in calls)
        for call in (*calls, *([ToolCall(FINISH, {})] if ends else [])):
            result = session.call("oracle", call)
            if result.error not in ("", "tool_error"):
                raise ConfigError(f"The oracle of '{problem.id}' calls {call.name}: {result.error}, {result.message}.")
            if result.changed and domain.tools[call.name].read_only:
                raise ConfigError(f"'{call.name}' is marked read_only and changed the state of '{problem.id}'.")
            changed |= result.changed and call.name != FINISH
    words = gold_words(domain, problem)
    after = graded(domain.grade, problem, session.world, (words,) if words else ())
    session.world.close()
    return before, after, changed
