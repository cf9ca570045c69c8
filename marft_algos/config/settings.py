"""The settings of a run: one frozen dataclass, with a reason for every default, and TOML on disk.

An algorithm's own settings are the nested ``algorithm`` (a ``Config`` of the class that ``algo`` names). Presets
change these defaults for a purpose; see ``presets.py``.
"""

from __future__ import annotations

import dataclasses
import datetime
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import marft_envs
from marft_algos.config import elsewhere, endpoints, presets, trust, values
from marft_algos.models import DATE
from marft_algos.ranges import COUNT, NOT_NEGATIVE, POSITIVE, SEED, SHARE, Settings, checked, defaults, given, hints
from marft_envs.errors import ConfigError
from marft_envs.problems import rows

if TYPE_CHECKING:
    from marft_algos.algorithms.settings import UpdateConfig

SECTIONS = {
    "preset": "task",
    "models": "model",
    "max_new_tokens": "training",
    "eval_every": "evaluation",
    "save_every": "record",
    "threads": "machine",
}
"""First setting of each section of ``marft train --help-all`` -> its title; a section ends where the next begins."""
_HELP = "All: marft train --help-all"


@dataclass(frozen=True)
class TrainConfig(Settings):
    """What a run is. Everything here is written to the run's ``config.toml``, from which it can be repeated."""

    preset: str = "default"
    """Where values that are not given come from (in a run's config.toml it is a record and changes nothing)."""
    algo: str = "marft"
    """The algorithm: a name, or ``module:Class``."""
    env: str = "math-dual-v0"
    """The environment's id, or ``module:id``. math-dual-v0 is the task of the paper's section 5."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the environment (``marft envs ID`` lists them)."""
    models: str | dict[str, str] = "embedded"
    """One model for all policies, or one per policy: ``embedded`` (ships with the package, works offline), a folder,
    or a hub id."""
    policies: str | dict[str, str] = "own"
    """Who plays with which policy: ``own`` (one each, the paper), ``shared`` (one for all), or agent = policy."""
    frozen: tuple[str, ...] = ()
    """Policies that play but are not trained."""
    pool: Annotated[int, NOT_NEGATIVE] = 0
    """Self-play: so many past states of the policies are kept, and play all seats but one in some training episodes."""
    pool_every: Annotated[int, COUNT] = 10
    """Iterations between two states that enter the pool; the oldest leaves. At the start all are the untrained team."""
    pool_share: Annotated[float, SHARE] = 0.5
    """Share of training episodes against the pool; in the others everybody plays as they are. A half: the pool keeps
    play from going in circles, and present play keeps it moving."""
    adapters: dict[str, str] = field(default_factory=dict)
    """Policy = folder of a saved policy to start from, e.g. ``runs/NAME/checkpoints/step_000100/policies/actor_0``, or
    an adapter on the Hugging Face hub, ``USER/NAME-actor_0``."""
    start: str = ""
    """Run whose weights this one begins with: ``runs/NAME`` (its last checkpoint), ``runs/NAME/best``, or
    ``runs/NAME/checkpoints/step_000100``; or a team on the Hugging Face hub, ``USER/NAME`` or ``USER/NAME@REVISION``.
    Team, models, adapters' shape and task are that run's unless they are given.
    """
    warm_start: Annotated[int, NOT_NEGATIVE] = 0
    """Iterations of ``sft`` on the task's own expert that the team begins with, unless ``start`` says where: a run of
    its own, ``NAME-warm``, with the defaults of ``sft``."""
    warm_episodes: Annotated[int | None, COUNT] = None
    """Demonstrations in an iteration of the warm start; None: ``episodes_per_iteration``. Set it where runs with other
    batches are compared, so that all begin with the same weights."""
    start_values: bool = False
    """Begin with that run's value heads, too. Off: they have learnt another algorithm's returns, or nothing (sft)."""
    engines: dict[str, Any] = field(default_factory=dict)
    """Policy = where its replies come from, if not from here: ``{kind="vllm", url="…"}``, or, of a hosted model that is
    not trained, ``{kind="openai", model="…"}``; see docs/engines.md."""
    adapter_dir: str = ""
    """Folder, seen by the vLLM servers too, through which they get adapters; empty: a temporary one of this machine."""
    tinker: str | dict[str, Any] = ""
    """Address of a server that has the policies' weights, trains them and samples from them, by the Tinker protocol, or
    a table (docs/tinker.md). Policies that are frozen or in ``engines`` (``POLICY=native``) stay. Empty: none."""
    full_finetune: bool = False
    """Train all weights instead of a LoRA adapter. Off, as in the paper: adapters let all policies share one base."""
    quantize: Literal["none", "nf4"] = "none"
    """Base weights of linear layers: as they are, or in 4 bits (nf4; needs the quant extra). A quarter of the memory,
    and slower: for models that would not fit otherwise."""
    gradient_checkpointing: bool = False
    """Keep the layers' inputs only, and compute the rest of a layer again on the way back: a fraction of the memory of
    an update, for one more forward pass."""
    thinking: bool = False
    """Let models think aloud first, if their chat template can (Qwen3). Off: thoughts spend the reply's tokens."""
    template_tools: bool = False
    """Show agents their tools in the chat template's own form; environments then need not (show_tools=none)."""
    date: str = DATE
    """The day, YYYY-MM-DD, for chat templates that write one: prompts do not depend on when a run is evaluated."""
    chat_template: str | dict[str, str] = ""
    """File of a Jinja chat template, kept in the run; or POLICY = FILE, of one of several. Empty: the model's own."""
    lora_r: Annotated[int, COUNT] = 8
    """Rank of the adapters; 8 as in the released launch script."""
    lora_alpha: Annotated[int, COUNT] = 16
    """Scale of the adapters, alpha / r; 16 as in the released launch script."""
    lora_targets: str | tuple[str, ...] = "all-linear"
    """Layers with an adapter. All linear ones: at the same rank they learn faster than the released code's q and v."""
    critic_hidden: Annotated[tuple[int, ...], COUNT] = (64,)
    """Hidden sizes of the value heads. 64: the paper's tables 3 to 5."""
    device: str = "auto"
    """``auto`` (a GPU if there is one), ``cpu``, ``cuda`` or ``cuda:N``."""
    dtype: Literal["auto", "fp32", "bf16"] = "auto"
    """Arithmetic of the forward passes: ``auto`` is bf16 on a GPU, fp32 on a CPU. Trained weights stay fp32."""
    head_dtype: Literal["auto", "fp32"] = "auto"
    """Arithmetic of the output head: as ``dtype``, or fp32. Logits rounded to bf16 are a third or so of what sampler
    and learner differ by (docs/models.md); a head in fp32 takes 4 bytes a weight, and a slower product."""
    max_new_tokens: Annotated[int, COUNT] = 512
    """Longest reply; 512 as in the paper."""
    show_budget: bool = False
    """Every profile says how long a reply may be (the environment's ``reply_tokens``)."""
    context: Annotated[int | None, COUNT] = None
    """Most tokens of prompt and reply together, if fewer than the model can take. The paper: 2048."""
    temperature: Annotated[float, POSITIVE] = 1.0
    """Of sampling while training; 1: the model's own distribution, which is also what is scored."""
    iterations: Annotated[int, NOT_NEGATIVE] = 200
    """Collect-and-update cycles, at most."""
    token_budget: Annotated[int | None, COUNT] = None
    """Ends the run after the iteration in which so many tokens have been sampled for training, dropped groups and
    branches included; none: only ``iterations`` ends it. Equal budgets are what ``marft bench`` compares."""
    processed_budget: Annotated[int | None, COUNT] = None
    """The same, of tokens that are sampled or read: prompts count as often as they are read. Of several budgets each
    is evaluated as it is reached, and the run ends when all are."""
    latency_budget: Annotated[int | None, COUNT] = None
    """The same, of tokens on the critical path: the longest reply of each layer, summed over layers and episodes."""
    episodes_per_iteration: Annotated[int, COUNT] = 64
    """Episodes per cycle. 64: enough rows for whitened advantages and to keep one GPU's decoder busy."""
    staleness: Annotated[int, NOT_NEGATIVE] = 0
    """Updates that may lie between the weights that play an episode and those that learn from it: so many iterations
    are played ahead (docs/concepts/staleness.md). 0: none; 1 costs little of the learning, more than 2 too much."""
    curriculum: Literal["uniform", "learnability"] = "uniform"
    """How training starts are drawn: all alike, or by p(1 − p), p their kind's success rate in the run so far, so that
    those that always fail, or never do, are rare (docs/training.md)."""
    num_envs: Annotated[int | None, COUNT] = None
    """Episodes in flight; none: all of an iteration, the largest batches."""
    engine_batch: Annotated[int, COUNT] = 256
    """Most rows decoded together; this changes nothing but memory and speed."""
    cache_gb: Annotated[float, NOT_NEGATIVE] = 4.0
    """GB kept of keys and values, from which agents' next prompts are read on. 4: 64 episodes of 1,700 tokens on 3B."""
    decode_graph: bool = True
    """Repeat steps of decoding as a CUDA graph, nine times as fast for 3B on an H200 (docs/performance.md)."""
    seed: Annotated[int, SEED] = 0
    """Fixes problems, samples, minibatches and initial weights, whatever the number of environments."""
    eval_every: Annotated[int, NOT_NEGATIVE] = 20
    """Iterations between evaluations on the held-out evaluation set (one before and one after training in any case)."""
    eval_episodes: Annotated[int, COUNT] = 500
    """Held-out problems per evaluation. 500: a 95 % interval of about ± 4 points at worst."""
    eval_kwargs: dict[str, Any] = field(default_factory=dict)
    """Environment arguments that differ at evaluation, e.g. ``data=PATH``. ``split=test`` is set where there is one."""
    eval_greedy: bool = True
    """Evaluate greedily; off: sampled at ``temperature``."""
    save_every: Annotated[int, NOT_NEGATIVE] = 20
    """Iterations between checkpoints (each evaluation and the end also write one)."""
    keep: Literal["last", "best", "all"] = "best"
    """Which checkpoints stay: the last, also the best evaluated, or all."""
    record_episodes: Annotated[int, NOT_NEGATIVE] = 16
    """Training episodes written per recorded iteration, with values and advantages; 0: none. Evaluations are whole."""
    record_every: Annotated[int, NOT_NEGATIVE] = 20
    """Iterations between recorded training episodes."""
    credit_diagnostics: Annotated[int, NOT_NEGATIVE] = 0
    """Training episodes per recorded iteration whose turns are replayed to judge the credit that they were given
    (docs/credit.md); costly, and the replays' tokens count. 0: none."""
    loggers: tuple[Literal["tensorboard", "trackio", "wandb", "mlflow"], ...] = ()
    """Trackers that get what metrics.jsonl gets, which is always written: in the run's folder, and nowhere else unless
    the tracker's own environment variable says so (docs/training.md)."""
    threads: Annotated[int, COUNT] = 1
    """CPU threads of torch. 1: small models lose time with more, and 16 to 55 fold beside another busy process."""
    reduction_slots: Annotated[int, NOT_NEGATIVE] = 0
    """Slots of an update's sums, which fix their order, a power of two: on as many ranks or fewer, equal to the bit. 0:
    one slot on one rank, else 8, or as many as there are ranks; fixed when a run starts (docs/scale.md)."""
    chunk: Annotated[int, NOT_NEGATIVE] = 0
    """Episodes that are played together, and batched with nothing else; rounded up to whole groups. 0: all of them
    in one slot, else 8, on GPUs a slot's or worker's share up to ``engine_batch`` (docs/scale.md)."""
    rollouts: Literal["here", "ray"] = "here"
    """Who plays: the ranks themselves, or workers on a Ray cluster (docs/scale.md)."""
    workers: Annotated[int, NOT_NEGATIVE] = 0
    """Ray workers. 0: as many as there are GPUs that no rank has, or without GPUs as many as there are free cores."""
    max_workers: Annotated[int, NOT_NEGATIVE] = 0
    """Ray workers at most: the run begins with ``workers`` (1 at least), and asks the cluster for more up to this many,
    which join when its autoscaler or you have added nodes. 0: as many as ``workers``, and they have to fit now."""
    worker_gpus: Annotated[float, NOT_NEGATIVE] = 1.0
    """GPUs of a worker, where the run is on GPUs; a part of one is shared with other workers."""
    worker_vllm: str = ""
    """Folder of a virtual environment that has vLLM, the same on every node: each worker starts a server of its own in
    it, on the worker's GPUs, and plays through that. Empty: workers decode themselves."""
    worker_timeout: Annotated[float, NOT_NEGATIVE] = 0.0
    """Seconds after which a worker that still plays the same chunk is replaced. 0: ten times the usual time, and 60."""
    worker_start: Annotated[float, POSITIVE] = 600.0
    """Seconds within which a worker has to be ready, and for which a run waits while there is none."""
    retries: Annotated[int, NOT_NEGATIVE] = 3
    """How often a chunk is given to another worker when one has died of it; then its episodes count as lost."""
    shard: Literal["auto", "whole", "base"] = "auto"
    """How ranks keep frozen base models: ``whole``, or ``base``: of the layers a share each, which takes a pass of
    transformers' own and traffic between the ranks. auto: base where several ranks train and whole ones do not fit
    (docs/planning.md)."""
    collective_timeout: Annotated[float, POSITIVE] = 600.0
    """Seconds after which a rank that keeps the others waiting is an error."""
    check_memory: bool = True
    """Refuse to start where a rough estimate for the longest prompts and replies exceeds the device's memory."""
    fit_memory: bool = True
    """Where that estimate exceeds it, compute less at once (``engine_batch``, ``micro_tokens``,
    ``gradient_checkpointing``) and say so, before refusing; results are the same but for rounding."""
    overlap: bool = False
    """Go on generating while slow verdicts (graders, sandboxes) are awaited. Keeps a GPU busy; off: the same seed gives
    the same run, to the bit."""
    max_error_rate: Annotated[float, SHARE] = 0.1
    """Largest share of an iteration's episodes (refills and replays included), or of an evaluation's, that may be lost
    to infrastructure errors (of the engine, of a tool's world, of the machine). These are excluded from updates and
    scores, and counted. Beyond the share the run stops, its state saved. 0.1: the others still represent the problems
    drawn, though such errors are seldom random."""
    on_task_error: Literal["worst", "stop"] = "worst"
    """What an exception of the task's own code does while it judges a text: ``worst`` gives that text the worst return,
    shows the traceback once and counts ``task_errors``; ``stop`` ends the run. Worst: a long run need not die of one
    odd text, and breaking the judge is no way out of a penalty."""
    permute_rewards: bool = False
    """A control: rewards are permuted among the episodes of an iteration, so there is nothing to learn."""
    runs_dir: str = "runs"
    """Folder that holds the runs."""
    name: str = ""
    """Name of the run's folder; empty: environment, algorithm and time."""
    algorithm: Any = None
    """Settings of the algorithm."""

    @classmethod
    def elsewhere(cls, name: str) -> str:
        """Returns what a setting of another trainer is called here, and where one of an algorithm goes."""
        of_algorithms = any(name in hints(settings_of(algo)) for algo in choices()["algo"])
        return elsewhere.advice(name) or f'Expected algorithm={{"{name}": …}} here.' * of_algorithms

    def __post_init__(self) -> None:
        """Raises ``ConfigError`` for values outside their ranges, and for pairs that cannot work together."""
        for name in ("models", "adapter_dir", "runs_dir", "chat_template"):
            if isinstance(value := getattr(self, name), os.PathLike):
                object.__setattr__(self, name, os.fspath(value))
        super().__post_init__()
        object.__setattr__(self, "env", marft_envs.registration.versioned(self.env))
        object.__setattr__(self, "chat_template", values.templates(self.chat_template))
        if isinstance(self.algorithm, Mapping):
            elsewhere.check(self.algorithm, hints(settings_of(self.algo)), _HELP)
            object.__setattr__(self, "algorithm", checked(settings_of(self.algo), self.algorithm))
        try:
            datetime.date.fromisoformat(self.date)
        except ValueError as error:
            raise ConfigError(f"date is {self.date!r}. Expected a day, as in --date 2026-01-31") from error
        if told := next((told for told, wrong in self._contradictions().items() if wrong), ""):
            raise ConfigError(told)
        server = endpoints.tinker(self.tinker)
        object.__setattr__(self, "tinker", "" if server is None else server.table())
        object.__setattr__(self, "engines", endpoints.parse_all(self.engines, server))

    def _contradictions(self) -> dict[str, object]:
        """Returns what is said where settings contradict each other -> whether they do."""
        full, base, vllm = self.full_finetune, self.shard == "base", self.worker_vllm
        unshared = full or self.pool or (isinstance(self.models, dict) and len(set(self.models.values())) > 1)
        return {
            "A pool of past policies keeps adapters. Leave out full_finetune, or say --pool 0.": self.pool and full,
            "staleness keeps past adapters. Leave out full_finetune, or say --staleness 0.": self.staleness and full,
            f"There cannot be {self.workers} workers at least and {self.max_workers} at most. Type: --max-workers"
            f" {self.workers}": 0 < self.max_workers < self.workers,
            "worker_vllm is for workers on a cluster. Type: --rollouts ray": vllm and self.rollouts != "ray",
            "A server of vLLM has to know how long prompt and reply may be together. Type: --context 4096, or as much"
            " as you need": vllm and self.context is None,
            "A worker's vLLM serves one base model with the present adapters. Leave out worker_vllm, or train adapters"
            " (full_finetune = false) on one model, without a pool of past ones.": vllm and unshared,
            "A base that is trained itself is not sharded. Leave out --full-finetune, or --shard base": base and full,
            "A quantised base is not sharded. Type: --quantize none, or --shard whole": base
            and self.quantize != "none",
        }

    @property
    def demonstrated(self) -> int:
        """Returns how many demonstrations an iteration of the warm start has."""
        return self.warm_episodes or self.episodes_per_iteration

    def changed(self, **values: Any) -> TrainConfig:
        """Returns the settings with these values: itself where they are its own."""
        changes = {name: value for name, value in values.items() if value != getattr(self, name)}
        return dataclasses.replace(self, **changes) if changes else self

    def table(self) -> dict[str, Any]:
        """Returns every setting as plain values, the algorithm's as a nested table."""
        engines = {policy: endpoint.table() for policy, endpoint in self.engines.items()}
        return dataclasses.asdict(self) | {"engines": engines}

    def to_toml(self) -> str:
        """Returns every resolved setting as TOML."""
        return values.dumps(self.table())


