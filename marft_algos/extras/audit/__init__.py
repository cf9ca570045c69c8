"""``marft audit``: the expected update of an algorithm, computed exactly on small games, beside the true gradient."""
