"""Does a model learn other people's games: tic-tac-toe by self-play, and a cooperative one?

::

    python -m benchmarks selfplay --out runs/selfplay

1. A warm start in the move format: the embedded model learns to name *some* free square, from games of two random
   players, a few minutes of supervised learning; nothing of the game but its rules. Beside it, it learns to keep the
   prompt in the state that a value head reads: a legal move can be named without telling whose stones are whose, and a
   critic that cannot see that explains next to nothing.
2. Self-play on PettingZoo's ``tictactoe_v3`` with token-level MARFT and agent chains, which is IPPO number for number
   (one return for the team has no meaning here): one policy plays both seats, each rewarded for its own result, half of
   the games against one of four past states of itself (copies of the warm start at first, one of them replaced every 20
   iterations). It never meets the fixed opponents. The KL to the warm start keeps its play varied: without it the
   policy soon plays few lines only, and is beaten in others.
3. 500 games each, greedy, against a random player and one that takes every win in a single move, seats drawn; Elo
   relative to the random player. Only wins count as won: draws and games that an illegal move ended do not.

4. A cooperative game, ``simple_speaker_listener_v4`` of the package mpe2 (``pip install mpe2``; without it this part is
   left out): one agent sees which of three places is the goal and says one of three words, the other sees the places
   and walks; the reward of both is minus the squared distance, over 5 steps. Token-level MARFT on the team's return,
   after a warm start of the same kind.

Finished parts are not run again.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import resource
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

import marft_envs
from benchmarks.runs import Done, Job, run_all, share, table
from marft_algos.config import settings as config
from marft_algos.evaluation.environments import evaluation_set, started
from marft_algos.models.policy import PolicySet
from marft_algos.rollout import selfplay
from marft_algos.runs import checkpoint, intervals
from marft_algos.training import environments, hosting
from marft_algos.training.policies import make_policies, player, saved_policies
from marft_algos.training.resolve import resolve
from marft_envs import FlexEnv
from marft_envs.adapters.inward.codecs import BoardPlanes, Discrete
from marft_envs.adapters.inward.foreign import ForeignTask

GAME = "pettingzoo:tictactoe_v3"
BOARD = {"codec": "benchmarks.learning.selfplay:board"}
OPPONENTS = ("random", "winning")
SHOWN = ("success", "low", "high")
GAMES = 500
WARM_GAMES, WARM_STEPS, WARM_BATCH, WARM_LR = 1500, 1200, 64, 2e-3
READ = 24
"""Last tokens of a prompt that are read back from its last state."""
Rows = list[tuple[list[int], list[int]]]
SETTINGS = (
    f"--chain agent --value-clip 0.2 --level token --env {GAME} --env-kwargs codec={BOARD['codec']} "
    "--policies shared --preset toy --max-new-tokens 1 --iterations 100 --episodes-per-iteration 128 --eval-every 20 "
    f"--save-every 20 --eval-kwargs opponents=random --eval-episodes {GAMES} --pool 4 --pool-every 20 --lr 2e-3 "
    "--anneal 100 --kl-coef 0.1 --epochs 2 --minibatches 4 --kl-stop 0.1 --critic-lr 5e-3 --critic-epochs 4 "
    "--critic-minibatches 4 --gamma-turn 0.95"
).split()
LISTENER = "pettingzoo:mpe2.simple_speaker_listener_v4"
COOPERATIVE: dict[str, Any] = {
    "parallel": True,
    "cooperative": True,
    "illegal": "random",
    "settings": {"max_cycles": 5},
    "codec": "benchmarks.learning.selfplay:places",
}
TOGETHER = (
    f"--env {LISTENER} --preset toy --max-new-tokens 1 --iterations 60 --episodes-per-iteration 128 --level token "
    f"--eval-every 20 --save-every 20 --eval-episodes {GAMES} --lr 2e-3 --anneal 60 --kl-coef 0.05 --epochs 2 "
    "--minibatches 4 --kl-stop 0.1 --critic-lr 5e-3 --critic-epochs 4 --critic-minibatches 4 --env-kwargs "
    "parallel=true cooperative=true illegal=random settings={max_cycles=5} codec=benchmarks.learning.selfplay:places"
).split()


def board() -> Discrete:
    """Tic-tac-toe in nine tokens, one a square, so that each is always at the same place of the prompt.

    With blanks between the squares the embedded model's tokenizer joins some of them to what follows.
    """
    grid = BoardPlanes(3, 3, 9)
    return Discrete(9, start=1, show=lambda planes: "".join(grid.show(planes).split()))


def places() -> dict[str, Discrete]:
    """Words for the cooperative game: the goal's number; the message received, and where the three places lie."""

    def goal(seen: Any) -> str:
        return f"goal {int(np.argmax(seen))}"

    def around(seen: Any) -> str:
        word = str(int(np.argmax(seen[8:]))) if np.any(seen[8:]) else "-"
        spots = np.clip(np.round(np.asarray(seen[2:8]) * 2.5 + 4.5), 0, 9).astype(int).reshape(3, 2)
        return word + "".join(f"\n{x}{y}" for x, y in spots)

    return {"speaker_0": Discrete(3, show=goal), "listener_0": Discrete(5, show=around)}


