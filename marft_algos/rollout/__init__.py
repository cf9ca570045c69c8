"""Plays episodes: collects them, replays branches, keeps past opponents, and settles what was broken off."""

from marft_envs.moved import inside

__getattr__ = inside(__name__, {"Collector": "collector"})
