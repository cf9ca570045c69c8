"""Plays episodes: collects them, replays branches, keeps past opponents, and settles what was broken off."""
