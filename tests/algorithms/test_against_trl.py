"""Numerical agreement with TRL: one real step of its trainers, and the same texts, rewards and log-probs here.

TRL is not a dependency: pip install 'trl==1.16.*', with torch as pinned. ε of σ is 1e-4 and its ddof 1, as there.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.teams import episode, put, say
from helpers.tiny import save_tiny
from marft_algos.algorithms.dapo import DAPO, DAPOConfig
from marft_algos.algorithms.dpo import DPO, DPOConfig
from marft_algos.algorithms.dr_grpo import DrGRPO, DrGRPOConfig
from marft_algos.algorithms.grpo import GRPO, GRPOConfig
from marft_algos.algorithms.gspo import GSPO, GSPOConfig
from marft_algos.algorithms.rloo import RLOO
from marft_algos.batching import Batch, learnable, pack, totals
from marft_algos.functional import kl_k3
from marft_algos.types import Estimates, SamplingParams, Trajectory

trl = pytest.importorskip("trl", reason="TRL is not installed; see the top of this file")
datasets = pytest.importorskip("datasets", reason="TRL's trainers need datasets")

LENGTH, SIZE = 8, 4
TRL = {"std_eps": 1e-4, "std_ddof": 1}
SCALE = {"grpo": "group", "dapo": "group", "dr_grpo": "none", "gspo": "group"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny(tmp_path_factory.mktemp("model"), hidden=16, layers=1))


@pytest.fixture(autouse=True)
def rows_stay_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between sampling and loss TRL shuffles rows, and with them loses which group they belong to."""
    for kind in ("grpo", "rloo"):
        monkeypatch.setattr(f"trl.trainer.{kind}_trainer.shuffle_sequence_dict", lambda batch: batch)


def step(model: str, folder: Path, kind: str, **settings: Any) -> dict[str, Any]:
    """Lets a TRL trainer sample 16 texts and compute one loss, on log-probs that have moved a little since.

    Returns:
        What its loss was computed from, the loss, the rewards, and its gradient on the moved log-probs.
    """
    rewards: list[float] = []
    seen: dict[str, Any] = {}

    def reward(completions: list[str], **_: Any) -> list[float]:
        drawn = random.Random(len(rewards))
        fresh = [drawn.choice([0.0, 0.5, 1.0]) for _ in completions]
        fresh[:SIZE] = [1.0] * SIZE  # a group of equal scores
        rewards.extend(fresh)
        return fresh

    base, config = {"rloo": (trl.RLOOTrainer, trl.RLOOConfig)}.get(kind, (trl.GRPOTrainer, trl.GRPOConfig))

    class Watched(base):  # type: ignore[misc, valid-type]
        def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
            per_token = self._get_per_token_logps_and_entropies

            def moved(*args: Any, **kwargs: Any) -> Any:
                found, entropies, *rest = per_token(*args, **kwargs)
                noise = torch.randn(found.shape, generator=torch.Generator().manual_seed(0))
                seen["new"] = (found.detach() + seen["noise"] * noise).requires_grad_()
                return seen["new"], entropies, *rest

            ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
            mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
            with torch.no_grad():
                old = per_token(model, ids, mask, inputs["completion_ids"].size(1))[0]
            if kind != "rloo":
                inputs["old_per_token_logps"] = old
            self._get_per_token_logps_and_entropies = moved
            loss = super()._compute_loss(model, inputs)
            del self._get_per_token_logps_and_entropies
            gradient = torch.autograd.grad(loss, seen["new"])[0]
            seen.update(inputs=inputs, old=old, loss=float(loss.detach()), gradient=gradient)
            return sum(p.sum() for p in model.parameters()) * 0.0 + loss.detach()

    seen["noise"] = 0.0 if kind == "rloo" else 0.3
    made = config(
        output_dir=str(folder),
        per_device_train_batch_size=4 * SIZE,
        num_generations=SIZE,
        max_completion_length=LENGTH,
        max_steps=1,
        report_to="none",
        use_cpu=True,
        bf16=False,
        save_strategy="no",
        disable_tqdm=True,
        **settings,
    )
    data = datasets.Dataset.from_list([{"prompt": f"{i} + {i} ="} for i in range(4)])
    Watched(model=model, reward_funcs=reward, args=made, train_dataset=data).train()
    return seen | {"rewards": rewards}


