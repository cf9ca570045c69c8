"""torch, pandas and extras, imported at their first use, and the check that the packages of training are there.

Modules that an algorithm's page imports take ``torch`` from here, and ``Tensor``, which stands in hints only: importing
torch takes seconds, and ``marft train --help-all`` needs every page's settings.
"""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from marft_envs.errors import MissingExtraError, imported

if TYPE_CHECKING:
    import torch as torch
    from torch import Tensor as Tensor


class _Module(ModuleType):
    """A module's stand-in: the first attribute that is asked for imports it, and all others are there from then on."""

    def __getattr__(self, name: str) -> Any:
        module = importlib.import_module(self.__name__)
        vars(self).update(vars(module))
        return getattr(module, name)


if not TYPE_CHECKING:
    torch = _Module("torch")
    Tensor = Any


EXTRAS = {
    "ray": "marft_algos.extras.cluster.rollouts",
    "tinker": "marft_algos.extras.tinker.remote",
    "vllm": "marft_algos.engines.vllm",
    "vllm of ranks": "marft_algos.extras.cluster.vllm_ranks",
}
"""Kind that a setting names -> its module, as ``config/manual.txt`` has those of commands: nothing else of the promise
leads to extras."""


def extra(kind: str) -> Any:
    """Imports the module of a kind of rollouts or endpoints."""
    return importlib.import_module(EXTRAS[kind])


def check_packages() -> None:
    """Checks that the packages of the train extra are installed, without importing them.

    Raises:
        MissingExtraError: One is not; the message holds the pip command.
    """
    for package in ("torch", "transformers", "peft", "safetensors", "jinja2"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(f"Training (package '{package}')", "train")


def require_training() -> None:
    """Checks for the packages of the train extra, and silences what they say about themselves.

    Raises:
        MissingExtraError: One is not installed.
    """
    check_packages()
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers|peft|torch")


def frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Returns rows as a ``pandas.DataFrame``.

    Raises:
        MissingExtraError: pandas is not installed.
    """
    return imported("pandas", "A DataFrame", "data").DataFrame(rows)
