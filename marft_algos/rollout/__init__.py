"""Plays episodes: collects them, replays branches, keeps past opponents, and settles those that errors ended."""
