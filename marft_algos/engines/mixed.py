"""Several engines behind one: each request goes to the engine of its policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from marft_algos.engines.base import EngineBase, RolloutEngine
from marft_algos.types import Generation, GenerationRequest, SamplingParams
from marft_envs.errors import check_known


def by_policy(request: GenerationRequest) -> str:
    """Returns the request's policy."""
    return request.policy


class MixedEngine(EngineBase):
    """Routes requests to engines, which work at the same time.

    Args:
        engines: Name -> engine; one engine may have several names.
        route: Gives the name a request goes to; by default its policy.
    """

    def __init__(
        self, engines: Mapping[str, RolloutEngine], route: Callable[[GenerationRequest], str] = by_policy
    ) -> None:
        self._engines = dict(engines)
        self._route = route

    @property
    def one_by_one(self) -> bool:  # type: ignore[override]
        """Whether all engines answer so."""
        return all(engine.one_by_one for engine in self._distinct())

    def generate(self, requests: Sequence[GenerationRequest], params: SamplingParams) -> list[Generation]:
        """Returns one generation per request, in order.

        Raises:
            ConfigError: A request that no engine is named for.
        """
        rows: dict[int, list[int]] = {}
        engines: dict[int, RolloutEngine] = {}
        for i, request in enumerate(requests):
            engine = self._get(self._route(request))
            engines[id(engine)] = engine
            rows.setdefault(id(engine), []).append(i)
        generations: dict[int, Generation] = {}
        with ThreadPoolExecutor(max(len(rows), 1)) as pool:
            parts = [[requests[i] for i in part] for part in rows.values()]
            replies = pool.map(lambda engine, part: engine.generate(part, params), engines.values(), parts)
            for part, answers in zip(rows.values(), replies, strict=True):
                generations |= zip(part, answers, strict=True)
        return [generations[i] for i in range(len(requests))]

    def needs_adapter(self, policy: str) -> bool:
        """As the policy's engine."""
        return self._get(policy).needs_adapter(policy)

    def publish(self, policy: str, version: int, adapter: Path | None = None) -> None:
        """Publishes to the policy's engine."""
        self._get(policy).publish(policy, version, adapter)

    def sleep(self) -> None:
        """Every engine sleeps."""
        for engine in self._distinct():
            engine.sleep()

    def wake(self) -> None:
        """Every engine wakes."""
        for engine in self._distinct():
            engine.wake()

    def metrics(self) -> dict[str, float]:
        """Returns the numbers of all engines; equal names are added up."""
        totals: dict[str, float] = {}
        for engine in self._distinct():
            for key, number in engine.metrics().items():
                totals[key] = totals.get(key, 0.0) + number
        return totals

    def close(self) -> None:
        """Closes every engine."""
        for engine in self._distinct():
            engine.close()

    def _get(self, name: str) -> RolloutEngine:
        check_known([name], self._engines, "No engine for '{}'.")
        return self._engines[name]

    def _distinct(self) -> list[RolloutEngine]:
        return list({id(engine): engine for engine in self._engines.values()}.values())
