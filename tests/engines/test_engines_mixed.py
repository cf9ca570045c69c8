"""Teams that mix engines: two model families with their own tokenizers, a hosted agent, vLLM, in one run."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import marft_envs
from helpers import runs, tiny
from helpers.fake_servers import Answer, Fake, FakeVLLM, chat, serving
from marft_algos.config.settings import TrainConfig
from marft_algos.engines import MixedEngine, NativeEngine, ScriptedEngine
from marft_algos.models.policy import PolicySet
from marft_algos.training import environments, hosting
from marft_algos.training.parts import build
from marft_algos.training.resolve import resolve
from marft_algos.training.trainer import Trainer
from marft_algos.types import GenerationRequest, SamplingParams
from marft_envs.errors import ConfigError
from tests.helpers.engine_tables import as_table

pytestmark = pytest.mark.slow

HOSTED = "be brief"
SECRET = "sk-not-for-the-disk"


def make_trio() -> marft_envs.FlexEnv:
    team = [marft_envs.AgentSpec(f"{role}_0", role, f"You are the {role}.") for role in ("planner", "writer", "solver")]
    return marft_envs.FlexEnv(team, runs.Letters(), marft_envs.Chain())


marft_envs.register("test/trio-v0", make_trio)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A Qwen2-shaped and a Llama-shaped model of other sizes, with tokenizers that number characters differently."""
    root = tmp_path_factory.mktemp("models")
    qwen = tiny.save_tiny(root / "qwen")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny, "CHARACTERS", tiny.CHARACTERS[::-1] + "€")
        llama = tiny.save_tiny(root / "llama", "llama", hidden=48, seed=1)
    return {"writer_0": str(qwen), "solver_0": str(llama)}


@pytest.fixture
def hosted() -> Iterator[Fake]:
    with serving(lambda path, body: (200, chat(HOSTED))) as fake:
        yield fake


def config(local: dict[str, str], folder: Path, fake: Fake | None, **changes: Any) -> TrainConfig:
    engines = {"planner_0": as_table(f"openai:planner@{fake.url}?key_env=TRIO_KEY&price_out=1")} if fake else {}
    table = {"env": "test/trio-v0", "iterations": 2, "engines": engines, **changes}
    table["engines"] = {**engines, **changes.get("engines", {})}
    return dataclasses.replace(runs.settings(Path(), folder, **table), models=changes.get("models", local))


def base_weights(policies: PolicySet) -> dict[str, torch.Tensor]:
    return {
        f"{policy}/{name}": tensor.detach().clone()
        for policy in policies.policies
        for name, tensor in policies.base(policy).model.named_parameters()
    }


@pytest.mark.parametrize("frozen", [(), ("writer_0",)])
def test_two_families_and_a_hosted_agent_train_together(
    models: dict[str, str], hosted: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frozen: tuple[str, ...]
) -> None:
    monkeypatch.setenv("TRIO_KEY", SECRET)
    trainer = Trainer(build(config(models, tmp_path, hosted, frozen=list(frozen))))
    policies = trainer.policies
    words = {name: policies.renderer.tokenizer(name).encode("abc") for name in policies.policies}
    assert words["writer_0"] != words["solver_0"] and policies.policies == ["writer_0", "solver_0"]
    bases, adapters = base_weights(policies), policies.state_dict()
    heads = trainer.critics.state_dict() if trainer.critics else {}
    run = trainer.start()
    with runs.quiet_display(2) as display:
        trainer.train(run, display)

    for name, tensor in base_weights(policies).items():
        assert torch.equal(tensor, bases[name]), f"the base weight {name} changed"
    after = policies.state_dict()
    for policy in policies.policies:
        moved = any(not torch.equal(after[k], adapters[k]) for k in after if k.startswith(f"{policy}/"))
        assert moved is (policy not in frozen), f"'{policy}' {'changed' if moved else 'did not change'}"
    assert trainer.critics is not None and set(trainer.critics.policies) == {"writer_0", "solver_0"}
    trained = trainer.critics.state_dict()
    assert all(any(not torch.equal(trained[k], heads[k]) for k in heads if k.startswith(p)) for p in policies.policies)

    first, last = [line for line in run.metrics() if "engine/requests" in line]
    assert first["engine/requests"] >= 12 and last["engine/requests"] >= 12  # one turn an episode
    assert first["engine/cost"] == pytest.approx(first["engine/tokens_out"] / 1e6) and first["failed"] == 0
    for line in (first, last):
        gaps = [line[k] for k in line if k.endswith("sampler_gap")]
        assert len(gaps) == 2 - len(frozen) and max(gaps) < 1e-4
        assert "agent/planner_0/length" not in line and line["agent/solver_0/length"] > 0
    saved = sorted(path.name for path in run.checkpoints.glob("step_000002/policies/*"))
    assert saved == ["solver_0", "writer_0"]
    everything = [path for path in run.root.rglob("*") if path.is_file()]
    assert everything and not [path for path in everything if SECRET.encode() in path.read_bytes()]


