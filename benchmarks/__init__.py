"""Measurements: every number in ``docs/results.md`` has its command here."""
