"""One run of a benchmark, in a process of its own: ``python -m marft_algos.extras.bench.worker DIR KEY [--trust]``.

Trains (or goes on with) the run ``DIR/runs/KEY``, or scores what other runs have trained, and writes
``DIR/results/KEY.json``. A lock keeps two processes from one run: the second waits, and finds the result.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from marft_algos.config import settings as configs
from marft_algos.config import trust
from marft_algos.config.settings import TrainConfig
from marft_algos.evaluation.play import records
from marft_algos.extras.bench.folder import BenchFolder
from marft_algos.lazy import require_training
from marft_algos.rollout.episodes import whole
from marft_algos.runs import checkpoint, disk
from marft_algos.runs.folder import EvalRecord, RunFolder
from marft_algos.runs.loggers import Display
from marft_algos.terminal import say
from marft_algos.training.evaluate import HeldOut, score
from marft_algos.training.trainer import opened
from marft_algos.training.warm import supervised, warmed
from marft_algos.types import Trajectory
from marft_envs.errors import ConfigError, MarftError

PROGRAM = ("python", "-m", "marft_algos.extras.bench.worker")


def main(argv: Sequence[str] | None = None) -> int:
    """Makes the run's result; 1 and a message on standard error if that fails.

    Args:
        argv: Folder and key, of a job written from a grid that was checked; None: as typed by hand.
    """
    if argv is not None:
        root, key = argv
        return _grid_run(root, key, trusted=True)
    with trust.command(sys.argv[1:], PROGRAM) as words:
        if len(words) != 2:
            say(f"error: expected {' '.join(PROGRAM)} DIR KEY [--trust]; KEY.json is a file of DIR/jobs", error=True)
            return 2
        root, key = words
        return _grid_run(root, key, trusted=False)


def _grid_run(root: str, key: str, trusted: bool) -> int:
    folder = BenchFolder(Path(root))
    require_training()
    with _alone(folder.lock_file(key)):
        job = folder.job(key)
        if folder.complete(job):
            return 0
        try:
            trust.check(job["config"], folder.job_file(key), trust=trusted)
            result = folder.result(key) if folder.result_file(key).is_file() else make(folder, job)
            if job["samples"]:
                result |= {"sampled": sampled(folder, job), "samples": job["samples"]}
        except MarftError as error:
            say(f"{type(error).__name__}: {error}", error=True)
            return 1
        # In KiB on Linux, in bytes on macOS.
        unit = 1 if sys.platform == "darwin" else 1024
        result.setdefault("peak_memory", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
        folder.write_result(key, result)
    return 0


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Waits until no other process holds this lock, and holds it."""
    with lock.open("w") as file:
        disk.lock(file, lock.parent)
        yield


def make(folder: BenchFolder, job: Mapping[str, Any]) -> dict[str, Any]:
    """Makes the result of a run, by its kind."""
    config = configs.build(job["config"])
    config = dataclasses.replace(config, runs_dir=str(folder.runs), name=job["key"])
    if job["kind"] == "vote":
        return vote(folder, config, job["sources"], job["reference"])
    if job["kind"] == "ablation":
        return ablation(folder, config, job["sources"][0], job.get("swap", ""))
    return train(config, job["contribution"])


# Training -------------------------------------------------------------------------------------------


def train(config: TrainConfig, contribution: int) -> dict[str, Any]:
    """Trains, or goes on, and reads the result from the run's folder."""
    root = Path(config.runs_dir) / config.name
    there = RunFolder(root) if (root / "config.toml").is_file() else None
    if there is None:
        disk.remove(root)  # killed before it had a configuration
    with opened(_as_begun(config, there) if there else _begun(config), there) as (trainer, run):
        title, share = f"{config.env} · {config.algo}", functools.partial(trainer.progress.share, config)
        with Display(config.iterations, trainer.progress.iteration, title, share=share) as display:
            trainer.train(run, display)
    result = measured(run)
    if contribution and config.iterations:
        result["contribution"] = contributions(_as_begun(config, run), run, contribution)
    return result


def _begun(config: TrainConfig) -> TrainConfig:
    """Returns settings that begin with the warm start that they ask for, if any.

    Runs that ask for the same one share it: the first trains it, and the others wait.
    """
    if not config.warm_start:
        return config
    table = supervised(config).table()
    content = json.dumps({k: v for k, v in table.items() if k not in ("name", "runs_dir")}, sort_keys=True)
    name = f"warm-{hashlib.sha256(content.encode()).hexdigest()[:16]}"
    Path(config.runs_dir).mkdir(parents=True, exist_ok=True)
    with _alone(Path(config.runs_dir) / f".{name}.lock"):
        return warmed(config, name=name)


