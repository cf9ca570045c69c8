"""Does a team learn whose weights another project's server has? SkyRL's Tinker server on a CPU, two policies, one base.

::

    python -m benchmarks tinker_skyrl --out .skyrl                        # on a first run: 6 GB of packages
    python -m benchmarks tinker_skyrl --out .skyrl --python python3.13    # the interpreter that SkyRL is installed for

Needs Python 3.12 or newer for the server, and the network for its packages, which go into an environment of their own.
A base of 100,000 parameters is made from demonstrations in which the planner of ``relay-v0`` names the wrong digit, so
that the team scores less than chance; the server serves it, and ``marft train --tinker`` trains an adapter each for
planner and solver. Prints and stores (``skyrl.json``) scores, times and versions; exits with 1 unless the last two
evaluations reach .9.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks.embedded import make_embedded, recipes
from benchmarks.embedded.recipes import Format, Reply, Scene, plain
from marft_algos.runs.folder import RunFolder
from marft_algos.terminal import say

PACKAGES = ("skyrl[tinker,jax]==0.4.0", "torch==2.13.0", "aiohttp")
"""The extras of SkyRL forget aiohttp; of torch it needs that it can be imported."""
WORKER = Path(__file__).with_name("tinker_skyrl_worker.py")
STEPS, EPISODES = 600, 1500
ENOUGH = 0.9
TOLD, HEARD = 0.3, 0.8
"""Shares of the demonstrations in which the planner says something of what it sees, and the solver what it receives."""
ENGINE = {
    "max_lora_adapters": 8,
    "max_lora_rank": 8,
    "train_micro_batch_size": 1,
    "sample_max_num_sequences": 32,
    "loss_chunk_size": 0,
}
"""Places for policies, also for those of a run that has just ended, and for probes. What is trained on at once is
compiled for its number of rows, which is another one in each minibatch unless it is 1; samples are filled up."""
TRAINING = shlex.split(
    "grpo --preset toy --env relay-v0 --iterations 15 --episodes-per-iteration 128 --group-size 16 --epochs 1"
    " --minibatches 4 --lr 1e-3 --anneal 25 --kl-coef 0.1 --kl-stop none --max-grad-norm none --lora-alpha 32"
    " --eval-every 5 --eval-episodes 64 --save-every 5"
)
"""The server does not clip gradients, and counts adapters of rank r 32 / r times. The rate would be 0 after 25."""


# The base --------------------------------------------------------------------------------------------------


def tells(scene: Scene) -> Reply:
    """What the planner says: any digit, or the one after the one that it sees, which is the wrong one."""
    seen = int(scene.observation.split()[-1])
    return plain(str((seen + 1) % 4 if scene.rng.random() < TOLD else scene.rng.randrange(4)))


def receives(scene: Scene) -> Reply:
    """What the solver says: any digit, or the one it receives."""
    return plain(scene.received[-1] if scene.rng.random() < HEARD else str(scene.rng.randrange(4)))


def make_base(folder: Path) -> None:
    """Makes the base: a small Qwen3, which the server can load, with a tokenizer of the embedded models' kind."""
    if (folder / "config.json").is_file():
        return
    team = {"relay-v0": Format(EPISODES, {"planner": tells, "solver": receives}, {})}
    recipe = dataclasses.replace(recipes.load("embedded"), teams=team, steps=STEPS)
    rng = random.Random(make_embedded.SEED)
    pairs = [pair for env_id, form in team.items() for pair in recipes.play(env_id, form, rng)]
    tokenizer = make_embedded.build_tokenizer(recipe, [messages for messages, _ in pairs])
    torch.manual_seed(make_embedded.SEED)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=make_embedded.CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model: Any = Qwen3ForCausalLM(config)
    make_embedded.train(model, make_embedded.batches(tokenizer, pairs, rng, recipe), recipe.steps)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)


# The server ------------------------------------------------------------------------------------------------


