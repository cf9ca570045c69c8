"""Makes an embedded model from its recipe: a tokenizer, and a warm start that stops at a middling score.

::

    python -m benchmarks make_embedded --out DIR
    python -m benchmarks make_embedded --model embedded-code --out DIR

takes some minutes of one core, needs no network, and prints the scores that stand in ``README.md``. One thread
and fixed seeds: a rerun on the same machine gives the same weights.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn import functional as F
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

import marft_envs
from benchmarks.embedded import recipes
from benchmarks.embedded.recipes import Messages, Recipe, ScoreSet, play
from marft_algos.models import EMBEDDED
from marft_algos.terminal import say
from marft_envs.core.types import Episode

SEED = 0
LR = 3e-3
CONTEXT = 2048

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

Pair = tuple[Messages, str]
Demo = tuple[list[int], list[int]]
"""Token ids of a prompt and of its reply."""


def main() -> None:
    """Makes the model, scores it, saves it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--model", choices=EMBEDDED, default="embedded", help="which recipe")
    parser.add_argument("--steps", type=int, help="updates of the warm start, instead of the recipe's")
    args = parser.parse_args()
    torch.set_num_threads(1)
    recipe = recipes.load(args.model)
    started = time.perf_counter()
    rng = random.Random(SEED)
    pairs = [pair for env_id, form in (*recipe.teams.items(), *recipe.more) for pair in play(env_id, form, rng)]
    tokenizer = build_tokenizer(recipe, [messages for messages, _ in pairs])
    model = build_model(tokenizer)
    size = sum(p.numel() for p in model.parameters())
    say(f"{len(pairs)} demonstrations, {len(tokenizer)} tokens, {size} parameters")
    train(model, batches(tokenizer, pairs, rng, recipe), args.steps or recipe.steps)
    model.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    say(f"made in {time.perf_counter() - started:.0f} s")
    for line in report(model, tokenizer, recipe):
        say(line)


# The tokenizer ---------------------------------------------------------------------------------------------


def build_tokenizer(recipe: Recipe, prompts: Sequence[Messages]) -> Qwen2Tokenizer:
    """Builds a small byte-level BPE of Qwen2's own kind (digits apart, NFC), with fixed phrases as one token.

    It is a ``Qwen2Tokenizer`` because ``AutoTokenizer`` reads the tokenizer of any Qwen2 model as one.
    """
    backend = Tokenizer(models.BPE())
    splitter = Qwen2Tokenizer(vocab={PAD: 0}, merges=[]).backend_tokenizer.pre_tokenizer
    backend.pre_tokenizer = splitter
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.vocabulary, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    backend.train_from_iterator(recipe.corpus(), trainer)
    merges = _merges(backend)
    words = sorted(backend.get_vocab().items(), key=lambda item: item[1])
    vocab = {word: i for i, word in enumerate([PAD, START, END, *(word for word, _ in words)])}
    tokenizer = Qwen2Tokenizer(
        vocab=vocab,
        merges=merges,  # type: ignore[arg-type]  # pairs are what transformers itself passes on
        eos_token=END,
        pad_token=PAD,
        unk_token=PAD,
        additional_special_tokens=[START],
        chat_template=TEMPLATE,
        model_max_length=CONTEXT,
        padding_side="left",
    )
    fixed = [text for text in phrases(recipe, prompts) if len(tokenizer.tokenize(text)) > 1]
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in fixed])
    return tokenizer


def _merges(backend: Tokenizer) -> list[tuple[str, str]]:
    return [(left, right) for left, right in json.loads(backend.to_str())["model"]["merges"]]


def phrases(recipe: Recipe, prompts: Sequence[Messages]) -> list[str]:
    """Returns the fixed texts of the prompts: the recipe's, sentences of profiles, tags of roles."""
    texts = dict.fromkeys(recipe.phrases)
    tags = re.compile(rf"(?:\n\n)?{recipe.tag}\n")
    for messages in prompts:
        for message in messages:
            if message["role"] == "system":
                first, *rest = re.split(r"(?<=[.!?])(?= )", message["content"])
                texts.update(dict.fromkeys([first, *rest]))
            elif message["role"] == "user":
                texts.update(dict.fromkeys(tags.findall(message["content"])))
    return sorted(texts)  # not in the order of appearance, which depends on the episodes shown


# The warm start --------------------------------------------------------------------------------------------


def build_model(tokenizer: Qwen2Tokenizer) -> Qwen2ForCausalLM:
    """Returns the untrained network: plain Qwen2 with one key-value head, which is cheap to decode on a CPU."""
    torch.manual_seed(SEED)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=1,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen2ForCausalLM(config)


def render(tokenizer: Qwen2Tokenizer, conversations: Sequence[Messages]) -> list[list[int]]:
    """Returns prompt ids by the chat template, opened for the assistant's reply."""
    chats: Any = list(conversations)
    texts = tokenizer.apply_chat_template(chats, tokenize=False, add_generation_prompt=True)
    return tokenizer(texts, add_special_tokens=False)["input_ids"]