def ours(seen: dict[str, Any]) -> tuple[list[Trajectory], Estimates]:
    """TRL's texts as episodes of a team of one, and what TRL's reference model says of them."""
    inputs, made, estimates = seen["inputs"], [], Estimates()
    for i, reward in enumerate(seen["rewards"]):
        kept, asked = inputs["completion_mask"][i].bool(), inputs["prompt_mask"][i].bool()
        d = episode([["a"]], number=i, rewards=[reward], group=i // SIZE)
        (turn,) = d.transitions
        put(turn, prompt_ids=inputs["prompt_ids"][i][asked].tolist())
        logprobs = seen["old"][i][kept].numpy().astype(np.float32)
        say(turn, action_ids=inputs["completion_ids"][i][kept].tolist(), logprobs=logprobs, text="")
        if "ref_per_token_logps" in inputs:
            estimates.reference_logprobs[turn] = inputs["ref_per_token_logps"][i][kept].numpy()
        made.append(d)
    _, estimates.shares = learnable(made, ["a"])
    return made, estimates


def scored(batch: Batch, seen: dict[str, Any]) -> torch.Tensor:
    """TRL's moved log-probs where our batch has the same tokens."""
    new = torch.zeros_like(batch.old_logprobs)
    for i in range(len(batch.transitions)):
        new[i, batch.mask[i]] = seen["new"][i].detach()[seen["inputs"]["completion_mask"][i].bool()]
    return new.requires_grad_()


@pytest.mark.parametrize("kind", ["grpo", "dr_grpo", "dapo", "gspo", "rloo"])
@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_advantages_losses_and_gradients_agree(kind: str, beta: float, model: str, tmp_path: Path) -> None:
    if kind == "rloo" and beta:
        pytest.skip("RLOO's KL is in the reward; the loss is the same")
    clip = {"epsilon": 0.2} if kind != "gspo" else {"epsilon": 0.05, "importance_sampling_level": "sequence"}
    settings: dict[str, Any] = {"beta": beta, **clip}
    if kind != "rloo":
        settings |= {"loss_type": "grpo" if kind == "gspo" else kind, "scale_rewards": SCALE[kind]}
        # By default TRL multiplies k3 by the ratio; the paper and this project do not.
        settings["use_bias_correction_kl"] = False
        settings |= {"epsilon_high": 0.28 if kind == "dapo" else clip["epsilon"]}
    seen = step(model, tmp_path, kind, **settings)
    sampling = SamplingParams(max_new_tokens=LENGTH)
    algo: Any = {
        "grpo": lambda: GRPO(GRPOConfig(**TRL), sampling),
        "dr_grpo": lambda: DrGRPO(DrGRPOConfig(), sampling),
        "dapo": lambda: DAPO(DAPOConfig(overlong=0.0, **TRL), sampling),
        "gspo": lambda: GSPO(GSPOConfig(clip=0.05, clip_high=0.05, **TRL), sampling),
        "rloo": RLOO,
    }[kind]()
    data, estimates = ours(seen)
    assert algo.credit(data, estimates)["group_flat"] >= 0.25
    advantages = [float(estimates.advantages[d.transitions[0]][0]) for d in data]
    assert advantages == pytest.approx(seen["inputs"]["advantages"].tolist(), abs=1e-5)
    assert any(advantages)

    rows = [d.transitions[0] for d in data]
    batch = pack(rows, estimates, "action", minibatch=totals(rows, estimates, len(data)))
    new = scored(batch, seen)
    loss = algo.surrogate(new, batch)[0]
    if beta:
        loss = loss + beta * algo.reduce(kl_k3(batch.reference_logprobs, new), batch)
    if kind != "rloo":  # there the ratio is 1: the value is the mean advantage, the gradient is the same
        assert float(loss.detach()) == pytest.approx(seen["loss"], abs=1e-5)
    (gradient,) = torch.autograd.grad(loss, new)
    for i in range(len(data)):
        kept = seen["inputs"]["completion_mask"][i].bool()
        assert gradient[i, batch.mask[i]].tolist() == pytest.approx(seen["gradient"][i][kept].tolist(), abs=1e-5)
    assert gradient.abs().sum() > 0


def preferred(model: str, folder: Path, beta: float) -> dict[str, Any]:
    """Lets TRL's DPO compute one loss on pairs, on log-probs that have moved a little since.

    Returns:
        The tokens of the pairs, the reference's and the moved log-probs, the loss and its gradient on the latter.
    """
    seen: dict[str, Any] = {}

    class Watched(trl.DPOTrainer):  # type: ignore[misc, name-defined]
        def _compute_loss(self, model: Any, inputs: dict[str, Any], return_outputs: bool) -> torch.Tensor:
            def moved(**kwargs: Any) -> Any:
                outputs = model(**kwargs)
                seen["ref"] = outputs.log_probs.detach()
                noise = 0.3 * torch.randn(seen["ref"].shape, generator=torch.Generator().manual_seed(0))
                noise[seen["ref"] == 0] = 0.0
                seen["new"] = outputs["log_probs"] = (seen["ref"] + noise).requires_grad_()
                return outputs

            loss = super()._compute_loss(moved, inputs, return_outputs)
            gradient = torch.autograd.grad(loss, seen["new"])[0]
            seen.update(inputs=inputs, loss=float(loss.detach()), gradient=gradient)
            return sum(p.sum() for p in model.parameters()) * 0.0 + loss.detach()

    made = trl.DPOConfig(
        output_dir=str(folder), beta=beta, per_device_train_batch_size=4, max_steps=1, report_to="none", use_cpu=True,
        bf16=False, save_strategy="no", disable_tqdm=True, gradient_checkpointing=False,
    )  # fmt: skip
    texts = [(f"{i} + {i} =", f" {2 * i}", f" {i} or so") for i in range(4)]
    rows = [{"prompt": x, "chosen": better, "rejected": worse} for x, better, worse in texts]
    Watched(model=model, args=made, train_dataset=datasets.Dataset.from_list(rows)).train()
    return seen


def test_preferences_agree(model: str, tmp_path: Path) -> None:
    """A team of one, one turn an episode: there it is DPO as published."""
    seen = preferred(model, tmp_path, beta=0.7)
    acted = seen["inputs"]["completion_mask"].bool()
    attended, ids = seen["inputs"]["attention_mask"].bool(), seen["inputs"]["input_ids"]
    estimates, episodes, new = Estimates(), [], {}
    for i in (0, 4, 1, 5, 2, 6, 3, 7):  # TRL has all chosen ones before all rejected
        d = episode([["a"]], number=len(episodes), group=len(episodes) // 2)
        (turn,) = d.transitions
        put(turn, prompt_ids=ids[i][attended[i] & ~acted[i]].tolist())
        n = int(acted[i].sum())
        say(turn, action_ids=ids[i][acted[i]].tolist(), logprobs=np.zeros(n, np.float32), text="")
        estimates.reference_logprobs[turn] = seen["ref"][i][acted[i, 1:]].numpy()
        new[turn] = seen["new"][i][acted[i, 1:]].detach()
        episodes.append(d)
    algo = DPO(DPOConfig(beta=0.7))
    algo.credit(episodes, estimates)
    rows = [d.transitions[0] for d in episodes]
    told = algo.before_step(rows, estimates, lambda rows: [new[t].numpy() for t in rows])
    batch = pack(rows, estimates, "action")
    packed = torch.zeros_like(batch.old_logprobs)
    for i, turn in enumerate(rows):
        packed[i, batch.mask[i]] = new[turn]
    loss = algo.surrogate(packed.requires_grad_(), batch)[0]
    assert float(loss.detach()) == pytest.approx(seen["loss"], abs=1e-5)
    (gradient,) = torch.autograd.grad(loss, packed)
    for i, theirs in enumerate((0, 4, 1, 5, 2, 6, 3, 7)):
        assert gradient[i, batch.mask[i]].tolist() == pytest.approx(
            seen["gradient"][theirs][acted[theirs, 1:]].tolist(), abs=1e-6
        )
    assert gradient.abs().sum() > 0 and told["pairs"] == 4 and abs(told["margin"]) > 1e-3
