"""The multi-turn importer on invented back ends and rows: worlds, verdicts, rounds, bad input; no package needed."""

from __future__ import annotations

import copy
import importlib.util
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from marft_envs.call_formats.call import ToolCall
from marft_envs.errors import ConfigError, DataError, MissingExtraError
from marft_envs.families.tools import make, oracle
from marft_envs.families.tools.bfcl import BfclDomain, domain
from marft_envs.families.tools.bfcl.data import MORE_TOOLS, Backends, load, parse_call, strict
from marft_envs.families.tools.bfcl.world import BfclWorld, as_json, as_text, check_limits
from marft_envs.families.tools.types import Tool, ToolDomain, ToolError, ToolProblem, World

DEFAULTS: dict[str, Any] = {"tickets": []}


class TicketAPI:
    """An invented back end in upstream's manner: a loader, public state, a private generator, answers with errors."""

    def __init__(self) -> None:
        self._api_description = "invented"

    def _load_scenario(self, scenario: dict[str, Any], long_context: bool = False) -> None:
        self.tickets = scenario.get("tickets", DEFAULTS["tickets"])  # hands out its module's own list
        self.user = scenario.get("user")
        self.extra = ["much"] * (5 if long_context else 0)
        self._random = random.Random(7)

    def ticket_login(self, username: str, password: str) -> dict[str, Any]:
        self.user = username
        return {"success": True}

    def create_ticket(self, title: str, priority: int = 1) -> dict[str, Any]:
        if not self.user:
            return {"error": "Log in first."}
        if priority < 0:
            raise ValueError("negative priority")
        self.tickets.append({"id": self._random.randint(1, 99), "title": title, "priority": priority})
        return self.tickets[-1]

    def close_ticket(self, ticket_id: int) -> None:
        self.tickets[:] = [ticket for ticket in self.tickets if ticket["id"] != ticket_id]

    def get_user_tickets(self, status: str = "") -> list[dict[str, Any]]:
        return self.tickets

    def secret(self) -> None:
        raise AssertionError("never called: it is not described")


class MathAPI:
    """Stateless: upstream gives it no loader."""

    def __init__(self) -> None:
        self._api_description = "invented"

    def power(self, base: float, exponent: float) -> dict[str, Any]:
        return {"result": base**exponent}


CLASSES = {"TicketAPI": TicketAPI, "MathAPI": MathAPI}


def doc(name: str, required: list[str], **types: str) -> dict[str, Any]:
    given = {key: {"type": kind} for key, kind in types.items()}
    return {
        "name": name,
        "description": name,
        "parameters": {"type": "dict", "properties": given, "required": required},
    }


TOOLS = {
    "TicketAPI": [
        doc("ticket_login", ["username", "password"], username="string", password="string"),
        doc("create_ticket", ["title"], title="string", priority="integer"),
        doc("close_ticket", ["ticket_id"], ticket_id="integer"),
        doc("get_user_tickets", [], status="string"),
    ],
    "MathAPI": [doc("power", ["base", "exponent"], base="float", exponent="float")],
}


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}] if text else []


