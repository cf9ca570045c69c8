"""Estimates a run's memory from its settings and its models' configurations, before weights are loaded.

The numbers are for the worst case (every prompt and reply as long as it may be), and rough: the arithmetic of one
gated transformer layer stands for all families. ``tests/training/test_estimate.py`` holds them against measured memory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from marft_algos.algorithms import base as algorithms
from marft_algos.config.settings import TrainConfig
from marft_algos.models import scoring
from marft_algos.models.forward.families import FAMILIES
from marft_algos.models.layers import layers_of
from marft_algos.models.loading import locate, pick_device, pick_dtype, read
from marft_algos.models.policy import FEATURE_TOKENS
from marft_algos.models.weights import SMALL_MODEL
from marft_algos.training.resolve import RunSpec
from marft_envs import FlexEnv
from marft_envs.errors import ConfigError

CHARS_PER_TOKEN = 3
"""Of prompts, which are not tokenised here; English and mathematics have three to four."""
PROCESS = {"cpu": 420 << 20, "cuda": 0}
"""Python, torch, transformers and a tokenizer, where they share the device's memory: on Linux; chosen when two of the
peaks in docs/results.md had been seen."""
CUDA_CONTEXT = 700 << 20
"""What a process takes on a GPU before its first tensor: kernels, workspaces of matrix products."""
SLACK = {"cuda": 1.08, "cpu": 1.12}
"""Share on top, for what an allocator loses between blocks. On a CPU chosen when the peaks in docs/results.md had been
seen."""
NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Bytes a weight: 4 bits, one byte of scale for 64 weights, and one float for 256 scales."""
GB = 1e9
BASE = "weights of the base models"


@dataclass(frozen=True, slots=True)
class MemoryItem:
    """Names one thing that takes memory, and its size."""

    what: str
    bytes: int
    advice: str = ""
    """Setting that makes it smaller, if one does."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Lists what a run holds throughout, and what each of its phases takes beside that."""

    device: torch.device
    held: tuple[MemoryItem, ...]
    phases: Mapping[str, tuple[MemoryItem, ...]]
    work: Work

    @property
    def worst(self) -> str:
        """Returns the phase that takes most."""
        return max(self.phases, key=lambda phase: _sum(self.phases[phase]))

    @property
    def peak(self) -> int:
        """Returns the most bytes in use at once."""
        return int((_sum(self.held) + _sum(self.phases[self.worst])) * SLACK[self.device.type])

    def table(self) -> str:
        """Returns the parts, a line each, in GB."""
        rows = [("throughout", part) for part in self.held]
        rows += [(phase, part) for phase, parts in self.phases.items() for part in parts]
        lines = [f"  {part.bytes / GB:8.2f} GB  {phase:<10}  {part.what}" for phase, part in rows if part.bytes]
        return "\n".join([*lines, f"  {self.peak / GB:8.2f} GB  at most at once, of {_named(self.device)}"])

    def check(self, room: int | None = None) -> None:
        """Refuses a run that cannot fit.

        Args:
            room: bytes of the device; by default asked of it.

        Raises:
            ConfigError: more is needed; the message names the settings that help.
        """
        room = capacity(self.device) if room is None else room
        if self.peak <= room:
            return
        parts = sorted((*self.held, *self.phases[self.worst]), key=lambda part: -part.bytes)
        advice = dict.fromkeys(part.advice for part in parts if part.advice and part.bytes > 0.02 * self.peak)
        raise ConfigError(
            f"This run needs about {self.peak / GB:.3g} GB on {_named(self.device)}, which has {room / GB:.3g} GB:\n"
            f"{self.table()}\nWhat helps most, first: {'; '.join(advice) or 'a smaller model (--models)'}. The estimate"
            " is for the longest prompts and replies; --no-check-memory starts nevertheless."
        )


