"""The registry of credit rules, and what a rule is."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeVar, cast, get_args

from pydantic import TypeAdapter, ValidationError

from marft_algos.credit.branches import Keep, Replayer
from marft_algos.credit.rewards import Rewards
from marft_algos.types import Need, Trajectory
from marft_envs.errors import ConfigError, did_you_mean
from marft_envs.types import AgentSpec

Chain = Literal["team", "agent", "round", "episode"]
"""What an algorithm's returns run over: layers, each agent's own turns, rounds with one joint advantage, or an agent's
whole episode with one score."""
Setting = str | Mapping[str, Any]
"""A rule's name, or a table: ``rule`` and its arguments, ``costs``, ``budgets`` and ``multiplier_lr``."""


class Rule:
    """Base class: one that takes arguments is a dataclass of them.

    Attributes:
        name: What users type; set by ``register``.
        needs: What a run must offer, beside what the algorithm needs.
        chains: Chains along which what it pays means what it says.
        keep: The states that ``replay`` goes on from.
    """

    name: ClassVar[str] = ""
    needs: ClassVar[frozenset[Need]] = frozenset()
    chains: ClassVar[frozenset[Chain]] = frozenset(get_args(Chain))
    keep: ClassVar[Keep] = "nothing"

    def check(self, team: Sequence[AgentSpec]) -> None:
        """Raises ``ConfigError`` if the arguments do not fit the team."""

    def replay(self, trajectories: Sequence[Trajectory], replayer: Replayer, iteration: int) -> list[Trajectory]:
        """Plays what the rule wants to know, at the weights that the episodes were sampled with. Nothing here.

        Returns:
            The episodes, in order, with what branches say in ``replayed``.
        """
        return list(trajectories)

    def prepare(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Looks at all of an iteration's episodes before any of them is paid; returns numbers to log."""
        return {}

    def __call__(self, trajectory: Trajectory) -> Rewards:
        """Who is paid what in this episode."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart; plain Python only."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores ``state_dict``."""


class Plain(Rule):
    """A rule that is a function of one episode."""

    def __init__(self, name: str, pay: Callable[[Trajectory], Rewards]) -> None:
        self.name = name  # type: ignore[misc]
        self._pay = pay

    def __call__(self, trajectory: Trajectory) -> Rewards:
        return self._pay(trajectory)


_RULES: dict[str, Plain | type[Rule]] = {}
_Rule = TypeVar("_Rule", bound=Callable[..., Any])


def register(name: str) -> Callable[[_Rule], _Rule]:
    """Decorator: makes a credit rule known as ``name``.

    A rule is a function from a trajectory to its rewards, or a subclass of ``Rule`` that is a dataclass of arguments.
    """

    def add(rule: _Rule) -> _Rule:
        if name in _RULES:
            raise ConfigError(f"Credit rule '{name}' is registered already; choose another name.")
        if isinstance(rule, type) and issubclass(rule, Rule):
            rule.name = name
            _RULES[name] = rule
        else:
            _RULES[name] = Plain(name, cast(Callable[[Trajectory], Rewards], rule))
        return rule

    return add


def get(setting: Setting) -> Rule:
    """Returns the credit rule of that name, or the one that a table describes.

    Raises:
        ConfigError: No such rule, or an argument that it does not take.
    """
    from marft_algos.credit.costs import Priced

    table = {"rule": setting} if isinstance(setting, str) else dict(setting)
    name = str(table.pop("rule", "broadcast"))
    if name not in _RULES:
        raise ConfigError(f"There is no credit rule '{name}'. {did_you_mean(name, _RULES)}")
    prices = {f.name: table.pop(f.name) for f in dataclasses.fields(Priced) if f.init and f.name in table}
    made = _RULES[name]
    rule = _build(made, table, f"credit rule '{name}'") if isinstance(made, type) else made
    if table and rule is made:
        raise ConfigError(f"Credit rule '{name}' takes no arguments; got {', '.join(table)}.")
    if not prices:
        return rule
    priced = _build(Priced, prices, "credit")
    priced.rule = rule
    return priced


def rules() -> list[str]:
    """Names of the registered credit rules."""
    return sorted(_RULES)


_Made = TypeVar("_Made", bound=Rule)


def _build(kind: type[_Made], table: Mapping[str, Any], what: str) -> _Made:
    """An instance of a rule's class, its arguments checked."""
    hints = typing.get_type_hints(kind)
    known: list[str] = [f.name for f in dataclasses.fields(kind) if f.init] if dataclasses.is_dataclass(kind) else []
    values = {}
    for key, value in table.items():
        if key not in known:
            raise ConfigError(f"The {what} takes no '{key}'. {did_you_mean(key, known)}")
        try:
            values[key] = TypeAdapter(hints[key]).validate_python(value)
        except ValidationError as error:
            raise ConfigError(f"The {what} cannot have {key} = {value!r}: {error.errors()[0]['msg']}.") from error
    try:
        return kind(**values)
    except ConfigError as error:
        raise ConfigError(f"In the {what}: {error}") from error
