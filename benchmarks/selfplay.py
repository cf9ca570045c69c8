"""Does a model learn other people's games: tic-tac-toe by self-play, and a cooperative one?

::

    python -m benchmarks selfplay --out runs/selfplay

1. A warm start in the move format: the embedded model learns to name *some* free square, from games of two random
   players (a minute of supervised learning; nothing of the game but its rules).
2. Self-play on PettingZoo's ``tictactoe_v3`` with IPPO at the token level: one policy plays both seats, each paid for
   its own result, and half of the games are against past states of itself. It never meets the fixed opponents. MARFT
   itself cannot be used: its chain has one return for the whole team, and here one's gain is the other's loss.
3. 500 games each, greedy, against a random player and one that takes every win in a single move, seats drawn; Elo
   relative to the random player.

4. A cooperative game, ``simple_speaker_listener_v4`` of the package mpe2 (``pip install mpe2``; without it this part is
   left out): one agent sees which of three places is the goal and says one of three words, the other sees the places
   and walks; both are paid minus the squared distance, over 5 steps. Token-level MARFT on the team's return, after a
   warm start of the same kind.

Finished parts are not run again.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import marft_envs
from benchmarks.runs import Done, Job, run_all, table
from marft_algos import checkpoint, config, evaluate, hosting, selfplay, setup, stats
from marft_algos.policy import PolicySet
from marft_envs import FlexEnv
from marft_envs.adapters.codecs import Discrete

GAME = "pettingzoo:tictactoe_v3"
OPPONENTS = ("random", "winning")
GAMES = 500
WARM_GAMES, WARM_STEPS, WARM_BATCH, WARM_LR = 1500, 1200, 64, 2e-3
SETTINGS = (
    f"--env {GAME} --policies shared --preset toy --max-new-tokens 2 --iterations 80 --episodes-per-iteration 128 "
    f"--eval-every 20 --save-every 20 --eval-episodes {GAMES} --eval-kwargs opponents=random --pool 2 --pool-every 10 "
    "--lr 4e-3 --anneal 80 --kl-coef 0 --epochs 3 --minibatches 4 --kl-stop 0.1 "
    "--critic-lr 5e-3 --critic-epochs 4 --critic-minibatches 4 --gamma-turn 0.95"
).split()
LISTENER = "pettingzoo:mpe2.simple_speaker_listener_v4"
COOPERATIVE: dict[str, Any] = {
    "parallel": True,
    "cooperative": True,
    "illegal": "random",
    "settings": {"max_cycles": 5},
    "codec": "benchmarks.selfplay:places",
}
TOGETHER = (
    f"--env {LISTENER} --preset toy --max-new-tokens 2 --iterations 60 --episodes-per-iteration 128 --level token "
    f"--eval-every 20 --save-every 20 --eval-episodes {GAMES} --lr 4e-3 --anneal 60 --kl-coef 0 --epochs 2 "
    "--minibatches 4 --kl-stop 0.1 --critic-lr 5e-3 --critic-epochs 4 --critic-minibatches 4 --env-kwargs "
    "parallel=true cooperative=true illegal=random settings={max_cycles=5} codec=benchmarks.selfplay:places"
).split()


def places() -> dict[str, Discrete]:
    """Words for the cooperative game: the goal's number; the word heard, and where the three places lie."""

    def goal(seen: Any) -> str:
        return f"goal {int(np.argmax(seen))}"

    def around(seen: Any) -> str:
        word = str(int(np.argmax(seen[8:]))) if np.any(seen[8:]) else "no word"
        spots = np.clip(np.round(np.asarray(seen[2:8]) * 2.5 + 4.5), 0, 9).astype(int).reshape(3, 2)
        return word + "".join(f"\n{x}{y}" for x, y in spots)

    return {"speaker_0": Discrete(3, show=goal), "listener_0": Discrete(5, show=around)}


