"""Images that a task shows: hosted models are sent them, models of text are refused by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import marft_envs
from helpers.fake_servers import Answer, chat, serving
from marft_algos.cli import main
from marft_envs import AgentSpec, Chain, FlexEnv, Outcome, TurnRecord
from marft_envs.errors import ConfigError, MarftError

RED = "data:image/png;base64,iVBORw0KGgo="
TEAM = (AgentSpec("looker_0", "looker", "Say the colour."), AgentSpec("writer_0", "writer", "Answer.", True))


class Colours:
    """The looker is shown a picture, the writer is not."""

    task_id, slow = "colours/0", False
    shown: Sequence[Any] = (RED, "https://example.org/b.png")

    def reset(self, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
        """There is one picture."""

    def observe(self, agent: str) -> str:
        return "Which colour is it?"

    def images(self, agent: str) -> Sequence[Any]:
        return self.shown if agent == "looker_0" else ()

    def on_layer(self, turns: Sequence[TurnRecord]) -> Outcome:
        return Outcome()

    def on_round(self, turns: Sequence[TurnRecord]) -> Outcome:
        success = turns[-1].text == "red"
        return Outcome(team_reward=float(success), success=success, terminated=True)

    def sample_actions(self, agent: str) -> Sequence[str]:
        return ("red", "blue")

    def validate(self) -> None:
        """Nothing to prove."""


def make(**kwargs: Any) -> FlexEnv:
    return FlexEnv(TEAM, Colours(), Chain(), **kwargs)


marft_envs.register("test/colours-v0", make, summary="a picture's colour")


@pytest.mark.parametrize("observation", ["messages", "prompt", "structured"])
def test_an_observation_holds_the_agents_images_and_is_in_its_space(observation: str) -> None:
    env = make(observation=observation)
    env.reset(seed=0)
    for agent, images in (("looker_0", tuple(Colours.shown)), ("writer_0", ())):
        seen = env.observe(agent)
        assert seen["images"] == images and env.observation_space(agent).contains(seen)
    assert "images" in env.messages("looker_0")[-1] and "images" not in env.messages("writer_0")[-1]
    plain = marft_envs.make("relay-v0")
    plain.reset(seed=0)
    assert "images" not in plain.last()[0]


def test_the_environment_keeps_the_rules() -> None:
    marft_envs.check_env("test/colours-v0")


def test_an_image_stands_with_the_task_and_not_with_later_words() -> None:
    env = make(history="public", max_rounds=3)
    env.task.on_round = lambda turns: Outcome()  # type: ignore[method-assign]
    env.reset(seed=0)
    for _ in range(4):
        env.step("red")
    at = [i for i, message in enumerate(env.messages("looker_0")) if "images" in message]
    users = [i for i, message in enumerate(env.messages("looker_0")) if message["role"] == "user"]
    assert at == users[:1] and len(users) > 1


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_hosted_model_is_sent_them(api: str, tmp_path: Path) -> None:
    asked: list[Any] = []

    def answer(path: str, body: dict[str, Any]) -> Answer:
        asked.append(body.get("messages", body.get("input")))
        if api == "chat":
            return 200, chat("red")
        text = {"type": "output_text", "text": "red", "annotations": []}
        item = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [text]}
        return 200, {
            "id": "r", "object": "response", "created_at": 0, "model": "m", "status": "completed", "output": [item],
            "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
            "usage": {"input_tokens": 9, "output_tokens": 1, "total_tokens": 10,
                      "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}},
        }  # fmt: skip

    with serving(answer) as fake:
        table = f'{{kind="openai", model="m", url="{fake.url}", api="{api}"}}'
        words = [
            "eval", "--env", "test/colours-v0", "--engines", table, "--episodes", "1", "--out", str(tmp_path / "e"),
        ]  # fmt: skip
        assert main(words) == 0
    looker, writer = asked
    words_, first, second = looker[-1]["content"]
    assert words_["text"] == "Which colour is it?" and isinstance(writer[-1]["content"], str)
    if api == "chat":
        assert [first["type"], first["image_url"]["url"], second["image_url"]["url"]] == ["image_url", *Colours.shown]
    else:
        assert [first["type"], first["image_url"], second["image_url"]] == ["input_image", *Colours.shown]


def test_a_model_of_text_is_refused_by_name(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["train", "--env", "test/colours-v0", "--preset", "toy", "--iterations", "1", "--runs-dir", str(tmp_path)]
    assert main(words) == 1
    assert "shows images, and 'embedded'" in capsys.readouterr().err


def test_what_is_no_image_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for bad in ("photo.png", 3, {"type": "image_url"}):
        monkeypatch.setattr(Colours, "shown", (bad,))
        env = make()
        env.reset(seed=0)
        with pytest.raises(ConfigError, match=r"images\('looker_0'\) has"):
            env.last()
    monkeypatch.setattr(Colours, "observe", lambda self, agent: [{"type": "text", "text": "x"}])
    env = make()
    env.reset(seed=0)
    with pytest.raises(MarftError, match="observe"):
        env.last()
