"""Policies: the weights.

A mapping says which base model each policy stands on. Policies on the same base share its weights and differ by a LoRA
adapter; several bases live side by side. Sampling, scoring and critics all run through here, on the same weights. Which
agent plays which policy, and how it is spoken to, the ``renderer`` knows.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from marft_algos.memory import OutOfMemory, out_of_memory, passes, share, shared_passes
from marft_algos.models import bf16, finite_weights
from marft_algos.models.assignment import base_specs, check_known
from marft_algos.models.chat import Renderer
from marft_algos.models.forward import ForwardPass
from marft_algos.models.loading import BaseModel, ModelSettings, load_base, pick_device, pick_dtype
from marft_algos.models.scoring import head_of, score, softcap_of
from marft_algos.models.sharded import ShardedBase, check_shardable
from marft_algos.models.weights import LoraSettings, Trunk, Weights, adapters, frozen_copy, full_weights
from marft_algos.ranks.group import RankGroup
from marft_envs.errors import ConfigError, did_you_mean

_TO_PLAY = (
    "Memory ran out while the layers of '{}' were gathered: ranks that play hold a whole base then. Train on larger"
    " devices, or on a smaller model, or with --quantize nf4 --shard whole."
)
_START = "~start"
"""Ends the name of a policy's frozen start; no policy id holds a tilde."""
FEATURE_TOKENS = 16_384
"""Tokens in one pass of the frozen trunk."""


