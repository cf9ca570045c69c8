"""Small models of every family, and requests to sample from them."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    GemmaConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from helpers.tiny import tiny_tokenizer
from marft_algos.engines import row_seed
from marft_algos.models.policy import PolicySet
from marft_algos.types import Generation, GenerationRequest, SamplingParams

AGENTS = {"reasoner_0": "reasoner", "actor_0": "actor"}


PARAMS = SamplingParams(max_new_tokens=12)


def disturb(policies: PolicySet, policy: str, seed: int = 0, size: float = 0.05) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in policies.parameters(policy):
            tensor.add_(size * torch.randn(tensor.shape, generator=generator).to(tensor.device))


def requests(policies: PolicySet, n: int = 12) -> list[GenerationRequest]:
    """Ragged prompts of both policies, with the end token in some."""
    made = []
    for i in range(n):
        policy = policies.policies[i % len(policies.policies)]
        prompt = policies.renderer.render(policy, [{"role": "user", "content": "7+" * (i % 5) + str(i * 37 % 11)}])
        made.append(GenerationRequest(policy, prompt, seed=row_seed(1, 2, i, 0)))
    return made


def rescore(policies: PolicySet, request: GenerationRequest, reply: Generation, temperature: float) -> torch.Tensor:
    ids = torch.tensor([[*request.prompt_ids, *reply.action_ids]])
    mask = torch.zeros_like(ids, dtype=torch.bool)
    mask[:, len(request.prompt_ids) :] = True
    with torch.no_grad():
        logprobs, _ = policies.logprobs(request.policy, ids, mask, temperature)
    return logprobs[0, len(request.prompt_ids) - 1 :]


CONFIGS: dict[str, PretrainedConfig] = {
    "qwen2": Qwen2Config(),
    "qwen3": Qwen3Config(head_dim=12),
    "llama": LlamaConfig(rope_parameters={"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0,
                         "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}),
    "mistral": MistralConfig(sliding_window=None),
    "gemma": GemmaConfig(head_dim=16),
}  # fmt: skip


def save(folder: Path, config: PretrainedConfig, **changes: object) -> Path:
    """Saves a random model: two layers, four heads on two of keys and values, weights and norms away from 1."""
    tokenizer = tiny_tokenizer()
    shape = {
        "vocab_size": len(tokenizer), "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "initializer_range": 0.2,
        "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None,
    }  # fmt: skip
    given = {name: value for name, value in config.to_dict().items() if name != "layer_types"}
    config = type(config).from_dict({**given, **shape, **changes})
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
        for name, tensor in model.named_parameters():
            if "norm" in name or "bias" in name:
                tensor.add_(0.2 * torch.randn(tensor.shape))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def build(folder: Path, **settings: object) -> PolicySet:
    policies = PolicySet.build(str(folder), AGENTS, device="cpu", **settings)  # type: ignore[arg-type]
    for i, policy in enumerate(policies.policies):
        disturb(policies, policy, seed=i)
    return policies
