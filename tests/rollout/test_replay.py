"""Replays: episodes that go on from a copied state, and collecting with several candidates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from helpers.branching import PARAMS, Trusting, engine
from helpers.flex import PlainTask, flex, team
from marft_algos.credit.branches import Branch, States
from marft_algos.credit.replayed import siblings
from marft_algos.engines import NativeEngine, ScriptedEngine
from marft_algos.engines.base import row_seed
from marft_algos.models.chat import Renderer
from marft_algos.models.loading import ModelSettings, load_chat
from marft_algos.models.policy import PolicySet
from marft_algos.rollout.collector import Collector
from marft_algos.rollout.replay import Replayer, StartEngine, TreeCollector
from marft_algos.types import SamplingParams, Trajectory
from marft_envs import FlexEnv, Independent, Layered, Outcome, TurnRecord
from marft_envs.core.partners import FixedPartners
from marft_envs.core.vector import VectorEnv
from marft_envs.core.wrappers import FlexWrapper, TurnLimit
from marft_envs.errors import ConfigError
from marft_envs.records.trajectory import RecordEpisodes


def told(request: object) -> str:
    """A reply that depends on what is read, not on the seed."""
    return str(len(request.messages[-1]["content"]))  # type: ignore[attr-defined]


def ends_paid(turns: Sequence[TurnRecord]) -> Outcome:
    return Outcome(team_reward=float(sum(int(t.text or 0) for t in turns)), terminated=True)


def build(**kwargs: object) -> FlexEnv:
    kwargs.setdefault("task", PlainTask(round=ends_paid))
    return flex(3, Layered([["a_0", "b_0"], ["c_0"]]), **kwargs)  # type: ignore[arg-type]


def collect(
    env: object = build,
    script: ScriptedEngine | None = None,
    n: int = 3,
    states: States | None = None,
    **kwargs: object,
) -> list[Trajectory]:
    vec = VectorEnv([env] * 2)  # type: ignore[list-item]
    return Collector(vec, Trusting(), script or engine(), PARAMS, states=states).collect(
        list(range(n)),
        iteration=4,
        first=10,
        **{"keep": "decisions", **kwargs},  # type: ignore[arg-type]
    )


def replayer(script: ScriptedEngine | None = None, **kwargs: object) -> Replayer:
    return Replayer(Trusting(), script or engine(), PARAMS, **kwargs)  # type: ignore[arg-type]


def texts(trajectory: Trajectory | None) -> list[str]:
    assert trajectory is not None
    return [t.turn.text for t in trajectory.transitions]


def test_states_are_kept_where_they_are_asked_for() -> None:
    nothing, start, tries = replayer(), replayer(), replayer()
    collect(keep="nothing", states=nothing.states)
    assert nothing.states == {}
    played = collect(keep="start", states=start.states)
    assert all(sorted(start.states[d.number]) == [0] for d in played)
    for d in collect(states=tries.states):
        assert sorted(tries.states[d.number]) == [0, 1]
        assert [t.text for t in tries.state(d, 1).view.history] == texts(d)[:2]
    with pytest.raises(ConfigError, match="keep='decisions'"):
        start.state(played[0], 1)


@pytest.mark.parametrize("slots", [1, 2, 50])
def test_a_branch_with_nothing_changed_is_the_episode_again(slots: int) -> None:
    """Common random numbers, from whatever state, whatever the slots."""
    tries = replayer(slots=slots)
    played = collect(states=tries.states)
    branches = [Branch(tries.state(d, layer), d.number) for d in played for layer in (0, 1)]
    again = tries.play(branches, 4)
    expected = [texts(d) for d in played for _ in (0, 1)]
    assert [texts(b) for b in again] == expected
    assert [b.score for b in again if b] == [d.score for d in played for _ in (0, 1)]
    assert [texts(b) for b in replayer(slots=slots).play(branches, 5)] != expected, "seeds depend on the iteration"


def test_a_turn_drawn_anew_leaves_the_rest_to_the_same_random_numbers() -> None:
    tries = replayer()
    (d,) = collect(n=1, states=tries.states)
    a, b, c = d.transitions
    found = tries.play(siblings(d, a, tries, [1, 2, 3]), 4)
    assert all(texts(x)[1:] == [b.turn.text, c.turn.text] for x in found), "they read the seed only"
    drawn = [texts(x)[0] for x in found]
    assert drawn == [str(row_seed(0, 4, 10, 0, j) % 1000) for j in (1, 2, 3)] and len({a.turn.text, *drawn}) == 4
    fresh = tries.play(siblings(d, a, tries, [1], sample=7), 4)
    assert texts(fresh[0]) == [drawn[0], b.turn.text, str(row_seed(0, 4, 10, 2, 7) % 1000)]
    longer = replayer(engine(c_0=told, a_0="1000000000"))
    (reads,) = collect(n=1, script=engine(c_0=told), states=longer.states)
    (other,) = longer.play(siblings(reads, reads.transitions[0], longer, [1]), 4)
    assert texts(other)[2] != reads.transitions[2].turn.text, "who is told something else says something else"


def test_seeds_of_samples_do_not_collide() -> None:
    seeds = {row_seed(0, i, e, t, j) for i in range(4) for e in range(20) for t in range(6) for j in range(20)}
    assert len(seeds) == 4 * 20 * 6 * 20
    assert row_seed(3, 1, 2, 4, 0) == row_seed(3, 1, 2, 4)


def test_absent_agents_are_silent_or_as_they_started() -> None:
    tries = replayer(start=engine(a_0="1", b_0="2", c_0="3"))
    (d,) = collect(n=1, states=tries.states)
    silent = Branch(tries.state(d, 0), d.number, absent=frozenset({"a_0"}))
    away = Branch(tries.state(d, 0), d.number, absent=frozenset({"a_0", "c_0"}), absence="start")
    one, two = tries.play([silent, away], 4)
    assert texts(one) == ["", *texts(d)[1:]] and texts(two) == ["1", texts(d)[1], "3"]


def test_the_start_engine_samples_at_the_starts_weights_and_puts_the_present_ones_back(tmp_path: Path) -> None:
    from helpers.tiny import save_tiny

    folder = save_tiny(tmp_path / "model", hidden=16, layers=1)
    policies = PolicySet.build(str(folder), {"a_0": "a"}, device="cpu")
    native = NativeEngine(policies)
    start = StartEngine(native, policies)
    request = collect_request(policies)
    before = native.generate([request], SamplingParams(8))[0].action_ids
    parameters = policies.parameters("a")
    for tensor in parameters:
        tensor.data += 0.5
    now = native.generate([request], SamplingParams(8))[0].action_ids
    assert start.generate([request], SamplingParams(8))[0].action_ids == before != now
    assert native.generate([request], SamplingParams(8))[0].action_ids == now
    assert all(x is y for x, y in zip(parameters, policies.parameters("a"), strict=True))


def collect_request(policies: PolicySet) -> object:
    from marft_algos.types import GenerationRequest

    return GenerationRequest("a", policies.renderer.render("a", [{"role": "user", "content": "hello"}]), 5)


def test_tokens_are_counted_and_states_are_let_go() -> None:
    tries = replayer()
    played = collect(states=tries.states)
    branches = [b for d in played for t in d.transitions for b in siblings(d, t, tries, [1, 2])]
    found = tries.play(branches, 4)
    own = [d.tokens for d in played]
    # A turn before the copy, or given, costs nothing; a, b: drawn, then c; c: drawn.
    expected = [0] * len(played)
    for i, (branch, b) in enumerate(zip(branches, found, strict=True)):
        assert b is not None
        (k,) = branch.samples
        expected[i // 6] += sum(len(b.transitions[j].turn.text) + 1 for j in {k, 2})
    charged = tries.add_costs(played)
    assert [d.replayed_tokens for d in charged] == expected and all(expected)
    assert [d.tokens for d in charged] == [a + b for a, b in zip(own, expected, strict=True)]
    assert tries.states == {}
    assert [d.replayed_tokens for d in tries.add_costs(charged)] == expected, "counted once"


def test_branches_of_wrapped_and_of_slow_environments(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"

    def wrapped() -> FlexWrapper:
        return RecordEpisodes(TurnLimit(build(task=PlainTask(round=ends_paid, slow=True)), 3), path)

    tries = replayer()
    played = collect(wrapped, states=tries.states)
    lines = path.read_text().count("\n")
    again = tries.play([b for d in played for t in d.transitions for b in siblings(d, t, tries, [1])], 4)
    assert len(again) == 9 and all(b is not None and b.episode.terminated for b in again)
    assert path.read_text().count("\n") == lines == 3, "a branch is no episode of the run"

    tries = replayer()
    partners = collect(lambda: FixedPartners(build(), {"b_0": "5"}), states=tries.states)
    found = tries.play([b for d in partners for b in siblings(d, d.transitions[0], tries, [1])], 4)
    assert [texts(b)[1] for b in found] == ["5"] * 3
    tries = replayer()
    limited = collect(lambda: TurnLimit(build(), 2), states=tries.states)
    cut = tries.play(siblings(limited[0], limited[0].transitions[0], tries, [1]), 4)
    assert cut[0] is not None and cut[0].truncated and len(cut[0].transitions) == 2


def test_what_cannot_be_copied_is_refused_an_outage_is_none_and_a_text_that_breaks_its_judge_the_worst() -> None:
    class Locked(PlainTask):
        def __deepcopy__(self, memo: object) -> PlainTask:
            raise TypeError("cannot pickle a lock")

    with pytest.raises((ConfigError, TypeError), match="cannot pickle a lock"):
        collect(lambda: build(task=Locked(round=ends_paid)))

    def breaks(turns: Sequence[TurnRecord]) -> Outcome:
        if turns[0].text in ("8888", "9999"):
            raise {"8888": RuntimeError, "9999": ConnectionError}[turns[0].text]("no such number")
        return ends_paid(turns)

    tries = replayer()
    (d,) = collect(lambda: build(task=PlainTask(round=breaks)), n=1, states=tries.states)
    good, bad, lost = (Branch(tries.state(d, 0), d.number, {0: text}) for text in ("1", "8888", "9999"))
    found = tries.play([good, bad, lost], 4)
    assert found[0] is not None and found[2] is None
    assert found[1] is not None and found[1].fault == "text" and found[1].score == min(0.0, found[0].score)


def test_a_branch_until_paid_ends_with_the_pay_or_the_round() -> None:
    by_turn = PlainTask(layer=lambda turns: Outcome(turn_rewards={t.index: 1.0 for t in turns if t.agent == "a_0"}))
    for task, length in ((by_turn, 2), (PlainTask(), 3)):
        tries = replayer()
        (d,) = collect(lambda task=task: build(task=task, max_rounds=3), n=1, states=tries.states)  # type: ignore[misc]
        (b,) = tries.play([Branch(tries.state(d, 0), d.number, until_reward=True)], 4)
        assert b is not None and len(b.transitions) == length and len(d.transitions) == 9


# --- candidates ---------------------------------------------------------------------------------------------------


def tree(
    env: object = build, candidates: int = 3, n: int = 4, worth: object = None
) -> tuple[list[Trajectory], Replayer]:
    tries = replayer()
    vec = VectorEnv([env] * 2)  # type: ignore[list-item]
    judge = worth or (lambda branch, index: float(branch.score))
    collector = TreeCollector(
        vec,
        Trusting(),
        engine(),
        PARAMS,
        replayer=tries,
        candidates=candidates,
        worth=judge,  # type: ignore[arg-type]
    )
    return tries.add_costs(collector.collect(list(range(n)), iteration=2, first=0)), tries


def test_the_best_candidate_advances_and_all_are_kept() -> None:
    played, _ = tree()
    for d in played:
        assert len(d.candidates) == 2 * len(d.transitions)
        for t in d.transitions:
            drawn = [str(row_seed(0, 2, d.number, t.index, j) % 1000) for j in range(3)]
            assert sorted([t.turn.text, *(c.turn.text for c in d.candidates if c.index == t.index)]) == sorted(drawn)
            assert int(t.turn.text) == max(map(int, drawn)), "a larger number pays more, whatever the others say"
            rivals = [c.worth for c in d.candidates if c.index == t.index]
            assert all(t.worth > w for w in rivals)
            assert [t.request.prompt_ids] * 2 == [c.request.prompt_ids for c in d.candidates if c.index == t.index], (
                "one state"
            )
        # c is tried last, when everything else is decided: its worth is what the team gets.
        assert d.transitions[2].worth == d.score


def test_candidates_of_a_layer_are_tried_with_the_others_first() -> None:
    (d,), _ = tree(n=1)
    first = {k: row_seed(0, 2, 0, k) % 1000 for k in range(3)}
    a = d.transitions[0]
    assert a.worth == int(a.turn.text) + first[1] + first[2]


@pytest.mark.parametrize(("text", "ended"), [("7", "task"), ("12+34=46", "max_path")])
def test_a_given_text_is_as_long_as_its_policy_writes_it(text: str, ended: str) -> None:
    chat = load_chat("embedded", ModelSettings())
    renderer, script = Renderer({"p": chat}, {"a_0": "p"}, ["p"]), ScriptedEngine({"*": "1"}, chat.tokenizer)
    start = flex(
        1, Independent(), task=PlainTask(round=lambda turns: Outcome(success=True, terminated=True)), max_path=4
    )
    start.reset(seed=0)
    (t,) = Replayer(renderer, script, PARAMS).play([Branch(start, 0, {0: text})], 0)
    assert t.episode.stop_reason == ended, "one word in either case"


def test_equal_candidates_keep_the_first_and_the_choice_does_not_hang_on_slots() -> None:
    same, _ = tree(worth=lambda branch, index: 1.0)
    plain = Collector(VectorEnv([build]), Trusting(), engine(), PARAMS).collect([0, 1, 2, 3], iteration=2)
    assert [texts(d) for d in same] == [texts(d) for d in plain]
    one, _ = tree()
    two, _ = tree(lambda: build())
    assert [texts(d) for d in one] == [texts(d) for d in two]


def test_candidates_and_what_was_played_to_try_them_are_counted() -> None:
    (d,), _ = tree(n=1)
    replies = sum(len(t.turn.text) + 1 for t in (*d.transitions, *d.candidates))
    # Three candidates each of a and b, the first ones tried together: five branches in which c speaks.
    c = len(str(row_seed(0, 2, 0, 2) % 1000)) + 1
    assert d.tokens == replies + 5 * c and d.replayed_tokens == 5 * c


def test_candidates_whose_branch_is_lost_are_counted_all_the_same() -> None:
    def away(turns: Sequence[TurnRecord]) -> Outcome:
        if turns[2].text == str(row_seed(0, 2, 0, 2, 1) % 1000):
            raise ConnectionError
        return ends_paid(turns)

    (d,), _ = tree(lambda: build(task=PlainTask(round=away)), n=1)
    assert len(d.candidates) == 5, "one of nine advances at each of three turns, one is lost"
    lost = len(str(row_seed(0, 2, 0, 2, 1) % 1000)) + 1
    c = len(str(row_seed(0, 2, 0, 2) % 1000)) + 1
    assert d.replayed_tokens == 5 * c + lost


def test_states_of_an_iteration_that_was_broken_off_are_nobodys_start() -> None:
    states: States = {}
    vec = VectorEnv([build])
    collector = Collector(vec, Trusting(), engine(), PARAMS, states=states)
    collector.collect([0, 1], iteration=0, keep="decisions")
    collector.collect([5], iteration=1, keep="start")
    assert states[0][0].unwrapped.episode.seed == 5 and sorted(states[0]) == [0]
    assert states[1][0].unwrapped.episode.seed == 1, "of another number: not collected again"


def test_vector_driver_forks_only_what_is_open_and_goes_back_to_its_own_environments() -> None:
    vec = VectorEnv([lambda: flex(2, Independent(), task=PlainTask(round=ends_paid))] * 2)
    vec.reset([0, 1])
    requests = vec.poll()
    copies = [vec.fork(requests[0]), vec.fork(requests[2])]
    vec.push(requests[:2], ["1", "2"])
    with pytest.raises(ConfigError, match="not open"):
        vec.fork(requests[0])
    vec.branch([lambda: copies[0], lambda: copies[1]])
    ended = []
    while not vec.done:
        asked = vec.poll()
        ended += vec.push(asked, ["7"] * len(asked))
    assert [e.team_return for e in sorted(ended, key=lambda e: e.index)] == [14.0, 14.0]
    vec.reset([5])
    assert len(vec.poll()) == 2 and not np.any([x.done for x in copies if not x.done])
    assert len(team(2)) == 2


def test_a_given_text_has_what_the_task_has_begun_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn's text begins with its task's prefix, and so does every reply that is pushed; other words are kept so."""

    class Begun(PlainTask):
        def prefix(self, agent: str) -> str:
            return "so: "

    monkeypatch.setattr(Trusting, "begin", lambda *_: [])
    tries = replayer()
    (d,) = collect(lambda: build(task=Begun(round=lambda turns: Outcome(terminated=True))), n=1, states=tries.states)
    said = texts(d)
    assert all(text.startswith("so: ") and "so: " not in text[4:] for text in said)
    given = Branch(tries.state(d), d.number, {0: said[0], 1: lambda turn: said[1] if turn.agent == "b_0" else None})
    (again,) = tries.play([given], 4)
    assert texts(again) == said


def test_one_turn_is_played_by_another_policy() -> None:
    tries = replayer(engine(**{"*": lambda request: str(len(request.policy))}))
    (d,) = collect(script=engine(**{"*": lambda request: "0"}), n=1, states=tries.states)
    (again,) = tries.play([Branch(tries.state(d), d.number, policies={1: "c_0 and more"})], 4)
    assert texts(again) == ["3", "12", "3"]
