"""Whose fault ended an episode: the text's has the worst return, infrastructure errors are left out."""

from __future__ import annotations

import errno
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field

import marft_envs
from helpers.flex import PlainTask, flex
from helpers.tools_tiny import PROBLEMS, Desk, call, said, tiny
from marft_envs import Chain, FlexEnv, Outcome
from marft_envs.call_formats import written
from marft_envs.core.faults import fault_of
from marft_envs.core.vector import VectorEnv
from marft_envs.errors import ConfigError, DataError, WorkerError
from marft_envs.families.tools import make, oracle, patterns
from marft_envs.records import trajectory
from marft_envs.records.trajectory import RecordEpisodes
from marft_envs.workers.untrusted import WorkerCrashed, WorkerPool, WorkerStartError, WorkerTimeout


def drive(build: Any, seeds: Sequence[int], text: str = "bad") -> list[Any]:
    vec = VectorEnv([build] * 2)
    vec.reset(seeds)
    finished: list[Any] = []
    while not vec.done:
        requests = vec.poll()
        finished += vec.push(requests, [text if r.episode == 1 else "good" for r in requests])
    vec.close()
    return sorted(finished, key=lambda episode: episode.index)


def raising(error: Exception, **attributes: Any) -> PlainTask:
    def layer(turns: Sequence[Any]) -> Outcome:
        if turns[0].text == "bad" and turns[0].agent == "b_0":
            raise error
        return Outcome(turn_rewards={turns[0].index: 1.0})

    task = PlainTask(layer)
    for name, value in attributes.items():
        setattr(task, name, value)
    return task


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


LOOP = RuntimeError("raised from itself, as CrewAI does")
ROUND = RuntimeError("raised from what it was the cause of")


# Classes of exceptions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("error", "whose"), [
    (ValueError("int too large to convert"), "text"), (RecursionError(), "text"), (KeyError("x"), "text"),
    (MemoryError(), "text"),
    (FileNotFoundError(errno.ENOENT, "no such file", "what the agent said"), "text"),
    (OSError(errno.ENAMETOOLONG, "File name too long"), "text"),
    (UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates"), "text"),
    (WorkerTimeout("the text held the worker up"), "text"), (WorkerCrashed("the text killed the worker"), "text"),
    (WorkerStartError("no worker can start"), "machine"), (WorkerError("the sandbox is gone"), "machine"),
    (ConnectionResetError(), "machine"), (TimeoutError(), "machine"),
    (OSError(errno.ENOSPC, "No space left on device"), "machine"),
    (OSError(errno.EMFILE, "Too many open files"), "machine"),
    (caused(RuntimeError("the judge's service: request failed"), ConnectionRefusedError()), "machine"),
    (caused(RuntimeError("cannot be read"), ValueError()), "text"),
    (caused(LOOP, LOOP), "text"), (caused(ROUND, caused(ValueError(), ROUND)), "text"),
])  # fmt: skip
@pytest.mark.parametrize("slow", [False, True])
def test_an_exception_in_a_task_is_the_texts_fault_unless_it_is_an_infrastructure_error(
    error: Exception, whose: str, slow: bool
) -> None:
    assert fault_of(error) == whose
    episodes = drive(lambda: flex(2, Chain(), raising(error, slow=slow)), range(3))
    assert [e.fault for e in episodes] == ["", whose, ""]
    broken = episodes[1]
    assert broken.failed and broken.infrastructure_error is (whose != "text") and broken.success is False
    assert broken.stop_reason.startswith(f"error: {type(error).__name__}")
    assert ("task_error" in broken.info) is (whose == "text")


def test_a_worker_that_raises_on_a_text_has_not_failed() -> None:
    """What a text makes the target raise is the text's doing; a worker that cannot be had is not."""
    with WorkerPool("json:loads") as pool, pytest.raises(WorkerError, match="JSONDecodeError") as raised:
        pool.call("{what an agent said")
    assert fault_of(raised.value) == "text"
    with pytest.raises(WorkerError, match="closed") as raised:
        pool.call("[]")
    assert fault_of(raised.value) == "machine"


