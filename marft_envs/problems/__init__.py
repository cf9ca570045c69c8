"""What problems are made of: sets and splits, generators, dice, and rows of files and of the hub."""