def capacity(device: torch.device) -> int:
    """Returns the bytes that a process can use: free memory of a GPU, all memory of a machine or its container."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = Path("/sys/fs/cgroup/memory.max")
    limit_text = limit.read_text().strip() if limit.is_file() else "max"
    return min(physical, int(limit_text)) if limit_text.isdigit() else int(physical)


def estimate(
    spec: RunSpec,
    env: FlexEnv,
    *,
    device: torch.device | None = None,
    shapes: Mapping[str, Shape] | None = None,
    processes: int = 1,
) -> Estimate:
    """Estimates the memory of a run, or of one of its processes; loads configurations, no weights.

    Args:
        spec: the run's settings, resolved.
        env: an environment of the run, reset.
        device: instead of the one that the settings name.
        shapes: of the models, if they have been read already.
        processes: processes among which the episodes are shared out, to play and to learn from.

    Raises:
        ConfigError: a model that is not there, or settings that cannot work.
    """
    config = spec.config
    where = device or pick_device(config.device)
    shapes = shapes_of(spec, where) if shapes is None else shapes
    work = Work.of(spec, env, min(shape.context for shape in shapes.values()), processes)
    trained = [shapes[spec.models[p]] for p in spec.trained]
    copies = len(spec.past) + len(spec.local) - len(trained) + len(spec.kept)
    largest = max(shapes.values(), key=lambda shape: shape.layer_bytes * shape.layers)
    feature = largest.hidden * (4 if largest.packed else largest.element)
    context = CUDA_CONTEXT if where.type == "cuda" else 0
    held = (
        MemoryItem(BASE, sum(s.weights for s in shapes.values()), _lighter(config)),
        *_trained(config, trained),
        MemoryItem("adapters that are not trained", copies * largest.adapter * 4),
        *_kept(config, [shapes[spec.models[p]] for p in spec.kept]),
        MemoryItem("features for the value heads", work.features * feature, work.fewer),
        MemoryItem("the GPU's own", context),
        MemoryItem("Python and its packages", PROCESS[where.type]),
    )
    phases = {
        "rollout": _rollout(config, largest, work),
        "features": _features(largest, work),
        "update": _update(config, largest, work, where.type),
    }
    return Estimate(where, held, phases, work)


def shapes_of(spec: RunSpec, device: torch.device) -> dict[str, Shape]:
    """Reads the configurations of a run's base models, each once."""
    dtype = pick_dtype(spec.config.dtype, device)
    return {model: Shape.of(model, spec.config, dtype) for model in dict.fromkeys(spec.models.values())}


@dataclass(frozen=True, slots=True)
class Shape:
    """Holds the sizes of a model that the estimate needs."""

    hidden: int
    inner: int
    """Width of the feed-forward."""
    heads: int
    queries: int
    """Width of all queries of a token."""
    keys: int
    """Width of its keys, or of its values."""
    layers: int
    vocabulary: int
    context: int
    element: int
    """Bytes of a number in the forward pass."""
    parameters: int
    weights: int
    """Bytes of the base model."""
    blocks: int
    """Those of them in its layers, without embeddings, last norm and head; 0: they are not known apart."""
    adapter: int
    """Parameters of one adapter."""
    head_element: int
    """Bytes of a number in the output head."""
    eager: bool
    """Whether attention holds all pairs of tokens."""
    packed: bool
    """Whether an update runs in our own pass (:mod:`marft_algos.models.forward.text`)."""

    @classmethod
    def of(cls, spec: str, config: TrainConfig, dtype: torch.dtype) -> Shape:
        """Reads a model's configuration and builds it without storage."""
        with read(spec):
            model_config = AutoConfig.from_pretrained(locate(spec), trust_remote_code=False)
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(model_config, dtype=dtype)
        text = model.config.get_text_config()
        head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        kv_heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        total = sum(p.numel() for p in model.parameters())
        blocks = sum(p.numel() for p in layers_of(model).parameters())
        packed = sum(m.weight.numel() for m in _linear(model).values()) if config.quantize != "none" else 0
        wide = getattr(text, "intermediate_size", None) or 4 * text.hidden_size
        known = type(model.base_model).__name__ in FAMILIES
        adapted = not config.full_finetune and config.quantize == "none"
        return cls(
            hidden=text.hidden_size, inner=wide, heads=text.num_attention_heads,
            queries=text.num_attention_heads * head_dim, keys=kv_heads * head_dim, layers=text.num_hidden_layers,
            vocabulary=text.vocab_size, context=_context(text, config), element=dtype.itemsize, parameters=total,
            weights=int((total - packed) * dtype.itemsize + packed * NF4_BYTES) + _wider_head(model, config, dtype),
            blocks=int(max(blocks - packed, 0) * dtype.itemsize + packed * NF4_BYTES),
            adapter=_adapter(model, config), eager=text._attn_implementation == "eager",
            head_element=4 if config.head_dtype == "fp32" else dtype.itemsize,
            packed=known and adapted,
        )  # fmt: skip

    @property
    def layer_bytes(self) -> int:
        """Returns the bytes that a layer keeps of a token for the backward pass, under unmerged adapters everywhere.

        In our own pass: the residual before both halves, fp32; queries, what attention gives (twice: with pads and
        without), gate and up. Keys and values are kept for every row's whole text, see ``_update``. Else counted with
        ``torch.autograd.graph.saved_tensors_hooks`` over Qwen2 layers of six shapes.
        """
        if self.packed:
            return 8 * self.hidden + self.element * (3 * self.queries + 2 * self.inner)
        if self.element == 2:  # norms and rotations keep some of theirs in fp32
            return int(20 * self.hidden + 9 * self.inner + 7 * self.queries + 4.5 * self.keys)
        return 16 * self.hidden + 16 * self.inner + 8 * self.queries + 8 * self.keys

    def wider(self, device: str) -> int:
        """Returns by how many bytes a number is wider in attention: on a CPU our own pass trains it in float32."""
        return 4 - self.element if self.packed and device == "cpu" else 0

    @property
    def passing(self) -> int:
        """Returns the bytes that a layer holds of a token at once where nothing is kept."""
        return self.element * (4 * self.hidden + 3 * self.inner + 2 * self.queries)


