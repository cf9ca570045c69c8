"""The documentation site: what is made of docstrings, registry, notebooks and packed results while it is built."""
