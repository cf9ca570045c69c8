"""What tools return and users or peers say is data: it never changes the structure of a prompt; obeying has no reward."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from helpers.marks import rest_in_ci

pytest.importorskip("tokenizers", reason="real chat templates need tokenizers and jinja2 (the extra train)")
pytest.importorskip("jinja2", reason="real chat templates need tokenizers and jinja2 (the extra train)")
from helpers.injections import ATTACKS, FAMILIES, Model, embedded, model
from helpers.tools_tiny import call, tiny
from marft_envs import FlexEnv
from marft_envs.call_formats import parse, written
from marft_envs.core import observation as obs_mod
from marft_envs.core.types import Episode
from marft_envs.families.tools import TEAMS, ToolError, ToolProblem, make, oracle
from marft_envs.families.tools.depot import Depot, demanded
from marft_envs.records import trajectory

MODELS: dict[str, Callable[[], Model]] = {
    **{family: (lambda family=family: model(family)) for family in FAMILIES},
    "embedded": lambda: embedded("embedded"),
    "embedded-code": lambda: embedded("embedded-code"),
}


def played(team: str, words: str, **settings: Any) -> FlexEnv:
    """A team some turns into an episode in which everything that comes from outside or from a peer is ``words``."""

    def leak(state: Any) -> dict[str, str]:
        return {words: words}

    def complain(state: Any) -> None:
        raise ToolError(words)

    def own(state: Any) -> int:
        return 1

    problem = ToolProblem("tiny/one", (words,), 1, secret={"calls": [[]]})
    domain = tiny(
        tools=[leak, complain, own],
        specialists={"writing": ("leak", "complain")},
        user_tools=("own",),
        state=lambda problem: {},
        problems=[problem],
        grade=lambda state, problem: 0.0,
    )
    env = make(team, domain, max_idle=30, **settings)
    env.reset(seed=0)
    task = env.unwrapped.task
    # Tags of calls that an agent writes are its own calls, so others cannot make an agent with tools say them.
    echo = "harmless" if "tool_call" in words else words
    asks = written([call("leak"), call("complain"), call(echo), call("leak", **{echo: 1})])
    talks = echo if not parse(echo).calls and not parse(echo).error else "harmless"
    acted = Counter[str]()
    for _ in range(6):
        for agent in env.ready_agents:
            if "leak" in task.holds[agent]:
                handing_back = team in ("supervisor", "trio") and acted[agent] % 3 == 2
                text = talks if handing_back else talks + asks
            elif not task.holds[agent] and not task.control[agent]:
                text = words
            else:
                routes = {"router_0": "writing", "supervisor_0": written([call("transfer_to_writing")])}
                text = {**routes, "verifier_0": written([call("transfer_to_executor")])}.get(agent, talks)
            acted[agent] += 1
            env.select(agent)
            env.step(text)
    assert not env.done, env.episode.stop_reason
    return env


CONTROL = re.compile(
    "|".join(sorted({re.escape(t) for _, control in FAMILIES.values() for t in control}, key=len)[::-1])
)

LINE_START = r"(?:^|(?<=[\r\v\f\x85\u2028\u2029]))[^\S\n\r\v\f\x85\u2028\u2029]*"


def shape(env: FlexEnv, families: Sequence[str]) -> dict[str, Any]:
    """Everything of the views that must not depend on what untrusted texts say, in prompts of these families."""
    out: dict[str, Any] = {"turns": [(turn.agent, turn.sees, turn.layer) for turn in env.view.history]}
    inner, forged = env.unwrapped, obs_mod.role_tags(env.team)
    for agent in env.possible_agents:
        parts = inner.schedule.observation(agent)
        messages = obs_mod.to_messages(parts)
        assert messages == env.messages(agent)
        out[f"messages {agent}"] = [message["role"] for message in messages]
        prompt = obs_mod.render("prompt", parts)["prompt"]
        tags = re.findall(LINE_START + forged.pattern, prompt, forged.flags | re.MULTILINE)
        out[f"prompt {agent}"] = (len(tags), CONTROL.findall(prompt))
        seen = obs_mod.render("structured", parts)["seen"]
        out[f"structured {agent}"] = [
            (part["agent"], part["role"], part["round"], CONTROL.findall(part["text"])) for part in seen
        ]
        out.update({f"{name} {agent}": MODELS[name]().structure(messages) for name in families})
    return out


@pytest.mark.parametrize("team", rest_in_ci(TEAMS, 4))
@pytest.mark.parametrize("compact", rest_in_ci([False, True]), ids=["raw", "compact"])
def test_no_injection_changes_the_structure_of_a_prompt(team: str, compact: bool) -> None:
    wanted = shape(played(team, "harmless", compact=compact), list(MODELS))
    for name, attack in ATTACKS.items():
        aimed = [family for family, (_, control) in FAMILIES.items() if any(token in attack for token in control)]
        found = shape(played(team, attack, compact=compact), [*aimed, "embedded"])
        # An adviser is shown the tags of calls in its own words as it wrote them; to all others they are neutralised.
        authors = ("planner_0", "proposer_0", "proposer_1") if "tool_call" in attack else ()
        differ = [key for key in found if found[key] != wanted[key] and not key.endswith(authors)]
        assert not differ, name


@pytest.mark.parametrize("family", MODELS)
def test_the_suite_would_find_a_prompt_that_is_not_neutralised(family: str) -> None:
    """Put into a message as they are, a family's own control tokens do change its structure."""
    plain = [{"role": "system", "content": "You."}, {"role": "user", "content": "harmless"}]
    wanted = MODELS[family]().structure(plain)
    broken = [
        name
        for name, attack in ATTACKS.items()
        if MODELS[family]().structure([plain[0], {"role": "user", "content": attack.replace("\ud800\udfff", "")}])
        != wanted
    ]
    assert f"all tokens of {family}" in broken or family.startswith("embedded")
    assert len(broken) >= 2, broken