def main() -> None:
    """Runs everything and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs and of selfplay.json")
    parser.add_argument("--seeds", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    model = args.out / "warm"
    warm = warm_start(model, GAME, {})
    rows = []
    for seed in range(args.seeds):
        job = Job(f"ttt-{seed}", ("ippo", *SETTINGS, "--models", str(model), "--seed", str(seed)))
        before = _cpu()
        done = run_all([job], args.out, 1)[job.name]
        _keep(args.out / f"{job.name}-cpu.json", {"seconds": _cpu() - before})
        cpu = json.loads((args.out / f"{job.name}-cpu.json").read_text())["seconds"]
        rows += [[f"seed {seed}, {name}", *cells] for name, cells in rated(done, args.out).items()]
        rows[-1][-1] += f" (training: {done.seconds:.0f} s wall, {cpu:.0f} s CPU; warm start {warm:.0f} s CPU)"
    (args.out / "selfplay.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if importlib.util.find_spec("mpe2") is not None:
        print(together(args.out))
    print(table(["", *(f"wins against {o}" for o in OPPONENTS), "Elo (random = 0)"], rows))


def together(folder: Path) -> str:
    """The cooperative game: mean return before and after, and the paired difference."""
    warm = folder / "warm-together"
    warm_start(warm, LISTENER, COOPERATIVE)
    job = Job("together-0", ("marft", *TOGETHER, "--models", str(warm)))
    done = run_all([job], folder, 1)[job.name]
    before, after, gain = done.run.gain()
    shown = [f"{e.mean:+.3f} [{e.low:+.3f}, {e.high:+.3f}]" for e in (before, after, gain)]
    return table(["return before", "after", "difference, paired", "training"], [[*shown, f"{done.seconds:.0f} s wall"]])


# The warm start ---------------------------------------------------------------------------------------


def warm_start(folder: Path, game: str, kwargs: Mapping[str, Any]) -> float:
    """Teaches the embedded model the format of a game's moves; returns the CPU seconds that it took."""
    if (folder / "seconds.json").exists():
        return float(json.loads((folder / "seconds.json").read_text())["seconds"])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    policies = PolicySet.build("embedded", {"player": "player"}, dtype="fp32", device="cpu", full_finetune=True)
    rows = demonstrations(policies, random.Random(0), marft_envs.make(game, **kwargs))
    optimizer = torch.optim.AdamW(policies.parameters("player"), lr=WARM_LR)
    order = np.random.default_rng(0)
    for step in range(WARM_STEPS):
        for group in optimizer.param_groups:
            group["lr"] = WARM_LR * (1 - step / WARM_STEPS)
        ids, replies = packed([rows[i] for i in order.integers(len(rows), size=WARM_BATCH)])
        logprobs, _ = policies.logprobs("player", ids, replies)
        loss = -logprobs.sum() / replies.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"warm start: step {step}, loss {loss.item():.3f}", flush=True)
    policies.save_adapter("player", folder)
    spent = resource.getrusage(resource.RUSAGE_SELF).ru_utime - before
    _keep(folder / "seconds.json", {"seconds": spent})
    return spent


def demonstrations(policies: PolicySet, rng: random.Random, env: FlexEnv) -> list[tuple[list[int], list[int]]]:
    """Positions of random games: the prompt, and a legal move."""
    tokenizer = policies.tokenizer("player")
    rows = []
    for seed in range(WARM_GAMES):
        env.reset(seed=seed)
        while not env.done:
            agent = env.agent_selection
            move = rng.choice(env.task.game.moves(agent))
            reply = [*tokenizer.encode(move, add_special_tokens=False), tokenizer.eos_token_id]
            rows.append((policies.render("player", env.messages(agent)), reply))
            env.step(move)
    return rows


def packed(batch: list[tuple[list[int], list[int]]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids, right-padded, and where the replies are."""
    width = max(len(prompt) + len(reply) for prompt, reply in batch)
    ids = torch.zeros(len(batch), width, dtype=torch.long)
    replies = torch.zeros(len(batch), width, dtype=torch.bool)
    for i, (prompt, reply) in enumerate(batch):
        ids[i, : len(prompt) + len(reply)] = torch.tensor(prompt + reply)
        replies[i, len(prompt) : len(prompt) + len(reply)] = True
    return ids, replies


# Games against fixed opponents ------------------------------------------------------------------------


def rated(done: Done, folder: Path) -> dict[str, list[str]]:
    """Plays the first and the last state against the fixed opponents; returns the cells of each."""
    states = {"before": None, "after": checkpoint.pick(done.run.checkpoints)}
    cells, points = {}, {}
    for name, path in states.items():
        row = []
        for opponent in OPPONENTS:
            file = folder / f"{done.job.name}-{name}-{opponent}.json"
            if not file.exists():
                _keep(file, against(done, path, opponent))
            found = json.loads(file.read_text())
            points[name, opponent] = (found["wins"] + found["draws"] / 2, GAMES)
            win = stats.mean([1.0] * found["wins"] + [0.0] * (GAMES - found["wins"]))
            illegal = f", {found['illegal']} lost by an illegal move" if found["illegal"] else ""
            row.append(f"{win.mean:.3f} [{win.low:.3f}, {win.high:.3f}], {found['draws']} draws{illegal}")
        cells[name] = row
    ratings = selfplay.elo(points, "random")
    return {name: [*row, f"{ratings[name]:+.0f}"] for name, row in cells.items()}


def against(done: Done, path: Path | None, opponent: str) -> dict[str, int]:
    """Counts of ``GAMES`` greedy games of a state against an opponent, seats drawn."""
    settings = config.load(done.run.config_file)
    kwargs = {**settings.env_kwargs, "opponents": opponent}
    policies: PolicySet = setup.make_policies(settings, setup.make_env(settings, kwargs))
    if path is not None:
        checkpoint.load_policies(path, policies, setup.saved_policies(settings, policies))
    engine = hosting.make_engine(settings, policies, local=True)
    played = evaluate.play(settings, kwargs, setup.eval_panel(GAMES, None), policies, engine)
    return {
        "wins": sum(bool(t.success) for t in played),
        "draws": int(sum(t.metrics["draw"] for t in played)),
        "illegal": int(sum(t.metrics["illegal"] for t in played)),
    }


def _cpu() -> float:
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime


def _keep(file: Path, found: dict[str, Any]) -> None:
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
