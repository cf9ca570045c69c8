"""What judges, shows and ships runs: benchmarks, viewer, export, doctor, templates of new files."""
