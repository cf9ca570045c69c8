"""Complete states of a run, written aside and renamed: whatever ``step_*`` exists is whole.

    step_000100/
      policies/<id>/     adapters in peft's format (whole models when fully fine-tuned)
      state.pt           value heads, optimisers, random states, episodes that wait to be learnt from; loaded with
                         ``weights_only=True``
      state.json         iteration, version, position in metrics.jsonl, best evaluation
      SHA256SUMS         checksums of all these files; every reader compares them (:mod:`marft_envs.artefacts`)

A run samples by stateless seeds (run seed, iteration, episode, turn), so these are the only things that an iteration
hands to the next. The global random states are kept too: tasks or models of users may draw from them.
"""

from __future__ import annotations

import dataclasses
import json
import pickle
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors import SafetensorError

from marft_algos.models import finite_weights
from marft_algos.models.policy import PolicySet
from marft_algos.runs.disk import clear, remove, replacing, writing
from marft_algos.runs.progress import RunProgress
from marft_envs import artefacts
from marft_envs.errors import ConfigError, MarftError, check_known, reading

FORMAT = 1
_TORCH_WRITES = re.compile(r"inline_container|PytorchStreamWriter|iostream|cannot be opened|Parent directory")
"""How torch says that a file could not be written: RuntimeErrors without an errno."""
_STEP = re.compile(r"step_(\d+)")


def step_dir(folder: Path, iteration: int) -> Path:
    """Names the folder of an iteration's checkpoint."""
    return folder / f"step_{iteration:06d}"


def steps(folder: Path) -> list[int]:
    """Iterations that have a checkpoint, ascending."""
    matches = (_STEP.fullmatch(path.name) for path in folder.glob("step_*"))
    return sorted(int(match[1]) for match in matches if match)


def pick(folder: Path, which: str = "last") -> Path:
    """Returns a checkpoint: ``last``, ``best``, or an iteration's number.

    Raises:
        ConfigError: There is none.
    """
    if not (there := steps(folder)):
        raise ConfigError(f"There is no checkpoint in {folder} yet. Start the run again: marft train")
    last = step_dir(folder, there[-1])
    if which == "last":
        return last
    if which == "best":
        best = read_progress(last).best_iteration
        return last if best is None or best not in there else step_dir(folder, best)
    if not which.isdecimal() or int(which) not in there:
        raise ConfigError(f"There is no checkpoint '{which}' in {folder}. Expected last, best or one of {there}.")
    return step_dir(folder, int(which))


def newest_whole(folder: Path) -> tuple[Path, list[str]]:
    """Returns the last checkpoint that is as it was written; those after it, which are damaged, are renamed.

    Returns:
        The checkpoint, and what is wrong with each of the others.

    Raises:
        DamagedError: There is none; nothing is renamed.
    """
    damaged: dict[Path, str] = {}
    for iteration in reversed(steps(folder)):
        path = step_dir(folder, iteration)
        if what := artefacts.damage(path):
            damaged[path] = what
            continue
        for bad in damaged:
            aside = bad.with_name(f"damaged-{bad.name}")
            with writing(aside):
                remove(aside)
                bad.rename(aside)
        return path, [f"{what}; it is called damaged-{bad.name} now" for bad, what in damaged.items()]
    artefacts.check(next(iter(damaged)))
    raise AssertionError("a checkpoint was damaged, and is whole now")


def save(
    folder: Path, progress: RunProgress, policies: PolicySet, names: Sequence[str], state: Mapping[str, Any]
) -> Path:
    """Writes a checkpoint; a crash at any moment leaves the earlier ones as they are.

    Args:
        folder: The run's checkpoints.
        progress: Where the run is.
        policies: Whose weights.
        names: Policy ids to write.
        state: Tensors and plain Python: value heads, optimisers; ``ahead`` are episodes that wait to be learnt from.

    Raises:
        RunError: Full disk, read-only folder.
        NotFiniteError: Weights have blown up.
    """
    target = step_dir(folder, progress.iteration)
    finite_weights.check(_numbers(state), "Value heads or optimisers")
    with replacing(target) as aside, _as_os_errors():
        for name in names:
            policies.save_adapter(name, aside / "policies" / name)
        torch.save({**state, "random": _random_state()}, aside / "state.pt")
        described = {"format": FORMAT, "policies": list(names), **dataclasses.asdict(progress)}
        (aside / "state.json").write_text(json.dumps(described, indent=1) + "\n")
        artefacts.write(aside)
    return target


