"""What a Tinker server may do wrong, and what a run says to it."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import marft_algos
from helpers.runs import settings
from helpers.tinker_pairs import pair
from helpers.tinker_proto import Refused, lose
from helpers.tinker_server import TinkerServer
from marft_algos.batching import StaleError, UpdateError
from marft_algos.config.endpoints import tinker
from marft_algos.config.settings import build as configured
from marft_algos.extras.tinker import client
from marft_algos.extras.tinker.client import Model, TinkerError
from marft_algos.extras.tinker.dialect import probe
from marft_algos.extras.tinker.wire import Row
from marft_algos.models.loading import load_chat
from marft_envs.errors import ConfigError

GRPO = {"algo": "grpo", "algorithm": {"group_size": 4, "lr": 1e-3}}
IDS = [5, 6, 7, 8, 9, 10]


def connect(server: TinkerServer, **table: Any) -> client.TinkerServer:
    endpoint = tinker({"url": server.url, "timeout": 2, **table})
    assert endpoint is not None
    return client.TinkerServer(endpoint, pause=0.05)


def weights(server: TinkerServer, line: client.TinkerServer) -> Model:
    return Model(line, server.base, load_chat(server.base).vocabulary, 4, 0)


def test_a_server_that_is_gone_is_waited_for_until_the_deadline_and_no_longer(server: TinkerServer) -> None:
    line = connect(server)
    model = weights(server, line)
    before = model.forward([Row(IDS)])[0]

    def gone(path: str, count: int) -> None:
        raise ConnectionAbortedError

    server.intercept, began = gone, time.monotonic()
    with pytest.raises(TinkerError, match=r"has not answered forward_backward within 2 s.*marft train --resume RUN"):
        model.forward([Row(IDS)])
    assert time.monotonic() - began < 4
    server.intercept = lambda path, count: None
    assert np.array_equal(model.forward([Row(IDS)])[0], before)


def test_work_that_was_forgotten_is_an_error_and_not_waited_for(server: TinkerServer) -> None:
    line = connect(server, timeout=30)
    model = weights(server, line)

    def forgets(path: str, count: int) -> None:
        if path == "retrieve_future":
            raise Refused(404, "Future not found")

    server.intercept, began = forgets, time.monotonic()
    with pytest.raises(TinkerError, match=r"refuses forward_backward \(its result\): 404"):
        model.forward([Row(IDS)])
    assert time.monotonic() - began < 10


@pytest.mark.ci
@pytest.mark.parametrize("side", ["intercept", "after"])
def test_a_lost_request_or_answer_counts_once(side: str, server: TinkerServer, tmp_path: Path) -> None:
    both = pair(server, tmp_path, **GRPO)
    after = {path: server.count(path) + 2 for path in ("forward_backward", "optim_step", "asample", "retrieve_future")}
    setattr(server, side, lose(after))
    both.update(0)
    both.update(1)
    assert both.apart("planner_0") < 1e-5 and both.apart("solver_0") < 1e-5
    assert both.remote.parts.engine.metrics()["line_retries"] >= 3


@pytest.mark.ci
def test_a_rate_limit_is_waited_out(server: TinkerServer, tmp_path: Path) -> None:
    both, limited = pair(server, tmp_path, **GRPO), set[int]()

    def limit(path: str, count: int) -> None:
        if path in ("asample", "forward_backward") and count % 3 == 0 and count not in limited:
            limited.add(count)
            raise Refused(429, "slow down")

    server.intercept = limit
    both.update(0)
    assert limited and both.apart("planner_0") < 1e-5


def test_another_base_is_refused(server: TinkerServer) -> None:
    with pytest.raises(ConfigError, match=r"has Qwen/Qwen3-8B, and not .*--models Qwen/Qwen3-8B"):
        server.names = ["Qwen/Qwen3-8B"]
        probe(connect(server), server.base, 100, 4, IDS)


@pytest.mark.ci
def test_a_sampler_that_lags_behind_is_found(server: TinkerServer, tmp_path: Path) -> None:
    both = pair(server, tmp_path, algo="grpo", algorithm={"group_size": 4, "lr": 0.05})
    both.remote.learner.update(both.collect(0), 0)
    both.team.version += 1
    late = both.collect(1)
    with pytest.raises(StaleError, match="sampled by version 0"):
        both.remote.learner.update(late, 1)
    for policy in both.team.remote.values():
        assert policy.sampler is not None
        policy.sampler = policy.sampler._replace(version=1)  # it says: the new one
    with pytest.raises(UpdateError, match="learner and sampler differ by"):
        both.remote.learner.update(both.collect(2), 2)


@pytest.mark.ci
def test_a_server_whose_new_samplers_have_old_weights_is_found_by_the_step(
    server: TinkerServer, tmp_path: Path
) -> None:
    both = pair(server, tmp_path, algo="grpo", algorithm={"group_size": 4, "lr": 0.05})
    old = {name: policy.sampler for name, policy in both.team.remote.items()}
    both.update(0)
    for name, policy in both.team.remote.items():
        sampler, late = policy.sampler, old[name]
        assert sampler is not None and late is not None
        server._paths[sampler.session] = server._paths[late.session]
    forwards, steps = server.count("forward_backward"), server.count("optim_step")
    with pytest.raises(UpdateError, match=r"nats a token off those of the server's trainer.*marft train --resume RUN"):
        both.remote.learner.update(both.collect(1), 1)
    assert server.count("forward_backward") - forwards == server.count("optim_step") - steps == 1


@pytest.mark.ci
def test_a_dialect_that_destroys_weights_is_seen_and_trains_all_the_same(server: TinkerServer, tmp_path: Path) -> None:
    server.overwrites, server.loss = True, "mean"
    both = pair(server, tmp_path, **GRPO)
    assert (
        not both.team.remote["planner_0"].dialect.old_samplers and both.team.remote["planner_0"].dialect.loss == "mean"
    )
    for iteration in range(2):
        both.update(iteration)
    assert both.apart("planner_0") < 1e-5 and both.apart("solver_0") < 1e-5


@pytest.mark.ci
def test_a_server_that_does_not_clip_is_refused_where_clipping_is_asked_for(
    server: TinkerServer, tmp_path: Path
) -> None:
    server.clips = False
    with pytest.raises(ConfigError, match=r"drops grad_clip_norm.*--max-grad-norm none"):
        pair(server, tmp_path, **GRPO)
    both = pair(server, tmp_path, algo="grpo", algorithm={"group_size": 4, "lr": 1e-3, "max_grad_norm": None})
    both.update(0)
    assert both.apart("planner_0") < 1e-5


@pytest.mark.parametrize(("turn", "words"), [
    (lambda s: setattr(s, "end_tokens", False), "leaves the token that ends a reply out"),
    (lambda s: setattr(s, "tells_norm", False), "do not say the gradient's norm"),
    (lambda s: setattr(s, "loss", "odd"), "neither sums over tokens and rows"),
])  # fmt: skip
def test_a_dialect_that_cannot_be_trained_by_is_refused(
    turn: Callable[[TinkerServer], None], words: str, server: TinkerServer, tmp_path: Path
) -> None:
    turn(server)
    with pytest.raises(ConfigError, match=words):
        pair(server, tmp_path, **GRPO)


def test_nothing_that_could_spoil_weights_is_sent(server: TinkerServer, tmp_path: Path) -> None:
    both = pair(server, tmp_path, **GRPO)
    policy = both.team.remote["planner_0"]
    row, asked = tuple(IDS), len(server.asked)
    policy.score([row])
    policy.kept[row] = np.full(len(IDS) - 1, np.nan, np.float32)
    with pytest.raises(UpdateError, match="not finite, and was not sent"):
        both.remote.learner.optimizers["planner_0"].step()
    for odd, words in (
        (Row([5, 10_000]), "the token 10000"),
        (Row([5]), "a text of one token"),
        (Row(IDS, {"advantages": np.zeros(2, np.float32)}), "2 advantages for 5 targets"),
        (Row(IDS, {"advantages": np.full(5, np.inf, np.float32)}), "not finite"),
    ):
        with pytest.raises(UpdateError, match=words):
            policy.model.step([odd], {})
    assert [path for path, _ in server.asked[asked:] if path != "retrieve_future"] == ["forward_backward"]


def test_weights_that_are_spoilt_on_the_server_stop_the_run(server: TinkerServer, tmp_path: Path) -> None:
    both = pair(server, tmp_path, **GRPO)
    server.poison(both.team.remote["planner_0"].model.id)
    with pytest.raises(TinkerError, match="not finite: its weights may be spoilt"):
        both.team.remote["planner_0"].score([tuple(IDS)])
    with pytest.raises(marft_algos.models.finite_weights.NotFiniteError, match="hold infinity or NaN"):
        both.team.save_adapter("planner_0", tmp_path / "spoilt")


def test_the_key_goes_to_its_server_and_is_shown_before(
    server: TinkerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server.key = "tml-secret"
    with pytest.raises(TinkerError, match="401"):
        connect(server)
    with pytest.raises(ConfigError, match="TRY_API_KEY, which is not set"):
        connect(server, key_env="TRY_API_KEY")
    monkeypatch.setenv("TRY_API_KEY", "tml-secret")
    connect(server, key_env="TRY_API_KEY").close()
    assert "key:     TRY_API_KEY is sent to http://127.0.0.1" in capsys.readouterr().err
    other = {"kind": "openai", "model": "x", "url": "https://elsewhere.example", "key_env": "TRY_API_KEY"}
    with pytest.raises(ConfigError, match="A key belongs to one host"):
        configured({"tinker": {"url": server.url, "key_env": "TRY_API_KEY"}, "engines": {"planner_0": other}})
    with pytest.raises(ConfigError, match=r"tinker: An engine of kind tinker has no setting 'api_key'"):
        configured({"tinker": {"url": server.url, "api_key": "tml-secret"}})


REFUSED: dict[str, dict[str, Any]] = {
    "--full-finetune": {"full_finetune": True}, "--quantize none": {"quantize": "nf4"},
    "--shard auto": {"shard": "base"}, "--reduction-slots 1": {"reduction_slots": 2}, "--rollouts here": {"rollouts": "ray"},
    "--staleness 0": {"staleness": 1}, "--pool 0": {"pool": 2}, "--temperature 1": {"temperature": 0.7},
    "--lora-targets all-linear": {"lora_targets": ("q_proj",)},
    "--entropy-coef 0": {"algorithm": {"entropy_coef": 0.01}}, "critic=smollm2-135m": {"algo": "mappo"},
}  # fmt: skip


@pytest.mark.parametrize("advice", REFUSED)
def test_what_the_protocol_cannot_do_is_refused_before_anything_is_asked(
    advice: str, server: TinkerServer, tmp_path: Path
) -> None:
    changes = {"algo": "grpo", **REFUSED[advice]}
    if changes["algo"] == "grpo":
        changes["algorithm"] = {"group_size": 4, **changes.get("algorithm", {})}
    config = settings(Path(server.base), tmp_path, tinker=server.url, **changes)
    with pytest.raises(ConfigError, match=f"With --tinker, the weights are on a server.*{advice}"):
        marft_algos.build(config)
    assert not server.asked


def test_a_critic_with_another_tokenizer_is_refused(server: TinkerServer, tmp_path: Path) -> None:
    table = {"url": server.url, "critic": "embedded"}
    with pytest.raises(ConfigError, match="has another tokenizer"):
        marft_algos.build(settings(Path(server.base), tmp_path, tinker=table, algo="mappo"))


def test_requests_go_over_connections_that_are_open_until_the_server_closes_them(server: TinkerServer) -> None:
    line = connect(server)
    model = weights(server, line)
    opened, asked = server.connections, len(server.asked)
    for _ in range(5):
        model.forward([Row(IDS)])
    assert server.connections == opened and len(server.asked) >= asked + 10
    line.taken()
    server.hang_up()
    model.forward([Row(IDS)])
    assert server.connections == opened + 1 and line.taken()["retries"] == 0
    held = threading.Event()

    def holds(path: str, count: int) -> None:
        held.wait(5)

    server.intercept = holds
    began = time.monotonic()
    with pytest.raises(TinkerError, match="has not answered forward_backward within 2 s"):
        model.forward([Row(IDS)])
    assert time.monotonic() - began < 4, "a connection that was open has a deadline, too"
    held.set()
    line.close()


# ---------------------------------------------------------------------- what is asked for, and what comes


def test_a_dead_server_is_told_at_once_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint, began, told = tinker({"url": "http://127.0.0.1:9", "timeout": 1}), time.monotonic(), list[Any]()
    assert endpoint is not None
    monkeypatch.setattr(client.warnings, "warn", lambda text, **_: told.append((text, time.monotonic() - began)))
    with pytest.raises(TinkerError, match="has not answered create_session within 1 s"):
        client.TinkerServer(endpoint, pause=0.05)
    ((text, after),) = told
    assert re.fullmatch(r"create_session does not work yet: http://127.0.0.1:9: .*refused.* again for 1 s\.", text)
    assert after < 0.5


@pytest.mark.parametrize("odd", [{}, {"detail": "x"}, {"": None}, {"": ""}, {"": {"a": 1}}, {"": []}, {"": True}])
@pytest.mark.parametrize(("path", "name"), [
    ("create_session", "session_id"), ("create_model", "request_id"), ("_create", "model_id"), ("_save", "path"),
    ("_snapshot", "sampling_session_id"), ("get_server_capabilities", "model_name"),
])  # fmt: skip
def test_an_answer_without_what_was_asked_for_is_named(
    path: str, name: str, odd: dict[str, Any], server: TinkerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, odd = server._answer, {key or name: value for key, value in odd.items()}
    if path.startswith("_"):
        monkeypatch.setattr(server, path, lambda body: odd)
    else:
        wrong = {"supported_models": [odd]} if name == "model_name" else odd
        monkeypatch.setattr(server, "_answer", lambda asked, body: wrong if asked == path else right(asked, body))
    with pytest.raises(TinkerError, match=rf"^http://127.* answered .+, not '{name}'\. Expected: --tinker names its"):
        line = connect(server)
        line.models()
        model = weights(server, line)
        model.save("a")
        model.sampler()


def test_a_steps_metrics_are_numbers(server: TinkerServer, monkeypatch: pytest.MonkeyPatch) -> None:
    model = weights(server, connect(server))
    row = Row(IDS, {"logprobs": model.forward([Row(IDS)])[0], "advantages": np.ones(5, np.float32)})
    for odd in ({"a": "much"}, {"a": []}, [1], "x"):
        monkeypatch.setattr(server, "_step", lambda body, odd=odd: {"type": "optim_step", "metrics": odd})
        with pytest.raises(TinkerError, match="gave metrics of a step that are no numbers"):
            model.step([row], client.ADAM | {"learning_rate": 0.0})


def test_log_probs_of_the_trainer_are_not_positive(server: TinkerServer, monkeypatch: pytest.MonkeyPatch) -> None:
    model = weights(server, connect(server))
    for odd in (np.full(5, 0.5), np.array([-1, -1, -1, -1, 2.0])):
        monkeypatch.setattr(client.wire, "scores", lambda message, odd=odd: [odd.astype(np.float32)])
        with pytest.raises(TinkerError, match="positive or not finite"):
            model.forward([Row(IDS)])