def test_an_engine_that_fails_and_a_world_that_cannot_start_are_nobodys_text() -> None:
    class Moody(PlainTask):
        def reset(self, rng: Any, options: Any) -> None:
            super().reset(rng, options)
            if options.get("bad"):
                raise options["bad"]

    vec = VectorEnv([lambda: flex(1, task=Moody())])
    vec.reset(range(3), [{}, {"bad": KeyError("world")}, {"bad": OSError("disk")}])
    (request,) = vec.poll()
    ended = vec.fail(request, "out of memory")
    while not vec.done:
        ended += vec.push([], [])
    assert [e.fault for e in ended] == ["engine", "world", "machine"] and all(e.infrastructure_error for e in ended)


def test_a_defect_of_a_task_is_shown_once_for_each_place(capsys: pytest.CaptureFixture[str]) -> None:
    def layer(turns: Sequence[Any]) -> Outcome:
        raise ValueError(f"what \x1b]0;owned\x07 said {random.random()}")

    drive(lambda: flex(1, task=PlainTask(layer)), range(5))
    shown = capsys.readouterr().err
    assert shown.count("Traceback") == 1 and "in layer" in shown and "\x1b" not in shown
    assert "shown once" in shown


# The return after a text's fault ------------------------------------------------------------------------


def test_a_text_that_breaks_its_judge_has_the_worst_return() -> None:
    plain, declared = (
        drive(lambda t=t: flex(2, Chain(), t), range(3))
        for t in (raising(ValueError()), raising(ValueError(), worst_return=-2.5))
    )
    assert [e.team_return for e in plain] == [2.0, 0.0, 2.0], "no more than nothing"
    assert [e.team_return for e in declared] == [2.0, -2.5, 2.0], "what the task says is the lowest"
    assert [t.text for t in plain[1].turns] == ["bad", "bad"] and not plain[1].planned
    (outage,) = drive(lambda: flex(2, Chain(), raising(ConnectionError())), range(3))[1:2]
    assert outage.team_return == 1.0, "an infrastructure error is left as it was: it is counted nowhere"


def test_a_task_can_say_itself_whose_fault_it_was() -> None:
    def layer(turns: Sequence[Any]) -> Outcome:
        return Outcome(fault="world", stop_reason="sensor_lost") if turns[0].text == "bad" else Outcome()

    episodes = drive(lambda: flex(1, task=PlainTask(layer)), range(3))
    assert [(e.fault, e.stop_reason, e.terminated) for e in episodes] == [
        ("", "max_rounds", True),
        ("world", "sensor_lost", True),
        ("", "max_rounds", True),
    ]

    def unreadable(turns: Sequence[Any]) -> Outcome:
        return (
            Outcome(team_reward=0.25, fault="text", stop_reason="unreadable")
            if turns[0].text == "bad"
            else Outcome(team_reward=1.0)
        )

    episode = drive(lambda: flex(1, task=PlainTask(unreadable)), range(3))[1]
    assert (episode.fault, episode.success, episode.team_return, episode.task_error) == ("text", False, 0.0, "")


@pytest.mark.parametrize(
    "reason", ["error", "error: the server is gone", "error in the judge", "world_crashed", "world_hung: 30 s"]
)
def test_an_end_by_an_infrastructure_error_names_its_fault(reason: str) -> None:
    """Before: it counted as a score, and was learnt from."""
    env = flex(2)
    env.reset(seed=0)
    env.step("x")
    with pytest.raises(ConfigError, match=r"without a fault.*env\.truncate\('" + reason):
        env.truncate(reason)
    with pytest.raises(ConfigError, match=r"no fault 'sever'.*world"):
        env.truncate("the server is gone", "sever")  # type: ignore[arg-type]
    assert not env.done, "nothing has happened"
    env.truncate(reason, "engine")
    assert env.episode.infrastructure_error and env.episode.stop_reason == reason


@pytest.mark.parametrize("reason", ["turn_limit", "errors", "error_budget", "no error", "world_ended", ""])
def test_any_other_reason_needs_no_fault(reason: str) -> None:
    env = flex(2)
    env.reset(seed=0)
    env.step("x")
    env.truncate(reason)
    assert env.episode.truncated and not env.episode.failed and env.episode.planned