def batches(tokenizer: Qwen2Tokenizer, pairs: Sequence[Pair], rng: random.Random, recipe: Recipe) -> list[list[Demo]]:
    """Tokenises the demonstrations once and batches them, in random order."""
    prompts = render(tokenizer, [messages for messages, _ in pairs])
    replies = tokenizer([text + END for _, text in pairs], add_special_tokens=False)["input_ids"]
    rows = list(zip(prompts, replies, strict=True))
    rng.shuffle(rows)
    # A few lots, so that a judge's long prompt does not pad a whole batch, while batches stay mixed.
    lots: list[list[Demo]] = [[] for _ in range(len(recipe.short) + 1)]
    for row in rows:
        lots[bisect_left(recipe.short, _length(row))].append(row)
    size = recipe.batch
    out = [lot[i : i + size] for lot in lots for i in range(0, len(lot), size)]
    rng.shuffle(out)
    return out


def _length(row: Demo) -> int:
    return len(row[0]) + len(row[1])


def train(model: Qwen2ForCausalLM, data: Sequence[Sequence[Demo]], steps: int) -> None:
    """Fits the replies (not the prompts) with AdamW, ``steps`` batches, the rate falling to 0."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.98), weight_decay=0.01)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min(1, (i + 1) / 50) * (1 - i / steps))
    for step in range(steps):
        ids, is_reply = _padded(data[step % len(data)], model.config.pad_token_id)
        hidden = model.model(input_ids=ids).last_hidden_state[:, :-1]
        logits = model.lm_head(hidden[is_reply[:, 1:]])
        loss = F.cross_entropy(logits, ids[:, 1:][is_reply[:, 1:]])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rate.step()
        if (step + 1) % 50 == 0:
            say(f"step {step + 1}: loss {loss.item():.3f}")


def _padded(rows: Sequence[Demo], pad: Any) -> tuple[Tensor, Tensor]:
    """Pads on the right; returns ids [B, T] and the mask of reply tokens [B, T]."""
    width = max(map(_length, rows))
    ids = torch.full((len(rows), width), pad)
    is_reply = torch.zeros(len(rows), width, dtype=torch.bool)
    for i, (prompt, reply) in enumerate(rows):
        end = len(prompt) + len(reply)
        ids[i, :end] = torch.tensor(prompt + reply)
        is_reply[i, len(prompt) : end] = True
    return ids, is_reply


# Scores ----------------------------------------------------------------------------------------------------


def run_team(
    model: Qwen2ForCausalLM,
    tokenizer: Qwen2Tokenizer,
    env_id: str,
    options: Sequence[Mapping[str, Any]],
    sample: bool = False,
    new_tokens: int = 48,
    **kwargs: Any,
) -> list[Episode]:
    """Plays one episode per entry of ``options`` (``task_id``), all in step, and returns the records."""
    envs = [marft_envs.make(env_id, **kwargs) for _ in options]
    for i, (env, option) in enumerate(zip(envs, options, strict=True)):
        env.reset(seed=i, options=dict(option))
    while turns := [(env, agent) for env in envs if not env.done for agent in env.ready_agents]:
        texts = reply(model, tokenizer, [env.messages(agent) for env, agent in turns], sample, new_tokens)
        for (env, agent), text in zip(turns, texts, strict=True):
            env.select(agent)
            env.step(text)
    return [env.episode for env in envs]


@torch.no_grad()
def reply(
    model: Any, tokenizer: Qwen2Tokenizer, conversations: Sequence[Messages], sample: bool, new_tokens: int
) -> list[str]:
    """Returns one reply per conversation: greedy, or sampled at temperature 1 from the whole vocabulary."""
    rows = tokenizer.pad({"input_ids": render(tokenizer, conversations)}, return_tensors="pt")
    how = {"do_sample": True, "top_k": 0} if sample else {"do_sample": False}
    out = model.generate(**rows, **how, max_new_tokens=new_tokens)
    return tokenizer.batch_decode(out[:, rows["input_ids"].shape[1] :], skip_special_tokens=True)


def report(model: Qwen2ForCausalLM, tokenizer: Qwen2Tokenizer, recipe: Recipe) -> Iterator[str]:
    """Yields the scores of the warm start on the recipe's score_sets."""
    model.eval()
    torch.manual_seed(SEED)
    for score_set in recipe.score_sets():

        def episodes(
            options: Sequence[Mapping[str, Any]], sample: bool, score_set: ScoreSet = score_set
        ) -> list[Episode]:
            return run_team(model, tokenizer, score_set.env_id, options, sample, recipe.new_tokens, **score_set.kwargs)

        line = f"{score_set.env_id:16} {_scores(episodes(score_set.options, sample=False), recipe.beside)}"
        if score_set.tries:
            tries = [episodes(score_set.options[:200], sample=True) for _ in range(score_set.tries)]
            right = np.array([[bool(episode.success) for episode in run] for run in tries])
            line += f"; sampled {right.mean():.3f}, in {score_set.tries} tries {right.any(0).mean():.3f} (n=200)"
        yield line


def _scores(episodes: Sequence[Episode], beside: str) -> str:
    right = np.mean([bool(episode.success) for episode in episodes])
    other = np.mean([episode.metrics[beside] for episode in episodes])
    return f"greedy {right:.3f}, {beside} {other:.3f} (n={len(episodes)})"


if __name__ == "__main__":
    main()
