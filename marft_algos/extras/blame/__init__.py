"""Blame: which turn failed an episode, by replaying it with the turn replaced."""

from marft_algos.extras.blame.commands import blame as blame
