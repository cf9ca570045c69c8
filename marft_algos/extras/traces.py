"""``marft traces``: what a team in production does, and rows to teach it and cases to judge it by."""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import tyro

from marft_algos.config import arguments
from marft_algos.config.endpoints import token_prices
from marft_algos.runs.disk import write_whole
from marft_algos.terminal import clean, say
from marft_envs.core.teams import doubled
from marft_envs.errors import ConfigError, DataError
from marft_envs.records.chats import masked, plain
from marft_envs.records.traces import CASES, Trace, TracedTurn, read

_NAMED = 5
"""Unreadable places and loops that are listed."""
Row = dict[str, Any]


@dataclass(frozen=True)
class TracesArguments:
    """Reads logs of a team: chats in OpenAI's form (JSONL), OpenTelemetry's spans of generative AI (JSON, OTLP too).

    So are exports of LangSmith, Langfuse and OpenAI Agents. Says what the team does. With --sft, writes each agent's
    prompts and replies, to learn from; with --cases, the tasks with their recorded results, to evaluate by. What looks
    like a key or a password is masked in all of it.
    """

    files: Annotated[tuple[str, ...], tyro.conf.Positional]
    """JSON or JSONL files."""
    sft: str = ""
    """Write rows for marft sft --demonstrations to this JSONL file; of traces that are known to have failed, none."""
    cases: str = ""
    """Write cases for marft eval to this JSONL file, and the team's profiles to NAME-team.json beside it."""
    price: str = ""
    """IN,OUT, the price of a million tokens of prompt and of reply, where a trace says no cost."""


def run_traces(options: TracesArguments) -> None:
    """``marft traces FILE…``."""
    token_price, cases_file = token_prices(options.price), Path(options.cases or "cases.jsonl")
    team_file = cases_file.with_name(f"{cases_file.stem}-team.json")
    for path in (options.sft, options.cases, str(team_file) if options.cases else ""):
        if path and Path(path).exists():
            raise ConfigError(f"{path} is there already. Next: another name, or remove it.")
    traces, unread = read(options.files)
    if not traces:
        why = f"Unread: {'; '.join(unread[:_NAMED])}" if unread else "Expected JSON of chats, or spans of models"
        raise DataError(masked(f"There is no trace in {', '.join(options.files)}. {why}."))
    for line in report(traces, unread, token_price):
        say(clean(masked(line), line=True))
    team, words = team_of(traces), ["--env", "ID"]
    if options.cases:
        _write(cases_file, "cases", *cases(traces))
        profiles = [{key: profile[key] for key in ("role", "prompt", "with_answer")} for profile in team.values()]
        write_whole(team_file, json.dumps(masked(profiles), indent=1) + "\n")
        words = ["--env", CASES, "--env-kwargs", f"data={options.cases}", f"profiles={team_file}"]
        say(f"next:      {arguments.typed('eval', *words, '--engines', 'MODEL')}")
    if options.sft:
        _write(Path(options.sft), "rows", *sft_rows(traces, {agent: team[agent]["name"] for agent in team}))
        say(f"next:      {arguments.typed('sft', *words, '--demonstrations', options.sft)}")