@contextmanager
def _as_os_errors() -> Iterator[None]:
    """Turns failed writes into the system's errors: torch and safetensors raise errors of their own for them."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(str(error)) from error
    except RuntimeError as error:
        if isinstance(error, MarftError) or not _TORCH_WRITES.search(str(error)):
            raise
        raise OSError(f"torch could not write all of it ({str(error).splitlines()[0]})") from error


def prune(folder: Path, keep: Literal["last", "best", "all"], best: int | None) -> None:
    """Deletes the checkpoints that the setting ``keep`` does not keep."""
    there = steps(folder)
    kept = set(there) if keep == "all" else {*there[-1:], *([best] if keep == "best" else [])}
    with writing(folder):
        for iteration in sorted({*there} - kept):
            remove(step_dir(folder, iteration))
        for leftover in folder.glob(".tmp-*"):
            clear(leftover)


def read_progress(path: Path) -> RunProgress:
    """Reads where the run was.

    Raises:
        ConfigError: Damaged, unreadable, or of another format.
    """
    artefacts.check(path, "state.json")
    with reading(f"The checkpoint {path} cannot be read", "Move it away, or choose another: --checkpoint"):
        described = json.loads((path / "state.json").read_text())
        if described.pop("format") != FORMAT:
            raise ConfigError(f"The checkpoint {path} has another format than this version's ({FORMAT}).")
        described.pop("policies")
        return RunProgress(**described)


def check_policies(path: Path, names: Sequence[str]) -> None:
    """Checks that a checkpoint holds these policies, as they were saved, without loading any.

    Raises:
        ConfigError: It has no such policy, or one is damaged.
    """
    there = sorted(folder.name for folder in (path / "policies").glob("*"))
    check_known(names, there, f"The checkpoint {path} has no policy '{{}}'.")
    if names:
        artefacts.check(path, *(f"policies/{name}" for name in names))


def load_policies(path: Path, policies: PolicySet, names: Sequence[str]) -> None:
    """Reads the weights of these policies, in place.

    Raises:
        ConfigError: As ``check_policies``.
    """
    check_policies(path, names)
    for name in names:
        policies.load_adapter(name, path / "policies" / name)


def load_state(path: Path) -> dict[str, Any]:
    """Reads value heads and optimisers, and sets the global random states.

    Raises:
        ConfigError: The file is damaged, or holds anything but tensors and plain values.
    """
    state = _read_state(path)
    _set_random_state(state.pop("random"))
    return state


def load_values(path: Path) -> dict[str, torch.Tensor]:
    """Reads the value heads alone; empty for an algorithm without.

    Raises:
        ConfigError: As ``load_state``.
    """
    return dict(_read_state(path)["critics"])


def _read_state(path: Path) -> dict[str, Any]:
    artefacts.check(path, "state.pt")
    try:
        state: dict[str, Any] = torch.load(path / "state.pt", map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        why = str(error).partition(".")[0]
        raise ConfigError(
            f"The checkpoint {path} cannot be read: {why}. Its files are damaged, or cut. Move it away, and the same"
            f" command takes the one before; or begin another run with its weights: marft train --start {path}"
        ) from error
    then = f"Go on from an earlier checkpoint, or begin with the weights alone: marft train --start {path}"
    finite_weights.check_read(_numbers(state), f"'{path / 'state.pt'}'", then)
    return state


def _numbers(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what has to be finite."""
    return {key: value for key, value in state.items() if key not in ("ahead", "random")}


def _random_state() -> dict[str, Any]:
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "python": random.getstate(),
        "numpy": (str(name), [int(k) for k in keys], int(position), int(has_gauss), float(gauss)),
    }


def _set_random_state(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
    version, inner, gauss = state["python"]
    random.setstate((version, tuple(inner), gauss))
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))
