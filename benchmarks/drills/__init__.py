"""Failures on purpose, on this machine: a small run, something that goes wrong in it, and what came of it."""
