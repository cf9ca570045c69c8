"""Tables of published numbers: what is printed from kept results, and what is said at once where they are not enough."""

from __future__ import annotations

from benchmarks.learning import quickstart


def test_the_quickstart_is_told_by_seed_and_in_the_mean() -> None:
    solved = ("1" * 30 + "0" * 10, "1" * 20 + "0" * 20, "1" * 40)
    costs = {"tokens": 198_000, "cpu_seconds": 61.2}
    runs = [
        {"command": f"marft train --seed {s}", "before": "10" * 20, "after": bits, **costs}
        for s, bits in enumerate(solved)
    ]
    *_, first, second, third, mean = (
        [cell.strip() for cell in x.split("|")] for x in quickstart.page(runs).splitlines()
    )
    assert first[1:3] == ["0", "0.500 [0.352, 0.648]"] and first[4].startswith("+25.0 [")
    assert second[3].startswith("0.500 [") and third[3].startswith("1.000 [")
    assert mean[1] == "mean of 3" and mean[3].startswith("0.750 [") and mean[3].endswith("0.500 to 1.000")
    low, high = (float(x.strip("[],")) for x in mean[4].split()[1:])
    assert low < 0 < 25 < high, "three runs that end at .5, .75 and 1 show no gain"
