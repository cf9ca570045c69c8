"""What an agent thinks aloud stays with it, unless a setting shares it."""

from __future__ import annotations

import marft_envs
from marft_envs.core.thoughts import split, spoken

HARMONY = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Four.<|return|>"


def test_others_read_thoughts_where_they_are_shared() -> None:
    env = marft_envs.make("math-dual-v0", share_thoughts=True)
    env.reset(seed=0)
    env.step("<think>zqx secret</think>Add them.")
    heard = env.observe("actor_0")["messages"][-1]["content"]
    assert "Add them." in heard and "zqx" in heard
    assert env.episode.turns[0].text == "<think>zqx secret</think>Add them."


def test_what_is_spoken() -> None:
    assert spoken("a</think> b") == "b" and spoken("a <think>b</think> c") == "a  c" and spoken(HARMONY) == "Four."
    assert spoken("[THINK]a[/THINK]b") == "b" and spoken("plain ") == "plain "
    assert split("a<think>b") == ("a", True)
