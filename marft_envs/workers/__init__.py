"""Pools of killable processes, and work on text that nobody has vouched for."""
