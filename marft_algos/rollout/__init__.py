"""Playing episodes: collecting them, branching off, opponents from the past, and what becomes of broken ones."""

from marft_envs.moved import inside

__getattr__ = inside(__name__, {"Collector": "collector"})
