"""From settings to the parts of a run, and the loop that trains."""