Draft = dict[str, Any]
"""Every setting by name, the algorithm's in the nested table ``algorithm``: what ``made`` makes a configuration of."""


def build(table: Mapping[str, Any], base: TrainConfig | None = None) -> TrainConfig:
    """Makes a configuration from plain values.

    Args:
        table: Settings by name; the algorithm's own beside them, or in the nested table ``algorithm``; and ``data``, an
            argument of the environment: a name, a path, or rows (:func:`marft_envs.problems.rows.stored`).
        base: Where settings that ``table`` leaves out come from, the defaults by default. Of another algorithm's
            settings those are taken that this one has too, and that are not that one's default.

    Raises:
        ConfigError: An unknown name (the message suggests one) or a value of the wrong kind.
    """
    return made(layered(table, draft(base)))


def load(path: Path | str, base: TrainConfig | None = None, *, trusted: bool = False) -> TrainConfig:
    """Reads a configuration from a TOML file; see ``build``.

    Args:
        path: The file.
        base: See ``build``.
        trusted: Take settings that execute or send from it, too; see ``marft_algos.config.trust``.

    Raises:
        TrustError: It has such settings, and nobody has allowed them.
    """
    return build(read(path, trusted), base)


def read(path: Path | str, trusted: bool = False) -> dict[str, Any]:
    """Reads a file's table; see ``load``."""
    table = values.read(path)
    trust.check(table, path, trust=trusted)
    return table


