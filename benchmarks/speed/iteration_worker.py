"""One side of ``perf_iteration``, a process of its own: whole iterations of the released code, or of ``marft train``.

``python -m benchmarks iteration_worker SIDE JSON`` with SIDE ``released`` or ``marft`` prints a line of JSON: CPU
seconds of each iteration, tokens sampled in one, and the most memory beyond what the process held before the first.

The released code runs as it is in the checkout, its own loop, environment, buffer and trainer, but for three patches
that let it run on a CPU in fp32 (``PATCHES``); another revision, in which they do not fit, is refused. What only grades
or logs and is not installed is replaced by something that does nothing, to its advantage.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import random
import resource
import sys
import time
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

DTYPE = ('torch_dtype=torch.bfloat16 if bf16 else "auto"', "torch_dtype=torch.float32")
PATCHES: dict[str, list[tuple[str, str]]] = {
    # device: the critic and what is gathered live on the first GPU
    "mas/mas.py": [('self.device = "cuda:0"', 'self.device = "cpu"')],
    # .cuda(): every batch is moved there
    "utils/util.py": [("torch.from_numpy(x).cuda()", "torch.from_numpy(x)"), ("x.cuda()", "x")],
    # fp32: base models are bf16 and adapters are halved
    "mas/agent.py": [DTYPE, ("self.model.half()", "pass")],
    "critics/token_level_critic.py": [DTYPE],
    "critics/action_level_critic.py": [DTYPE],
}
OPTIONAL = ("absl", "latex2sympy2", "pylatexenc", "tensorboardX", "word2number")
"""Packages of the released code that grade and log."""


class _Nothing(types.ModuleType):
    """A package that is not installed: every name in it can be called and does nothing."""

    __path__: list[str] = []  # noqa: RUF012  (what makes a module a package)

    def __getattr__(self, name: str) -> Any:
        return _Nothing(name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self


class _Finder(importlib.machinery.PathFinder):
    """Finds the released package, patched, and stands in for what only grades or logs."""

    root: Path

    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> Any:
        head = fullname.partition(".")[0]
        if head == "marft":
            spec = super().find_spec(fullname, path if path is not None else [str(cls.root)], target)
            if spec is not None and spec.origin is not None:
                spec.loader = _Patched(fullname, spec.origin)
            return spec
        if head in OPTIONAL and super().find_spec(fullname, path, target) is None:
            return importlib.machinery.ModuleSpec(fullname, _Absent(), is_package=True)
        return None


class _Absent(importlib.abc.Loader):
    """Makes a package that does nothing."""

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Nothing(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing to run."""


class _Patched(importlib.machinery.SourceFileLoader):
    """Compiles a file of the released code with its patches; nothing is written, no cache is read."""

    def get_code(self, fullname: str) -> Any:
        source = Path(self.path).read_text(encoding="utf-8")
        for old, new in PATCHES.get(Path(self.path).relative_to(_Finder.root / "marft").as_posix(), []):
            if old not in source:
                raise SystemExit(f"{self.path} has no '{old}': this is not the revision that PATCHES is for (1beacdb).")
            source = source.replace(old, new)
        return compile(source, self.path, "exec", dont_inherit=True)


