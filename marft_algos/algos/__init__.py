"""One algorithm a file; see ``marft_algos.algorithm``."""
