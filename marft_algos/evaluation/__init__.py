"""``marft eval``: scores teams on held-out problems, trained or not, here or hosted."""
