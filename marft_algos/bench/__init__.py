"""``marft bench``: a grid of training runs, equal budgets, and what may be said about them."""