# Records ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("cannot be read"), ConnectionError("gone")])
def test_records_keep_the_fault_and_replay(error: Exception, tmp_path: Path) -> None:
    build = lambda: RecordEpisodes(flex(2, Chain(), raising(error)), tmp_path / "episodes.jsonl")  # noqa: E731
    drive(build, range(3))
    kept = {e.seed: e for e in trajectory.read(tmp_path / "episodes.jsonl")}
    assert sorted(kept) == [0, 1, 2], "broken episodes are recorded, too"
    assert kept[1].fault == fault_of(error) and kept[0].fault == ""
    again = trajectory.replay(kept[1], flex(2, Chain(), raising(error)))
    assert (again.fault, again.stop_reason, again.team_return) == (
        kept[1].fault,
        kept[1].stop_reason,
        kept[1].team_return,
    )


@pytest.mark.parametrize(("stop_reason", "field"), [("error: RuntimeError: x", "fault"), ("task", "asked")])
def test_a_record_that_does_not_say_whose_fault_it_was_or_what_was_asked_for_is_refused(
    stop_reason: str, field: str
) -> None:
    """Its default would make a score of an infrastructure error, or say that nothing was asked for."""
    env = flex(1)
    env.reset(seed=0)
    env.step("x")
    data = {**trajectory.to_dict(env.episode), "stop_reason": stop_reason}
    del (data if field == "fault" else data["rounds"][0])[field]
    with pytest.raises(DataError, match=rf"No episode record: .*{field} is missing"):
        trajectory.from_dict(data)


# Tools --------------------------------------------------------------------------------------------------


def breaks(state: Desk, how: str) -> str:
    """Fails half-way."""
    state.counters["a"] += 100
    state.notes.append("half")
    raise {
        "key": KeyError("a secret"),
        "net": ConnectionError("refused"),
        "late": TimeoutError("late"),
        "disk": OSError(errno.ENOSPC, "full"),
        "file": FileNotFoundError(2, "no"),
    }[how]


def clumsy(**more: Any) -> Any:
    from helpers.tools_tiny import TOOLS

    return tiny(tools=[*TOOLS, breaks], **more)


def solo(domain: Any, *replies: str, task: str = "one") -> FlexEnv:
    env = make("solo", domain)
    env.reset(seed=0, options={"task_id": f"tiny/{task}"})
    for text in replies:
        if not env.done:
            env.step(text)
    return env


