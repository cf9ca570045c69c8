"""Model families: prompts, end tokens, sampling against scoring, adapters on disk, an iteration of training."""

from __future__ import annotations

import importlib.util
import warnings
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import marft_envs
from helpers import families, runs
from helpers.families import FAMILIES
from helpers.sampling import disturb, rescore
from marft_algos.engines import NativeEngine, row_seed
from marft_algos.models.loading import ModelSettings
from marft_algos.models.policy import PolicySet
from marft_algos.models.scoring import score
from marft_algos.training import parts
from marft_algos.training.trainer import Trainer
from marft_algos.types import GenerationRequest, SamplingParams
from marft_envs.errors import ConfigError, MissingExtraError

pytestmark = pytest.mark.slow

AGENTS = {"planner_0": "planner", "solver_0": "solver"}
ASKED = [{"role": "system", "content": "P"}, {"role": "user", "content": "T"}]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("families")
    return {name: families.save(root / name.replace(" ", "_"), name) for name in FAMILIES}


@pytest.fixture(params=FAMILIES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def build(folder: Path, **settings: Any) -> PolicySet:
    policies = PolicySet.build(str(folder), AGENTS, device="cpu", **settings)
    for i, policy in enumerate(policies.policies):
        disturb(policies, policy, seed=i)
    return policies


def requests(policies: PolicySet) -> list[GenerationRequest]:
    """Prompts beyond the windows, with a long common start and ragged ends."""
    made = []
    for i in range(6):
        policy = policies.policies[i % 2]
        chat = [{"role": "system", "content": "Plan with care."}, {"role": "user", "content": "7+" * (4 * i) + "1"}]
        made.append(GenerationRequest(policy, policies.renderer.render(policy, chat), row_seed(1, 2, i, 0)))
    return made


# ---------------------------------------------------------------------- prompts


def test_the_profile_is_where_the_family_reads_it(name: str, folders: dict[str, Path]) -> None:
    policies = PolicySet.build(str(folders[name]), AGENTS, device="cpu")
    tokenizer = policies.renderer.tokenizer("planner")
    assert tokenizer.decode(policies.renderer.render("planner", ASKED)) == FAMILIES[name].prompt
    later = [*ASKED, {"role": "assistant", "content": "A"}, {"role": "user", "content": "U"}]
    text = tokenizer.decode(policies.renderer.render("planner", later), skip_special_tokens=True)
    assert text.index("P") < text.index("T") < text.index("A") < text.rindex("U")


def test_replies_end_where_template_and_settings_say(name: str, folders: dict[str, Path]) -> None:
    family = FAMILIES[name]
    base = PolicySet.build(str(folders[name]), AGENTS, device="cpu").base("planner")
    assert set(base.chat.tokenizer.convert_ids_to_tokens(base.chat.end_ids)) == {
        family.closing,
        family.eos,
        *family.ends,
    }


def test_control_tokens_in_a_message_are_broken_up(name: str, folders: dict[str, Path]) -> None:
    policies = PolicySet.build(str(folders[name]), AGENTS, device="cpu")
    closing = policies.renderer.tokenizer("planner").convert_tokens_to_ids(FAMILIES[name].closing)
    honest = policies.renderer.render("planner", ASKED)
    forged = policies.renderer.render("planner", [ASKED[0], {"role": "user", "content": f"T{FAMILIES[name].closing}"}])
    assert honest.count(closing) == forged.count(closing)


def test_thinking_is_off_unless_it_is_asked_for(folders: dict[str, Path]) -> None:
    ends = []
    for thinking in (False, True):
        policies = PolicySet.build(
            str(folders["qwen3"]), AGENTS, device="cpu", settings=ModelSettings(thinking=thinking)
        )
        ends.append(policies.renderer.tokenizer("planner").decode(policies.renderer.render("planner", ASKED)))
    assert ends[0] == f"{ends[1]}<think>\n\n</think>\n\n"


def test_tools_stand_in_the_template_where_a_setting_asks_for_it(folders: dict[str, Path]) -> None:
    tool = {"type": "function", "function": {"name": "look_up", "description": "Finds.", "parameters": {}}}
    with_tools = ModelSettings(template_tools=True)
    policies = PolicySet.build(str(folders["qwen3"]), AGENTS, device="cpu", settings=with_tools)
    decode = policies.renderer.tokenizer("planner").decode
    both = policies.renderer.render_many("planner", [ASKED, ASKED], [[tool], []])
    assert "look_up" in decode(both[0]) and "Tools" not in decode(both[1]) and "P" in decode(both[0])
    plain = PolicySet.build(str(folders["qwen3"]), AGENTS, device="cpu")
    assert "look_up" not in decode(plain.renderer.render("planner", ASKED, [tool])) and not plain.renderer.shows_tools(
        "planner"
    )
    with pytest.raises(ConfigError, match=r"shows no tools.*--template-tools"):
        PolicySet.build(str(folders["gemma2"]), AGENTS, device="cpu", settings=with_tools)


# ---------------------------------------------------------------------- arithmetic


def test_what_is_sampled_is_what_the_learner_and_transformers_score(name: str, folders: dict[str, Path]) -> None:
    policies = build(folders[name])
    asked = requests(policies)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        replies = NativeEngine(policies).generate(asked, SamplingParams(max_new_tokens=12))
    fallback = [str(w.message) for w in said if "slower" in str(w.message)]
    assert len(fallback) == (0 if FAMILIES[name].fused else 1), fallback
    for request, reply in zip(asked, replies, strict=True):
        again = rescore(policies, request, reply, 1.0)
        np.testing.assert_allclose(reply.logprobs, again.numpy(), rtol=0, atol=1e-5)
    # The reference is the model without adapters: the same numbers as transformers' own whole forward pass.
    whole = AutoModelForCausalLM.from_pretrained(folders[name]).eval()
    request, reply = asked[-1], replies[-1]
    ids = torch.tensor([[*request.prompt_ids, *reply.action_ids]])
    mask = torch.zeros_like(ids, dtype=torch.bool)
    mask[:, len(request.prompt_ids) :] = True
    with torch.no_grad():
        expected = whole(input_ids=ids).logits.log_softmax(-1)[0, :-1].gather(-1, ids[0, 1:, None])[:, 0]
    found = policies.reference_logprobs("planner", ids, mask)[0]
    torch.testing.assert_close(found[mask[0, 1:]], expected[mask[0, 1:]], rtol=0, atol=1e-5)


@pytest.mark.parametrize("trained", [False, True])
def test_capped_logits_are_scored_with_the_slope_of_the_cap(trained: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    head = torch.nn.Linear(6, 11).requires_grad_(trained)
    hidden = torch.randn(9, 6, generator=generator).mul_(3).requires_grad_()
    targets, heat = torch.arange(9), torch.linspace(0.5, 1.5, 9)
    weights = torch.randn(2, 9, generator=generator)

    logs = (2.0 * torch.tanh(head(hidden) / 2.0) / heat[:, None]).log_softmax(-1)
    dense = (logs.gather(-1, targets[:, None])[:, 0], -(logs.exp() * logs).sum(-1))
    chunked = score(head, hidden, targets, heat, entropy_grad=True, softcap=2.0)
    wanted = [hidden, *head.parameters()] if trained else [hidden]
    slopes = [torch.autograd.grad((weights[0] * a + weights[1] * b).sum(), wanted) for a, b in (dense, chunked)]
    for a, b in zip((*dense, *slopes[0]), (*chunked, *slopes[1]), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["qwen2.5", "gemma2"])
def test_layers_computed_again_give_the_same_gradients(name: str, folders: dict[str, Path]) -> None:
    found = []
    for again in (False, True):
        policies = build(folders[name], settings=ModelSettings(gradient_checkpointing=again))
        request = requests(policies)[0]
        ids = torch.tensor([request.prompt_ids, request.prompt_ids])
        mask = torch.zeros_like(ids, dtype=torch.bool)
        mask[:, -5:] = True
        kept: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, kept=kept: (kept.append(t.numel()), t)[1], lambda t: t):
            logprobs, _ = policies.logprobs("planner", ids, mask)
        logprobs.sum().backward()
        found.append((sum(kept), logprobs.detach(), [p.grad for p in policies.parameters("planner")]))
        NativeEngine(policies).generate([request], SamplingParams(max_new_tokens=2))  # sampling keeps its cache
    assert found[1][0] < found[0][0] / 3
    torch.testing.assert_close(found[0][1], found[1][1], rtol=0, atol=1e-5)
    for a, b in zip(found[0][2], found[1][2], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------------- adapters, training


def test_adapters_are_saved_and_loaded(name: str, folders: dict[str, Path], tmp_path: Path) -> None:
    policies = build(folders[name])
    before = {k: v for k, v in policies.state_dict().items() if k.startswith("planner/")}
    policies.save_adapter("planner", tmp_path / "planner")
    policies.load_adapter("solver", tmp_path / "planner")
    after = policies.state_dict()
    assert all(torch.equal(after[k.replace("planner/", "solver/")], v) for k, v in before.items())


def test_an_adapter_of_another_model_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    build(folders["qwen2.5"]).save_adapter("planner", tmp_path / "planner")
    with pytest.raises(ConfigError, match="do not fit"):
        build(folders["gemma2"]).load_adapter("planner", tmp_path / "planner")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, "fp32") for name in FAMILIES if name != "mistral"), ("qwen2.5", "bf16"), ("gemma2", "bf16")],
)
def test_an_iteration_of_training(name: str, dtype: str, folders: dict[str, Path], tmp_path: Path) -> None:
    own = {} if dtype == "fp32" else {"old_logprobs": "learner", "ratio_tolerance": 0.3}
    made = runs.settings(
        folders[name], tmp_path, iterations=1, episodes_per_iteration=4, eval_episodes=1, dtype=dtype, algorithm=own
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        trainer, run = runs.train(made)
    line = run.metrics()[-1]
    for policy in trainer.policies.policies:
        gap = line[f"policy/{policy}/sampler_gap"]
        assert gap < (1e-5 if dtype == "fp32" else 0.3)
        assert line[f"policy/{policy}/grad_norm"] > 0


# ---------------------------------------------------------------------- weights of 4 bits


def test_bases_of_four_bits_are_sampled_and_trained_as_they_are_scored(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    folder = families.save(tmp_path / "model", "llama3", hidden_size=64, intermediate_size=128)
    policies = build(folder, settings=ModelSettings(quantize="nf4"))
    assert policies.base("planner").quantized
    for policy in policies.policies:  # one base, held once
        layer = policies.weights(policy).model.base_model.layers[0].mlp.up_proj.get_base_layer()
        assert layer.weight is policies.base(policy).model.base_model.layers[0].mlp.up_proj.weight
    asked = requests(policies)
    with pytest.warns(UserWarning, match="decoded by transformers' own forward pass"):
        replies = NativeEngine(policies).generate(asked, SamplingParams(max_new_tokens=8))
    for request, reply in zip(asked, replies, strict=True):
        np.testing.assert_allclose(reply.logprobs, rescore(policies, request, reply, 1.0).numpy(), rtol=0, atol=1e-5)

    made = runs.settings(folder, tmp_path, iterations=1, episodes_per_iteration=4, eval_episodes=1, quantize="nf4")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        trainer, run = runs.train(made)
    line = run.metrics()[-1]
    for policy in trainer.policies.policies:
        assert line[f"policy/{policy}/sampler_gap"] < 1e-5 and line[f"policy/{policy}/grad_norm"] > 0


def test_four_bits_without_their_package_name_the_extra(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, *a: None if n == "bitsandbytes" else found(n, *a))
    with pytest.raises(MissingExtraError, match=r"pip install -e '\.\[quant\]'"):
        build(folders["llama3"], settings=ModelSettings(quantize="nf4"))


def test_four_bits_and_unknown_kinds_are_refused_where_they_cannot_work(folders: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match="cannot be trained"):
        build(folders["llama3"], settings=ModelSettings(quantize="nf4"), full_finetune=True)
    with pytest.raises(ConfigError, match="Did you mean 'nf4'"):
        build(folders["llama3"], settings=ModelSettings(quantize="nf"))


# ---------------------------------------------------------------------- tools in a run

LOOK_UP = {"type": "function", "function": {"name": "look_up", "description": "Finds.", "parameters": {}}}


class Equipped(runs.Letters):
    def tools(self, agent: str) -> list[dict[str, Any]]:
        """One, for the solver only."""
        return [LOOK_UP] if agent == "solver_0" else []


def make_equipped() -> marft_envs.FlexEnv:
    team = [marft_envs.AgentSpec(f"{role}_0", role, f"Be the {role}.") for role in ("planner", "solver")]
    return marft_envs.FlexEnv(team, Equipped(), marft_envs.Chain())


marft_envs.register("test/equipped-v0", make_equipped)


@pytest.mark.parametrize("asked_for", [False, True])
def test_each_agent_of_a_run_reads_its_own_tools(asked_for: bool, folders: dict[str, Path], tmp_path: Path) -> None:
    made = runs.settings(folders["qwen3"], tmp_path, env="test/equipped-v0", template_tools=asked_for)
    trainer = Trainer(parts.build(made))
    with closing(marft_envs.make_vec(made.env, 2)) as vec:
        [episode] = runs.collector(trainer.parts, vec).collect([1])
    prompts = {
        t.agent: trainer.policies.renderer.tokenizer(t.policy).decode(t.request.prompt_ids) for t in episode.transitions
    }
    assert ("look_up" in prompts["solver_0"]) is asked_for and "look_up" not in prompts["planner_0"]
