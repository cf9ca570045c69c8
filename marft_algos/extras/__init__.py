"""Extras: what shows, compares and ships runs (benchmarks, viewer, export, server, doctor, templates of new files)."""
