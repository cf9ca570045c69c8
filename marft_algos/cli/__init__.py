"""The command line; a command's module is imported when it is used."""

from marft_algos.cli.app import main

__all__ = ["main"]