def draft(config: TrainConfig | None = None) -> Draft:
    """Returns the settings of a configuration, or the defaults, to be changed."""
    if config is None:
        return defaults(TrainConfig) | {"algorithm": {}}
    names = hints(type(config.algorithm)) if config.algorithm is not None else ()
    return vars(config) | {"algorithm": {name: getattr(config.algorithm, name) for name in names}}


def layered(table: Mapping[str, Any], base: Draft) -> Draft:
    """Returns settings with those of a table over them; see ``build``."""
    run_table = dict(table)
    own = run_table.pop("algorithm", {})
    algo = (base | run_table)["algo"]
    kind = settings_of(algo)
    if not isinstance(own, Mapping):
        raise ConfigError(f"[algorithm] must be a table of settings of '{algo}'; got {own!r}. Next: algo={own!r}")
    flat = {name: run_table.pop(name) for name in hints(kind).keys() - hints(TrainConfig).keys() & run_table.keys()}
    if twice := flat.keys() & own.keys():
        raise ConfigError(f"'{min(twice)}' is there twice, alone and in the table 'algorithm'. Leave one of them out.")
    if (data := run_table.pop("data", None)) is not None:
        run_table["env_kwargs"] = {**run_table.get("env_kwargs", {}), "data": rows.stored(data)}
    elsewhere.check([*run_table, *own], {*hints(TrainConfig), *hints(kind)}, _HELP, env=(base | run_table)["env"])
    run = base | given(TrainConfig, run_table, _HELP)
    return run | {"algorithm": _carried(base, kind) | given(kind, flat | dict(own), _HELP)}


