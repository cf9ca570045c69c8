"""τ²-bench without its package: views of a table, and what is said where the package is missing.

On the package itself: ``test_tau2_real.py``.
"""

from __future__ import annotations

import copy
import importlib.util
import pickle
import random
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from marft_envs.errors import ConfigError, MissingExtraError
from marft_envs.families.tools import make
from marft_envs.families.tools.tau2 import data
from marft_envs.families.tools.tau2.data import PACKAGE, NumberedIds, SharedTable, Table


class Line(BaseModel):
    name: str
    price: float


class Order(BaseModel):
    status: str
    lines: list[Line]


def orders() -> dict[str, Order]:
    return {f"#{i}": Order(status="pending", lines=[Line(name=f"cup {i}", price=i)]) for i in range(20)}


BASE = SharedTable(orders(), ("shop", None, "orders"))


def found(*place: Any) -> SharedTable:
    return BASE


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch) -> SharedTable:
    monkeypatch.setattr(data, "_records", found)
    return BASE


def dumped(table: Any) -> dict[str, Any]:
    return {key: record.model_dump() for key, record in table.items()}


def step(table: Any, rng: random.Random) -> Any:
    """What tools do: look a record up, change it or a part of it, add one, go through all."""
    key, kind = f"#{rng.randrange(25)}", rng.choice(["read", "write", "part", "add", "scan", "has"])
    if kind == "add":
        table[key] = Order(status=f"new {rng.random()}", lines=[])
        return len(table)
    if kind == "scan":
        return [(name, order.status) for name, order in table.items()], list(table), [o.status for o in table.values()]
    if kind == "has" or key not in table:
        return key in table, table.get(key) is None
    order = table[key]
    if kind == "write":
        order.status = f"{rng.random()}"
    elif kind == "part" and order.lines:
        order.lines[0].price += 1
        order.lines.append(Line(name="lid", price=0.5))
    return order.model_dump()


@pytest.mark.parametrize("seed", range(20))
def test_a_view_behaves_as_a_deep_copy(base: SharedTable, seed: int) -> None:
    """Through writes, snapshots and forks; and the records that are shared stay as they were."""
    table: Any = Table(base)
    plain: Any = copy.deepcopy(base.records)
    saved = [(pickle.dumps(table), copy.deepcopy(plain))]
    mine, theirs = random.Random(seed), random.Random(seed)
    for number in range(120):
        assert step(table, mine) == step(plain, theirs), number
        if number % 17 == 0:
            saved.append((pickle.dumps(table), copy.deepcopy(plain)))
        if number % 29 == 0:
            view, plain = saved[number % len(saved)]
            table, plain = pickle.loads(view), copy.deepcopy(plain)
        assert dumped(table) == dumped(plain)
    assert dumped(base.records) == dumped(orders())


def test_only_what_was_asked_for_is_copied(base: SharedTable) -> None:
    table = Table(base)
    assert len(table) == 20 and "#3" in table and len(list(table.values())) == 20 and not table.touched
    assert table["#3"] is table["#3"] is not base.records["#3"] and list(table.touched) == ["#3"]
    assert len(pickle.dumps(table)) < 500 and table.get("#99") is None
    with pytest.raises(KeyError):
        table["#99"]
    for take in (lambda: table.pop("#3"), lambda: table.clear(), lambda: table.__delitem__("#3")):
        with pytest.raises(TypeError, match="cannot be taken out"):
            take()


def test_ids_that_upstream_draws_follow_from_the_call() -> None:
    ids = NumberedIds()
    first = ids.uuid4()
    ids.call = 1
    second = ids.uuid4()
    ids.call = 0
    assert first == ids.uuid4() != second


def test_a_missing_package_is_an_error_with_the_pip_command(tmp_path: Path) -> None:
    with pytest.raises(MissingExtraError, match=f"no tau2 in.*{re.escape(PACKAGE.install)}"):
        make("solo", "tau2/airline", domain_args={"package": str(tmp_path)})
    if importlib.util.find_spec("tau2") is None:
        with pytest.raises(MissingExtraError, match=f"not installed.*{re.escape(PACKAGE.install)}"):
            make("dual_control", "tau2/telecom")


def test_a_domain_that_there_is_not_is_named_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"no tool domain 'tau2/airlines'\. Did you mean 'tau2/airline'"):
        make("solo", "tau2/airlines")
    with pytest.raises(ConfigError, match="takes no 'path' in domain_args"):
        make("solo", "tau2/retail", domain_args={"path": "x"})
