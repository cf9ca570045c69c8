"""A verifiers environment: the dual math team. Its id is this module's name.

``vf.resolve_env_config({"taskset": {"id": "verifiers_team"}})`` finds it where this folder is on the path.
"""

from __future__ import annotations

from marft_envs.adapters.outward.verifiers import plugin

Tasks, Seat, Team = plugin("math-dual-v0", levels=[0])
__all__ = ["Seat", "Tasks", "Team"]
