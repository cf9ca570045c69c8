"""The built-in world of the tool-use family: a depot with customers, orders, stock, shipments and refunds."""

from __future__ import annotations

from marft_envs.families.tools.depot.domain import Depot
from marft_envs.families.tools.depot.injections import demanded
from marft_envs.families.tools.depot.world import DepotWorld, Faults

__all__ = ["Depot", "DepotWorld", "Faults", "demanded"]
