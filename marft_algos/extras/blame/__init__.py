"""Blame: which turn failed an episode, by replaying it with the turn replaced."""
