"""Playing episodes: collecting them, branching off, opponents from the past, and what becomes of broken ones."""
