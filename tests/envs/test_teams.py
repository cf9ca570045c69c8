"""Profiles: the prompts of a team's agents, worked examples included."""

import json

import pytest

import marft_envs
from marft_envs.core.teams import load_profiles
from marft_envs.core.types import Example
from marft_envs.errors import ConfigError
from marft_envs.records import experts, trajectory

SHOWN = {"user": "Compute $1+1$.", "assistant": "1+1=2,"}


def dual(**kwargs):
    env = marft_envs.make("math-dual-v0", levels=[0], **kwargs)
    env.reset(seed=0)
    return env


def test_examples_stand_between_the_profile_and_the_task():
    env = dual(profiles={"reasoner": {"examples": [SHOWN, {"user": "a", "assistant": "b"}]}})
    messages = env.last()[0]["messages"]
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert [m["content"] for m in messages[1:5]] == ["Compute $1+1$.", "1+1=2,", "a", "b"]
    assert messages[0]["content"] == dual().profile("reasoner_0").prompt  # examples alone leave the prompt as it is
    assert messages[5] == dual().last()[0]["messages"][1]
    env.step("3+4=7,")
    assert len(env.last()[0]["messages"]) == 2  # nobody gave the actor any


@pytest.mark.parametrize("observation", ["prompt", "structured"])
def test_every_rendering_shows_examples(observation):
    env = dual(profiles={"reasoner": {"prompt": "Add.", "examples": [SHOWN]}}, observation=observation)
    seen = env.last()[0]
    assert seen in env.observation_space("reasoner_0")
    if observation == "prompt":
        assert seen["prompt"].startswith("Add.\n\nCompute $1+1$.\n\n1+1=2,\n\nCompute")
    else:
        assert seen["examples"] == (SHOWN,)


def test_examples_are_never_cut():
    env = dual(profiles={"reasoner": {"examples": [SHOWN]}}, max_chars=5)
    messages = env.last()[0]["messages"]
    assert messages[1]["content"] == SHOWN["user"] and len(messages[3]["content"]) <= 5


def test_a_record_keeps_examples(tmp_path):
    env = dual(profiles={"reasoner": {"examples": [SHOWN]}})
    env.step("x")
    env.step("y")
    again = trajectory.from_dict(trajectory.to_dict(env.episode))
    assert again.agents[0].examples == (Example(**SHOWN),) and again == env.episode
    old = trajectory.to_dict(env.episode)
    for agent in old["agents"]:
        del agent["examples"]  # as it was written before there were any
    assert trajectory.from_dict(old).agents[0].examples == ()


def test_profiles_come_from_a_file_too(tmp_path):
    path = tmp_path / "profiles.json"
    path.write_text(json.dumps({"actor_0": {"examples": [SHOWN]}, "reasoner": "Think."}))
    env = dual(profiles=str(path))
    assert env.profile("reasoner_0").prompt == "Think."
    assert env.profile("actor_0").examples == (Example(**SHOWN),)
    assert len(env.possible_agents) == 2  # the team is the same
    listed = [{"role": "solver", "prompt": "Solve.", "with_answer": True, "examples": [SHOWN], "count": 2}]
    assert [agent.examples for agent in load_profiles(listed)] == [(Example(**SHOWN),)] * 2


def test_fields_of_the_released_format_that_nothing_here_reads_are_left_out_with_a_note(tmp_path, capsys):
    roles = [{"role": "a", "prompt": "x", "device": "cuda:0"}, {"role": "b", "prompt": "y", "with_answer": True}]
    path = tmp_path / "math_dual.json"
    path.write_text(json.dumps(roles))
    for _ in range(2):
        assert [agent.prompt for agent in dual(profiles=str(path)).episode.agents] == ["x", "y"]
    assert capsys.readouterr().err == f"note: {path}: nothing here reads device; left out\n", "said once"


@pytest.mark.parametrize(("profiles", "says"), [
    ({"reasoner": {"example": []}}, "reasoner: there is no field 'example'. Did you mean 'examples'"),
    ({"reasoner": ["x"]}, "reasoner: expected text, or an object of prompt and examples"),
    ([{"role": "a", "prompt": "x", "with_answr": True}], "entry 0: .*Did you mean 'with_answer'"),
    ([{"role": "a", "prompt": "x", "with_answer": "no"}], "with_answer is 'no'; expected true or false"),
    ([], "or an object of agent or role"),
    ({"reasoner": {"examples": "x"}}, "examples: expected a list"),
    ({"reasoner": {"examples": [{"user": "x"}]}}, "example 0: expected a list"),
    ({"reasoner": {"examples": [{"user": "x", "assistant": 3}]}}, "both texts"),
    ({"reasoner": {"prompt": 3}}, "the prompt is 3; expected text"),
    ({"reasonr": "x"}, "Did you mean 'reasoner'"), ("/nowhere.json", "Expected a JSON file"),
])  # fmt: skip
def test_malformed_profiles_are_refused_by_name(profiles, says):
    with pytest.raises(ConfigError, match=says):
        marft_envs.make("math-dual-v0", profiles=profiles)


@pytest.mark.parametrize(("text", "says"), [
    ("", "Expected a JSON file"), ("reasoner:\n  prompt: x\n", "Expected a JSON file"),
    ('{"reasoner": {', "Expected a JSON file"), ("{}", "holds no profile"), ('"hello"', "expected a list of"),
    ('{"reasoner": {"examples": null}}', "examples: expected a list"),
    ('{"judge": "x"}', "no agent or role 'judge'"),
])  # fmt: skip
def test_a_file_that_holds_no_profiles_is_named(text, says, tmp_path):
    (tmp_path / "mine.json").write_text(text)
    with pytest.raises(ConfigError, match=says):
        dual(profiles=str(tmp_path / "mine.json"))


@pytest.mark.parametrize(
    ("env_id", "kwargs"),
    [("math-dual-v0", {"levels": [0]}), ("code-reflect-v0", {"levels": [0]}), ("tools-router-v0", {"levels": [0]})],
)
def test_few_shot_profiles_show_an_experts_prompts_and_replies(env_id, kwargs):
    env = marft_envs.make(env_id, **kwargs)
    profiles = experts.few_shot(env, 2, seed=3)
    assert set(profiles) == set(env.possible_agents)
    episode = experts.play(env, seed=3)
    speaker = episode.turns[0].agent
    first = profiles[speaker]["examples"][0]
    assert first["assistant"] == episode.turns[0].text
    prompted = marft_envs.make(env_id, profiles=profiles, **kwargs)
    prompted.reset(seed=3)
    told = prompted.messages(speaker)
    assert [m["content"] for m in told[1:3]] == [first["user"], first["assistant"]]
    assert told[-1]["content"] == first["user"]  # the same seed asks the same


def test_few_shot_takes_one_episode_or_more():
    with pytest.raises(ConfigError, match="1 or more"):
        experts.few_shot(dual(), 0)


def test_every_profile_says_how_long_a_reply_may_be():
    env = dual(profiles={"reasoner": ""}, reply_tokens=48)
    limit = "A reply has at most 48 tokens; what is longer is cut."
    assert [agent.prompt for agent in env.team] == [limit, f"{dual().profile('actor_0').prompt}\n\n{limit}"]
    env.reset(seed=0, options={"profiles": {"reasoner": "Work."}})
    assert [env.profile(agent).prompt.count(limit) for agent in env.possible_agents] == [1, 1]
    with pytest.raises(ConfigError, match="reply_tokens is 0"):
        dual(reply_tokens=0)
