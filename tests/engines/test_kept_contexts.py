"""Rounds: what an agent has read and written is read once, and what it said is read as it was sampled."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import shapes
from benchmarks.team import Stage, build
from helpers.sampling import CONFIGS, disturb, save
from helpers.tiny import save_tiny
from marft_algos.algorithms.marft import MARFT, MARFTConfig
from marft_algos.engines import NativeEngine
from marft_algos.engines.native import Contexts, Notes
from marft_algos.learner.learner import Learner
from marft_algos.models.chat import Said
from marft_algos.models.critic import Critics
from marft_algos.models.policy import PolicySet
from marft_algos.rollout.episodes import summary
from marft_algos.types import Generation, GenerationRequest, SamplingParams, Trajectory

ROUNDS, NEW, EPISODES = 4, 10, 5


def policies_of(folder: Path, agents: int = 2, ends: bool = False) -> PolicySet:
    policies = build(str(folder), agents)
    for i, policy in enumerate(policies.policies):
        disturb(policies, policy, seed=i)
        if ends:  # some thirty of the tokens end a reply, so that rows end one by one
            policies.base(policy).chat.end_ids = tuple(range(5, 35))
    return policies


def played(policies: PolicySet, cache_gb: float = 1.0) -> list[Trajectory]:
    stage = Stage(policies, EPISODES, 60, NEW, NativeEngine(policies, cache_gb=cache_gb), ROUNDS)
    try:
        return stage.play(0)
    finally:
        stage.close()


def kept_of(replies: list[Generation]) -> int:
    return sum(reply.kept for reply in replies)


def same(first: list[Trajectory], second: list[Trajectory]) -> None:
    pairs = [
        (a, b) for x, y in zip(first, second, strict=True) for a, b in zip(x.transitions, y.transitions, strict=True)
    ]
    assert len(pairs) == EPISODES * 2 * ROUNDS
    for a, b in pairs:
        assert a.request.prompt_ids == b.request.prompt_ids and a.reply.action_ids == b.reply.action_ids
        np.testing.assert_allclose(a.reply.logprobs, b.reply.logprobs, atol=2e-5)


@pytest.mark.parametrize("ends", [False, True], ids=["whole", "ragged"])
@pytest.mark.parametrize("family", CONFIGS)
def test_replies_are_those_of_prompts_that_are_read_whole(family: str, ends: bool, tmp_path: Path) -> None:
    policies = policies_of(save(tmp_path / family, CONFIGS[family], max_position_embeddings=1024), ends=ends)
    first, second = played(policies, cache_gb=0.0), played(policies)
    same(first, second)
    if ends:
        assert len({len(t.reply.action_ids) for x in first for t in x.transitions}) > 3
    before, after = summary(first), summary(second)
    assert before["tokens_cached"] == 0 and before["tokens_processed"] == after["tokens_processed"]
    assert after["tokens_cached"] > 0.5 * (after["tokens_processed"] - after["tokens"])


def test_what_was_read_under_other_weights_is_read_again(tmp_path: Path) -> None:
    """Some other policy's weights change nothing of this one's."""
    policies = policies_of(save_tiny(tmp_path / "qwen", context=1024))
    engine, first = NativeEngine(policies), played(policies)
    turns = [t for x in first for t in x.transitions if t.agent == "reader_0"]
    assert kept_of(engine.generate([t.request for t in turns if t.round == 0], SamplingParams(NEW))) == 0
    again = [t for t in turns if t.round == 1]
    disturb(policies, "reader_1", seed=7)
    replies = engine.generate([t.request for t in again], SamplingParams(NEW))
    assert [g.action_ids for g in replies] == [t.reply.action_ids for t in again]
    assert kept_of(replies) > 0
    disturb(policies, "reader_0", seed=8)
    found = engine.generate([t.request for t in again], SamplingParams(NEW))
    assert kept_of(found) == 0
    fresh = NativeEngine(policies, cache_gb=0.0).generate([t.request for t in again], SamplingParams(NEW))
    assert [g.action_ids for g in found] == [g.action_ids for g in fresh]
    assert kept_of(engine.generate([t.request for t in again], SamplingParams(NEW))) > 0
    engine.sleep()
    assert kept_of(engine.generate([t.request for t in again], SamplingParams(NEW))) == 0


def test_one_request_that_may_be_extended_is_enough_for_contexts_to_be_kept() -> None:
    single, chained = (GenerationRequest("p", [1], 0, chain=chain) for chain in (None, "a"))
    contexts = Contexts(1.0, Notes())
    assert contexts.wanted([single, chained]) and not contexts.wanted([single])
    assert not Contexts(0.0, Notes()).wanted([chained])


def test_too_little_memory_reads_again_and_says_so_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policies = policies_of(save_tiny(tmp_path / "qwen", context=1024))
    first, second = played(policies, cache_gb=0.0), played(policies, cache_gb=1e-6)
    same(first, second)
    assert summary(second)["tokens_cached"] == 0
    assert capsys.readouterr().err.count("--cache-gb 1e-06: prompts are read again") == 1


def test_models_of_other_families_read_every_prompt(tmp_path: Path) -> None:
    policies = policies_of(save_tiny(tmp_path / "gpt2", "gpt2", context=1024))
    assert summary(played(policies))["tokens_cached"] == 0


def test_an_agents_next_prompt_holds_what_it_sampled(tmp_path: Path) -> None:
    """A random model's replies are tokenised otherwise when their text comes back.

    Those with control tokens come back without them, and for a zero byte the environment writes another character.
    """
    policies = policies_of(shapes.save(tmp_path / "qwen", shapes.tiny(32)))
    trajectories = played(policies)
    respelt = rewritten = 0
    for agent, x in itertools.product(("reader_0", "reader_1"), trajectories):
        chat, turns = policies.renderer.chat(agent), [t for t in x.transitions if t.agent == agent]
        for before, after in itertools.pairwise(turns):
            read = [*before.request.prompt_ids, *before.reply.action_ids]
            if chat._special()[1].isdisjoint(before.reply.action_ids) and "\0" not in before.reply.text:
                assert after.request.prompt_ids[: len(read)] == read
                respelt += chat.tokenizer.encode(before.turn.text) != before.reply.action_ids
            else:
                rewritten += 1
    assert respelt > EPISODES and summary(trajectories)["prompts_rewritten"] == rewritten


def test_control_tokens_do_not_come_back_and_what_is_written_otherwise_is_counted(tmp_path: Path) -> None:
    chat = policies_of(shapes.save(tmp_path / "qwen", shapes.tiny(32))).renderer.chat("reader_0")
    messages = [{"role": "user", "content": "7"}]
    rendered = chat.render([messages])[0]
    control, stone = next(iter(chat._special()[1])), chat.tokenizer.encode("stone 12", add_special_tokens=False)
    letters = [chat.tokenizer.encode(letter, add_special_tokens=False)[0] for letter in "stone"]

    def later(reply: list[int], text: str | None = None) -> tuple[list[int], list[int]]:
        said = chat.text_of(reply) if text is None else text
        whole = chat.render([[*messages, {"role": "assistant", "content": said}, {"role": "user", "content": "8"}]])[0]
        return whole, chat.as_sampled(whole, Said(rendered, rendered, reply))

    whole, found = later(letters)
    assert found != whole and found[: len(rendered) + 5] == [*rendered, *letters]
    assert chat.tokenizer.decode(found) == chat.tokenizer.decode(whole)
    for reply, text in (([*letters, control], None), (letters, "another"), (stone, None)):
        whole, found = later(reply, text)
        assert found == whole


@pytest.mark.parametrize("level", ["token", "action"])
def test_gradients_of_rounds_are_those_of_rows_that_are_computed_whole(
    level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_tiny(tmp_path / "qwen", context=1024)
    gradients: list[list[torch.Tensor]] = []
    for passes in ("forward,decode,merge", "forward,decode,merge,prefix"):
        monkeypatch.setenv("MARFT_KERNELS", passes)
        policies = policies_of(folder)
        trajectories = played(policies)
        learner = Learner(MARFT(MARFTConfig(level=level, lr=1e-3)), policies, Critics(policies))
        steps = list[torch.Tensor]()
        monkeypatch.setattr(
            "marft_algos.learner.steps.step",
            lambda optimizer, *_, steps=steps: (
                steps.extend(p.grad.clone() for group in optimizer.param_groups for p in group["params"]) or 1.0
            ),
        )
        learner.update(trajectories, 0)
        gradients.append(steps)
        counted = policies.take_counted()
    assert counted["computed"] < 0.7 * counted["read"] and not policies.take_counted()
    assert len(gradients[0]) == len(gradients[1]) > 0
    for expected, found in zip(*gradients, strict=True):
        assert (found - expected).norm() <= 2e-5 * expected.norm() + 1e-9