BASE: dict[str, Any] = {
    "id": "multi_turn_base_0",
    "turns": [user("Log in as ada."), user("Open 'a' and 'b'. What is 2 to the 5?"), user("List them.")],
    "involved_classes": ["TicketAPI", "MathAPI"],
    "initial_config": {"TicketAPI": {"tickets": [{"id": 0, "title": "old", "priority": 1}]}},
    "ground_truth": [
        ["ticket_login('ada', password='x')"],
        ["create_ticket(title='a')", "create_ticket('b', 3)", "power(2, 5)"],
        ["get_user_tickets()"],
    ],
}
HELD: dict[str, Any] = {
    "id": "multi_turn_miss_func_1", "turns": [user("Log in as ada."), user("Open 'a'."), user("")],
    "involved_classes": ["TicketAPI"], "initial_config": {}, "missed_functions": {"2": ["create_ticket"]},
    "ground_truth": [["ticket_login('ada', 'x')"], [], ["create_ticket(title='a')"]],
}  # fmt: skip
DEFECTIVE = {**BASE, "id": "multi_turn_base_173"}
LONG = {**BASE, "id": "multi_turn_long_context_0"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tools.json").write_text(json.dumps(TOOLS))
    for category, rows in {"base": [BASE, DEFECTIVE], "miss_func": [HELD], "long_context": [LONG]}.items():
        (tmp_path / f"multi_turn_{category}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.fixture
def bfcl(folder: Path, monkeypatch: pytest.MonkeyPatch) -> BfclDomain:
    monkeypatch.setattr(domain, "load", lambda package=None: Backends(folder, CLASSES))
    return BfclDomain(folder)


def first(bfcl: BfclDomain, problem_id: str = "bfcl/multi_turn_base_0") -> ToolProblem:
    return bfcl.problems("all").get(problem_id)


def play(bfcl: BfclDomain, problem: ToolProblem, turns: list[list[ToolCall]]) -> BfclWorld:
    world = bfcl.open(problem)
    for number, calls in enumerate(turns):
        bfcl.begin_turn(problem, world, number)
        for call in calls:
            try:
                world.call(call.name, call.arguments)
            except ToolError:
                continue
    return world


# -- problems --------------------------------------------------------------------------------------------------------


def test_problems_leave_out_the_defective_and_split_by_scenario(bfcl: BfclDomain) -> None:
    as_domain: ToolDomain = bfcl
    assert [p.id for p in bfcl.problems("all")] == [
        "bfcl/multi_turn_base_0", "bfcl/multi_turn_miss_func_1", "bfcl/multi_turn_long_context_0",
    ]  # fmt: skip
    assert [p.secret.id for p in bfcl.defective()] == ["multi_turn_base_173"]
    assert [p.id for p in bfcl.problems("train")] == ["bfcl/multi_turn_miss_func_1"]
    assert len(bfcl.problems("test")) == 2 and len(bfcl.problems("all", levels=[2])) == 1
    assert as_domain.specialists == {
        "tickets": {"ticket_login", "create_ticket", "close_ticket", "get_user_tickets"}, "maths": {"power"},
    }  # fmt: skip
    assert isinstance(bfcl.open(first(bfcl)), World)


def test_gold_and_schemas_are_read_without_evaluating_them(bfcl: BfclDomain) -> None:
    assert bfcl.oracle(first(bfcl)) == [
        [ToolCall("ticket_login", {"username": "ada", "password": "x"})],
        [ToolCall("create_ticket", {"title": "a"}), ToolCall("create_ticket", {"title": "b", "priority": 3}),
         ToolCall("power", {"base": 2, "exponent": 5})],
        [ToolCall("get_user_tickets", {})],
    ]  # fmt: skip
    assert bfcl.tools["power"].parameters == {
        "type": "object", "properties": {"base": {"type": "number"}, "exponent": {"type": "number"}},
        "required": ["base", "exponent"], "additionalProperties": False,
    }  # fmt: skip
    assert first(bfcl).least_steps == 5 and first(bfcl).level == 3
    assert "create_ticket(" not in repr(first(bfcl)) and "ada', password" not in repr(first(bfcl))


def test_tools_are_held_back_until_their_turn(bfcl: BfclDomain) -> None:
    problem = first(bfcl, "bfcl/multi_turn_miss_func_1")
    assert problem.withheld == (frozenset({"power", "create_ticket"}),) * 2 + (frozenset({"power"}),)
    assert problem.turns == ("Log in as ada.", "Open 'a'.", MORE_TOOLS)


@pytest.mark.parametrize("name", ["solo", "router", "supervisor", "trio"])
def test_teams_play_the_gold_to_completion(bfcl: BfclDomain, name: str) -> None:
    env = make(name, bfcl, split="all")
    for problem in bfcl.problems("all"):
        assert all(isinstance(tools, frozenset) for tools in problem.withheld), "observations are cached by it"
        episode = oracle.play(env, options={"task_id": problem.id})
        assert episode.success and episode.stop_reason == "task", (problem.id, episode.info)


def test_a_schema_becomes_strict() -> None:
    made = strict(
        {"type": "dict", "properties": {"x": {"type": "tuple", "items": {"type": "float"}}, "y": {"type": "any"}}}
    )
    assert made == {
        "type": "object", "additionalProperties": False,
        "properties": {"x": {"type": "array", "items": {"type": "number"}}, "y": {}},
    }  # fmt: skip


# -- worlds ----------------------------------------------------------------------------------------------------------


def test_answers_are_values_and_errors_are_tool_errors(bfcl: BfclDomain) -> None:
    world = bfcl.open(first(bfcl))
    with pytest.raises(ToolError, match="Log in first"):
        world.call("create_ticket", {"title": "a"})
    world.call("ticket_login", {"username": "ada", "password": "x"})
    made = world.call("create_ticket", {"title": "a"})
    made["title"] = "changed by the caller"
    assert world.call("get_user_tickets", {})[1]["title"] == "a", "values are copies"
    with pytest.raises(ToolError, match="negative priority"):
        world.call("create_ticket", {"title": "a", "priority": -1})
    with pytest.raises(ToolError, match="unexpected keyword"):
        world.call("create_ticket", {"name": "a"})
    assert world.responses[0] == '{"error": "Log in first."}'
    assert world.responses[-2] == "Error during execution: negative priority"


@pytest.mark.parametrize("name", ["secret", "_load_scenario", "__init__", "nothing"])
def test_only_described_tools_can_be_called(bfcl: BfclDomain, name: str) -> None:
    with pytest.raises(ToolError, match="There is no tool"):
        bfcl.open(first(bfcl)).call(name, {})


def test_tools_of_other_classes_cannot_be_called(bfcl: BfclDomain) -> None:
    with pytest.raises(ToolError, match="There is no tool 'power'"):
        bfcl.open(first(bfcl, "bfcl/multi_turn_miss_func_1")).call("power", {"base": 2, "exponent": 2})


def test_episodes_share_nothing_not_even_what_a_loader_hands_out(bfcl: BfclDomain) -> None:
    problem = first(bfcl, "bfcl/multi_turn_miss_func_1")  # its tickets are the module's own list
    one, two = bfcl.open(problem), bfcl.open(problem)
    fresh = one.state_hash()
    one.call("ticket_login", {"username": "ada", "password": "x"})
    one.call("create_ticket", {"title": "a"})
    assert DEFAULTS == {"tickets": []} and two.call("get_user_tickets", {}) == []
    assert bfcl.open(problem).state_hash() == two.state_hash() == fresh != one.state_hash()


def test_snapshots_restore_state_answers_and_turn(bfcl: BfclDomain) -> None:
    problem = first(bfcl)
    turns = bfcl.oracle(problem)
    world = play(bfcl, problem, turns[:2])
    saved, at = world.snapshot(), world.state_hash()
    fork = copy.deepcopy(world)
    for branch in (world, fork):
        bfcl.begin_turn(problem, branch, 2)
        branch.call("get_user_tickets", {})
        assert bfcl.grade(problem, branch).completion
    for _ in range(2):
        world.call("close_ticket", {"ticket_id": 0})
        assert world.state_hash() != at
        world.restore(saved)
        assert world.state_hash() == at and (world.turn, len(world.responses)) == (1, 4)
    assert bfcl.grade(problem, fork).completion and not bfcl.grade(problem, world).completion


def test_the_hash_sees_hidden_state_but_not_reads(bfcl: BfclDomain) -> None:
    problem = first(bfcl)
    world = play(bfcl, problem, bfcl.oracle(problem)[:2])
    before = world.state_hash()
    world.call("get_user_tickets", {})
    assert world.state_hash() == before
    world.call("close_ticket", {"ticket_id": world.instances["TicketAPI"].tickets[-1]["id"]})
    other = play(bfcl, problem, bfcl.oracle(problem)[:1])
    other.call("create_ticket", {"title": "a"})
    assert world.instances["TicketAPI"].tickets == other.instances["TicketAPI"].tickets
    assert world.state_hash() != other.state_hash(), "the next id would differ"


def test_long_context_is_passed_to_the_loader(bfcl: BfclDomain) -> None:
    assert bfcl.open(first(bfcl, "bfcl/multi_turn_long_context_0")).instances["TicketAPI"].extra
    assert not bfcl.open(first(bfcl)).instances["TicketAPI"].extra


@pytest.mark.parametrize(("value", "text", "plain"), [
    ("x", "x", "x"), (None, "None", None), ([1, "a"], "[1, 'a']", [1, "a"]), ({"a": 1}, '{"a": 1}', {"a": 1}),
    ({1: {"b": (1, 2)}}, '{"1": {"b": [1, 2]}}', {"1": {"b": [1, 2]}}), ({"a": {1}}, "{'a': {1}}", {"a": "{1}"}),
    ({"a": float("inf")}, '{"a": Infinity}', {"a": "inf"}), (2.5, "2.5", 2.5),
])  # fmt: skip
def test_answers_are_written_as_upstream_writes_them_and_shown_as_json(value: Any, text: str, plain: Any) -> None:
    assert as_text(value) == text and as_json(value) == plain
    json.dumps(as_json(value), allow_nan=False)


@pytest.mark.parametrize(("name", "arguments", "passes"), [
    ("power", {"base": 10, "exponent": 100}, True), ("power", {"base": 10, "exponent": 10**9}, False),
    ("power", {"base": 1.5, "exponent": 10**9}, True), ("square_root", {"number": 2, "precision": 10**8}, False),
    ("round_number", {"number": 2, "decimal_places": -(10**8)}, False),
    ("logarithm", {"value": 2, "base": 3, "precision": 50}, True),
])  # fmt: skip
def test_limits(name: str, arguments: dict[str, Any], passes: bool) -> None:
    if passes:
        check_limits(None, name, arguments)
    else:
        with pytest.raises(ToolError, match="would exceed"):
            check_limits(None, name, arguments)


# -- verdicts --------------------------------------------------------------------------------------------------------


def test_gold_completes_null_and_reads_get_nothing_parts_are_between(bfcl: BfclDomain) -> None:
    problem = first(bfcl)
    turns = bfcl.oracle(problem)
    nothing = play(bfcl, problem, [[], [], []])
    farmer = play(bfcl, problem, [[turns[2][0]] * 3] * 3)
    parts = [play(bfcl, problem, part) for part in (turns[:1], [turns[0], turns[1][:1]], turns[:2], turns)]
    grades = [bfcl.grade(problem, world) for world in (nothing, farmer, *parts)]
    progress = [grade.progress for grade in grades]
    assert progress == sorted(progress) and progress[0] == progress[1] == 0 < progress[2] < progress[3] < progress[4]
    assert [grade.completion for grade in grades] == [False] * 5 + [True] and progress[5] == 1 > progress[4]


@pytest.mark.parametrize(("turns", "reason", "turn"), [
    ([[0], [1, 2, 3], []], "no_call", 2), ([[0], [1, 2], [4]], "answer", 1), ([[0], [1, 3, 2, 1], [4]], "state", 1),
    ([[0], [2, 1, 3], [4]], "state", 1), ([[1], [0, 2, 3], [4]], "state", 0), ([[0, 3], [1, 2], [4]], "", None),
    ([[0, 0, 4], [4, 1, 2, 3], [4]], "", None), ([[0], [1, 2, 3, 4], [3]], "", None),
    ([[0], [1, 2, 3], [3]], "answer", 2),
])  # fmt: skip
def test_verdicts_follow_upstreams_rules(
    bfcl: BfclDomain, turns: list[list[int]], reason: str, turn: int | None
) -> None:
    """State after every turn; answers of this turn among all so far; some call in it; more calls do no harm."""
    problem = first(bfcl)
    calls = [call for said in bfcl.oracle(problem) for call in said]
    grade = bfcl.grade(problem, play(bfcl, problem, [[calls[i] for i in said] for said in turns]))
    assert (grade.info["reason"], grade.info["first_failed_turn"]) == (reason, turn)
    assert grade.completion == (reason == "") == (grade.progress == 1)


def test_a_turn_without_gold_calls_is_passed_whatever_was_said(bfcl: BfclDomain) -> None:
    problem = first(bfcl, "bfcl/multi_turn_miss_func_1")
    login, _, create = bfcl.oracle(problem)
    for between in ([], [ToolCall("get_user_tickets", {})]):
        assert bfcl.grade(problem, play(bfcl, problem, [login, between, create])).completion
    early = play(bfcl, problem, [login, create])
    assert not bfcl.grade(problem, early).completion, "the last turn has not begun"
    bfcl.begin_turn(problem, early, 2)
    assert bfcl.grade(problem, early).info["reason"] == "no_call"


def test_grading_changes_nothing_and_may_happen_at_any_time(bfcl: BfclDomain) -> None:
    problem = first(bfcl)
    world = bfcl.open(problem)
    for number, calls in enumerate(bfcl.oracle(problem)):
        bfcl.begin_turn(problem, world, number)
        bfcl.begin_turn(problem, world, number)
        for call in calls:
            before = bfcl.grade(problem, world)
            assert bfcl.grade(problem, world) == before and not before.completion
            world.call(call.name, call.arguments)
    assert bfcl.grade(problem, world).completion


def test_turns_go_forward_only(bfcl: BfclDomain) -> None:
    problem = first(bfcl)
    world = bfcl.open(problem)
    bfcl.begin_turn(problem, world, 2)
    assert bfcl.grade(problem, world).info["first_failed_turn"] == 0, "turns that were passed over are judged"
    for turn in (1, 3):
        with pytest.raises(ConfigError, match=f"User turn {turn} cannot begin"):
            bfcl.begin_turn(problem, world, turn)


# -- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("change", "says"), [
    ({"id": 5}, "'id' is 5"), ({"id": "base"}, "'id' is 'base'"),
    ({"involved_classes": ["TicketApi"]}, "no class 'TicketApi'. Did you mean 'TicketAPI'"),
    ({"involved_classes": []}, "expected a list 'involved_classes'"),
    ({"initial_config": None}, "an object 'initial_config'"),
    ({"turns": BASE["turns"][:2]}, "lists of the same length"),
    ({"turns": ["hello"] * 3}, "a turn is 'hello'; expected a list of messages"),
    ({"ground_truth": [["ticket_logn('a', 'b')"], [], []]}, "is not a Python call"),
    ({"ground_truth": [["ticket_logn(a='b')"], [], []]}, "no call of a known tool. Did you mean 'ticket_login'"),
    ({"ground_truth": [["ticket_login(open('x'), 'b')"], [], []]}, "is not a Python call with literal arguments"),
    ({"ground_truth": [["__import__('os').system('x')"], [], []]}, "is not a Python call with literal arguments"),
    ({"ground_truth": [["close_ticket(1, ticket_id=2)"], [], []]}, "given twice"),
    ({"ground_truth": [["ticket_login(**{'username': 'a'})"], [], []]}, "by \\*\\*"),
    ({"ground_truth": [["close_ticket(" + "-" * 200_000 + "1)"], [], []]}, "is not a Python call"),
    ({"involved_classes": ["MathAPI"]}, "the gold calls 'ticket_login' of TicketAPI, which is not involved"),
    ({"missed_functions": {"one": ["power"]}}, "expected user turn -> list of tools"),
    ({"missed_functions": {"1": ["sort"]}}, "withheld that do not exist: sort"),
])  # fmt: skip
def test_bad_rows_are_named(bfcl: BfclDomain, folder: Path, change: dict[str, Any], says: str) -> None:
    text = json.dumps({**BASE, **change})
    other = folder / "other"
    other.mkdir()
    (other / "tools.json").write_text(json.dumps(TOOLS))
    (other / "multi_turn_base.jsonl").write_text(text)
    with pytest.raises(DataError, match=says) as caught:
        BfclDomain(other)
    assert "multi_turn_base.jsonl, line 1" in str(caught.value)


