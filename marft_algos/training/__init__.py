"""Builds the parts of a run from its settings, and runs the loop that trains."""
