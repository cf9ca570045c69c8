"""The registry of credit rules, and what a rule is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeVar, cast, get_args

from marft_algos.credit.branches import Keep, Replayer
from marft_algos.credit.rewards import Rewards
from marft_algos.types import Need, Trajectory
from marft_envs.errors import ConfigError
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


registered: dict[str, Plain | type[Rule]] = {}
"""Name -> rule."""
_Rule = TypeVar("_Rule", bound=Callable[..., Any])


def register(name: str) -> Callable[[_Rule], _Rule]:
    """Decorator: makes a credit rule known as ``name``.

    A rule is a function from a trajectory to its rewards, or a subclass of ``Rule`` that is a dataclass of arguments.
    """

    def add(rule: _Rule) -> _Rule:
        if name in registered:
            raise ConfigError(f"Credit rule '{name}' is registered already; choose another name.")
        if isinstance(rule, type) and issubclass(rule, Rule):
            rule.name = name
            registered[name] = rule
        else:
            registered[name] = Plain(name, cast(Callable[[Trajectory], Rewards], rule))
        return rule

    return add


def rules() -> list[str]:
    """Names of the registered credit rules."""
    return sorted(registered)
