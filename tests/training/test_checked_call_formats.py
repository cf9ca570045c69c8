"""A run is refused if its environment reads calls in another form than its template writes them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

import pytest

from helpers import families, runs
from helpers.chat_shapes import QWEN_3, shaped, tokenizer_of
from marft_algos.cli import main
from marft_algos.config.arguments import value
from marft_algos.models.chat import Chat, Renderer
from marft_algos.training.environments import check_call_formats
from marft_algos.training.parts import build
from marft_algos.training.trainer import Trainer
from marft_envs.errors import ConfigError
from marft_envs.families.tools import make

GLM = """\
{% for t in tools or [] %}{{ t | tojson }}
{% endfor %}{% for m in messages %}<|{{ m.role }}|>
{{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}
{% for k, v in c.function.arguments.items() %}<arg_key>{{ k }}</arg_key>
<arg_value>{{ v if v is string else v | tojson }}</arg_value>
{% endfor %}</tool_call>{% endfor %}{% endfor %}{% if add_generation_prompt %}<|assistant|>
{% endif %}"""


def chats(**tools: bool) -> dict[str, Chat]:
    """Policies whose templates write Hermes and GLM."""
    glm = tokenizer_of(GLM, ("<|user|>", "<|assistant|>", "<|system|>", "<|tool|>"))
    made = {"hermes": Chat("qwen", shaped("qwen 3"), tools=tools.get("hermes", True))}
    return made | {"glm": Chat("glm", glm, tools=tools.get("glm", True))}


def renderer(agents: Mapping[str, str], **tools: bool) -> Renderer:
    return Renderer(chats(**tools), agents)


TRIO = {"planner_0": "hermes", "executor_0": "glm", "verifier_0": "hermes"}


def typed(error: ConfigError) -> list[str]:
    """The words that a message says to add."""
    return shlex.split(str(error).split("Add ")[1].split(" (or")[0])


def test_the_templates_write_what_they_should() -> None:
    assert all(chat.call_format is not None and chat.call_format.name == name for name, chat in chats().items())


@pytest.mark.parametrize("read", ["hermes", "any"])
def test_what_is_read_as_it_is_written_passes(read: str) -> None:
    check_call_formats(make("solo", call_format=read), renderer({"agent_0": "hermes"}))


def test_another_call_format_is_refused_with_both_names_and_what_to_type() -> None:
    with pytest.raises(ConfigError, match=r"'agent_0' writes calls as 'hermes'.*reads 'glm'") as refused:
        check_call_formats(make("solo", call_format="glm"), renderer({"agent_0": "hermes"}))
    assert typed(refused.value) == ["--env-kwargs", "call_format=hermes"] and "call_format=any" in str(refused.value)


def test_a_team_of_two_families_is_told_what_each_agent_needs_and_that_passes() -> None:
    team = renderer(TRIO)
    with pytest.raises(ConfigError, match="'executor_0' writes calls as 'glm'") as refused:
        check_call_formats(make("trio"), team, "--eval-kwargs")
    option, word = typed(refused.value)
    key, _, text = word.partition("=")
    assert option == "--eval-kwargs"
    mended = make("trio", **{key: value(text)})
    assert mended.task.speech.call_formats == TRIO
    check_call_formats(mended, team)


def test_a_template_that_shows_no_tools_binds_nobody() -> None:
    check_call_formats(make("solo", call_format="glm"), renderer({"agent_0": "hermes"}, hermes=False))


def test_hosted_agents_and_tasks_without_calls_bind_nobody() -> None:
    check_call_formats(make("solo", call_format="glm"), Renderer({}, {"agent_0": "far"}))
    check_call_formats(runs.make_letters(), renderer({"planner_0": "hermes", "solver_0": "glm"}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = families.save(tmp_path_factory.mktemp("model"), "qwen3", max_position_embeddings=16384)
    (made / "chat_template.jinja").write_text(QWEN_3)
    return made


@pytest.mark.ci
def test_a_run_and_its_evaluation_are_refused_before_anything_is_played(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = {"env": "tools-solo-v0", "template_tools": True, "env_kwargs": {"show_tools": "none"}}
    with pytest.raises(ConfigError, match="Add --env-kwargs call_format=hermes"):
        build(runs.settings(folder, tmp_path, **{**table, "env_kwargs": {"call_format": "glm"}}))
    with pytest.raises(ConfigError, match="Add --eval-kwargs call_format=hermes"):
        build(runs.settings(folder, tmp_path, **table, eval_kwargs={"call_format": "glm"}))
    run = Trainer(build(runs.settings(folder, tmp_path, **table))).start()
    assert main(["eval", str(run.root), "--untrained", "--env-kwargs", "call_format=glm"]) != 0
    assert "Add --env-kwargs call_format=hermes" in capsys.readouterr().err
