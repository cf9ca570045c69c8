"""``marft versus``: does a team beat the best single agent at equal cost of training? Grids and a verdict."""

from marft_algos.extras.bench.versus.trial import Trial

__all__ = ["Trial"]
