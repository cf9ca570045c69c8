"""Counts where a run is: iterations, what they have cost, and which of its budgets are used up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from marft_algos.config.settings import TrainConfig


@dataclass(slots=True)
class RunProgress:
    """Where a run is."""

    iteration: int = 0
    """Updates done."""
    version: int = 0
    """Of the policies' weights."""
    metrics_bytes: int = 0
    """Size of metrics.jsonl at this point."""
    tokens: int = 0
    """Sampled for training so far, whatever became of them."""
    processed: int = 0
    """Sampled or read for training so far."""
    latency: int = 0
    """On the critical paths of the episodes played so far, in tokens."""
    seconds: float = 0.0
    """Time spent so far, over all sessions."""
    unevaluated: bool = False
    """Infrastructure errors kept the evaluation that was due here from being made."""
    best_iteration: int | None = None
    best_score: float = -float("inf")

    def spend(self, metrics: Mapping[str, Any]) -> None:
        """Adds what an iteration has cost; demonstrations that others wrote have no ``…_played``."""
        self.tokens += int(metrics.get("tokens_played", metrics["tokens"]))
        self.processed += int(metrics.get("tokens_processed", 0))
        self.latency += int(metrics.get("latency_played", 0))

    def reached(self, budgets: TrainConfig) -> int:
        """Counts the budgets that are used up."""
        return sum(spent >= budget for _, spent, budget in self.spent(budgets))

    def done(self, budgets: TrainConfig) -> bool:
        """Whether the iterations, or all budgets that there are, are used up."""
        spent = self.spent(budgets)
        return self.iteration >= budgets.iterations or (bool(spent) and self.reached(budgets) == len(spent))

    def share(self, budgets: TrainConfig) -> float:
        """Returns how much of the run is over, from 0 to 1: of what ends it first, if all goes on at the same pace."""
        used = [min(spent / budget, 1.0) for _, spent, budget in self.spent(budgets)]
        return max(self.iteration / max(budgets.iterations, 1), min(used, default=0.0))

    def spent(self, budgets: TrainConfig) -> list[tuple[str, int, int]]:
        """Lists the budgets that there are: the setting's name, what is spent of it, and what may be."""
        counted = {"token_budget": self.tokens, "processed_budget": self.processed, "latency_budget": self.latency}
        listed = ((name, spent, getattr(budgets, name)) for name, spent in counted.items())
        return [(name, spent, budget) for name, spent, budget in listed if budget is not None]