@pytest.mark.parametrize("how", ["key", "file"])
def test_an_exception_in_a_users_tool_is_a_tool_error_and_undoes_what_it_did(
    how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    good = said(call("add", name="a", by=3))
    env = solo(clumsy(), said(call("breaks", how=how)), good, said(call("finish")))
    episode = env.episode
    assert (episode.stop_reason, episode.success, episode.fault) == ("task", True, ""), "half a write is no write"
    assert (
        episode.turns[0].result.startswith("breaks: error (tool_error): ") and "secret" not in episode.turns[0].result
    )
    assert episode.metrics["error_rate"] == 1 / 3, "it was asked for what the tool cannot do: the agent's doing"
    env = solo(clumsy(), *[said(call("breaks", how=how))] * 3)
    shown = capsys.readouterr().err
    assert shown.count("in breaks") <= 1 and "Traceback" not in shown.replace("Traceback", "", 1)


def test_tracebacks_of_tools_name_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    def unheard_of(state: Desk) -> int:
        """Fails."""
        return {}["nothing"]  # type: ignore[no-any-return]

    solo(tiny(tools=[unheard_of], specialists={}, user_tools=()), *[said(call("unheard_of"))] * 3)
    shown = capsys.readouterr().err
    assert shown.count("Traceback") == 1 and 'return {}["nothing"]' in shown


@pytest.mark.parametrize(
    ("how", "on_exception"), [("net", "tool_error"), ("disk", "tool_error"), ("key", "crash"), ("net", "crash")]
)
def test_an_infrastructure_error_of_a_tool_is_a_world_that_crashed_and_costs_no_agent_anything(
    how: str, on_exception: str
) -> None:
    env = solo(clumsy(on_exception=on_exception), said(call("breaks", how=how)), said(call("finish")))
    episode = env.episode
    assert (episode.stop_reason, episode.fault, len(episode.turns)) == ("world_crashed", "world", 1)
    assert episode.metrics["error_rate"] == 0 and episode.metrics["error_rate/agent_0"] == 0
    assert episode.info["terms"]["errors"] == 0


def test_a_tool_that_gives_up_in_time_is_passing() -> None:
    env = solo(clumsy(), said(call("breaks", how="late")), said(call("add", name="a", by=3)), said(call("finish")))
    assert (
        env.episode.success
        and env.episode.metrics["error_rate"] == 0
        and "error (timeout)" in env.episode.turns[0].result
    )


def test_what_is_not_json_is_a_tool_error_of_a_users_tool() -> None:
    def nan(state: Desk) -> float:
        """Divides."""
        state.notes.append("half")
        return float("nan")

    env = solo(tiny(tools=[nan], specialists={}, user_tools=()), said(call("nan")))
    assert not env.done and "error (tool_error)" in env.episode.turns[0].result
    assert env.unwrapped.task.live.world.state.notes == []


def test_on_exception_is_checked() -> None:
    with pytest.raises(ConfigError, match="tool_error"):
        tiny(on_exception="tool_eror")


def test_a_world_that_crashes_between_turns_is_the_worlds_fault() -> None:
    domain = tiny()

    def begin(problem: Any, world: Any, turn: int) -> None:
        if turn:
            raise KeyError("secret")

    domain.begin_turn = begin
    env = solo(domain, said(call("finish")), task="turns")
    assert (env.episode.stop_reason, env.episode.fault) == ("world_crashed", "world")


def test_a_grade_that_raises_is_judged_like_every_task() -> None:
    """Silence would be worth 0; an agent that breaks the grader gets the lowest return."""

    def grade(state: Desk, problem: Any) -> float:
        return 1 / (3 - state.counters["a"])

    def build() -> FlexEnv:
        return make("solo", tiny(grade=grade, problems=PROBLEMS[:1]))

    (episode,) = drive(build, [0, 1], said(call("add", name="a", by=3), call("finish")))[1:]
    assert episode.fault == "text" and episode.team_return == pytest.approx(-0.3)


def test_a_copy_of_a_broken_state_goes_on() -> None:
    """Rolling back leaves a world that can be forked and graded like any other."""
    env = solo(clumsy(), said(call("breaks", how="key")))
    (other,) = env.fork()
    for e in (env, other):
        e.step(said(call("add", name="a", by=3)))
        e.step(said(call("finish")))
        assert e.episode.success
    assert oracle.play(make("solo", clumsy()), seed=0).success


def test_faults_are_json() -> None:
    env = solo(clumsy(), said(call("breaks", how="net")))
    assert json.loads(json.dumps(trajectory.to_dict(env.episode)))["fault"] == "world"
    assert marft_envs.Episode.__dataclass_fields__["fault"].default == ""


@pytest.mark.parametrize("kind", [FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError])
def test_a_files_name_is_the_texts_in_every_exception(kind: type[OSError]) -> None:
    """An agent chooses names: what Python code raises about one, without an errno, is no infrastructure error to hide behind."""
    assert fault_of(kind("no such file")) == "text" and fault_of(ConnectionError("gone")) == "machine"


def test_a_pattern_that_the_machine_keeps_from_being_matched_is_an_infrastructure_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def find(state: Desk, text: Annotated[str, Field(pattern="(a+)+$")]) -> str:
        """Finds a text."""
        return text

    class Pool:
        def call(self, payload: object) -> None:
            raise WorkerCrashed("it died")

    monkeypatch.setattr(patterns, "_pool", Pool)
    domain = tiny(tools=[find], specialists={}, user_tools=())
    slow = written([call("find", text="a" * 60)])
    vec = VectorEnv([lambda: make("solo", domain=domain)])
    vec.reset([0])
    finished: list[Any] = []
    while not vec.done:
        finished += vec.push(requests := vec.poll(), [slow] * len(requests))
    vec.close()
    assert [(episode.fault, episode.truncated) for episode in finished] == [("machine", True)]