@dataclass(frozen=True, slots=True)
class Work:
    """Counts the rows and tokens to compute."""

    prompt: int
    """Tokens of the longest prompt."""
    shared: int
    """Those of them that all prompts of a policy start with, its profile."""
    new: int
    rows: int
    """Decoded together."""
    turns: int
    """Of one policy in an iteration, at most."""
    features: int
    """Rows of cached features."""
    micro: int
    """Tokens of one micro-batch."""
    fewer: str
    kept: int = 0
    """Tokens whose keys and values are kept between rounds, at most."""

    @classmethod
    def of(cls, spec: RunSpec, env: FlexEnv, context: int, processes: int = 1) -> Work:
        config = spec.config
        base, new = env.unwrapped, config.max_new_tokens
        method = algorithms.get(config.algo)(config.algorithm)
        characters = max(sum(len(m["content"]) for m in base.messages(agent)) for agent in base.possible_agents)
        most = base.turn_limit
        each = min(base.rules.max_rounds, most)
        others = (most - 1) * new
        prompt = max(min(characters // CHARS_PER_TOKEN + others, context - new), 1)
        profiles = [len(a.prompt) + sum(len(e.user + e.assistant) for e in a.examples) for a in base.team]
        shared = min(min(profiles) // CHARS_PER_TOKEN, prompt - 1)
        episodes = ceil(config.episodes_per_iteration, processes)
        rows = 0 if method.view == "none" else episodes * most * (new if method.level == "token" else 1)
        micro = max(min(config.algorithm.micro_tokens, episodes * each * (prompt + new)), prompt + new)
        decodes = any(spec.endpoints[p].kind == "native" for p in spec.local)
        flying = in_flight(config, processes) if decodes else 0
        fewer = f"--episodes-per-iteration {max(config.episodes_per_iteration // 2, 1)}"
        kept = episodes * len(base.team) * (prompt + new) if base.repeats else 0
        return cls(prompt, shared, new, flying, episodes * each, rows, micro, fewer, kept)


def ceil(n: int, parts: int) -> int:
    """Returns the larger share of a number that is cut into equal parts as far as they go."""
    return -(-n // parts)


def in_flight(config: TrainConfig, processes: int = 1) -> int:
    """Returns how many rows a process decodes together at most, in training and in evaluations."""
    episodes, evaluated = (ceil(n, processes) for n in (config.episodes_per_iteration, config.eval_episodes))
    evaluated = min(evaluated, config.num_envs or max(episodes, config.engine_batch))
    return min(config.engine_batch, max(min(config.num_envs or episodes, episodes), evaluated))


def _sum(parts: Sequence[MemoryItem]) -> int:
    return sum(part.bytes for part in parts)


def _named(device: torch.device) -> str:
    return "the CPU's memory" if device.type == "cpu" else f"'{device}'"


def _lighter(config: TrainConfig) -> str:
    return "a smaller model (--models)" if config.full_finetune or config.quantize != "none" else "--quantize nf4"


def _linear(model: PreTrainedModel) -> dict[str, Any]:
    """Returns the linear layers, the output head left out."""
    kinds = [(name, m) for name, m in model.named_modules() if isinstance(m, nn.Linear) or type(m).__name__ == "Conv1D"]
    return {name: m for name, m in kinds if m is not scoring.head_of(model)}


def _adapter(model: PreTrainedModel, config: TrainConfig) -> int:
    targets = config.lora_targets
    if config.full_finetune:
        return 0
    chosen = [m for n, m in _linear(model).items() if targets == "all-linear" or n.rsplit(".", 1)[-1] in targets]
    return config.lora_r * sum(sum(m.weight.shape) for m in chosen)


def _wider_head(model: PreTrainedModel, config: TrainConfig, dtype: torch.dtype) -> int:
    """Returns the bytes by which a head in fp32 is larger; one that is tied to the embeddings is a copy of them."""
    if config.head_dtype == "auto" or dtype == torch.float32:
        return 0
    weight = scoring.head_of(model).weight
    tied = weight is model.get_input_embeddings().weight
    return weight.numel() * (4 if tied else 4 - dtype.itemsize)


def _context(text: Any, config: TrainConfig) -> int:
    longest = getattr(text, "max_position_embeddings", None) or 1 << 30
    return min(longest, config.context or longest)


def _trained(config: TrainConfig, trained: Sequence[Shape]) -> tuple[MemoryItem, ...]:
    """Counts trained weights (fp32), their gradients and Adam's two moments, and their copies under autocast."""
    weights = [shape.parameters if config.full_finetune else shape.adapter for shape in trained]
    copies = sum(n * shape.element for n, shape in zip(weights, trained, strict=True) if shape.element == 2)
    what = "whole copies to train, and Adam" if config.full_finetune else "adapters, and Adam"
    advice = "leave out --full-finetune" if config.full_finetune else "a smaller --lora-r"
    return (MemoryItem(what, 16 * sum(weights) + copies, advice),)


def _kept(config: TrainConfig, starts: Sequence[Shape]) -> tuple[MemoryItem, ...]:
    """Counts copies, in fp32, of whole models that a full fine-tune is compared with."""
    copies = sum(shape.parameters for shape in starts) if config.full_finetune else 0
    return (MemoryItem("whole copies of the start", 4 * copies, "--kl-coef 0"),)


def _rollout(config: TrainConfig, shape: Shape, work: Work) -> tuple[MemoryItem, ...]:
    """Counts what decoding takes beside weights and adapters."""
    fewer = f"--engine-batch {max(work.rows // 2, 1)}"
    cache = 2 * shape.layers * shape.keys * shape.element
    merged = shape.element == 4 and shape.parameters <= SMALL_MODEL
    copies = shape.parameters * 4 if merged or config.full_finetune else 0
    return (
        MemoryItem("keys and values", work.rows * (work.prompt + work.new) * cache, fewer),
        MemoryItem(
            "keys and values of earlier rounds", min(work.kept * cache, int(config.cache_gb * 1e9)), "--cache-gb 0"
        ),
        MemoryItem("prompts on their way through a layer", work.rows * work.prompt * shape.passing, fewer),
        MemoryItem("logits and their cumulative sums", work.rows * shape.vocabulary * 20, fewer),
        MemoryItem("adapters added to weights", copies),
    )


def _features(shape: Shape, work: Work) -> tuple[MemoryItem, ...]:
    tokens = min(FEATURE_TOKENS, work.turns * (work.prompt + work.new)) if work.features else 0
    return (MemoryItem("a pass of the frozen model", tokens * shape.passing),)


def _update(config: TrainConfig, shape: Shape, work: Work, device: str) -> tuple[MemoryItem, ...]:
    row = work.prompt + work.new
    fewer = f"--micro-tokens {max(work.micro // 2, row)}" if work.micro > row else "a smaller --max-new-tokens"
    pairs = 3 * shape.heads * min(row, work.micro) * shape.element if shape.eager else 0
    # Our own pass computes, and counts, what rows start with once, and keeps keys and values of whole rows.
    whole = work.micro * row // (row - work.shared) if shape.packed else 0
    tokens, kv = work.micro, whole * shape.layers * 2 * shape.keys * (shape.element + shape.wider(device))
    layer = shape.layer_bytes + 2 * shape.queries * shape.wider(device) + pairs
    cached = shape.hidden * shape.element
    if config.gradient_checkpointing:
        kept, advice = shape.layers * cached + layer, fewer
    else:
        kept, advice = shape.layers * layer, f"--gradient-checkpointing, or {fewer}"
    chosen = min(work.micro, scoring.chunk_rows(device, shape.vocabulary))
    return (
        MemoryItem("what the layers keep of a micro-batch", tokens * kept + kv, advice),
        MemoryItem("gradients on their way through a layer", tokens * 2 * shape.passing, fewer),
        MemoryItem("a chunk of logits", chosen * shape.vocabulary * (12 + 2 * shape.head_element)),
    )
