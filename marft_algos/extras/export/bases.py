"""What exported adapters stand on: a model that others can get from the hub, or a copy of it beside them."""

from __future__ import annotations

import json
import shutil
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import ModelCard, try_to_load_from_cache
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerFast

from marft_algos.models import EMBEDDED, gguf
from marft_algos.models.chat import Chat
from marft_algos.models.loading import ModelSettings, generation, load_chat, locate
from marft_algos.types import STRAIGHT
from marft_envs.errors import ConfigError

_MODEL_FILES = ("*.json", "*.jinja", "*.model", "*.txt", "LICENSE*")
_WEIGHTS = ("*.safetensors", "*.bin")
_PROBE = f"{string.printable.strip()} 12 + 345 = 357, naïve — \\boxed{{7}}\n\n  Élan 数学 🙂"
"""Text that tokenizers of different pipelines split differently."""


@dataclass(frozen=True, slots=True)
class ExportBase:
    """A base model, seen by those who load an export."""

    spec: str
    """As the run names it."""
    location: str
    """Where it lies here: a folder, or a hub id."""
    chat: Chat
    """How it is spoken to."""
    folder: str = ""
    """Name of the folder that holds its copy, in the export; empty: it is on the hub."""
    origin: str = ""
    """Hub id of the model itself, or of the one that it was made of; empty: unknown."""
    license: str = ""
    """As hubs write it; empty: unknown."""
    unbent: Mapping[str, float] = field(default_factory=dict)
    """Settings by which its publisher bends what it samples -> where they do not. Servers bend adapters, too."""
    quantised: bool = False
    """Whether its stored weights are of fewer bits, so that nothing can be added to them."""

    def reference(self, prefix: str = "") -> str:
        """Names it for loaders: a hub id; with no ``prefix`` of pushed folders, the copy seen from an adapter's."""
        if not self.folder:
            return self.location
        return f"{prefix}-{self.folder}" if prefix else f"../{self.folder}"


def find(specs: Iterable[str], settings: ModelSettings | None = None) -> dict[str, ExportBase]:
    """Looks up base models: tokenizer, template and what is known of them, without their weights.

    Args:
        specs: As runs name them; those that no hub has are given the name of a folder for their copy.
        settings: How the run spoke to them: its chat template, with thoughts or without.

    Raises:
        ConfigError: One is not there.
    """
    found: dict[str, ExportBase] = {}
    copies = 0
    for spec in dict.fromkeys(specs):
        location, chat = locate(spec), load_chat(spec, settings)
        local = Path(location).is_dir()
        copies += local
        folder = ("base" if copies == 1 else f"base-{copies}") if local else ""
        origin, license_name = _known(spec, location, local)
        described = AutoConfig.from_pretrained(location, trust_remote_code=False)
        quantised = getattr(described, "quantization_config", None) is not None
        bent, straight = generation(location, described).to_diff_dict(), {"temperature": 1.0, **STRAIGHT}
        unbent = {name: value for name, value in straight.items() if bent.get(name) not in (None, value)}
        found[spec] = ExportBase(spec, location, chat, folder, origin, license_name, unbent, quantised)
    return found


def copy(base: ExportBase, folder: Path) -> None:
    """Copies a model's files: configuration, weights, tokenizer and template, and nothing else that lies beside them.

    Raises:
        ConfigError: There are no weights.
    """
    source = Path(base.location)
    weights = next((files for files in (sorted(source.glob(pattern)) for pattern in _WEIGHTS) if files), None)
    if weights is None:
        raise ConfigError(f"The model in '{source}' has no weights ({', '.join(_WEIGHTS)}), so none can be exported.")
    folder.mkdir(parents=True)
    for file in (*weights, *(file for pattern in _MODEL_FILES for file in sorted(source.glob(pattern)))):
        shutil.copyfile(file, folder / file.name)
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model")):
        base.chat.tokenizer.save_pretrained(folder)


def tokenizer_class(folder: Path, chat: Chat) -> str:
    """Returns the class of transformers that reads the folder's tokenizer as it was trained with.

    ``AutoTokenizer`` replaces custom pipelines of some families by the family's own, which splits text differently.

    Raises:
        ConfigError: No class reads it.
    """
    expected = chat.tokenizer(_PROBE)["input_ids"]
    readers: dict[str, Any] = {"AutoTokenizer": AutoTokenizer, "PreTrainedTokenizerFast": PreTrainedTokenizerFast}
    for name, reader in readers.items():
        if reader.from_pretrained(folder)(_PROBE)["input_ids"] == expected:
            return name
    raise ConfigError(
        f"The tokenizer of '{chat.spec}' is another one when it is read back from {folder}. Expected a fast tokenizer"
        " (tokenizer.json) that transformers saves whole."
    )


def _known(spec: str, location: str, local: bool) -> tuple[str, str]:
    """Returns origin and license, as far as they are known without the network."""
    if spec in gguf.PACKAGED:
        return gguf.PACKAGED[spec].origin, gguf.PACKAGED[spec].license
    if spec in EMBEDDED:
        return "", "mit"
    card = Path(location) / "README.md" if local else try_to_load_from_cache(location, "README.md")
    return ("" if local else location), _license(card)


def _license(card: Any) -> str:
    """Reads the license in a model card's front matter; empty without one."""
    if not isinstance(card, str | Path) or not Path(card).is_file():
        return ""
    try:
        named = ModelCard.load(card, ignore_metadata_errors=True).data.license
    except (ValueError, TypeError, yaml.YAMLError):
        return ""  # a card of others, which may hold anything
    return named if isinstance(named, str) else ""


def name_base(source: Path, target: Path, reference: str, **changes: Any) -> None:
    """Writes an adapter's settings with its base model named as others find it.

    Args:
        source: Its ``adapter_config.json``.
        target: Where to; may be the same file.
        reference: The base model.
        **changes: Of other settings.
    """
    table = json.loads(source.read_text(encoding="utf-8"))
    table |= {"base_model_name_or_path": reference, "revision": None, **changes}
    target.write_text(json.dumps(table, indent=2, sort_keys=True) + "\n", encoding="utf-8")