def _write(path: Path, what: str, found: Sequence[Row], left: Counter[str]) -> None:
    """Writes rows, masked, and says how many, and how many are left out for which reason."""
    out = f" (left out: {', '.join(f'{n} {why}' for why, n in left.items())})" if left else ""
    if not (hidden := [masked(row) for row in found]):
        raise DataError(f"There are no {what} to write to {path}{out}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "".join(json.dumps(row) + "\n" for row in hidden))
    changed = sum(row != before for row, before in zip(hidden, found, strict=True))
    say(f"{what + ':':<10} {path}: {len(hidden)}{out}" + (f", {changed} with secrets masked" if changed else ""))


# What is written -------------------------------------------------------------------------------------


def sft_rows(traces: Sequence[Trace], names: Mapping[str, str]) -> tuple[list[Row], Counter[str]]:
    """Returns a row for each turn, as ``trajectory.to_samples`` makes them, and why turns are left out."""
    found, left = list[Row](), Counter[str]()
    for trace in traces:
        for number, turn in enumerate(trace.turns):
            if trace.success is False:
                left["of failed traces"] += 1
            elif turn.said is None or not turn.prompt:
                left["without prompt or reply"] += 1
            else:
                row: Row = {"messages": plain(turn.prompt), "action": turn.said.content, "tools": list(turn.tools)}
                found.append(row | {"agent": names[turn.agent], "task_id": _id(trace), "turn": number})
    return found, left


def cases(traces: Sequence[Trace]) -> tuple[list[Row], Counter[str]]:
    """Returns a case for each trace, the words that ended it for a reference, and why traces are left out."""
    found, left = dict[str, Row](), Counter[str]()
    for trace in traces:
        problem = next((m.content for t in trace.turns for m in t.prompt if m.role == "user" and not m.results), "")
        last = trace.turns[-1].said
        if trace.success is False:
            left["failed"] += 1
        elif not problem.strip() or last is None or last.calls or not last.content.strip():
            left["without a task or a result in words"] += 1
        elif _id(trace) in found:
            left["of a task that is there already"] += 1
        else:
            found[_id(trace)] = {"id": _id(trace), "problem": problem, "answer": last.content, "kind": trace.kind}
    return list(found.values()), left


def team_of(traces: Sequence[Trace]) -> dict[str, Row]:
    """Returns agent -> its profile: its most frequent system prompt. The agent that ends most traces acts last.

    ``name`` is what it is called in a team that is made of these profiles, in which braces are doubled.
    """
    told: dict[str, Counter[str]] = defaultdict(Counter)
    for turn in (turn for trace in traces for turn in trace.turns):
        told[turn.agent]["\n".join(m.content for m in turn.prompt if m.role == "system")] += 1
    answerer = Counter(trace.turns[-1].agent for trace in traces).most_common(1)[0][0]
    team, seen = dict[str, Row](), Counter[str]()
    for agent in [*(agent for agent in told if agent != answerer), answerer]:
        role = re.sub(r"[^a-z]+", "_", agent.lower()).strip("_") or "agent"
        prompt = doubled(told[agent].most_common(1)[0][0])
        team[agent] = {"role": role, "prompt": prompt, "with_answer": agent == answerer, "name": f"{role}_{seen[role]}"}
        seen[role] += 1
    return team


def _id(trace: Trace) -> str:
    return trace.id if "/" in trace.id else f"{trace.kind}/{trace.id}"


# What is said ----------------------------------------------------------------------------------------


def report(traces: Sequence[Trace], unread: Sequence[str], token_price: tuple[float, float] | None) -> list[str]:
    """Says what the team does, a line each: turns, handoffs, loops, errors of tools, costs, what cannot be read."""
    turns = [turn for trace in traces for turn in trace.turns]
    judged = [trace.success for trace in traces if trace.success is not None]
    known = f", {sum(judged)} of {len(judged)} judged ones succeeded" if judged else ""
    lines = [f"traces:    {len(traces)}, {len(turns)} turns{known}"]
    for agent in dict.fromkeys(turn.agent for turn in turns):
        own = [turn for turn in turns if turn.agent == agent]
        read, sampled = (statistics.mean(getattr(t, kind) for t in own) for kind in ("prompt_tokens", "tokens"))
        models = ", ".join(dict.fromkeys(t.model for t in own if t.model)) or "unknown model"
        lines.append(f"agent:     {agent}, {len(own)} turns, {read:.0f} + {sampled:.0f} tokens each, {models}")
    handed = Counter((a.agent, b.agent) for trace in traces for a, b in pairwise(trace.turns) if a.agent != b.agent)
    lines += [f"handoff:   {a} -> {b}, {n} times" for (a, b), n in handed.most_common()]
    words = Counter((i, t.agent, t.said.content) for i, one in enumerate(traces) for t in one.turns if t.said)
    lines += _few(
        "loop:", [f"{who} says the same {n} times in {traces[i].id}" for (i, who, _), n in words.items() if n > 1]
    )
    called, wrong = (Counter(name for t in traces for name, bad in t.calls if bad >= least) for least in (0, 1))
    lines += [f"tool:      {name}, {n} calls, {wrong[name]} went wrong" for name, n in called.most_common()]
    if spent := [cost for turn in turns if (cost := _cost(turn, token_price)) is not None]:
        lines.append(f"cost:      {sum(spent):.4f}" + (f", of {len(spent)} turns" if len(spent) < len(turns) else ""))
    return lines + _few("unread:", unread)


def _few(title: str, items: Sequence[str]) -> list[str]:
    more = [f"and {len(items) - _NAMED} more"] if len(items) > _NAMED else []
    return [f"{title:<10} {item}" for item in [*items[:_NAMED], *more]]


def _cost(turn: TracedTurn, token_price: tuple[float, float] | None) -> float | None:
    if turn.cost is not None or token_price is None:
        return turn.cost
    return (turn.prompt_tokens * token_price[0] + turn.tokens * token_price[1]) / 1e6
