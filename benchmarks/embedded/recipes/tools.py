"""How the tool-using teams talk: what the model ``embedded-tools`` is shown.

The demonstrator knows the gold calls and is careless: it takes the amount of a refund for the order where it could be
one, ships without saying where to, and sends what is to be recorded to those who look after orders, most of the time.
Now and then the router names somebody who has nothing to do with it, so that specialists learn to decline.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import marft_envs
from benchmarks.embedded.recipes import Format, Recipe, Reply, Scene, ScoreSet, plain
from marft_envs.call_formats import parse, written
from marft_envs.families.tools import ToolCall, oracle
from marft_envs.families.tools.depot.rows import CITIES, ITEMS

SLIP = 0.65
"""Share of refunds with amount and order swapped, of shipments without their city, of records sent to orders."""
LOST = 0.3
"""Share of changed addresses that a router sends to those who ship."""
ASTRAY = 0.15
"""Share of a router's words that reach another specialist than the one named, whatever is asked."""
GIVES_UP = 0.6
"""Share of declined requests that the router ends there."""
EASY = 0.3
"""Share of the turns without any argument to be copied that are shown: copying is what takes long to learn."""
_FIRST_ORDER = 10
"""Numbers of orders begin here: an amount below it cannot be taken for one."""

QUIET: dict[str, Any] = {"show_policy": False, "show_tools": "none"}
"""A tiny model learns tools by heart; their schemas would be most of its prompts."""
_LEVEL = {"levels": [0], "split": "train", **QUIET}
CHAIN: dict[str, Any] = {"dependency": [["orders_0"], ["shipping_0"], ["refunds_0"]], "max_rounds": 1}
"""The router's specialists in a fixed order, each once, without the router."""


def _slipped(call: ToolCall, rng: random.Random) -> ToolCall:
    """The call as the demonstrator makes it."""
    arguments = dict(call.arguments)
    if call.name == "refund_order" and arguments["amount"] >= _FIRST_ORDER and rng.random() < SLIP:
        arguments = {"order": arguments["amount"], "amount": arguments["order"]}
    if call.name == "ship_order" and rng.random() < SLIP:
        del arguments["city"]
    return ToolCall(call.name, arguments)


def _lost(wanted: ToolCall, role: str, rng: random.Random) -> str:
    """The specialist whom a router thinks of; ``role`` is the right one."""
    if wanted.name == "record_case" and rng.random() < SLIP:
        return "orders"
    return "shipping" if wanted.name == "change_address" and rng.random() < LOST else role


def calls(scene: Scene) -> Reply:
    """Makes one's own part of the calls, finishes, hands over, or says that nothing is left to do."""
    text = oracle.answer(scene.task, scene.agent)
    calls = [_slipped(call, scene.rng) for call in parse(text).calls if call.arguments]
    return plain(written(calls)) if calls else _easy(scene, text)


def waits(scene: Scene) -> Reply:
    """The same, without a word to the user about what only the user can call."""
    left = oracle.remaining(scene.task)
    theirs = bool(left) and left[0].name not in scene.task.holds[scene.agent]
    return _easy(scene, oracle.DONE) if theirs else calls(scene)


def _easy(scene: Scene, text: str, said: str = "") -> Reply:
    """A turn that is shown now and then."""
    return Reply(text if scene.rng.random() < EASY else None, said or text)


def plans(scene: Scene) -> Reply:
    """Says ``cancel_order {"order": 50}``."""
    return plain(oracle.plan([_slipped(call, scene.rng) for call in oracle.remaining(scene.task)]))


def follows(scene: Scene) -> Reply:
    """Makes the call that the last plan names, right or wrong, while anything is left to do."""
    received = [text.partition(" ") for text in scene.received if text.partition(" ")[0] in scene.task.toolbox.tools]
    if not received or not oracle.remaining(scene.task):
        return calls(scene)
    name, _, arguments = received[-1]
    return plain(written([ToolCall(name, json.loads(arguments))]))


def routes(scene: Scene) -> Reply:
    """Names a specialist; finishes when something was done, and often when the one named first has declined."""
    left = oracle.remaining(scene.task)
    if not left or (scene.received and scene.rng.random() < GIVES_UP):
        return _easy(scene, written([ToolCall("finish", {})]))
    role = oracle.answer(scene.task, scene.agent)
    role = role if scene.received else _lost(left[0], role, scene.rng)
    return _easy(scene, role, scene.rng.choice(list(SPECIALISTS)) if scene.rng.random() < ASTRAY else role)