def install(folder: Path, python: str) -> Path:
    """Makes the server's environment unless it is there as wanted; returns its interpreter."""
    there, stamp = folder / "bin" / "python", folder / "installed.txt"
    wanted = "\n".join((python, *PACKAGES))
    if stamp.is_file() and stamp.read_text() == wanted:
        return there
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    subprocess.run([str(there), "-m", "pip", "install", "--quiet", "uv"], check=True)
    subprocess.run([str(folder / "bin" / "uv"), "pip", "install", "--quiet", "--python", there, *PACKAGES], check=True)
    stamp.write_text(wanted)
    return there


def versions(python: Path) -> dict[str, str]:
    """Returns the versions of what the server is made of."""
    code = "import json, sys; from importlib.metadata import version as v; n = sys.argv[1:]"
    code += "; print(json.dumps({'python': sys.version.split()[0], **{x: v(x) for x in n}}))"
    names = ("skyrl", "tinker", "jax", "flax", "optax", "transformers", "torch")
    found = subprocess.run([str(python), "-c", code, *names], check=True, capture_output=True, text=True)
    return dict(json.loads(found.stdout))


@contextmanager
def served(python: Path, base: Path, out: Path, wait: float) -> Iterator[str]:
    """Serves the base while the block runs: yields the server's address.

    Raises:
        RuntimeError: It ends, or does not answer within ``wait`` seconds.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    state = out / "server"
    shutil.rmtree(state, ignore_errors=True)  # checkpoints and queue of a server that is gone
    state.mkdir(parents=True)
    settings = {"base_model": str(base), "backend": "jax", "backend_config": ENGINE}
    settings |= {"checkpoints_base": str(state / "saved"), "database_url": f"sqlite:///{state}/queue.db"}
    threads = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": threads, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    env |= {"JAX_COMPILATION_CACHE_DIR": str(out / "compiled"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.3"}
    with (out / "server.log").open("w") as log:
        command = [str(python), "-P", str(WORKER), str(port), json.dumps(settings)]
        server = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT)
        try:
            url, began = f"http://127.0.0.1:{port}", time.monotonic()
            while not _answers(url):
                if server.poll() is not None or time.monotonic() - began > wait:
                    raise RuntimeError(f"SkyRL's server does not answer; its output is in {out / 'server.log'}")
                time.sleep(1)
            yield url
        finally:
            server.terminate()
            server.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/api/v1/healthz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


# The run ---------------------------------------------------------------------------------------------------


def trained(base: Path, url: str, out: Path, more: list[str]) -> dict[str, Any]:
    """Trains the team on the server; returns scores before and after, seconds, and the command."""
    run = out / "runs" / "relay"
    shutil.rmtree(run, ignore_errors=True)
    began = time.monotonic()
    here = ["--tinker", url, "--runs-dir", str(run.parent), "--name", run.name]
    words = [*TRAINING, "--models", str(base), *more, *here]
    subprocess.run([sys.executable, "-m", "marft_algos", "train", *words], check=True)
    rows = RunFolder(run).metrics()
    scores = {str(row["iteration"]): row["eval/success"] for row in rows if "eval/success" in row}
    return {
        "command": " ".join(["marft train", *TRAINING, *more]),
        "seconds": round(time.monotonic() - began),
        "episodes": int(sum(row.get("episodes", 0) for row in rows)),
        "scores": scores,
    }


def main() -> int:
    """Installs, makes, serves, trains and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the environment, the base and the run")
    parser.add_argument("--python", default="python3.12", help="interpreter that SkyRL is installed for")
    parser.add_argument("--wait", type=float, default=300.0, help="seconds that the server may take to start")
    args, more = parser.parse_known_args()
    torch.set_num_threads(1)
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    python = install(out / "server-env", args.python)
    make_base(out / "base")
    with served(python, out / "base", out, args.wait) as url:
        found = {"versions": versions(python), **trained(out / "base", url, out, more)}
    (out / "skyrl.json").write_text(json.dumps(found, indent=1) + "\n")
    say(json.dumps(found, indent=1))
    return 0 if min(list(found["scores"].values())[-2:]) >= ENOUGH else 1


if __name__ == "__main__":
    sys.exit(main())