def _as_begun(config: TrainConfig, run: RunFolder) -> TrainConfig:
    """Returns settings that begin as a run began: it keeps the weights of its warm start."""
    return dataclasses.replace(config, start=str(run.start), warm_start=0) if config.warm_start else config


def measured(run: RunFolder) -> dict[str, Any]:
    """Reads what a finished run says: final outcomes problem by problem, its curve, what it cost.

    ``train_score`` is the mean score of the episodes that were sampled for training, weighted by tokens: the area under
    the learning curve, which tells runs apart that end alike. ``processed`` counts prompts, too; ``prompts`` are visits
    to a start, where a group of episodes is one. ``critical_path`` is an episode's of the last evaluation, on average.
    """
    metrics = run.metrics()
    lost = sum(int(line.get("infrastructure_errors", 0)) for line in metrics)
    last = run.recorded("eval")[-1]
    final = run.evaluation(last)
    tokens, processed, latency, seconds, learnt = 0, 0, 0, 0.0, 0.0
    curve, drift = [], []
    for line in metrics:
        before, tokens = tokens, int(line.get("tokens_total", tokens))
        processed += int(line.get("tokens_processed", 0))
        latency += int(line.get("latency_played", 0))
        learnt += (tokens - before) * line.get("success", line.get("return", 0.0))
        seconds += line.get("time_rollout", 0.0) + line.get("time_update", 0.0)
        if "eval/success" in line:
            outcomes = _known(run.evaluation(line["iteration"]))
            point = {"iteration": line["iteration"], "tokens": tokens, "seconds": seconds}
            point |= {"processed": processed, "latency": latency, "train_score": learnt / tokens if tokens else 0.0}
            curve.append({**point, "score": line["eval/success"], "outcomes": outcomes})
        changes = {name: _mean_over_policies(line, name) for name in ("kl", "ess")}
        drift.append({"tokens": tokens, **{k: v for k, v in changes.items() if v is not None}})
    return {
        "problems": [e.task_id for e in final],
        "evaluation_set": str(run.evaluation_set()),
        "outcomes": _known(final),
        "infrastructure_errors": lost + sum(e.lost for e in final),
        "score": metrics[-1]["eval/success"],
        "train_score": learnt / tokens if tokens else 0.0,
        "tokens": tokens,
        "processed": processed,
        "latency": latency,
        "prompts": sum(int(line.get("prompts", 0)) for line in metrics),
        "seconds": seconds,
        "eval_seconds": sum(line.get("time_eval", 0.0) for line in metrics),
        "iterations": metrics[-1]["iteration"],
        "eval_tokens": int(metrics[-1]["eval/tokens"]),
        "eval_lengths": [e.tokens for e in final],
        "eval_processed": sum(e.processed for e in final),
        "critical_path": _mean([e.critical_path for e in final if not e.lost]),
        "curve": curve,
        "drift": drift[1:],
    }


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0


def _known(records: Sequence[EvalRecord]) -> list[float | None]:
    """Outcomes in the order of the evaluation set; None for an infrastructure error."""
    return [None if record.lost else record.outcome for record in records]


def _mean_over_policies(line: Mapping[str, Any], name: str) -> float | None:
    values = [v for k, v in line.items() if k.startswith("policy/") and k.split("/")[-1] == name]
    return _mean(values) if values else None


def contributions(config: TrainConfig, run: RunFolder, episodes: int) -> dict[str, float]:
    """Scores the trained team on the first problems, also with each policy set back to its start."""
    evaluation = HeldOut(config, episodes)
    with tempfile.TemporaryDirectory() as aside:
        saved = checkpoint.pick(run.checkpoints)
        names = [p for p in evaluation.policies.policies if evaluation.policies.trainable(p)]
        checkpoint.check_policies(saved, names)
        trained = saved / "policies"
        for name in names:
            evaluation.policies.save_adapter(name, Path(aside) / name)
            evaluation.policies.load_adapter(name, trained / name)
        scores = {"": score(evaluation.play())}
        for name in names if len(names) > 1 else []:
            evaluation.policies.load_adapter(name, Path(aside) / name)
            scores[name] = score(evaluation.play())
            evaluation.policies.load_adapter(name, trained / name)
    return scores


def sampled(folder: BenchFolder, job: Mapping[str, Any]) -> list[float | None]:
    """Averages each problem's outcome over sampled answers of the trained team; None: infrastructure errors."""
    config = configs.build(job["config"])
    trained = config.iterations or config.warm_start
    run = _trained(folder, job["key"], f"samples = {job['samples']}") if trained else None
    evaluation = HeldOut(_as_begun(config, run) if run else config)
    if run and config.iterations:
        evaluation.load(run)
    samples = map(evaluation.sample, range(job["samples"]))
    outcomes = [[None if t.infrastructure_error else t.episode.score for t in sample] for sample in samples]
    known = ([o for o in each if o is not None] for each in zip(*outcomes, strict=True))
    return [sum(each) / len(each) if each else None for each in known]


