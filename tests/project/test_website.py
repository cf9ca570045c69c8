"""The documentation site without building it: reference, gallery, figures, links, versions. ``make docs`` builds it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from dataclasses import MISSING, fields
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from mkdocs.config import load_config

import marft_envs
from marft_algos.algorithms import base, ppo
from marft_algos.algorithms.base import Algorithm
from marft_envs import registration
from website import __main__ as build
from website import api, draw, figures, formulas, gallery, hooks, leaderboard, links, notebooks

ROOT = Path(__file__).resolve().parents[2]
MKDOCS = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))

PARTS = ["When to use it", "Formula", "Run it", "Learning curve", "Settings", "What it logs"]
PARTS += ["Departures from the paper", "Code and paper"]
SHARED = {base.UpdateConfig, base.ClipConfig, ppo.PPOConfig, *base.UpdateConfig.__mro__}
GREEK = {"alpha": "α", "beta": "β", "gamma": "γ", "Delta": "Δ", "varepsilon": "ε", "theta": "θ", "lambda": "λ"}
GREEK |= {"mu": "μ", "pi": "π", "rho": "ρ", "sigma": "σ", "ell": "ℓ"}


def entries(nav: object) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [name for part in parts for name in entries(part)]  # type: ignore[attr-defined]


def test_every_public_name_is_in_the_reference() -> None:
    text = "\n".join(content for _, _, content in api.pages())
    for package in ("marft_envs", "marft_algos"):
        for name in __import__(package).__all__:
            assert f"\n::: {package}.{name}\n" in text + "\n", f"{package}.{name} is on no page: docs/website/api.py"


def test_help_of_a_view_and_of_an_algorithm_names_all_that_they_have() -> None:
    assert all(f"        {name}: " in (marft_envs.View.__doc__ or "") for name in marft_envs.View.__slots__)
    hooks = ("values", "credit", "order", "together", "before_step", "surrogate", "after_block")
    assert all(f"``{hook}``" in (Algorithm.__doc__ or "") and getattr(Algorithm, hook).__doc__ for hook in hooks)
    for package in ("marft_envs", "marft_algos"):
        assert set(dir(__import__(package))) == {*api.exported(package), "__version__"}


def test_a_public_name_without_a_place_stops_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marft_envs, "__all__", [*marft_envs.__all__, "brand_new"])
    with pytest.raises(ValueError, match="brand_new"):
        list(api.pages())


def test_every_page_is_in_the_menu() -> None:
    named = entries(MKDOCS["nav"])
    pages = {file.relative_to(ROOT / "docs").as_posix() for file in (ROOT / "docs").rglob("*.md")}
    made = set(links.MOVED.values())
    missing = {page for page in pages if page not in named and not page.startswith("algorithms/")}
    assert not missing, f"put them into the nav of mkdocs.yml: {sorted(missing)}"
    assert not {name for name in named if name.endswith(".md")} - pages - made
    assert len(named) == len(set(named))


def test_the_leaderboard_is_made_of_packed_results_and_says_whose(monkeypatch: pytest.MonkeyPatch) -> None:
    file = ROOT / "benchmarks/results/sampled.tar.xz"
    monkeypatch.setattr(leaderboard, "FILES", [file])
    [(address, title, text)] = leaderboard.pages()
    assert (address, title) == ("leaderboard/index.md", "Leaderboard") and "nobody else's" in text
    assert hashlib.sha256(file.read_bytes()).hexdigest() in text
    assert "<b>math-dual-v0</b>" in text and "<td>rft</td>" in text and "marft bench report runs/sampled" in text
    assert (
        "Model embedded (334 thousand parameters); levels=[0]; 98,304 sampled tokens; evaluated on 500 episodes" in text
    )
    assert text.count("<td data-v=") == 5 * text.count("<tr><td>") and "one agent, math-solo-v0" in text
    (board,) = leaderboard.read(file).boards
    assert 1 < sum(level for _, level, _ in board.rows) < len(board.rows) and text.count("</abbr>") == sum(
        level for _, level, _ in board.rows
    )
    alone = dataclasses.replace(board, rows=board.rows[:1])
    assert "≈" not in leaderboard.section("math-dual-v0", [alone]), "a row that stands alone is compared with nothing"


def test_the_gallery_has_the_environments_of_this_package_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = gallery.ids()
    monkeypatch.setattr(registration, "_specs", dict(registration._specs))
    marft_envs.register("guest-v0", "examples.planted:make", None, "somebody else's")
    assert gallery.ids() == before and "relay-v0" in before


def test_the_gallery_shows_what_agents_see_whose_messages_and_an_episode_that_succeeds() -> None:
    played = gallery.play("relay-v0")
    text = gallery.page("relay-v0", "a summary", played)
    assert played.episode.success and played.episode.rounds[0].D == [[0, 1], [0, 0]]
    for agent in marft_envs.make("relay-v0").possible_agents:
        assert f"### {agent}" in text and played.seen[agent][:60] in text
    assert "](../algorithms/marft.md) | 1.000" in text and "@software{marft" in text and "(relay-v0.svg)" in text
    assert gallery.picture("relay-v0", played).count("marker-end") == 1
    assert {gallery.family(name) for name in gallery.ids()} == set(gallery.FAMILIES)


def test_baselines_of_the_gallery_are_one_table_with_model_and_settings() -> None:
    text = gallery.baselines("math-dual-v0")
    assert text.startswith(
        "Model embedded (334 thousand parameters); levels=[0]; 98,304 sampled tokens; evaluated on 500"
    )
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    assert rows[0] == ["algorithm", "score", "IQM", "difference, points", "tokens sampled"]
    by_label = {row[0]: row[1:] for row in rows[1:]}
    assert len(by_label) == len(rows) - 1, "a label stands in one row"
    mappo = by_label["[mappo](../algorithms/mappo.md)"]
    assert mappo[:2] == ["0.816 [0.775, 0.856]", "0.817 [0.770, 0.862]"] and mappo[3] == "99 089"
    assert by_label["untrained"][3] == "0" and "grpo-4" not in text, "a second look at some rows is another table"
    assert by_label["single (rft) (one agent, math-solo-v0)"][0] == "0.868 [0.836, 0.900]"


def test_backticks_of_a_model_do_not_end_the_block_that_shows_them() -> None:
    assert gallery._block("a\n```\nb").startswith("````text\n")


@pytest.mark.parametrize(
    "made", [figures.dependencies, figures.episode, figures.successors, figures.staleness, figures.curves]
)
def test_figures_are_what_their_command_makes(made: object) -> None:
    for name, content in made():  # type: ignore[operator]
        file = figures.IMAGES / name
        assert file.read_text(encoding="utf-8") == content, "type: PYTHONPATH=docs python -m website.figures --write"


def settings_of(table: str) -> dict[str, str]:
    """Names and defaults of a table of settings."""
    return dict(re.findall(r"^\| `(\w+)` \| `([^|]*)` \|", table, re.MULTILINE))


def defaults(config: type) -> dict[str, str]:
    """Defaults of settings as a page shows them."""
    found = {}
    for field in fields(config):
        value = field.default_factory() if field.default is MISSING else field.default
        shown = {None: "none", "": '""', True: "true", False: "false"}
        found[field.name] = shown[value] if value is None or value == "" or isinstance(value, bool) else str(value)
    return found


@pytest.mark.parametrize("name", sorted(base.pages()))
def test_a_page_of_an_algorithm_has_all_its_parts_and_the_defaults_of_the_code(name: str) -> None:
    text = (ROOT / "docs" / "algorithms" / f"{name}.md").read_text(encoding="utf-8")
    assert re.findall("^## (.+)$", text, re.MULTILINE) == PARTS
    part = dict(zip(PARTS, re.split("^## .+$", text, flags=re.MULTILINE)[1:], strict=True))
    assert "```output\n" in part["Run it"] and f"(../../marft_algos/algorithms/{name}.py)" in part["Code and paper"]
    assert (figures.IMAGES / f"curves/{name}.svg").exists() == (f"images/curves/{name}.svg)\n\n*" in text)

    latex = re.sub(
        r"\\(?:text|operatorname|begin|end)\{[^}]*\}", " ", part["Formula"].split("```")[1].partition("\n")[2]
    )
    symbols = {GREEK[word] for word in re.findall(r"\\([A-Za-z]+)", latex) if word in GREEK}
    symbols |= set(re.findall("[A-Za-z]", re.sub(r"\\[A-Za-z]+", " ", latex)))
    defined = "".join(re.findall(r"^\* \*\*(.+?)\*\*:", part["Formula"], re.MULTILINE))
    assert symbols <= set(defined), f"undefined: {sorted(symbols - set(defined))}"

    config = base.get(name).Config
    own = {key for cls in config.__mro__ if cls not in SHARED for key in vars(cls).get("__annotations__", {})}
    shown, right = settings_of(part["Settings"]), defaults(config)
    assert own <= shown.keys() <= right.keys()
    assert shown == {key: right[key] for key in shown}


def test_the_page_on_algorithms_has_the_settings_that_several_share_and_links_every_page() -> None:
    text = (ROOT / "docs/algorithms/index.md").read_text(encoding="utf-8")
    shown, right = settings_of(text), defaults(ppo.PPOConfig)
    assert shown == right
    assert base.pages() == set(re.findall(r"^\| \[`(\w+)`\]", text, re.MULTILINE))


@pytest.mark.ci
def test_every_formula_of_the_pages_is_set_and_its_words_are_text() -> None:
    found = 0
    for page in (ROOT / "docs").rglob("*.md"):
        for latex in re.findall(r"```math\n(.*?)\n```", page.read_text(encoding="utf-8"), re.DOTALL):
            shown = formulas.fence(latex, "math", "math", {}, None)
            lines = latex.count("\\\\") + 1
            assert shown.count("<p>") == lines and "<svg" in shown and "error" not in shown, page
            found += 1
    assert found > 25
    assert "<p>mean over <svg" in formulas.fence(r"\text{mean over } x", "", "", {}, None)
    assert formulas.line(r"f(\text{a}) \left[\text{b}\right]").count("</svg>") == 2
    with pytest.raises(ValueError, match="frak"):
        formulas.picture(r"\frak{")


@pytest.mark.parametrize(("address", "file"), [
    ("tutorial.md", "docs/tutorial.md"), ("contributing.md", "CONTRIBUTING.md"),
    ("gallery/relay-v0.md", "docs/website/gallery.py"), ("notebooks/own_team.md", "examples/notebooks/own_team.ipynb"),
])  # fmt: skip
def test_a_page_says_which_file_to_edit_and_links_to_it_where_the_repository_has_an_address(
    address: str, file: str
) -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri=address))
    assert (ROOT / file).is_file() and MKDOCS["repo_url"] == "", "no address is made up"
    plain = hooks.on_page_content("", page, SimpleNamespace(repo_url="", edit_uri=None), None)
    assert f"Edit: {file}" in plain and plain.count("<a ") == 1 and 'contributing.html">how</a>' in plain
    for host, at, edit in (
        ("https://github.com", None, "edit/main/"),
        ("https://git.made.up", "_edit/dev/docs/", "_edit/dev/"),
    ):
        config = load_config(str(ROOT / "mkdocs.yml"), repo_url=f"{host}/us/marft", edit_uri=at, hooks=[])
        linked = hooks.on_page_content("", page, hooks.on_config(config), None)
        assert f'<a href="{host}/us/marft/{edit}{file}">{file}</a>' in linked


def test_what_a_site_takes_is_measured(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/b.html").write_bytes(bytes(1_500_000))
    assert build.megabytes(tmp_path) == 1.5 and (build.MOST_MB, build.MOST_S) == (40, 240)


def test_tables_of_numbers_are_not_searched_and_those_of_words_are() -> None:
    def table(*cells: str) -> str:
        return f"<table><tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr></table>"

    assert "data-search-exclude" in hooks.on_page_content(
        table("<code>marft</code>", "86.2 [83.3, 88.9]"), None, None, None
    )
    assert "data-search-exclude" not in hooks.on_page_content(
        table("--lr", "the rate", "of steps", "3"), None, None, None
    )


def test_colours_of_pictures_have_one_for_dark_paper() -> None:
    drawn = figures.IMAGES / "episode.svg"
    used = set(re.findall(r'(?:fill|stroke)="(#\w+)"', drawn.read_text(encoding="utf-8")))
    assert used <= set(draw.DARK) and "prefers-color-scheme: dark" in drawn.read_text(encoding="utf-8")


def test_a_card_of_the_gallery_and_a_page_say_what_is_rewarded_and_what_is_taken() -> None:
    played = gallery.play("docs-tree-v0")
    assert "docs-tree-v0-small.svg" in gallery.card("docs-tree-v0", "a summary", played)
    text = gallery.page("docs-tree-v0", "a summary", played)
    assert "| **rewarded** | 1 where" in text and "| `lengths` | `1` |" in text and "UnicodeText" in text
    assert set(gallery.REWARDS) == set(gallery.FAMILIES)


def test_text_in_a_picture_is_escaped() -> None:
    assert "<b>" not in draw.layers("x", [["<b>"]], [])


def test_links_between_files_become_links_between_pages() -> None:
    shown: list[str] = []
    text = "[a](../examples/custom_task.py) [b](credit.md#costs) [c](../CHANGELOG.md) [d](#here) [e](https://x.y/z.md)"
    moved = links.relocate(text, "docs/training.md", "training.md", shown.append)
    assert moved == (
        "[a](files/examples/custom_task.py.md) [b](credit.md#costs) [c](changelog.md) [d](#here) [e](https://x.y/z.md)"
    )
    assert shown == ["examples/custom_task.py"]
    assert links.relocate("[a](docs/credit.md)", "CONTRIBUTING.md", "contributing.md", shown.append) == "[a](credit.md)"
    assert links.relocate("[a](index.md)", "docs/algorithms/grpo.md", "algorithms/grpo.md", print) == "[a](index.md)"


def test_assets_of_other_hosts_are_found(tmp_path: Path) -> None:
    page = tmp_path / "a.html"
    page.write_text('<a href="https://x.y">fine</a><img src="b.png"><link rel=canonical href="https://x.y/a">')
    assert build.foreign(tmp_path) == []
    for bad in (
        '<script src="https://x.y/z.js"></script>',
        '<img src="//x.y/z.png">',
        '<link rel="stylesheet" href="http://x.y/">',
    ):
        page.write_text(bad)
        assert len(build.foreign(tmp_path)) == 1
    page.unlink()
    (tmp_path / "a.css").write_text("@import url(https://x.y/font.css)")
    assert len(build.foreign(tmp_path)) == 1


def test_the_newest_version_stands_first_and_at_the_top(tmp_path: Path) -> None:
    for version in ("0.9.0", "0.10.0", "0.2.0"):
        (tmp_path / version).mkdir()
        build.publish(tmp_path, version)
    listed = json.loads((tmp_path / "versions.json").read_text())
    assert [entry["version"] for entry in listed] == ["0.10.0", "0.9.0", "0.2.0"]
    assert [entry["aliases"] for entry in listed] == [["latest"], [], []]
    assert "url=0.10.0/index.html" in (tmp_path / "index.html").read_text()


def test_every_notebook_has_a_page_and_carries_its_outputs() -> None:
    pages = {address for address, _, _ in notebooks.pages()}
    files = sorted(notebooks.FOLDER.glob("*.ipynb"))
    assert {f"notebooks/{file.stem}.md" for file in files} < pages and len(files) == 6
    for file in files:
        outputs = notebooks.stored(file)
        assert outputs and any("text" in out for out in outputs)
    own = notebooks.FOLDER / "own_team.ipynb"
    assert "-9.svg)" in notebooks.page(own, notebooks.stored(own))[1]


def test_outputs_of_another_program_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "own_team.ipynb"
    file.write_text((notebooks.FOLDER / file.name).read_text().replace("import", "import ", 1))
    with pytest.raises(ValueError, match=r"website\.notebooks own_team"):
        notebooks.stored(file)
