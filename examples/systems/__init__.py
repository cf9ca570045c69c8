"""Systems of the literature, one file each; ``run.py`` trains them."""
