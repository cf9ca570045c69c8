"""The settings of an evaluation of engines: which team plays which problems, and how."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from marft_algos.ranges import COUNT, NOT_NEGATIVE, POSITIVE, SHARE, Settings
from marft_envs.registration import versioned


@dataclass(frozen=True)
class EvalConfig(Settings):
    """What an evaluation of engines is; it is stored in the folder's ``eval.json``, but for what changes no reply."""

    env: str = ""
    """The environment; of a run's team, if it is not to be the one of its training."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the environment, over those of the run."""
    engines: dict[str, Any] | str = ""
    """Agent = who plays it, or one for all: a table as in training, ``{kind="openai", model="…", url="…"}``, or the
    name of a model that is played here; a run's or an export's, for what plays the agent there."""
    models: dict[str, str] | str = ""
    """Base models: of agents that ``engines`` calls native; of an untrained team."""
    episodes: Annotated[int | None, COUNT] = None
    """Problems that are played; none: as many as while training, 500 without a run."""
    samples: Annotated[int, COUNT] = 1
    """With --engines: episodes of each problem; more than one are sampled, and give pass@k."""
    temperature: Annotated[float | None, POSITIVE] = None
    """With --engines: sample at this temperature; none: greedily, or at 1 where there are several samples."""
    max_new_tokens: Annotated[int | None, COUNT] = None
    """With --engines: longest reply; none: as the default of training."""
    seed: Annotated[int, NOT_NEGATIVE] = 0
    """With --engines: of samples."""
    jobs: Annotated[int, COUNT] = 8
    """With --engines: episodes, and requests of one endpoint, at once."""
    price: str = ""
    """With --engines: IN,OUT, the price of a million tokens of prompt and of reply, where a table says none."""
    device: str = ""
    """Another device than while training."""
    out: str = ""
    """Write the trained team's episodes (the untrained team's, with --untrained) to this JSONL file, and with --swap
    those with exchanged messages to ``NAME-exchanged.jsonl`` beside it. With --engines: the evaluation's folder;
    empty: ``evals/ENV-TIME``."""
    max_lost: Annotated[float, SHARE] = 0.1
    """With --engines: largest share of the episodes that outages may take."""
    on_task_error: Literal["worst", "stop"] = "worst"
    """With --engines: what an exception of the task's own code does while it judges a text."""

    def __post_init__(self) -> None:
        """Raises ``ConfigError`` for values outside their ranges."""
        super().__post_init__()
        object.__setattr__(self, "env", self.env and versioned(self.env))

    @property
    def greedy(self) -> bool:
        """Returns whether replies are decoded greedily."""
        return self.temperature is None and self.samples == 1