def main() -> None:
    """Runs everything, prints the tables, draws the plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs, of selfplay.json and selfplay.png")
    parser.add_argument("--seeds", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    warm = warm_start(args.out / "warm", GAME, BOARD)
    print(f"warm start: {warm:.0f} s CPU", flush=True)
    rows, games = [], []
    for seed in range(args.seeds):
        job = Job(f"ttt-{seed}", ("marft", *SETTINGS, "--models", str(args.out / "warm"), "--seed", str(seed)))
        games.append(done := run_all([job], args.out, 1)[job.name])
        rows += [[f"seed {seed}, {name}", *cells] for name, cells in rated(done, args.out).items()]
    print(table(["", *(f"wins against {o}" for o in OPPONENTS), "Elo (random = 0)"], rows), flush=True)
    team = None
    if importlib.util.find_spec("mpe2") is not None:
        warm_start(args.out / "warm-together", LISTENER, COOPERATIVE)
        job = Job("together-0", ("marft", *TOGETHER, "--models", str(args.out / "warm-together")))
        team = run_all([job], args.out, 1)[job.name]
        shown = [f"{e.mean:+.2f} [{e.low:+.2f}, {e.high:+.2f}]" for e in team.run.gain() or ()]
        print(table(["return before", "after", "difference, paired"], [shown]))
    (args.out / "selfplay.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    plot(games, team, args.out / "selfplay.png")


def plot(games: Sequence[Done], team: Done | None, path: Path) -> None:
    """What evaluations found while training: wins against the random player, and the cooperative game's return."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8 if team is not None else 4.5, 3.2), layout="constrained")
    left, *right = figure.subplots(1, 2 if team is not None else 1, squeeze=False)[0]
    for axes, runs in ((left, games), *((axes, [team]) for axes in right if team is not None)):
        for done in runs:
            evaluated = [m for m in done.metrics if "eval/success" in m]
            x, y, low, high = ([m[k] for m in evaluated] for k in ("iteration", *(f"eval/{k}" for k in SHOWN)))
            axes.plot(x, y, marker="o", label=done.job.name)
            axes.fill_between(x, low, high, alpha=0.2)
        axes.set(xlabel="iteration")
    left.axhline(0.8, color="grey", linestyle=":")
    left.set(ylabel=f"won of {GAMES} against a random player", title="tic-tac-toe, self-play", ylim=(0, 1))
    for axes in right:
        axes.set(ylabel="return of 5 steps", title="speaker and listener")
    figure.savefig(path, dpi=120)
    print(path)


# The warm start ---------------------------------------------------------------------------------------


def warm_start(folder: Path, game: str, kwargs: Mapping[str, Any]) -> float:
    """Teaches the embedded model the format of a game's moves; returns the CPU seconds that it took."""
    if (folder / "seconds.json").exists():
        return float(json.loads((folder / "seconds.json").read_text())["seconds"])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    policies = PolicySet.build("embedded", {"player": "player"}, dtype="fp32", device="cpu", full_finetune=True)
    rows = demonstrations(policies, random.Random(0), marft_envs.make(game, **kwargs))
    base = policies.base("player")
    reader = torch.nn.Linear(base.hidden_size, READ * base.model.config.vocab_size)
    optimizer = torch.optim.AdamW([*policies.parameters("player"), *reader.parameters()], lr=WARM_LR)
    order = np.random.default_rng(0)
    for step in range(WARM_STEPS):
        for group in optimizer.param_groups:
            group["lr"] = WARM_LR * (1 - step / WARM_STEPS)
        moves, reading = losses(policies, reader, [rows[i] for i in order.integers(len(rows), size=WARM_BATCH)])
        optimizer.zero_grad()
        (moves + 4 * reading).backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"warm start: step {step}, loss {moves.item():.3f}, of reading {reading.item():.3f}", flush=True)
    policies.save_adapter("player", folder)
    spent = resource.getrusage(resource.RUSAGE_SELF).ru_utime - before
    _keep(folder / "seconds.json", {"seconds": spent})
    return spent


