"""Teams and adapters by their names on the hub: what ``--push`` sent comes back the same, or it is said what to type."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
import transformers
from huggingface_hub import constants

import helpers.runs  # noqa: F401 - the environment of these runs
from helpers import fake_hub
from helpers.fake_hub import COMMIT, FakeHub
from helpers.runs import settings, train
from helpers.tiny import save_tiny
from marft_algos.cli import main
from marft_algos.config import settings as configs
from marft_algos.models import saved
from marft_algos.runs import hub as names
from marft_algos.runs import paths, start
from marft_algos.runs.folder import RunFolder
from marft_envs.errors import ConfigError

QUICK = ["--iterations", "1", "--episodes-per-iteration", "4", "--eval-episodes", "4"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    model = save_tiny(tmp_path_factory.mktemp("models") / "qwen", hidden=16, layers=1)
    return train(settings(model, tmp_path_factory.mktemp("runs"), name="pair", iterations=2))[1]


@pytest.fixture(scope="module")
def pushed(run: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeHub]:
    """A hub to which the run's team has been pushed as ``me/team``."""
    with pytest.MonkeyPatch.context() as patch, fake_hub.serving() as made:
        point_at(made.url, patch)
        patch.setenv("HF_TOKEN", made.token)
        words = ["export", str(run.root), "--out", str(tmp_path_factory.mktemp("out") / "x"), "--push", "me/team"]
        assert main(words) == 0
        yield made


