"""Policies: the weights.

A mapping says which base model each policy stands on. Policies on the same base share its weights and differ by a LoRA
adapter; several bases live side by side. Sampling, scoring and critics all run through here, on the same weights. Which
agent plays which policy, and how it is spoken to, the ``renderer`` knows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from marft_algos.memory import passes
from marft_algos.models import finite
from marft_algos.models.loading import (
    BaseModel,
    ModelSettings,
    Trunk,
    head_of,
    load_base,
    pick_device,
    pick_dtype,
    softcap_of,
    states,
)
from marft_algos.models.renderer import Renderer
from marft_algos.models.scoring import score
from marft_algos.models.weights import LoraSettings, Weights, adapters, reader, whole
from marft_envs.errors import ConfigError, did_you_mean
from marft_envs.types import AgentSpec

FEATURE_TOKENS = 16_384
"""Tokens in one pass of the frozen trunk."""
Read = Callable[[Tensor, Tensor], Tensor]
"""Final states [n, d] of right-padded ids [B, T] at the wanted positions, bool [B, T]."""


def assign(agents: Sequence[AgentSpec], policies: str | Mapping[str, str]) -> dict[str, str]:
    """Returns the policy id of every agent.

    Args:
        agents: the team.
        policies: ``own`` (one policy an agent, named after it), ``shared`` (one for all), or a mapping from
            agent name or role to policy id that covers the team.

    Raises:
        ConfigError: an unknown agent is named, or one is left out.
    """
    if policies == "own":
        return {agent.name: agent.name for agent in agents}
    if policies == "shared":
        return {agent.name: "shared" for agent in agents}
    if isinstance(policies, str):
        raise ConfigError(f"Unknown sharing '{policies}'. {did_you_mean(policies, ('own', 'shared'))}")
    known = {agent.name for agent in agents} | {agent.role for agent in agents}
    for name in policies:
        if name not in known:
            raise ConfigError(f"No agent or role is called '{name}' in this team. {did_you_mean(name, known)}")
    chosen = {agent.name: policies.get(agent.name, policies.get(agent.role)) for agent in agents}
    missing = [name for name, policy in chosen.items() if policy is None]
    if missing:
        raise ConfigError(
            f"No policy was given for {', '.join(missing)}. Expected one for every agent: name the agent or its"
            " role, or use 'own' or 'shared'."
        )
    return {name: policy for name, policy in chosen.items() if policy is not None}


class PolicySet:
    """All policies of a team, on their base models. Build it with ``PolicySet.build``."""

    def __init__(self, policies: Mapping[str, Weights], agents: Mapping[str, str]) -> None:
        self._policies = dict(policies)
        trained = [name for name, held in policies.items() if held.trainable]
        self.renderer = Renderer({name: held.base.chat for name, held in policies.items()}, agents, trained)
        """Who plays which policy, hosted ones among them, and how they are spoken to."""
        bases = {id(held.base): held.base for held in policies.values()}
        self._readers = {key: reader(base) for key, base in bases.items()}
        self.version = 0
        """Counts updates; the trainer raises it after each."""

    @classmethod
    def build(
        cls,
        models: str | Mapping[str, str],
        policies: Mapping[str, str],
        *,
        lora: LoraSettings | None = None,
        dtype: str = "auto",
        device: str = "auto",
        full_finetune: bool = False,
        settings: ModelSettings | None = None,
        frozen: Iterable[str] = (),
        spare: Sequence[str] = (),
        hosted: Mapping[str, str] | None = None,
        seed: int = 0,
        given: BaseModel | None = None,
    ) -> PolicySet:
        """Loads the base models and puts fresh adapters on them.

        Args:
            models: one model for all policies, or policy id -> model (``embedded``, a folder or a hub id).
            policies: agent -> policy id.
            lora: the adapters' shape.
            dtype: compute dtype ``auto | fp32 | bf16``; trainable weights are float32 in any case.
            device: ``auto | cpu | cuda``.
            full_finetune: train all weights of a copy of the base per policy instead of an adapter.
            settings: how base models are kept, run and spoken to.
            frozen: policy ids that are never trained.
            spare: further policy ids, that no agent plays with by itself.
            hosted: agent -> policy id that a model elsewhere plays, and that has no weights here.
            seed: of the adapters' initial weights.
            given: a base model that is loaded already, for all policies, whatever ``models`` says.

        Raises:
            ConfigError: unknown names, or a base model that cannot be used.
        """
        names = list(dict.fromkeys([*policies.values(), *spare]))
        specs = dict.fromkeys(names, given.spec) if given else base_specs(models, names)
        frozen = _known(frozen, names, "frozen")
        where = pick_device(device)
        compute = pick_dtype(dtype, where)
        settings = settings or ModelSettings()
        if settings.quantize != "none" and full_finetune:
            raise ConfigError("Weights of 4 bits cannot be trained. Leave out --full-finetune, or say --quantize none.")
        bases, again = dict.fromkeys(specs.values()), settings.gradient_checkpointing
        loaded = {spec: given or load_base(spec, dtype=compute, device=where, settings=settings) for spec in bases}
        built: dict[str, Weights] = {}
        for spec, base in loaded.items():
            members = [name for name in names if specs[name] == spec]
            if full_finetune:
                built |= {name: whole(base, trainable=name not in frozen, again=again) for name in members}
            else:
                built |= adapters(base, members, lora or LoraSettings(), frozen, seed, again)
        return cls({name: built[name] for name in names}, {**policies, **(hosted or {})})

    # ------------------------------------------------------------------ names

    @property
    def policies(self) -> list[str]:
        """Policy ids, in the order the agents name them."""
        return list(self._policies)

    @property
    def device(self) -> torch.device:
        """Where the models live."""
        return next(iter(self._policies.values())).base.device

    def trainable(self, policy: str) -> bool:
        """Returns whether this policy is updated."""
        return self._get(policy).trainable

    def parameters(self, policy: str) -> list[nn.Parameter]:
        """Returns the policy's trainable tensors (float32, stable order); empty if it is frozen."""
        held = self._get(policy)
        return list(held.tensors.values()) if held.trainable else []

    def base(self, policy: str) -> BaseModel:
        """Returns the base model under a policy."""
        return self._get(policy).base

    def weights(self, policy: str) -> Weights:
        """Returns what makes this policy differ from its base model, for engines."""
        return self._get(policy)

    def _get(self, policy: str) -> Weights:
        if policy not in self._policies:
            raise ConfigError(f"Unknown policy '{policy}'. {did_you_mean(policy, self._policies)}")
        return self._policies[policy]

    # ------------------------------------------------------------------ forward passes

    @contextmanager
    def running(self, policy: str) -> Iterator[tuple[Trunk, nn.Linear]]:
        """Gives the policy's trunk and output head with its present weights, under the compute dtype.

        One policy of a base runs at a time; gradients reach the policy's weights if they are enabled.
        """
        held = self._get(policy)
        trunk = held.trunk()
        for other in self._policies.values():
            other.restore_grad()
        with _autocast(held.base):
            yield trunk, head_of(held.model)

    def logprobs(
        self,
        policy: str,
        input_ids: Tensor,
        action_mask: Tensor,
        temperature: Tensor | float = 1.0,
        *,
        entropy_grad: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Scores actions: float32 log-softmax at action positions only, logits in chunks, never [B, T, V].

        Args:
            policy: whose weights.
            input_ids: [B, T], right-padded with any id.
            action_mask: bool [B, T], true at sampled tokens; the first column is never one.
            temperature: what the tokens were sampled at, a number or [B].
            entropy_grad: let gradients through the entropy.

        Returns:
            Log-probabilities and entropies in nats, float32 [B, T - 1]: column t belongs to token ``t + 1``; exactly 0
            outside the mask. Gradients flow unless they are disabled.
        """
        held = self._get(policy)
        ours = self._readers[id(held.base)] if held.merged else None
        with self.running(policy) as (trunk, head):
            read = partial(states, trunk, held.model) if ours is None else partial(ours.states, adapter=held.factors)
            return _score_actions(read, head, held.model, input_ids, action_mask, temperature, entropy_grad)

    @torch.no_grad()
    def reference_logprobs(
        self, policy: str, input_ids: Tensor, action_mask: Tensor, temperature: Tensor | float = 1.0
    ) -> Tensor:
        """Scores actions under the frozen base model the policy started from; shapes as in ``logprobs``."""
        base = self._get(policy).base
        with _autocast(base):
            read, head = self._read_base(base), head_of(base.model)
            return _score_actions(read, head, base.model, input_ids, action_mask, temperature, entropy_grad=False)[0]

    def _read_base(self, base: BaseModel) -> Read:
        """How final states of the frozen base model are had."""
        ours = self._readers[id(base)]
        return partial(states, base.model.base_model, base.model) if ours is None else ours.states

    @torch.no_grad()
    def features(self, policy: str, sequences: Sequence[Sequence[int]], positions: Sequence[range]) -> list[Tensor]:
        """Returns final hidden states of the frozen base model, without head, adapter or gradient.

        Args:
            policy: whose base model.
            sequences: token ids of each row.
            positions: of each row, the positions whose states are wanted.

        Returns:
            One tensor [len(positions[i]), d] a row.
        """
        base = self._get(policy).base
        found: list[Tensor] = [torch.empty(0)] * len(sequences)
        for rows in passes([len(s) for s in sequences], FEATURE_TOKENS):
            width = max(len(sequences[i]) for i in rows)
            ids = torch.tensor([[*sequences[i], *([0] * (width - len(sequences[i])))] for i in rows])
            wanted = torch.zeros_like(ids, dtype=torch.bool)
            for row, i in enumerate(rows):
                wanted[row, positions[i].start : positions[i].stop] = True
            with _autocast(base):
                flat = self._read_base(base)(ids.to(base.device), wanted.to(base.device))
            for i, own in zip(rows, flat.split([len(positions[i]) for i in rows]), strict=True):
                found[i] = own
        return found

    # ------------------------------------------------------------------ weights on disk

    def state_dict(self) -> dict[str, Tensor]:
        """Returns every policy's own weights (adapters, frozen ones too, or full copies) as ``policy/name``."""
        return {
            f"{policy}/{name}": tensor.detach().cpu().clone()
            for policy, held in self._policies.items()
            for name, tensor in held.tensors.items()
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restores what ``state_dict`` gave; the weights stay trainable."""
        for policy, held in self._policies.items():
            own = {k.removeprefix(f"{policy}/"): v for k, v in state.items() if k.startswith(f"{policy}/")}
            held.copy_from(own, f"the checkpoint of policy '{policy}'")

    def save_adapter(self, policy: str, folder: Path | str) -> Path:
        """Writes a policy into ``folder`` in peft's format (a whole model when fully fine-tuned).

        Raises:
            NotFiniteError: its weights hold infinity or NaN.
        """
        finite.check(self._get(policy).tensors, f"The weights of policy '{policy}'")
        self._get(policy).save(Path(folder))
        return Path(folder)

    def load_adapter(self, policy: str, folder: Path | str) -> None:
        """Reads what ``save_adapter`` or peft wrote into ``policy``, which stays trainable.

        Raises:
            ConfigError: no adapter there, or one of another shape.
        """
        self._get(policy).load(Path(folder))


_POLICY_ID = re.compile(r"[\w-]+")


def base_specs(models: str | Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """Returns the model of every policy id; an id or a model that is missing or unknown is an error."""
    if not names:
        raise ConfigError("No agent has a policy. Expected a mapping from agent to policy id.")
    for name in names:
        if not _POLICY_ID.fullmatch(name):
            raise ConfigError(f"'{name}' cannot be a policy id. Use letters, digits, '_' and '-'.")
    if isinstance(models, str):
        return dict.fromkeys(names, models)
    _known(models, names, "models")
    missing = [name for name in names if name not in models]
    if missing:
        raise ConfigError(
            f"No model was given for policy '{missing[0]}'. Add it to models: {missing[0]} = \"embedded\""
        )
    return dict(models)


def _known(given: Iterable[str], names: Sequence[str], setting: str) -> frozenset[str]:
    for name in given:
        if name not in names:
            raise ConfigError(f"'{setting}' names an unknown policy '{name}'. {did_you_mean(name, names)}")
    return frozenset(given)


def _autocast(base: BaseModel) -> torch.autocast:
    return torch.autocast(base.device.type, dtype=torch.bfloat16, enabled=base.dtype == torch.bfloat16)


def _score_actions(
    read: Read,
    head: nn.Linear,
    model: Any,
    input_ids: Tensor,
    action_mask: Tensor,
    temperature: Tensor | float,
    entropy_grad: bool,
) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies [B, T - 1] of the sampled tokens; see ``PolicySet.logprobs``."""
    wanted = action_mask[:, 1:].bool()
    hidden = read(input_ids, nn.functional.pad(wanted, (0, 1)))  # the states that the tokens are predicted from
    heat = torch.as_tensor(temperature, dtype=torch.float32, device=hidden.device).reshape(-1, 1)
    heat = heat.expand(len(wanted), wanted.shape[1])[wanted]
    scored = score(head, hidden, input_ids[:, 1:][wanted], heat, entropy_grad, softcap_of(model))
    return _scatter(wanted, scored[0]), _scatter(wanted, scored[1])


def _scatter(mask: Tensor, values: Tensor) -> Tensor:
    return torch.zeros(mask.shape, dtype=torch.float32, device=mask.device).masked_scatter(mask, values)