def demonstrations(policies: PolicySet, rng: random.Random, env: FlexEnv) -> Rows:
    """Positions of random games: the prompt, and a legal move."""
    tokenizer = policies.renderer.tokenizer("player")
    task = env.task
    assert isinstance(task, ForeignTask)
    rows = []
    for seed in range(WARM_GAMES):
        env.reset(seed=seed)
        while not env.done:
            agent = env.agent_selection
            move = rng.choice(task.game.moves(agent) or ())
            reply = [*tokenizer.encode(move, add_special_tokens=False), tokenizer.eos_token_id]
            rows.append((policies.renderer.render("player", env.messages(agent)), reply))
            env.step(move)
    return rows


def losses(policies: PolicySet, reader: torch.nn.Module, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean negative log-likelihoods: of the replies' tokens, and of the prompts' last ones as ``reader`` reads them."""
    ids = pad_sequence([torch.tensor(prompt + reply) for prompt, reply in rows], batch_first=True)
    read = torch.tensor([([-100] * READ + prompt)[-READ:] for prompt, _ in rows])
    where = [(i, len(prompt) + k - 1) for i, (prompt, reply) in enumerate(rows) for k in range(len(reply))]
    with policies.running("player") as (trunk, head):
        states = trunk(input_ids=ids, use_cache=False).last_hidden_state
        logits = head(states[tuple(zip(*where, strict=True))])
    last = states[range(len(rows)), [len(prompt) - 1 for prompt, _ in rows]]
    moves = cross_entropy(logits, torch.tensor([token for _, reply in rows for token in reply]))
    return moves, cross_entropy(reader(last).view(len(rows) * READ, -1), read.flatten())


# Games against fixed opponents ------------------------------------------------------------------------


def rated(done: Done, folder: Path) -> dict[str, list[str]]:
    """Plays the first and the last state against the fixed opponents; returns the entries of each."""
    states = {"before": None, "after": checkpoint.pick(done.run.checkpoints)}
    cells, points = {}, {}
    for name, path in states.items():
        row = []
        for opponent in OPPONENTS:
            file = folder / f"{done.job.name}-{name}-{opponent}.json"
            if not file.exists():
                _keep(file, against(done, path, opponent))
            tally = json.loads(file.read_text())
            points[name, opponent] = (tally["wins"] + tally["draws"] / 2, GAMES)
            win = intervals.mean([1.0] * tally["wins"] + [0.0] * (GAMES - tally["wins"]))
            illegal = f", {tally['illegal']} lost by an illegal move" if tally["illegal"] else ""
            row.append(f"{share(win)}, {tally['draws']} draws{illegal}")
        cells[name] = row
    ratings = selfplay.elo(points, "random")
    return {name: [*row, f"{ratings[name]:+.0f}"] for name, row in cells.items()}


def against(done: Done, path: Path | None, opponent: str) -> dict[str, int]:
    """Counts of ``GAMES`` greedy games of a state against an opponent, seats drawn."""
    settings = config.load(done.run.config_file)
    kwargs = {**settings.env_kwargs, "opponents": opponent}
    make_env = environments.env_factory(settings, kwargs)
    spec = resolve(settings, started(settings.env, make_env))
    policies: PolicySet = make_policies(spec)
    if path is not None:
        checkpoint.load_policies(path, policies, saved_policies(settings, policies))
    engine = hosting.make_engine(spec, policies, local=True)
    played = player(settings, make_env, policies.renderer, engine).play(evaluation_set(GAMES, None))
    return {
        "wins": sum(bool(t.success) for t in played),
        "draws": int(sum(t.metrics["draw"] for t in played)),
        "illegal": int(sum(t.metrics["illegal"] for t in played)),
    }


def _keep(file: Path, tally: dict[str, Any]) -> None:
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(tally) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
