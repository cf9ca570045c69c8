"""Do the trainers of others learn here? RLlib's PPO and BenchMARL's MAPPO on ``relay-v0``, through the numeric bridge.

::

    python -m benchmarks adapters_learning rllib --out runs/adapters         # in an environment with ray[rllib]
    python -m benchmarks adapters_learning benchmarl --out runs/adapters     # in one with benchmarl
    python -m benchmarks adapters_learning plot --out runs/adapters

A trainer writes ``<name>.json``: versions, settings, and one row per iteration with the share of episodes that were
solved while training (exploration included; guessing solves 1/4), seconds and seconds of processor time, both with
the start of the library. It stops at ``--solved`` of two iterations in a row, or at ``--seconds``. Exits with 1 if the
last two iterations' mean is not at least .25 better than the first. ``plot`` draws ``adapters_learning.png``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import marft_envs
from marft_envs.adapters.outward.numeric import Numeric

WORDS = {role: list("0123") for role in ("planner", "solver")}
BYTES = 2
"""Of an observation's end: ``digit 3`` and ``…\\n3`` differ in the last."""
GAIN = 0.25

ENTROPY = 0.01
"""Of BenchMARL, whose advantages are not whitened; RLlib's are, so its bonus is larger."""
RLLIB: dict[str, Any] = {
    "train_batch_size_per_learner": 512, "minibatch_size": 512, "num_epochs": 6, "lr": 3e-3, "gamma": 1.0,
    "entropy_coeff": 0.05,
}  # fmt: skip
BENCHMARL: dict[str, Any] = {
    "on_policy_collected_frames_per_batch": 512, "on_policy_n_envs_per_worker": 8, "on_policy_minibatch_size": 256,
    "on_policy_n_minibatch_iters": 20, "lr": 3e-3, "gamma": 1.0, "share_policy_params": False,
    "prefer_continuous_actions": False, "evaluation": False, "render": False, "loggers": [], "create_json": False,
}  # fmt: skip


def relay(mask: bool) -> Numeric:
    """The environment: each agent says one of four digits."""
    return Numeric(marft_envs.make("relay-v0"), WORDS, length=BYTES, mask=mask)


class Progress:
    """Takes the share of episodes that an iteration solved; says when it is enough."""

    def __init__(self, name: str, seconds: float, solved: float, note: Callable[[Any], None]) -> None:
        self.name, self.seconds, self.solved, self.note = name, seconds, solved, note
        self.rows: list[dict[str, float]] = []
        self.start, self.cpu = time.monotonic(), time.process_time()

    def enough(self, share: float) -> bool:
        """Notes an iteration; returns whether to stop."""
        seconds, cpu = time.monotonic() - self.start, time.process_time() - self.cpu
        self.rows.append({"solved": share, "seconds": seconds, "cpu_seconds": cpu})
        self.note(self.rows)
        print(f"{self.name} {len(self.rows)}: {share:.2f} solved, {seconds:.0f} s ({cpu:.0f} s CPU)", flush=True)
        last = [row["solved"] for row in self.rows[-2:]]
        return seconds > self.seconds or (len(last) == 2 and min(last) >= self.solved)

    def improved(self) -> bool:
        """Whether the last two iterations are better than the first by :data:`GAIN`."""
        last = sum(row["solved"] for row in self.rows[-2:]) / len(self.rows[-2:])
        print(f"{self.name}: {self.rows[0]['solved']:.2f} -> {last:.2f} in {len(self.rows)} iterations")
        return last >= self.rows[0]["solved"] + GAIN


def rllib(seed: int, enough: Callable[[float], bool]) -> None:
    """RLlib's PPO, a policy per agent."""
    import ray
    from ray import tune
    from ray.rllib.algorithms.ppo import PPOConfig

    from marft_envs.adapters.outward.rllib import RLlibEnv

    tune.register_env("relay", lambda config: RLlibEnv(relay(mask=False)))
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    agents = relay(mask=False).possible_agents
    settings = PPOConfig().environment("relay").env_runners(num_env_runners=0, num_envs_per_env_runner=32)
    settings = settings.learners(num_learners=0).debugging(seed=seed).training(**RLLIB)
    # Means of the iteration's own episodes, not over a window of earlier ones.
    settings = settings.reporting(metrics_num_episodes_for_smoothing=256)
    algorithm = settings.multi_agent(
        policies=set(agents), policy_mapping_fn=lambda agent, episode, **kwargs: agent
    ).build_algo()
    # RLlib adds up what all agents were paid, and under `team` each is paid the whole.
    while not enough(algorithm.train()["env_runners"]["episode_return_mean"] / len(agents)):
        pass
    algorithm.stop()
    ray.shutdown()


