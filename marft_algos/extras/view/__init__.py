"""``marft view``: a local page that follows runs, and on which episodes are read and compared."""