def made(draft: Draft) -> TrainConfig:
    """Makes a configuration of all its settings, which are checked together.

    Raises:
        ConfigError: A value outside its range, or values that cannot work together.
    """
    return TrainConfig(**draft | {"algorithm": settings_of(draft["algo"])(**draft["algorithm"])})


def settings_of(algo: str) -> type[UpdateConfig]:
    """Returns the dataclass of an algorithm's settings."""
    from marft_algos.algorithms import base as algorithms

    return algorithms.get(algo).Config


def choices() -> dict[str, list[str]]:
    """Lists the values that a setting of few may have: environments, algorithms, presets, and words."""
    from marft_algos.algorithms import base as algorithms

    envs, names = [spec.id for spec in marft_envs.list_envs()], algorithms.names()
    found = ((name, get_args(hint)) for name, hint in hints(TrainConfig).items() if get_origin(hint) is Literal)
    listed = {name: [str(word) for word in words] for name, words in found}
    return {"env": envs, "algo": names, "preset": list(presets.PRESETS)} | listed


def _carried(base: Draft, kind: type[UpdateConfig]) -> dict[str, Any]:
    """What settings of another algorithm say about this one's: a preset's learning rate is for every one."""
    before, values = settings_of(base["algo"]), base["algorithm"]
    if issubclass(before, kind):
        return defaults(kind) | {key: value for key, value in values.items() if key in hints(kind)}
    changed = {key: values[key] for key in values.keys() & kind.general() if values[key] != defaults(before)[key]}
    return defaults(kind) | changed
