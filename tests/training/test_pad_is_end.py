"""A tokenizer whose pad token is its end token (many of Llama's bases): padding is known by its place, never by its id.

Every test has two models with the same weights and the same vocabulary; they differ in which token is called the pad.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import marft_algos
from helpers.runs import settings, timeless, train
from helpers.sampling import AGENTS, PARAMS, disturb, requests
from helpers.tiny import save_tiny, tiny_tokenizer
from marft_algos.engines import NativeEngine
from marft_algos.models.policy import PolicySet
from marft_algos.rollout.demonstrations import Demonstrations
from marft_algos.rollout.episodes import Prompts
from marft_algos.runs import checkpoint
from marft_algos.types import StopReason

END = "<|im_end|>"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The model with a pad token of its own, and the one whose pad is the end."""
    root = tmp_path_factory.mktemp("models")
    save_tiny(root / "apart", hidden=16, layers=1)
    shutil.copytree(root / "apart", root / "alike")
    tokenizer = tiny_tokenizer(pad_token=END)
    tokenizer.save_pretrained(root / "alike")
    for name in ("config.json", "generation_config.json"):
        described = json.loads((root / "alike" / name).read_text())
        (root / "alike" / name).write_text(json.dumps(described | {"pad_token_id": tokenizer.eos_token_id}))
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    return [root / "apart", root / "alike"]


@pytest.mark.ci
@pytest.mark.parametrize("changes", [{}, {"full_finetune": True}], ids=["adapters", "all weights"])
@pytest.mark.parametrize("algo", ["sft", "marft"])
def test_a_team_learns_the_same(algo: str, changes: dict[str, bool], pair: list[Path], tmp_path: Path) -> None:
    ends, lines = [], []
    for folder in pair:
        made = settings(folder, tmp_path / folder.name, env="relay-v0", algo=algo, iterations=2, **changes)
        trainer, run = train(made)
        ends.append(trainer.policies.state_dict())
        lines.append(timeless(run))
        assert checkpoint.steps(run.checkpoints)[-1] == 2
    assert lines[0] == lines[1]
    assert ends[0].keys() == ends[1].keys()
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_the_end_is_in_the_loss_and_its_embedding_in_the_gradient(pair: list[Path], tmp_path: Path) -> None:
    """The loss is that of a plain transformers model, over every token of the replies with the one that ends them."""
    made = settings(
        pair[1], tmp_path, env="relay-v0", algo="sft", iterations=0, algorithm={"minibatches": 1, "lr": 1e-9},
        full_finetune=True,
    )  # fmt: skip
    trainer = marft_algos.Trainer(marft_algos.build(made))
    make_env = trainer.parts.make_env
    drawn = Demonstrations("expert", make_env, trainer.policies.renderer, 8).draw(Prompts([0, 1, 2], [{}] * 3), 0, 0)
    end = tiny_tokenizer().convert_tokens_to_ids(END)
    rows = [t for d in drawn for t in d.transitions if t.policy == "solver_0"]
    assert all(t.reply.action_ids[-1] == end and len(t.reply.action_ids) == 2 for t in rows)
    plain, losses = AutoModelForCausalLM.from_pretrained(pair[1]), []
    for row in rows:
        prompt, reply = list(row.request.prompt_ids), list(row.reply.action_ids)
        logits = plain(input_ids=torch.tensor([prompt + reply])).logits[0].double()
        scores = torch.log_softmax(logits, -1)[len(prompt) - 1 : -1]
        losses += (-scores[range(len(reply)), reply]).tolist()
    measured = trainer.learner.update(drawn, 0)["policy/solver_0/loss"]
    assert measured == pytest.approx(sum(losses) / len(losses), abs=1e-5)
    embeddings = trainer.policies.weights("solver_0").model.get_input_embeddings()
    embeddings(torch.tensor([[end, 7]])).sum().backward()
    assert embeddings.weight.grad is not None and embeddings.weight.grad[end].abs().sum() > 0


def test_replies_are_the_same_and_end_at_the_end(pair: list[Path]) -> None:
    sampled = []
    for folder in pair:
        policies = PolicySet.build(str(folder), AGENTS, device="cpu")
        for i, policy in enumerate(policies.policies):
            disturb(policies, policy, seed=i)
        end = policies.base("actor").chat.tokenizer.eos_token_id
        assert policies.base("actor").chat.end_ids == (end,)
        replies = NativeEngine(policies).generate(requests(policies, 200), PARAMS)
        ended = [reply for reply in replies if reply.stop_reason is StopReason.EOS]
        assert len(ended) >= 5, "a random model says the end now and then"
        assert all(reply.action_ids[-1] == end and end not in reply.action_ids[:-1] for reply in ended)
        sampled.append([(list(reply.action_ids), reply.logprobs.tolist()) for reply in replies])
    assert sampled[0] == sampled[1]