def test_what_the_hosted_agent_says_is_read_by_the_others_and_never_trained_on(
    models: dict[str, str], hosted: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIO_KEY", SECRET)
    trainer = Trainer(build(config(models, tmp_path, hosted)))
    with closing(marft_envs.make_vec("test/trio-v0", 4)) as vec:
        trajectories = runs.collector(trainer.parts, vec).collect([1, 2, 3])
    for trajectory in trajectories:
        planner, writer, solver = trajectory.transitions
        assert (
            planner.turn.text, planner.reply.action_ids, planner.request.prompt_ids, planner.trainable,
        ) == (HOSTED, [], [], False)  # fmt: skip
        assert writer.trainable and solver.trainable
        assert HOSTED in trainer.policies.renderer.tokenizer("writer_0").decode(writer.request.prompt_ids)
    told = hosted.paths("/v1/chat/completions")[0]["messages"]
    assert "You are the planner." in told[0]["content"]


def test_a_hosted_agent_that_fails_now_and_then_costs_its_episodes_only(
    models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIO_KEY", SECRET)
    lock, count = threading.Lock(), [0]

    def answer(path: str, body: dict[str, Any]) -> Answer:
        with lock:
            count[0] += 1
            return (503, {"error": {"message": "down"}}) if count[0] % 4 == 0 else (200, chat(HOSTED))

    with serving(answer) as fake:
        planner = as_table(f"openai:planner@{fake.url}?key_env=TRIO_KEY&retries=0")
        _, run = runs.train(
            config(models, tmp_path, fake, iterations=1, max_error_rate=0.4, engines={"planner_0": planner})
        )
    line = run.metrics()[-1]
    assert line["failed"] == pytest.approx(0.25) and line["engine/failed"] >= 3
    assert line["policy/writer_0/rows"] == 9


def test_vllm_and_native_policies_learn_what_native_ones_learn(
    models: dict[str, str], hosted: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adapters travel to the server each iteration, and a run through it is the run without it."""
    monkeypatch.setenv("TRIO_KEY", SECRET)
    monkeypatch.setattr("marft_algos.engines.vllm._SEED", (1 << 64) - 1)  # the fake draws as the native engine does
    server = FakeVLLM(models["solver_0"], rank=2)
    try:
        away = config(models, tmp_path, hosted, name="away", engines={"solver_0": as_table(f"vllm:{server.url}")})
        there, run = runs.train(away)
        here, alone = runs.train(config(models, tmp_path, hosted, name="here"))
    finally:
        server.fake.close()
    for name, tensor in here.policies.state_dict().items():
        torch.testing.assert_close(there.policies.state_dict()[name], tensor, rtol=0, atol=1e-3)
    assert [line["return"] for line in run.metrics() if "return" in line] == pytest.approx(
        [line["return"] for line in alone.metrics() if "return" in line]
    )
    loads = [body["lora_name"].split("-")[0] for body in server.fake.paths("/v1/load_lora_adapter")]
    assert loads == ["solver_0@0", "solver_0@1", "solver_0@2"] and server.loaded == []


def test_only_adapters_that_a_server_needs_are_written(models: dict[str, str], tmp_path: Path) -> None:
    server = FakeVLLM(models["solver_0"], rank=2)
    try:
        trainer = Trainer(
            build(
                config(
                    models,
                    tmp_path,
                    None,
                    engines={"solver_0": as_table(f"vllm:{server.url}"), "planner_0": "native"},
                    models={**models, "planner_0": models["writer_0"]},
                    adapter_dir=str(tmp_path / "shared"),
                )
            )
        )
        trainer.rollouts.publish(trainer.policies.policies, 0)
        assert [path.name for path in (tmp_path / "shared").glob("*/*")] == ["solver_0@0"]
        held = load_file(next((tmp_path / "shared").glob("*/*/adapter_model.safetensors")))
        assert held
        trainer.rollouts.close()
    finally:
        server.fake.close()


@pytest.mark.parametrize(("changes", "says"), [
    ({"engines": {"planer_0": "native"}}, "unknown policy 'planer_0'. Did you mean 'planner_0'"),
    (
        {"engines": dict.fromkeys(("writer_0", "solver_0"), as_table("openai:m@http://127.0.0.1:9"))},
        "nothing is left to train",
    ),
    ({"models": {"planner_0": "embedded", "writer_0": "x", "solver_0": "x"}}, "hosted and has no weights"),
    ({"adapters": {"planner_0": "x"}}, "Take it out of 'adapters'"),
    ({"engines": {"solver_0": as_table("vllm:http://127.0.0.1:9")}}, "No vLLM server answers"),
    (
        {"engines": {"solver_0": as_table("vllm:http://127.0.0.1:9")}, "full_finetune": True},
        "servers swap adapters only",
    ),
    ({"engines": {"solver_0": as_table("openai:m@http://127.0.0.1:9?train=true")}}, "--old-logprobs learner"),
    (
        {"engines": {"solver_0": as_table("openai:m?key_env=NO_SUCH_KEY")}, "models": "embedded"},
        "NO_SUCH_KEY, which is not set",
    ),
])  # fmt: skip
def test_what_cannot_work_is_said_before_a_model_is_loaded(
    models: dict[str, str], hosted: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: Any, says: str
) -> None:
    monkeypatch.setenv("TRIO_KEY", SECRET)
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    monkeypatch.setattr(
        "marft_algos.models.policy.load_base", lambda *args, **kwargs: pytest.fail("a model was loaded")
    )
    made = config(models, tmp_path, hosted, **changes)
    with pytest.raises(ConfigError, match=says):
        Trainer(build(made))


def test_requests_go_to_the_engine_of_their_policy_in_order() -> None:
    class Upper(ScriptedEngine):
        slept = 0

        def sleep(self) -> None:
            self.slept += 1

        def metrics(self) -> dict[str, float]:
            return {"requests": 2.0}

    one, two = Upper({"*": "one"}), Upper({"*": "two"})
    engine = MixedEngine({"a": one, "b": two, "c": one})
    asked = [GenerationRequest(p, [1], 0, agent=p) for p in "abcba"]
    assert [r.text for r in engine.generate(asked, SamplingParams())] == ["one", "two", "one", "two", "one"]
    engine.publish("b", 5)
    assert [r.version for r in engine.generate(asked, SamplingParams())] == [0, 5, 0, 5, 0]
    engine.sleep()
    assert (one.slept, two.slept) == (1, 1) and engine.metrics() == {"requests": 4.0}
    with pytest.raises(ConfigError, match="No engine for 'd'"):
        engine.generate([GenerationRequest("d", [1], 0)], SamplingParams())


def test_evaluation_plays_local_policies_here(models: dict[str, str], tmp_path: Path) -> None:
    """A run's servers may be gone; its weights are not."""
    made = config(models, tmp_path, None, engines={"solver_0": as_table("vllm:http://127.0.0.1:9")}, models="embedded")
    policies = PolicySet.build(models, {name: name for name in models}, device="cpu")
    env = environments.make_env(made, made.env_kwargs)
    assert isinstance(hosting.make_engine(resolve(made, env), policies, local=True), NativeEngine)
