"""From trajectories to new weights."""