class PolicySet:
    """All policies of a team, on their base models. Build it with ``PolicySet.build``."""

    def __init__(
        self,
        policies: Mapping[str, Weights],
        agents: Mapping[str, str],
        starts: Mapping[str, Weights] | None = None,
        sharded: Sequence[ShardedBase] = (),
    ) -> None:
        self._policies, self._starts = dict(policies), dict(starts or {})
        self._sharded = {id(base.base.model): base for base in sharded}
        trained = [name for name, weights in policies.items() if weights.trainable]
        chats = {name: weights.base.chat for name, weights in policies.items()}
        self.renderer = Renderer(chats, agents, trained)
        """Who plays which policy, hosted ones among them, and how they are spoken to."""
        self._forward: dict[int, ForwardPass] = {}
        for weights in (*policies.values(), *self._starts.values()):
            base = weights.base
            for model in (base.model, weights.source):
                if id(model) not in self._forward:
                    self._forward[id(model)] = ForwardPass(model, base.dtype, self._sharded.get(id(model)))
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
        starts: Sequence[str] = (),
        hosted: Mapping[str, str] | None = None,
        seed: int = 0,
        loaded: BaseModel | None = None,
        shards: RankGroup | None = None,
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
            starts: policies whose reference is a frozen copy of what they start from; see ``keep_starts``. Of others
                it is the base model.
            hosted: agent -> policy id that a model elsewhere plays, and that has no weights here.
            seed: of the adapters' initial weights.
            loaded: a base model that is loaded already, for all policies, whatever ``models`` says.
            shards: ranks of which each holds a share of the base models' layers; all of them make the same calls.

        Raises:
            ConfigError: unknown names, or a base model that cannot be used.
        """
        names = list(dict.fromkeys([*policies.values(), *spare]))
        specs = (
            dict.fromkeys(names, loaded.spec) if loaded else base_specs(models, names) if names or not hosted else {}
        )
        frozen = check_known(frozen, names, "frozen")
        where = pick_device(device)
        compute = pick_dtype(dtype, where)
        if where.type == "cpu" and compute is torch.bfloat16:
            bf16.check_bf16()
        settings = settings or ModelSettings()
        if settings.quantize != "none" and full_finetune:
            raise ConfigError("Weights of 4 bits cannot be trained. Leave out --full-finetune, or say --quantize none.")
        if shards is not None:
            check_shardable(full_finetune=full_finetune, quantize=settings.quantize, loaded=loaded is not None)
            settings = dataclasses.replace(settings, sharded=True)
        built: dict[str, Weights] = {}
        sharded: list[ShardedBase] = []
        copies = {name: f"{name}{_START}" for name in starts}
        bases, checkpointing = dict[str, BaseModel](), settings.gradient_checkpointing
        for spec in dict.fromkeys(specs.values()):
            bases[spec] = loaded or load_base(spec, dtype=compute, device=where, settings=settings)
        for spec, base in bases.items():
            members = [name for name in names if specs[name] == spec]
            if full_finetune:
                for name in members:
                    built[name] = full_weights(base, trainable=name not in frozen, checkpointing=checkpointing)
                built |= {copies[name]: frozen_copy(base) for name in members if name in copies}
            else:
                members += [copies[name] for name in members if name in copies]
                still = frozen | set(copies.values())
                merge = shards is None
                found = adapters(base, members, lora or LoraSettings(), still, seed, checkpointing, merge=merge)
                sharded += [] if shards is None else [ShardedBase(base, found, shards)]
                built |= found
        kept = {name: built[copy] for name, copy in copies.items()}
        return cls({name: built[name] for name in names}, {**policies, **(hosted or {})}, kept, sharded)

    # ------------------------------------------------------------------ names

    @property
    def policies(self) -> list[str]:
        """Policy ids, in the order the agents name them."""
        return list(self._policies)

    @property
    def here(self) -> list[str]:
        """Policies with weights in this process: all of them, but for those that a server has."""
        return list(self._policies)

    @property
    def device(self) -> torch.device:
        """Where the models live."""
        return next((weights.base.device for weights in self._policies.values()), torch.device("cpu"))

    def trainable(self, policy: str) -> bool:
        """Returns whether this policy is updated."""
        return self._get(policy).trainable

    def parameters(self, policy: str) -> list[nn.Parameter]:
        """Returns the policy's trainable tensors (float32, stable order); empty if it is frozen."""
        weights = self._get(policy)
        return list(weights.tensors.values()) if weights.trainable else []

    def base(self, policy: str) -> BaseModel:
        """Returns the base model under a policy."""
        return self._get(policy).base

    def weights(self, policy: str) -> Weights:
        """Returns what makes this policy differ from its base model, for engines."""
        return self._get(policy)

    def forward_pass(self, policy: str) -> ForwardPass:
        """Returns the forward passes over the model under a policy, for engines; policies may share them."""
        return self._forward[id(self._get(policy).source)]

    def shares(self, policy: str) -> bool:
        """Returns whether a pass computes once what several of its rows begin with."""
        return self.forward_pass(policy).shares(self._get(policy))

    def _get(self, policy: str) -> Weights:
        if policy not in self._policies:
            raise ConfigError(f"Unknown policy '{policy}'. {did_you_mean(policy, self._policies)}")
        return self._policies[policy]

    def take_counted(self) -> Counter[str]:
        """Returns the tokens that passes over whole texts were asked to read since the last call, and computed."""
        return sum((forward.take_counted() for forward in self._forward.values()), Counter[str]())

    def prepare(self) -> None:
        """Makes the forward passes that adapters train through, and checks them, before the first batch does."""
        for weights in self._policies.values():
            if weights.peft is not None:
                self._forward[id(weights.base.model)].prepare()

    # ------------------------------------------------------------------ shares of base models

    @property
    def sharded(self) -> bool:
        """Whether ranks hold shares of the base models: then all of them make as many forward passes."""
        return bool(self._sharded)

    def gather(self) -> None:
        """Gathers the layers of sharded base models, so that this rank can decode; all ranks call it together."""
        for base in self._sharded.values():
            try:
                base.gather()
            except (MemoryError, RuntimeError) as error:
                if out_of_memory(error):
                    raise OutOfMemory(_TO_PLAY.format(base.base.spec), alone=True) from error
                raise

    def release(self) -> None:
        """Lets go of what ``gather`` has gathered."""
        for model, base in self._sharded.items():
            self._forward[model].release()
            base.release()

    # ------------------------------------------------------------------ forward passes

    @contextmanager
    def running(self, policy: str) -> Iterator[tuple[Trunk, nn.Linear]]:
        """Gives the policy's trunk and output head with its present weights, under the compute dtype.

        One policy of a base runs at a time; gradients reach the policy's weights if they are enabled.
        """
        weights = self._get(policy)
        with self.forward_pass(policy).autocast():
            yield weights.trunk(), head_of(weights.model)

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
        weights, forward, wanted = self._get(policy), self.forward_pass(policy), _predicting(action_mask)
        with forward.autocast():
            hidden = forward.hidden_states(input_ids, wanted, weights)
            return _scores(weights.model, hidden, input_ids, wanted, temperature, entropy_grad)

    @torch.no_grad()
    def reference_logprobs(
        self, policy: str, input_ids: Tensor, action_mask: Tensor, temperature: Tensor | float = 1.0
    ) -> Tensor:
        """Scores actions under the weights that the policy started from; shapes as in ``logprobs``.

        These are the base model, or what ``keep_starts`` has kept.
        """
        start = self._starts.get(policy)
        model, wanted = (start or self._get(policy)).base.model, _predicting(action_mask)
        if start is not None and start.peft is None:
            model = start.model
        forward = self._forward[id(model)]
        with forward.autocast():
            hidden = forward.hidden_states(input_ids, wanted, start)
            return _scores(model, hidden, input_ids, wanted, temperature, entropy_grad=False)[0]

    @torch.no_grad()
    def score_features(
        self, policy: str, states: Tensor, ids: Sequence[int], temperatures: Sequence[float], *, own: bool = False
    ) -> Tensor:
        """[n, d] hidden states of the base -> [n] float32: log-probabilities of the tokens that they predict.

        These are ``reference_logprobs``, of policies that ``starts_as_base``; of a policy's ``own`` its ``logprobs``.
        """
        model = self._get(policy).model if own else self.base(policy).model
        targets, at = torch.tensor(ids, device=states.device), torch.tensor(temperatures, device=states.device)
        with self.forward_pass(policy).autocast():
            return score(head_of(model), states, targets, at, softcap=softcap_of(model))[0]

    def starts_as_base(self, policy: str) -> bool:
        """Returns whether the weights that ``reference_logprobs`` scores under are the base model's."""
        return policy not in self._starts

    @torch.no_grad()
    def features(
        self,
        policy: str,
        sequences: Sequence[Sequence[int]],
        positions: Sequence[range],
        take: Callable[[Sequence[int], Sequence[Tensor]], Sequence[Tensor]] = lambda _, states: states,
        own: bool = False,
    ) -> list[Tensor]:
        """Returns final hidden states of the frozen base model, without head, adapter or gradient.

        Where ranks hold shares of it, all of them call this together, some perhaps without a row.

        Args:
            policy: whose base model.
            sequences: token ids of each row.
            positions: of each row, the positions whose states are wanted.
            take: what to keep of the states of a pass's rows, by their numbers; all of them.
            own: the policy's own states, with its adapter.

        Returns:
            One tensor [len(positions[i]), d] a row, or what was taken of it.
        """
        base, weights = self._get(policy).base, self._get(policy) if own else None
        forward = self.forward_pass(policy) if own else self._forward[id(base.model)]
        kept = dict[int, Tensor]()
        if forward.shares(weights):
            found = share(texts := list(map(list, sequences)), [span.start for span in positions])
            cut = shared_passes(texts, found, FEATURE_TOKENS)
        else:
            cut = passes(list(map(len, sequences)), FEATURE_TOKENS)
        for rows in cut:
            width = max(len(sequences[i]) for i in rows)
            ids = torch.tensor([[*sequences[i], *([0] * (width - len(sequences[i])))] for i in rows])
            wanted = torch.zeros_like(ids, dtype=torch.bool)
            for row, i in enumerate(rows):
                wanted[row, positions[i].start : positions[i].stop] = True
            with forward.autocast():
                flat = forward.hidden_states(ids.to(base.device), wanted.to(base.device), weights)
            kept |= zip(rows, take(rows, flat.split([len(positions[i]) for i in rows])), strict=True)
        if (shares := self._sharded.get(id(base.model))) is not None:
            one = torch.zeros(1, 1, dtype=torch.long, device=base.device)
            for _ in range(shares.missing(len(cut))):
                with forward.autocast():
                    forward.hidden_states(one, one == 0, weights)
        return [kept[i] for i in range(len(sequences))]

    # ------------------------------------------------------------------ weights on disk

    def state_dict(self) -> dict[str, Tensor]:
        """Returns every policy's own weights (adapters, frozen ones too, or full copies) as ``policy/name``."""
        return {
            f"{policy}/{name}": tensor.detach().cpu().clone()
            for policy, weights in self._policies.items()
            for name, tensor in weights.tensors.items()
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restores what ``state_dict`` gave; the weights stay trainable."""
        for policy, weights in self._policies.items():
            tensors = {k.removeprefix(f"{policy}/"): v for k, v in state.items() if k.startswith(f"{policy}/")}
            weights.copy_from(tensors, f"the checkpoint of policy '{policy}'")

    def save_adapter(self, policy: str, folder: Path | str) -> Path:
        """Writes a policy into ``folder`` in peft's format (a whole model when fully fine-tuned).

        Raises:
            NotFiniteError: its weights hold infinity or NaN.
        """
        finite_weights.check(self._get(policy).tensors, f"The weights of policy '{policy}'")
        self._get(policy).save(Path(folder))
        return Path(folder)

    def load_adapter(self, policy: str, folder: Path | str) -> None:
        """Reads what ``save_adapter`` or peft wrote into ``policy``, which stays trainable.

        Raises:
            ConfigError: no adapter there, or one of another shape.
        """
        self._get(policy).load(Path(folder))

    def keep_starts(self) -> None:
        """Makes the present weights of the policies named as ``starts`` what ``reference_logprobs`` scores under."""
        for policy, start in self._starts.items():
            start.copy_from(self._get(policy).tensors, f"policy '{policy}'")


def _predicting(action_mask: Tensor) -> Tensor:
    """Returns the positions, bool [B, T], whose hidden states the masked tokens are predicted from."""
    return nn.functional.pad(action_mask[:, 1:].bool(), (0, 1))


def _scores(
    model: PreTrainedModel, hidden: Tensor, ids: Tensor, wanted: Tensor, temperature: Tensor | float, entropy_grad: bool
) -> tuple[Tensor, Tensor]:
    """Returns log-probabilities and entropies [B, T - 1] of the tokens behind the wanted positions."""
    mask = wanted[:, :-1]
    temperatures = torch.as_tensor(temperature, dtype=torch.float32, device=hidden.device).reshape(-1, 1)
    temperatures = temperatures.expand(len(mask), mask.shape[1])[mask]
    targets, cap = ids[:, 1:][mask], softcap_of(model)
    logprobs, entropies = score(head_of(model), hidden, targets, temperatures, entropy_grad=entropy_grad, softcap=cap)
    empty = torch.zeros(mask.shape, dtype=torch.float32, device=mask.device)
    return empty.masked_scatter(mask, logprobs), empty.masked_scatter(mask, entropies)
