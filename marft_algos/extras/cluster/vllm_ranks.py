"""vLLM servers of several ranks: one rank publishes to them, and all ask."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from marft_algos.engines.vllm import VLLMEngine
from marft_algos.ranks.group import RankGroup, local_rank


class RanksVLLMEngine(VLLMEngine):
    """Samples policies on vLLM servers that every rank asks.

    Servers at loopback addresses belong to a machine: its first rank publishes to them, through a folder of its own.
    To all others rank 0 publishes, and they must see its folder. All ranks call ``publish``, ``sleep`` and ``wake``
    together.

    Args:
        group: The ranks.
        *given: As of ``VLLMEngine``.
        **settings: As of ``VLLMEngine``.
    """

    def __init__(self, group: RankGroup, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        apart = all(_loopback(server.url) for server in self._servers)
        self._group, self._publisher = group, group.rank - (local_rank() or 0) if apart else 0
        self._tag = group.gather(self._tag)[self._publisher]

    def needs_adapter(self, policy: str) -> bool:
        """Returns whether this rank publishes."""
        return self._publishes

    def publish(self, policy: str, version: int, adapter: Path | None = None) -> None:
        """Publishes on the ranks that do so; the others then see to it that each server has it.

        Raises:
            EngineError, ConfigError: As of ``VLLMEngine``, on all ranks.
        """
        failed: Exception | None = None
        new = self._scored(policy, version, adapter or Path())  # together: ranks may hold shares of the base model
        if self._publishes:
            try:
                self._publish(policy, new)
            except Exception as error:
                failed = error
        published = self._group.gather((new, failed))
        for _, problem in published:
            if problem is not None:
                raise problem
        if not self._publishes:
            self._publish(policy, published[self._publisher][0])

    @property
    def _publishes(self) -> bool:
        return self._group.rank == self._publisher

    def _unload(self, policy: str, version: int) -> None:
        if self._publishes:
            super()._unload(policy, version)

    def _tell(self, path: str) -> None:
        if self._publishes:
            super()._tell(path)
        if self._sleeps:
            self._group.agree(False)  # nobody asks before it is awake


def _loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
