"""The page of ``marft view`` in a browser: it is clicked, filtered and resized, and says nothing on the console."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from browser import driver
from helpers.viewed import HOSTILE, episode, metrics, write_bench, write_lines, write_run
from marft_algos.extras.view.server import ViewServer
from marft_algos.extras.view.sources import open_sources


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder / "first")
    write_run(folder / "second")
    write_lines(folder / "first/episodes/eval-000008.jsonl", [episode(0, True, HOSTILE), "{"])
    write_lines(folder / "many.jsonl", [episode(s, s % 3 == 0, "a needle" if s == 170 else "") for s in range(180)])
    return folder


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    sources = open_sources([str(folder / name) for name in ("first", "second", "many.jsonl")])
    with ViewServer(sources) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.address
        server.shutdown()


def test_runs_stand_together_and_one_can_be_left_out(visit: driver.Visit, address: str) -> None:
    page = visit.page
    visit.open(address)
    assert page.locator(".run").count() == 3 and "75.0%" in page.locator(".run").first.inner_text()
    assert page.locator("figure").count() == 2
    score = page.locator("figure.wide")
    assert score.locator(".legend span").count() == 4
    page.get_by_label("show second").uncheck()
    assert score.locator(".legend span").count() == 2
    page.get_by_label("show second").check()
    page.locator("#axis").select_option("tokens")
    page.locator("#more").select_option("time_elapsed")
    page.locator("figure", has_text="time_elapsed").wait_for()
    box = score.locator("svg").first.bounding_box()
    assert box
    score.locator("svg").first.hover(position={"x": box["width"] - 12, "y": box["height"] / 2})
    assert re.search(r"tokens sampled 400.*0\.75 \[0\.65, 0\.85\]", score.locator(".readout").inner_text(), re.DOTALL)
    visit.shot("view-runs", whole=True)
    page.locator(".run summary").first.click()
    page.locator(".run pre", has_text="made/up-v0").wait_for()


def test_runs_are_a_table_that_sorts_and_curves_are_smoothed_logged_zoomed_and_saved(
    visit: driver.Visit, address: str
) -> None:
    page = visit.page
    visit.open(address)
    page.locator("figure").nth(1).wait_for()
    page.locator("#listed").select_option("table")
    names = page.locator("table.sheet tbody th")
    page.get_by_role("button", name="run", exact=True).click()
    first = names.first.inner_text()
    page.get_by_role("button", name="run", exact=True).click()
    assert page.locator("th[aria-sort=descending]").count() == 1 and names.last.inner_text() == first
    page.locator("#log").check()
    page.locator("#smooth").select_option("5")
    page.locator("#from").fill("2")
    page.locator("#from").press("Enter")
    ticks = page.locator("figure.wide .tick").all_text_contents()
    assert "2" in ticks and "0" not in ticks
    with page.expect_download() as saved:
        page.locator("figure.wide .csv").click()
    head, *lines = saved.value.path().read_text().splitlines()
    assert head.startswith('"iteration","') and lines and all(float(line.split(",")[0]) >= 2 for line in lines)
    if visit.look != "phone":
        chart = page.locator("figure.wide svg").first
        chart.dblclick()
        assert (
            "0" in page.locator("figure.wide .tick").all_text_contents() and page.locator("#from").input_value() == ""
        )
    visit.shot("view-table", whole=True)


def test_seeds_of_a_benchmark_stand_together(visit: driver.Visit, tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path / f"runs/marft · made-up · {seed}")
        write_run(tmp_path / f"runs/grpo · made-up · {seed}")
    with ViewServer(open_sources([str(tmp_path / "runs")])) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        visit.open(server.address)
        rows = visit.page.locator("table.sheet tbody tr")
        rows.first.wait_for()
        assert rows.count() == 2 and visit.page.locator("figure.wide .legend span").count() == 4
        visit.page.locator("#together").uncheck()
        assert rows.count() == 6
        visit.page.goto("about:blank")
        server.shutdown()


def test_a_legend_of_many_seeds_names_each_row_once_in_its_color(visit: driver.Visit, tmp_path: Path) -> None:
    for name in ("marft", "grpo", "rloo", "mappo", "ippo"):
        for seed in range(2):
            write_run(tmp_path / f"runs/{name} · made-up · {seed}")
    with ViewServer(open_sources([str(tmp_path / "runs")])) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        visit.open(server.address)
        visit.page.locator("figure.wide .legend span").first.wait_for()
        shown = visit.page.locator("figure.wide .legend span")
        dots = visit.page.locator("table.sheet tbody th i")
        assert shown.count() == dots.count() == 5 and sorted(shown.all_inner_texts())[0] == "grpo · made-up"
        colors = [sample.get_attribute("stroke") for sample in shown.locator("line").all()]
        assert colors == [dot.evaluate("dot => dot.style.background") for dot in dots.all()]
        visit.page.goto("about:blank")
        server.shutdown()


def test_a_benchmark_begins_with_its_verdict(visit: driver.Visit, tmp_path: Path) -> None:
    bench = write_bench(tmp_path / "bench")
    with ViewServer(open_sources([str(bench.root)])) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        visit.open(server.address)
        first = visit.page.locator("main section > :first-child .verdict")
        first.wait_for()
        assert first.inner_text() == "made-up: ours ahead of reinforce."
        rows = visit.page.locator("table.sheet tbody tr")
        assert rows.count() == 2 and "3\t4\t500\t0.1 min\t25.0%\t75.0%" in rows.first.inner_text(), (
            "equal seeds: no range"
        )
        assert "means of seeds" in visit.page.locator("figcaption").first.inner_text()
        visit.shot("view-bench", whole=True)
        visit.page.goto("about:blank")
        server.shutdown()


def test_an_agent_has_one_color_in_curves_and_episodes(visit: driver.Visit, folder: Path) -> None:
    page = visit.page
    with ViewServer(open_sources([str(folder / "first")])) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        visit.open(server.address)
        figure = page.locator("figure", has=page.locator("b", has_text="loss"))
        figure.wait_for()
        legend = {
            span.inner_text(): span.locator("line").get_attribute("stroke")
            for span in figure.locator(".legend span").all()
        }
        visit.open(f"{server.address}#episodes?file=eval-000004&at=eval-000004:1")
        turns = page.locator(".turn")
        turns.first.wait_for()
        shown = {
            t.locator("b").first.inner_text(): t.evaluate("t => t.style.getPropertyValue('--run')") for t in turns.all()
        }
        assert legend == {name: shown[name] for name in legend} and len(legend) == 2
        assert "first round, first layer" in page.locator(".layer").first.inner_text()
        page.goto("about:blank")
        server.shutdown()


def test_curves_fill_the_window_they_are_in(visit: driver.Visit, address: str) -> None:
    visit.open(address)
    for width in (1500, 700, 360):
        visit.page.set_viewport_size({"width": width, "height": 800})
        visit.page.wait_for_timeout(150)
        visit.shot(f"view-runs-{width}")
        box = visit.page.locator("figure.wide svg").first.bounding_box()
        assert box and 0.8 * width < box["width"] < width


def test_episodes_are_filtered_searched_and_paged(visit: driver.Visit, address: str) -> None:
    page = visit.page
    visit.open(f"{address}#episodes")
    rows = page.locator(".row")
    rows.first.wait_for()
    page.locator("select[name=source]").select_option(label="many.jsonl")
    page.get_by_text("50 of 180 episodes").wait_for()
    page.get_by_role("button", name="more").click()
    page.get_by_text("100 of 180 episodes").wait_for()
    page.locator("select[name=outcome]").select_option("solved")
    page.get_by_text("50 of 60 episodes").wait_for()
    page.locator("select[name=outcome]").select_option("")
    page.locator("input[name=text]").fill("NEEDLE")
    page.get_by_text("1 found; searched 180 of 180 episodes").wait_for()
    assert rows.count() == 1
    visit.shot("view-episodes")
    rows.first.click()
    page.locator(".episode .said", has_text="a needle").first.wait_for()
    page.go_back()
    page.reload()
    page.get_by_text("1 found").wait_for()
    assert page.locator("input[name=text]").input_value() == "NEEDLE", "the address holds the filters"


def test_untrained_and_trained_stand_beside_each_other(visit: driver.Visit, address: str) -> None:
    page = visit.page
    visit.open(f"{address}#episodes?file=eval-000004&at=eval-000004:3")
    page.locator(".episode").wait_for()
    page.locator("select[name=beside]").select_option(label="✗ first · untrained")
    page.locator(".episode").nth(1).wait_for()
    marks = [page.locator(".episode h2").nth(i).inner_text()[0] for i in range(2)]
    assert marks == ["✓", "✗"] and page.get_by_text("other words").count() == 12
    page.locator("select[name=beside]").select_option(label="✓ second · evaluation, iteration 4")
    page.get_by_text("same reply").first.wait_for()
    boxes = [page.locator(".episode").nth(i).bounding_box() for i in range(2)]
    assert boxes[0] and boxes[1]
    assert (boxes[0]["y"] < boxes[1]["y"]) if visit.look == "phone" else (boxes[0]["x"] < boxes[1]["x"])
    assert page.locator(".matrix").count() == 4, "two rounds each"
    assert page.locator(".matrix").first.locator("rect.done").count() == 3
    visit.shot("view-pair", whole=True)


def test_tokens_say_what_is_known_of_them(visit: driver.Visit, address: str) -> None:
    page = visit.page
    visit.open(f"{address}#episodes?file=train&at=train-000002:1")
    token = page.locator(".turn mark").first
    token.wait_for()
    assert token.get_attribute("class") == "up" and page.locator(".turn mark").nth(1).get_attribute("class") == "down"
    token.click()
    told = page.locator(".token").first.inner_text()
    assert "log-prob −0.1" in told and "value +0.1" in told and "advantage +0.5" in told
    page.locator("select[name=tokens]").select_option("logprobs")
    assert page.locator(".turn mark.doubt").count() == 18
    page.locator("select[name=tokens]").select_option("")
    assert page.locator(".turn mark").count() == 0 and page.locator(".said").first.inner_text() == "a_0 says 0"
    visit.shot("view-tokens", whole=True)


def test_the_words_of_models_are_text(visit: driver.Visit, address: str) -> None:
    page = visit.page
    visit.open(f"{address}#episodes?file=eval-000008&at=eval-000008:1")
    said = page.locator(".said").first
    said.wait_for()
    assert "<script>document.title" in said.inner_text() and "⟨202e⟩gnp.exe ⟨d800⟩" in said.inner_text()
    assert page.title() == "MARFT" and page.locator("main img, main script").count() == 0
    if visit.look == "phone":
        page.locator(".back").click()
    assert "is no episode" in page.locator(".row.damaged").inner_text()


def test_the_keyboard_is_enough(visit: driver.Visit, address: str) -> None:
    page = visit.page
    visit.open(f"{address}#episodes?file=eval-000000")
    page.locator(".row").first.wait_for()
    if visit.look == "phone":
        return  # lists and episodes take turns there
    page.keyboard.press("j")
    page.locator(".episode").wait_for()
    first = page.locator(".episode h2").inner_text()
    page.keyboard.press("j")
    page.wait_for_function("before => document.querySelector('.episode h2').innerText !== before", arg=first)
    page.keyboard.press("/")
    page.keyboard.type("looked up 3")
    page.get_by_text("1 found").wait_for()


def test_a_run_that_trains_is_followed(visit: driver.Visit, tmp_path: Path) -> None:
    root = write_run(tmp_path / "live")
    with ViewServer(open_sources([str(root)])) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        visit.open(server.address)
        visit.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        write_lines(root / "metrics.jsonl", [metrics(i) for i in range(9)])
        write_lines(root / "episodes/eval-000008.jsonl", [episode(s, True) for s in range(8)])
        visit.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        visit.page.locator("dt", has_text="iteration 8").wait_for()
        visit.page.locator("nav a", has_text="Episodes").click()
        assert visit.page.locator("select[name=file] option", has_text="evaluation, iteration 8").count() == 1
        visit.page.goto("about:blank")
        server.shutdown()