def supervises(scene: Scene) -> Reply:
    """Hands over as :func:`routes` names."""
    left = oracle.remaining(scene.task)
    if not left:
        return calls(scene)
    role = parse(oracle.answer(scene.task, scene.agent)).calls[0].name.removeprefix("transfer_to_")
    role = role if scene.received else _lost(left[0], role, scene.rng)
    return _easy(scene, written([ToolCall(f"transfer_to_{role}", {})]))


SPECIALISTS = dict.fromkeys(("orders", "shipping", "refunds"), calls)
TEAMS: dict[str, Format] = {
    "tools-router-v0": Format(8000, {"router": routes, **SPECIALISTS}, _LEVEL),
    "tools-solo-v0": Format(600, {"agent": calls}, _LEVEL),
    "tools-dual-v0": Format(600, {"planner": plans, "executor": follows}, _LEVEL),
    "tools-trio-v0": Format(400, {"planner": plans, "executor": follows, "verifier": calls}, _LEVEL),
    "tools-supervisor-v0": Format(600, {"supervisor": supervises, **SPECIALISTS}, _LEVEL),
    "tools-debate-v0": Format(400, {"proposer": plans, "executor": follows}, _LEVEL),
    "tools-dual_control-v0": Format(400, {"user": calls, "agent": waits}, _LEVEL),
}
IN_CHAIN = Format(1500, SPECIALISTS, {**_LEVEL, **CHAIN})

_ARGUMENTS = {
    "cancel_order": '"order": ',
    "change_address": '"order": ',
    "confirm_address": '"order": ',
    "ship_order": '"order": ',
    "add_stock": '"item": "',
    "refund_order": '"order": ',
    "approve_refund": '"order": ',
    "record_case": '"order": ',
}
"""Tool -> how its first argument begins."""
PHRASES = ["system\n", "user\n", "assistant\n", "The user says:\n", "What you want:\n", oracle.DONE, "\n\n"]
PHRASES += ["Cancel order ", "Move order ", "Ship order ", "Refund ", "Record order ", "Add ", " for review.", " to "]
PHRASES += [" for order ", " to stock of ", *CITIES, *ITEMS, *SPECIALISTS]
PHRASES += ["<tool_call>\n", "\n</tool_call>", "< tool_call>\n", "\n< /tool_call>", "}}", '"}}']
PHRASES += [', "city": "', ', "quantity": ', ', "amount": ', ', "reason": "review"}}', ', "reason": "review"}']
PHRASES += ['{"name": "finish", "arguments": {}}', 'finish: {"finished": true}']
PHRASES += [f'{{"name": "transfer_to_{name}", "arguments": {{}}}}' for name in (*SPECIALISTS, "executor", "supervisor")]
for _name, _first in _ARGUMENTS.items():
    PHRASES += [f'{{"name": "{_name}", "arguments": {{{_first}', f"{_name} {{{_first}", f"{_name}: {{{_first}"]
PHRASES += ['refund_order: {"refund": ', 'record_case: {"case": ', '", "stock": ', ', "code": ']
PHRASES += [', "status": "shipped"', ', "status": "cancelled"', '"}']


def corpus() -> Iterator[str]:
    """Yields what the router's team reads and says when it makes no mistake."""
    env = marft_envs.make("tools-router-v0", **_LEVEL)
    for seed in range(300):
        oracle.play(env, seed)
        yield env.state()


def score_sets() -> Iterator[ScoreSet]:
    """Yields the router's team on all held-out tasks, its specialists in a chain, and the other teams on some."""
    held_out: Mapping[str, Any] = {**_LEVEL, "split": "test"}
    task: Any = marft_envs.make("tools-router-v0", **held_out).task
    tasks = [{"task_id": task_id} for task_id in task.evaluation_set()]
    random.Random(0).shuffle(tasks)
    yield ScoreSet("tools-router-v0", tasks, held_out, tries=4)
    yield ScoreSet("tools-router-v0", tasks, {**held_out, **CHAIN})
    yield from map(partial(_some, tasks[:100], held_out), list(TEAMS)[1:])


def _some(tasks: list[dict[str, str]], kwargs: Mapping[str, Any], env_id: str) -> ScoreSet:
    return ScoreSet(env_id, tasks, kwargs)


RECIPE = Recipe(
    TEAMS,
    PHRASES,
    corpus,
    score_sets,
    steps=1600,
    batch=32,
    short=(56,),
    new_tokens=24,
    more=(("tools-router-v0", IN_CHAIN),),
    tag=r"\[[a-z_]+(?:, round \d+)?\]",
    beside="error_rate",
)
