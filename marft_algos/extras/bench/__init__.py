"""``marft bench``: a grid of training runs, equal budgets, and what may be said about them."""

from marft_algos.extras.bench.folder import BenchFolder
from marft_algos.extras.bench.grid import AlgorithmEntry, EnvEntry, Grid, Sweep, load

__all__ = ["AlgorithmEntry", "BenchFolder", "EnvEntry", "Grid", "Sweep", "load"]
