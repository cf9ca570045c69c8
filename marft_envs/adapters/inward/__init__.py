"""Environments of others as a ``FlexEnv``: each module imports what it adapts when it is used."""
