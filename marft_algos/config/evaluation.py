"""The settings of an evaluation: which team plays which problems, and how; and all options of ``marft eval``."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import tyro

from marft_algos.config import values
from marft_algos.ranges import COUNT, NOT_NEGATIVE, POSITIVE, SHARE, Settings, hints
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
    name of a model that is played here; a run's or an export's, for what plays the agent there. With RUN: the vLLM
    servers that play its own adapters."""
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
    chat_template: str | dict[str, str] = ""
    """With --engines: file of a Jinja chat template of models here, or AGENT = FILE; empty: as in their runs, or
    their own."""
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
    those with shuffled messages to ``NAME-shuffled.jsonl`` beside it. With --engines: the evaluation's folder;
    empty: ``evals/ENV-TIME``."""
    max_error_rate: Annotated[float, SHARE] = 0.1
    """With --engines: largest share of the episodes that may be lost to infrastructure errors."""
    on_task_error: Literal["worst", "stop"] = "worst"
    """With --engines: what an exception of the task's own code does while it judges a text."""

    def __post_init__(self) -> None:
        """Raises ``ConfigError`` for values outside their ranges."""
        super().__post_init__()
        object.__setattr__(self, "env", self.env and versioned(self.env))
        object.__setattr__(self, "chat_template", values.templates(self.chat_template))

    @property
    def greedy(self) -> bool:
        """Returns whether replies are decoded greedily."""
        return self.temperature is None and self.samples == 1


@dataclass(frozen=True)
class EvalArguments(EvalConfig):
    """Scores a trained team against the untrained one, on the same problems: held-out ones where there is a split.

    Without RUN, scores an untrained team: marft eval --untrained --env math-solo-v0. With --compare RUN_A RUN_B, scores
    B against A, agent by agent; so it does of two folders that --engines wrote, task by task. With --margin, that is a
    gate. With --engines, plays any team of hosted and local models in parallel, without a run; such an
    evaluation that was stopped goes on by the same command.
    """

    run: Annotated[str, tyro.conf.Positional] = ""
    """Folder or name of the run; or a team on the Hugging Face hub, USER/NAME or USER/NAME@REVISION."""
    checkpoint: str = "last"
    """``last``, ``best`` or an iteration's number."""
    untrained: bool = False
    """Only the untrained team."""
    data: str = ""
    """Math problems from a JSONL file, or a named data set."""
    sampled: bool = False
    """Sample instead of decoding greedily."""
    one_by_one: bool = False
    """Play one episode after the other, as a single user waits for them, and print the seconds that each took."""
    swap: str = ""
    """Also shuffle this agent's messages between problems: the fall in score is what they are worth."""
    compare: Annotated[tuple[str, ...], tyro.conf.arg(metavar="RUN_A RUN_B")] = ()
    """Two runs of one team, A and B; or teams on the hub, USER/NAME; or two folders that --engines wrote."""
    cross: Annotated[tuple[str, ...], tyro.conf.arg(metavar="RUN RUN …")] = ()
    """Runs of one environment: each one's agents with every other's, on the same problems (docs/evaluation.md)."""
    seats: Annotated[tuple[str, ...], tyro.conf.arg(metavar="AGENT …")] = ()
    """With --cross: agents or roles that a row's run plays, the column's plays the others; none: the first agent."""
    scenarios: str = ""
    """With --compare of runs: file of the frozen scenarios; written from A's held-out evaluation set if there is none
    yet."""
    cohort: str = ""
    """With --compare of folders: also by ``kind`` of task, or by this column of the rows of their --data."""
    margin: Annotated[float | None, NOT_NEGATIVE] = None
    """With --compare: a gate. The exit code is 0 if B's score is shown to be less than so many percentage points worse,
    3 if it is shown to be worse, 4 if neither is (docs/evaluation.md)."""
    gate: dict[str, str] = field(default_factory=dict)
    """With --compare: the same of another metric = its margin, with the sign of what is worse: accuracy=-0.02,
    cost=+0.001, seconds/p95=+2."""
    plan: bool = False
    """With --compare A --margin POINTS: what such a gate can show with A's tasks, before B has played them."""
    json: bool = False
    """With --compare: print JSON instead of text."""
    junit: str = ""
    """With --compare: write what was judged to this file, as a CI server reads it."""

    def of_engines(self) -> EvalConfig:
        """Returns the settings of an evaluation of engines, its folder named."""
        data = {"data": self.data} if self.data else {}
        kwargs = {key: value for key, value in {**data, **self.env_kwargs}.items() if value is not None}
        place = f"evals/{re.sub('[/:]', '-', self.env)}-{time.strftime('%Y%m%d-%H%M%S')}"
        settings = {name: getattr(self, name) for name in hints(EvalConfig)}
        settings |= {"env_kwargs": kwargs, "out": self.out or place}
        settings["temperature"] = self.temperature or (1.0 if self.sampled else None)
        return EvalConfig(**settings)

    def served(self) -> dict[str, Any]:
        """Returns the vLLM servers of ``engines``, which can play a run's own adapters; empty if it names others."""
        engines = self.engines if isinstance(self.engines, dict) else {}
        tables = [engines] if "kind" in engines else engines.values()
        return engines if all(isinstance(each, dict) and each.get("kind") == "vllm" for each in tables) else {}

    def given(self) -> set[str]:
        """Returns the names of the options that are not as they are without being typed."""
        plain = EvalArguments()
        return {name for name, value in vars(self).items() if value != getattr(plain, name)}


ENGINES_ONLY = (
    *("samples", "jobs", "price", "temperature", "max_new_tokens", "chat_template", "seed"),
    *("max_error_rate", "on_task_error"),
)
"""Options of ``--engines``."""
COMPARE_ONLY = ("cohort", "margin", "gate", "plan", "json", "junit")
"""Options of ``--compare``."""