def released(reference: str, folder: str, level: str, episodes: int, new: int, iterations: int) -> dict[str, Any]:
    """Runs the released loop (``marft/scripts/train_math.py`` without its folder of results)."""
    _Finder.root = Path(reference).resolve()
    sys.meta_path.insert(0, _Finder)
    from marft.config import get_config
    from marft.envs.env_wrappers import ShareDummyVecEnv
    from marft.envs.math.math_env import MathEnv
    from marft.runner.shared.math_runner import MathRunner

    profiles = Path(folder) / "profiles.json"
    arguments = [
        "--algorithm_name", {"token": "TPPO", "action": "APPO"}[level], "--model_name_or_path", f"{folder}/model",
        "--profile_path", str(profiles), "--n_agents", "2", "--n_rollout_threads", str(episodes),
        "--episode_length", "1", "--horizon", "1", "--num_env_steps", str(episodes * iterations),
        "--max_new_tokens", str(new), "--ppo_epoch", "1", "--num_mini_batch", "1", "--lr", "1e-4",
        "--save_interval", str(10 * iterations),
    ]  # fmt: skip
    args = get_config().parse_args(arguments)
    random.seed(0)
    torch.manual_seed(0)
    places = {"profile_path": str(profiles), "dataset_path": f"{folder}/problems.json"}
    make = [lambda: MathEnv(0, "model", 2, horizon=1, mode="train", **places)] * episodes
    envs = ShareDummyVecEnv(make)
    where = Path(folder) / "released"
    runner = MathRunner(
        {"all_args": args, "envs": envs, "eval_envs": None, "num_agents": envs.n_agents, "run_dir": where}
    )
    clock = _Clock()
    update = runner.buffer.after_update
    tokens: list[int] = []

    def after_update() -> None:
        pad = runner.mas.tokenizer.pad_token_id
        tokens.append(int((runner.buffer.action_tokens[runner.buffer.pre_batch_index or 0] != pad).sum()))
        update()
        clock.tick()

    runner.buffer.after_update = after_update
    runner.save = lambda steps: None
    clock.start()
    runner.run()
    return clock.numbers(tokens[-1])


def marft(reference: str, folder: str, level: str, episodes: int, new: int, iterations: int) -> dict[str, Any]:
    """Runs ``marft train`` as it stands, on the same model, problems and profiles."""
    from marft_algos.config import presets
    from marft_algos.config import settings as configs
    from marft_algos.runs.loggers import Display
    from marft_algos.training.parts import build
    from marft_algos.training.trainer import Trainer

    clock = _Clock()
    tokens: list[int] = []

    class Watch(Display):
        def log(self, metrics: Any) -> None:
            if metrics["iteration"] > 0:
                tokens.append(int(metrics["tokens"]))
                clock.tick()
            else:
                clock.start()  # the evaluation of the untrained team is over

    settings = {
        "env": "math-dual-v0",
        "env_kwargs": {"data": f"{folder}/problems.jsonl", "profiles": f"{folder}/profiles.json"},
        "models": f"{folder}/model", "runs_dir": f"{folder}/runs", "dtype": "fp32", "iterations": iterations,
        "episodes_per_iteration": episodes, "max_new_tokens": new, "eval_episodes": 1, "eval_every": 0, "save_every": 0,
        "record_every": 0, "record_episodes": 0, "temperature": 0.5,
        "algorithm": {
            "level": level, "lr": 1e-4, "epochs": 1, "minibatches": 1, "critic_epochs": 1, "critic_minibatches": 1,
        },
    }  # fmt: skip
    trainer = Trainer(build(configs.build(settings, configs.build(presets.get("default")))))
    with Watch(iterations, 0, "") as display:
        trainer.train(trainer.start(), display)
    return clock.numbers(tokens[-1])


class _Clock:
    """CPU seconds of each iteration, and the memory that they take."""

    def start(self) -> None:
        """Before the first iteration: models are loaded."""
        self._held = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        self._last, self.seconds = time.process_time(), list[float]()

    def tick(self) -> None:
        """After an iteration."""
        now = time.process_time()
        self.seconds.append(now - self._last)
        self._last = now

    def numbers(self, tokens: int) -> dict[str, Any]:
        """The last iteration of a run may evaluate and save; the first warms up. Neither counts."""
        most = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return {"seconds": self.seconds[1:-1], "tokens": tokens, "megabytes": (most - self._held) / 1e6}


@contextmanager
def _quiet() -> Iterator[None]:
    """Standard output goes to standard error, so that the last line is the result."""
    kept = sys.stdout
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        sys.stdout = kept


if __name__ == "__main__":
    torch.set_num_threads(1)
    with _quiet():
        measured = {"released": released, "marft": marft}[sys.argv[1]](**json.loads(sys.argv[2]))
    print(json.dumps(measured))