@pytest.mark.parametrize(("text", "says"), [("{", "line 1: not JSON"), ("[1]", "expected a JSON object, got list")])
def test_rows_that_are_no_objects_are_named(bfcl: BfclDomain, tmp_path: Path, text: str, says: str) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "tools.json").write_text(json.dumps(TOOLS))
    (other / "multi_turn_base.jsonl").write_text(text)
    with pytest.raises(DataError, match=says):
        BfclDomain(other)


@pytest.mark.parametrize(("tools", "says"), [
    ("{", "tools.json is not JSON"), ("[]", "no schemas of tools"), ('{"WebAPI": []}', "unknown class 'WebAPI'"),
    ('{"MathAPI": [{"name": "power"}]}', "no name or no parameters"),
    ('{"MathAPI": [{"name": "_x", "parameters": {"properties": {}}}]}', "private"),
])  # fmt: skip
def test_bad_schemas_are_named(bfcl: BfclDomain, tmp_path: Path, tools: str, says: str) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "tools.json").write_text(tools)
    (other / "multi_turn_base.jsonl").write_text(json.dumps(BASE))
    with pytest.raises(DataError, match=says):
        BfclDomain(other)


def test_folders_categories_and_splits_that_are_not_there(bfcl: BfclDomain, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no folder of bfcl tasks. Expected tools\.json"):
        BfclDomain(tmp_path / "nowhere")
    with pytest.raises(DataError, match="no tasks of the category 'miss_param'"):
        BfclDomain(folder, categories=["miss_param"])
    with pytest.raises(ConfigError, match="Did you mean 'base'"):
        BfclDomain(folder, categories=["bace"])
    with pytest.raises(DataError, match="Did you mean 'train'"):
        bfcl.problems("trian")
    with pytest.raises(DataError, match="no problem"):
        bfcl.problems("all", levels=[9])
    (folder / "multi_turn_bass.jsonl").write_text("")
    with pytest.raises(DataError, match="no category 'bass'"):
        BfclDomain(folder)


def test_a_missing_package_is_an_error_with_the_pip_command(tmp_path: Path) -> None:
    command = re.escape("pip install --no-deps bfcl-eval mpmath")
    with pytest.raises(MissingExtraError, match=command):
        load(tmp_path)
    if importlib.util.find_spec("bfcl_eval") is None:
        with pytest.raises(MissingExtraError, match=f"not installed.*{command}"):
            BfclDomain()


def test_an_edited_file_is_read_again(bfcl: BfclDomain, folder: Path) -> None:
    (folder / "multi_turn_base.jsonl").write_text(json.dumps({**BASE, "id": "multi_turn_base_77"}))
    assert "bfcl/multi_turn_base_77" in [problem.id for problem in BfclDomain(folder).problems("all")]


def test_foreign_problems_and_worlds_are_refused(bfcl: BfclDomain) -> None:
    with pytest.raises(DataError, match="not a problem of bfcl"):
        bfcl.open(ToolProblem("depot/1", ("hi",), 1))
    with pytest.raises(DataError, match="was given a int"):
        bfcl.grade(first(bfcl), 3)  # type: ignore[arg-type]


def test_gold_given_as_objects_is_taken_as_it_is() -> None:
    tools = {"f": Tool("f", "", {"properties": {"x": {}}})}
    assert parse_call({"name": "f", "arguments": {"x": 1}}, "row", tools) == ToolCall("f", {"x": 1})
    with pytest.raises(DataError, match=r"row: .* is no call of a known tool"):
        parse_call({"name": "g", "arguments": {}}, "row", tools)
