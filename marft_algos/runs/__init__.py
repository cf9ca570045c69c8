"""What a run leaves on disk, and what is shown of it."""