class Enough(Exception):
    """BenchMARL runs for a number of frames; this ends it earlier."""


def benchmarl(seed: int, enough: Callable[[float], bool]) -> None:
    """BenchMARL's MAPPO, a policy per agent, one central critic."""
    from benchmarl.algorithms import MappoConfig
    from benchmarl.experiment import Callback, Experiment, ExperimentConfig
    from benchmarl.models.mlp import MlpConfig

    from marft_envs.adapters.outward.benchmarl import TeamTask

    class Watch(Callback):
        def on_batch_collected(self, batch: Any) -> None:
            paid, done = batch["next", "agents", "reward"][..., 0, 0], batch["next", "done"]
            if enough(float(paid.sum() / done.sum())):
                raise Enough

    config = ExperimentConfig.get_from_yaml()
    for name, value in BENCHMARL.items():
        setattr(config, name, value)
    config.save_folder = tempfile.mkdtemp()
    algorithm, model = MappoConfig.get_from_yaml(), MlpConfig.get_from_yaml()
    algorithm.entropy_coef, model.num_cells = ENTROPY, [64, 64]
    experiment = Experiment(
        task=TeamTask(lambda: relay(mask=True), "relay"), algorithm_config=algorithm, model_config=model,
        critic_model_config=model, seed=seed, config=config,
    )  # fmt: skip
    experiment.callbacks.append(Watch())  # now: those given above are pickled
    with contextlib.suppress(Enough):
        experiment.run()


def plot(folder: Path) -> None:
    """Draws every result in the folder."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.5))
    for file in sorted(folder.glob("*.json")):
        result = json.loads(file.read_text())
        solved = [row["solved"] for row in result["rows"]]
        label = f"{result['name']} ({result['rows'][-1]['cpu_seconds']:.0f} s CPU)"
        axes.plot(range(1, len(solved) + 1), solved, label=label)
    axes.axhline(0.25, color="grey", linestyle=":", label="guessing")
    axes.set(xlabel="iteration (256 episodes each)", ylabel="relay-v0 solved", ylim=(0, 1.02))
    axes.legend()
    figure.tight_layout()
    figure.savefig(folder / "adapters_learning.png", dpi=120)
    print(folder / "adapters_learning.png")


def main() -> int:
    """Runs one trainer, or draws the plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("rllib", "benchmarl", "plot"))
    parser.add_argument("--out", type=Path, default=Path("runs/adapters"))
    parser.add_argument("--seconds", type=float, default=600.0, help="stop after so long (without start-up)")
    parser.add_argument("--solved", type=float, default=0.95)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.what == "plot":
        plot(args.out)
        return 0
    package, settings, trainer = {
        "rllib": ("ray", RLLIB, rllib), "benchmarl": ("benchmarl", BENCHMARL, benchmarl)
    }[args.what]  # fmt: skip
    facts = {
        "name": {"rllib": "RLlib PPO", "benchmarl": "BenchMARL MAPPO"}[args.what],
        "versions": {p: importlib.metadata.version(p) for p in (package, "torch", "gymnasium", "pettingzoo")},
        "python": platform.python_version(), "seed": args.seed, "settings": settings, "bytes": BYTES,
    }  # fmt: skip

    def note(rows: Any) -> None:
        (args.out / f"{args.what}.json").write_text(json.dumps({**facts, "rows": rows}, indent=1))

    progress = Progress(facts["name"], args.seconds, args.solved, note)
    trainer(args.seed, progress.enough)
    return 0 if progress.improved() else 1


if __name__ == "__main__":
    sys.exit(main())