@pytest.fixture
def hub(pushed: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    """The hub, for somebody without a token and with an empty cache, in an empty folder."""
    point_at(pushed.url, monkeypatch)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    names._announce.cache_clear()  # said once a process, whichever test comes first
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    kept = {name: dict(files) for name, files in pushed.repositories.items()}
    yield pushed
    pushed.repositories.clear()
    pushed.repositories.update(kept)
    pushed.damaged.clear()
    pushed.gated.clear()
    pushed.private.update(dict.fromkeys(pushed.private, False))
    pushed.asked.clear()


def point_at(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As HF_ENDPOINT does, which the package reads when it is imported."""
    for module in (constants, huggingface_hub.hf_api.constants):
        monkeypatch.setattr(module, "ENDPOINT", url)
        monkeypatch.setattr(module, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
        monkeypatch.setattr(module, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(module, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(huggingface_hub.repocard.constants, "ENDPOINT", url)
    monkeypatch.setattr(transformers.utils.hub, "is_offline_mode", lambda: False)


def test_a_pushed_team_comes_back_with_its_weights_and_plays_alike(
    run: RunFolder, hub: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    origin = start.locate("me/team")
    assert origin.weights.name == "step_000002" and origin.policies == ["planner_0", "solver_0"]
    for policy in origin.policies:
        file = f"policies/{policy}/adapter_model.safetensors"
        assert (origin.weights / file).read_bytes() == (run.checkpoints / "step_000002" / file).read_bytes()
    assert origin.config.models == "me/team-base"
    assert f"from the hub: me/team at {COMMIT[:12]}" in capsys.readouterr().out
    assert main(["eval", str(run.root), "--episodes", "6"]) == 0
    expected = capsys.readouterr().out.splitlines()
    assert main(["eval", f"me/team@{COMMIT}", "--episodes", "6", "--out", "hub.jsonl"]) == 0
    found = capsys.readouterr().out.splitlines()
    assert [line for line in found if "hub" not in line] == expected and len(expected) > 3
    assert not any(file.endswith((".pt", ".bin")) for file in hub.repositories["me/team"])


def test_the_folder_of_an_export_is_a_team_too(run: RunFolder, tmp_path: Path) -> None:
    assert main(["export", str(run.root), "--out", str(tmp_path / "x")]) == 0
    origin = start.locate(str(tmp_path / "x"))
    assert origin.weights.parts[-3:] == ("team", "checkpoints", "step_000002")
    assert origin.config.models == str(tmp_path / "x" / "base"), "the copy beside it"
    assert RunFolder.find(str(tmp_path / "x")).root == tmp_path / "x" / "team"


def test_value_heads_are_not_on_the_hub_and_that_is_said(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--start", "me/team", "--start-values", "--name", "on", *QUICK]) == 1
    assert "value heads" in capsys.readouterr().err


def test_a_run_begins_with_a_team_of_the_hub_and_keeps_which(run: RunFolder, hub: FakeHub) -> None:
    assert main(["train", "--start", "me/team", "--name", "on", *QUICK]) == 0
    here = RunFolder.open("on")
    assert COMMIT in start.record(here) and "planner_0, solver_0" in start.record(here)
    kept = (here.start / "policies/solver_0/adapter_model.safetensors").read_bytes()
    assert kept == (run.checkpoints / "step_000002/policies/solver_0/adapter_model.safetensors").read_bytes()


def test_one_policy_begins_with_an_adapter_of_the_hub(run: RunFolder, hub: FakeHub) -> None:
    config = settings(Path("me/team-base"), Path("runs"), adapters={"solver_0": "me/team-solver_0@main"})
    folder = Path(paths.fetched(config).adapters["solver_0"])
    kept = run.checkpoints / "step_000002/policies/solver_0"
    assert saved.check_adapter(folder, saved.LoraSettings(config.lora_r, config.lora_alpha)) == "me/team-base"
    assert (folder / "adapter_model.safetensors").read_bytes() == (kept / "adapter_model.safetensors").read_bytes()
    assert sorted(path.name for path in folder.iterdir()) == [
        "SHA256SUMS",
        "adapter_config.json",
        "adapter_model.safetensors",
    ]


def test_the_cache_is_enough_where_the_hub_is_off_and_a_dry_run_fetches_nothing(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--start", "me/team", "--dry-run"]) == 1
    assert "a dry run fetches nothing" in capsys.readouterr().err and not hub.asked
    first = names.local("me/team")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert names.local("me/team") == first
    with pytest.raises(ConfigError, match=r"unset HF_HUB_OFFLINE.*hf download me/other --revision v1; then"):
        names.local("me/other@v1")


def test_a_folder_here_wins_and_that_is_said(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    names.local("me/team")
    Path("me/team").mkdir(parents=True)
    assert names.local("me/team") == "me/team"
    assert "note: 'me/team' is the folder of that name here" in capsys.readouterr().err
    asked = len(hub.asked)
    assert names.local("me/tema") == "me/tema" and len(hub.asked) == asked, "a path that was mistyped is not asked for"
    assert Path(names.local("me/team@main")).name == COMMIT
    for path in ("runs", "./me/x", "/me/x", "a/b/c", "quick/best@x/y@z", "me/te am"):
        assert names.local(path) == path


@pytest.mark.parametrize("case", ["absent", "private", "gated", "revision", "closed"])
def test_what_cannot_be_had_is_said_with_what_to_type(hub: FakeHub, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = {"absent": "me/nothing", "revision": "me/team@v9"}.get(case, "me/team")
    hub.private["me/team"] = case == "private"
    hub.gated.update(["me/team"] if case == "gated" else [])
    if case == "closed":
        point_at("http://127.0.0.1:9", monkeypatch)
    expected = {
        "absent": "'me/nothing' is no folder here, and no repository at .* that you may read.*hf auth login",
        "private": "no repository at .* that you may read.*hf auth login",
        "gated": "is gated on the hub. Ask for access at .*/me/team, type: hf auth login",
        "revision": "has no revision 'v9'. Type a branch, a tag or a commit",
        "closed": "was not reached. Where there is a network: hf download me/team; then the same command",
    }[case]
    with pytest.raises(ConfigError, match=expected):
        names.local(spec)


def test_what_is_no_team_is_said_with_what_it_lacks(hub: FakeHub) -> None:
    with pytest.raises(
        ConfigError, match=r"'me/team-solver_0' on the hub lacks config.toml, one checkpoints.*--adapters"
    ):
        start.locate("me/team-solver_0")
    with pytest.raises(ConfigError, match=r"'me/team-base' on the hub lacks adapter_model.safetensors"):
        names.local("me/team-base", "adapter")
    files = hub.repositories["me/team"]
    for file in [file for file in files if file.endswith(".safetensors")]:
        files[file.replace(".safetensors", ".bin")] = files.pop(file)
    with pytest.raises(ConfigError, match="with weights"):
        names.local("me/team")


def test_damaged_weights_are_refused_wherever_the_damage_is(hub: FakeHub) -> None:
    file = "checkpoints/step_000002/policies/solver_0/adapter_model.safetensors"
    whole = hub.repositories["me/team"][file]
    hub.damaged[file] = whole[:-1] + bytes([whole[-1] ^ 1])
    with pytest.raises(ConfigError, match=r"is not what the hub sent: .* Delete .*, and give the same"):
        names.local("me/team")


def test_settings_of_strangers_run_nothing_and_lead_nowhere(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("stranger.py").write_text("raise SystemExit('imported')\n")
    files = hub.repositories["me/team"]
    del files["SHA256SUMS"]  # a stranger writes them anew
    text = files["config.toml"].decode()
    files["config.toml"] = text.replace('env = "test/letters-v0"', 'env = "stranger:env"').encode()
    assert main(["eval", "me/team"]) == 1
    assert "runs code of that module" in capsys.readouterr().err
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(Path("again").absolute()))
    files["config.toml"] = text.replace('start = ""', 'start = "/tmp/other"').encode()
    with pytest.raises(ConfigError, match=r"names other weights \(start\)"):
        names.local("me/team")


def test_what_is_pushed_names_no_folder_of_this_machine(run: RunFolder, hub: FakeHub) -> None:
    config = configs.build(dict(configs.load(run.config_file).table()))
    for file, data in hub.repositories["me/team"].items():
        if not file.endswith((".safetensors", "README.md")):  # the card holds the command as it was typed
            assert str(run.root.parent).encode() not in data and str(config.models).encode() not in data, file
    described = json.loads(hub.repositories["me/team"]["checkpoints/step_000002/policies/solver_0/adapter_config.json"])
    assert described["base_model_name_or_path"] == "me/team-base"