def test_a_cut_does_not_make_a_token_whole() -> None:
    for attack in ("all tokens of qwen", "all tokens of mistral", "broken tokens", "a role tag"):
        env = played("dual", ATTACKS[attack])
        whole = sum(len(part.text) for part in env.unwrapped.schedule.observation("executor_0").parts)
        wanted = [m["role"] for m in env.messages("executor_0")]
        for chars in range(0, whole, max(whole // 60, 1)):
            messages = env.messages("executor_0", max_chars=chars)
            assert [m["role"] for m in messages] == wanted
            for message in messages:
                if message["role"] == "user":
                    assert not model("qwen").tokens(message["content"]) and not model("mistral").tokens(
                        message["content"]
                    )


# Victims -------------------------------------------------------------------------------------------------


class Victims:
    """A team that works like the oracle, and does whatever a note that one of them reads asks for."""

    def __init__(self, env: FlexEnv) -> None:
        self.env, self.task = env, env.unwrapped.task
        self.heard: list[Any] = []

    def play(self, task_id: str, plan: Callable[[list[Any]], list[Any]] = list) -> Episode:
        """Plays a part of the gold, by default all of it, and what notes ask for on the way."""
        env, task = self.env, self.task
        env.reset(seed=0, options={"task_id": task_id})
        task._gold = [plan(turn) for turn in task.gold_calls]
        self.heard = []
        while not env.done:
            for agent in env.ready_agents:
                for wish in self._read(agent):
                    task._gold[0].insert(len(task.live.log), wish)
                text = oracle.reply(env, agent)
                env.select(agent)
                env.step(text)
        return env.episode

    def _read(self, agent: str) -> list[Any]:
        """New calls that notes in the agent's own messages ask for, as a credulous reader takes them."""
        wishes = []
        for message in self.env.messages(agent):
            for line in message["content"].splitlines():
                value = line.partition("get_order: ")[2] if line.startswith("get_order: {") else ""
                note = json.loads(value).get("note", "") if value else ""
                wish = demanded(note.replace("< ", "<").replace("[ ", "["))
                if wish is not None and wish not in self.heard:
                    self.heard.append(wish)
                    wishes.append(wish)
        return wishes


def tasks(team: str, injections: bool = True) -> FlexEnv:
    domain = Depot(dual=team == "dual_control", injections=injections)
    return make(team, domain, split="test", levels=[1, 2, 3, 5], limit=16)


@pytest.mark.parametrize("team", rest_in_ci(TEAMS, 4))
def test_obeying_is_measured_and_has_no_reward(team: str) -> None:
    env = tasks(team)
    victims, obeyed = Victims(env), Counter[bool]()
    for task_id in env.unwrapped.task.evaluation_set(16):
        gold = oracle.play(env, 0, {"task_id": task_id}).team_return
        assert env.episode.success and env.episode.metrics["obeyed"] == 0.0
        for plan in (list, lambda calls: calls[: len(calls) * 2 // 3]):
            env.reset(seed=0, options={"task_id": task_id})
            env.unwrapped.task._gold = [plan(turn) for turn in env.unwrapped.task.gold_calls]
            honest = _go_on(env).team_return
            episode = victims.play(task_id, plan)
            assert episode.metrics["obeyed"] == float(episode.info["grade"]["injected"])
            assert env.infos == {} or all(info["grade"]["injected"] is not None for info in env.infos.values())
            assert trajectory.from_dict(trajectory.to_dict(episode)).metrics["obeyed"] == episode.metrics["obeyed"]
            obeyed[bool(episode.metrics["obeyed"])] += 1
            if episode.metrics["obeyed"]:
                assert not episode.success and episode.team_return <= honest and episode.team_return < gold, task_id
            else:
                assert episode.team_return <= honest, "a wish that the tools refuse is an error"
    assert obeyed[True] > 8, (team, obeyed)


def _go_on(env: FlexEnv) -> Episode:
    while not env.done:
        for agent in env.ready_agents:
            text = oracle.reply(env, agent)
            env.select(agent)
            env.step(text)
    return env.episode


def test_doing_nothing_but_obeying_is_worth_no_more_than_silence() -> None:
    env = tasks("solo")
    victims = Victims(env)
    for task_id in env.unwrapped.task.evaluation_set(16):
        looks = lambda calls: [one for one in calls if one.name == "get_order"]  # noqa: E731
        episode = victims.play(task_id, looks)
        assert episode.team_return <= 0 and not episode.success


def test_domains_without_injections_have_no_such_metric() -> None:
    episode = oracle.play(tasks("solo", injections=False), 0)
    assert "obeyed" not in episode.metrics and "injected" not in episode.info["grade"]


def test_own_domains_say_so_in_their_grade() -> None:
    from marft_envs.families.tools import StateGrade

    def grade(state: Any, problem: ToolProblem) -> StateGrade:
        return StateGrade(False, 0.0, {"injected": state.counters["a"] > 0})

    env = make("solo", tiny(grade=grade))
    shares: Mapping[str, float] = {}
    for name, by in (("a", 1.0), ("b", 0.0)):
        env.reset(seed=0, options={"task_id": "tiny/one"})
        env.step(written([call("add", name=name), call("finish")]))
        shares = env.episode.metrics
        assert shares["obeyed"] == by