# Made of trained runs ------------------------------------------------------------------------------


def _trained(folder: BenchFolder, key: str, what: str) -> RunFolder:
    """Opens a trained run.

    Raises:
        ConfigError: There is only its result, as in an archive of results: no team to play.
    """
    root = folder.runs / key
    if not (root / "config.toml").is_file():
        raise ConfigError(
            f"{what} needs the team that '{key}' has trained, and {root} is not here: packed results have no runs. "
            f"To train it again, delete {folder.result_file(key)} and type the same command."
        )
    return RunFolder.open(root)


def ablation(folder: BenchFolder, config: TrainConfig, source: str, swap: str) -> dict[str, Any]:
    """Scores a trained team in another environment than it was trained in, or with an agent's messages shuffled."""
    evaluation = HeldOut(config)
    evaluation.load(_trained(folder, source, "An ablation"))
    played = evaluation.shuffle([swap], evaluation.play()) if swap else evaluation.play()
    started = time.monotonic()
    return _scored(folder, played, _known(records(played)), [source], started)


def vote(folder: BenchFolder, config: TrainConfig, sources: Sequence[str], reference: str) -> dict[str, Any]:
    """Scores the majority of several answers to each problem.

    With a reference run, one agent is sampled as often as the inference tokens of that run's team allow;
    without, each source answers once, greedily.
    """
    started, evaluation = time.monotonic(), HeldOut(config)
    if evaluation.answer_key is None:
        raise ConfigError(f"The task of {config.env} has no answer_key(text): replies cannot be voted on.")
    answers: list[list[Trajectory]] = []
    for source in sources:
        evaluation.load(_trained(folder, source, "A vote"))
        if not reference:
            answers.append(evaluation.play())
            continue
        allowed, spent = folder.result(reference)["eval_tokens"], 0
        while True:
            fresh = evaluation.sample(len(answers))
            spent += _tokens(fresh)
            if answers and spent > allowed:
                break
            answers.append(fresh)
    chosen = [majority(votes, evaluation.answer_key) for votes in zip(*answers, strict=True)]
    result = _scored(folder, [t for played in answers for t in played], chosen, sources, started)
    side_by_side = [max((t.critical_path for t in whole(votes)), default=0) for votes in zip(*answers, strict=True)]
    result |= {"problems": [t.task_id for t in answers[0]], "critical_path": _mean(side_by_side)}
    return result | {"votes": len(answers)}


def majority(votes: Sequence[Trajectory], answer_key: Callable[[str], str]) -> float | None:
    """Returns the outcome of the commonest answer, the earliest of equals; the task says which are the same.

    Votes lost to infrastructure errors do not count; without any vote there is no outcome.
    """
    votes = whole(votes)
    if not votes:
        return None
    keys = [answer_key(t.episode.answer) for t in votes]
    common = Counter(keys).most_common(1)[0][0]
    chosen = votes[keys.index(common)]
    return chosen.episode.score


def _tokens(played: Sequence[Trajectory]) -> int:
    return sum(len(t.reply.action_ids) for trajectory in played for t in trajectory.transitions)


def _scored(
    folder: BenchFolder,
    played: Sequence[Trajectory],
    outcomes: Sequence[float | None],
    sources: Sequence[str],
    started: float,
) -> dict[str, Any]:
    """Makes the result of a run that is not trained itself; what its sources cost is its cost.

    Raises:
        ConfigError: Some sources were made before something was counted, the others after: no sum.
    """
    costs = [folder.result(source) for source in sources]
    counted = [name for name in ("tokens", "processed", "prompts") if any(name in c for c in costs)]
    for name in counted:
        if lacking := [source for source, c in zip(sources, costs, strict=True) if name not in c]:
            raise ConfigError(
                f"'{name}' was not counted when {', '.join(lacking)} was made, and was for the other sources of this "
                "run: their costs have no sum. To train it again, delete "
                f"{' '.join(f'{folder.result_file(s)} {folder.runs / s}' for s in lacking)} and type the same command."
            )
    known = [x for x in outcomes if x is not None]
    return {
        "problems": [t.task_id for t in played],
        "outcomes": list(outcomes),
        "infrastructure_errors": sum(t.infrastructure_error for t in played),
        "score": sum(known) / len(known),
        **{name: sum(int(c[name]) for c in costs) for name in counted},
        "seconds": sum(float(c["seconds"]) for c in costs) + time.monotonic() - started,
        "iterations": max(int(c["iterations"]) for c in costs),
        "eval_tokens": _tokens(played),
        "eval_processed": sum(t.processed for t in played),
        "critical_path": _mean([t.critical_path for t in whole(played)]),
        "curve": [],
        "drift": [],
    }


if __name__ == "__main__":
    sys.exit(main())
