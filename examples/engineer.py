"""The path of a product's team: measured as it runs, trained where that helps, guarded, exported, served.

A till of three agents: a reasoner and an actor work out a customer's bill, a clerk charges it by a tool. At first a
hosted model plays all of them. Then reasoner and actor become adapters of a small model, which learn from what the team
has logged; the clerk stays hosted. Run it with the address of an endpoint that speaks OpenAI's API and calls tools
itself, and has models of these three names:

    python examples/engineer.py http://127.0.0.1:8000/v1     # needs: pip install -e '.[train,hosted,otel]'
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path

import marft_envs
from marft_algos.cli import main
from marft_algos.terminal import REGRESSION
from marft_envs import AgentSpec, FlexEnv, Router, Turn
from marft_envs.families import tools
from marft_envs.families.tools import FunctionDomain, Team, ToolProblem
from marft_envs.records import otel, trajectory

# The product -----------------------------------------------------------------------------------------


def charge(state, amount: int) -> str:
    """Charges the customer."""
    state["charged"] = amount
    return f"charged {amount}"


def who(view) -> list[Turn]:
    """D: the reasoner, the actor, who reads it, and the clerk, who reads the actor, as long as it calls the tool."""
    turns, seen = view.this_round, tuple(range(len(view.history)))
    if len(turns) < 2:
        return [Turn(("reasoner_0", "actor_0")[len(turns)], seen)]
    return [Turn("clerk_0", seen[1:])] if len(turns) == 2 or view.outcome.info["called"] else []


TEAM = Team(
    agents=(
        AgentSpec("reasoner_0", "reasoner", "You are the Reasoner. Work out the step that the problem hinges on."),
        AgentSpec("actor_0", "actor", "You are the Actor. End with the final answer in \\boxed{}."),
        AgentSpec("clerk_0", "clerk", "Charge what is in the box, and tell the customer.", with_answer=True),
    ),
    holds={"clerk_0": frozenset({"charge"})},
    dependency=lambda: Router(who),
    enders=frozenset({"clerk_0"}),
)


def order(a: int, b: int, n: int) -> ToolProblem:
    """What a customer buys; the part of the id before the slash is a cohort."""
    kind = "small" if n < 4 else "large"
    return ToolProblem(f"{kind}/{a}-{b}-{n}", (f"Compute $({a}+{b})\\cdot {n}$.",), 1, secret=(a + b) * n)


def grade(state, problem) -> float:
    """1 if the customer was charged what the order comes to."""
    return float(state.get("charged") == problem.secret)


def make(split: str = "train", **settings) -> FlexEnv:
    orders = [order(a, b, n) for a in range(2, 8) for b in range(2, 8) for n in (2, 3, 4, 5)]
    splits = {"train": [o for i, o in enumerate(orders) if i % 6], "test": orders[::6]}
    till = FunctionDomain([charge], splits, grade, name="till")
    return tools.make(TEAM, till, split, reward="completion", show_tools="none", **settings)


if "examples/till-v0" not in marft_envs.list_envs():
    marft_envs.register("examples/till-v0", make, summary="example: two who compute, and a clerk who charges by a tool")

# The path --------------------------------------------------------------------------------------------

ENV = "--env examples.engineer:examples/till-v0"
TEST = f"{ENV} --env-kwargs split=test"
FOUR = "--samples 4 --temperature 0.3"


def marft(command: str, code: int = 0) -> None:
    """Runs a command as if it were typed; another exit code than this ends the path."""
    print(f"\n$ marft {command}", flush=True)
    assert (came := main(shlex.split(command))) == code, f"exit code {came}, expected {code}"


def ask(address: str, text: str) -> str:
    """Asks the served team, as a product's backend does."""
    body = json.dumps({"model": "till", "messages": [{"role": "user", "content": text}]}).encode()
    request = urllib.request.Request(f"{address}/chat/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(json.load(answer)["choices"][0]["message"]["content"])


def path(url: str) -> None:
    """All of it; what is written lies in the current folder."""
    common = {"kind": "openai", "url": url, "tools": "native", "price_in": 1.0, "price_out": 4.0}
    written = {
        name: shlex.quote(f"{name}_0={json.dumps({**common, 'model': name})}")
        for name in ("reasoner", "actor", "clerk")
    }
    clerk, team = written["clerk"], " ".join(written.values())

    # What the hosted team reaches (avg@4, pass@k), costs and takes (percentiles), on held-out orders.
    marft(f"eval {TEST} --engines {team} {FOUR} --out evals/hosted")

    # What it logs, as spans (here of other orders); what it does; rows to learn from.
    marft(f"eval {ENV} --env-kwargs split=train --engines {team} --episodes 120 --out evals/logged")
    env = make("train")
    spans = [
        s for e in trajectory.read(Path("evals/logged/episodes.jsonl")) for s in otel.spans(e, content=True, env=env)
    ]
    Path("spans.jsonl").write_text("\n".join(span.to_json() for span in spans))
    marft("traces spans.jsonl --sft rows.jsonl --price 1,4")

    # Reasoner and actor learn as adapters of one small model; the clerk stays where it is.
    settings = "--iterations 20 --episodes-per-iteration 48 --eval-episodes 8 --max-new-tokens 32 --lr 3e-3"
    marft(f"sft {ENV} --models embedded --engines {clerk} --demonstrations rows.jsonl {settings} --name till")

    # The gate: less than 15 points worse, and no more costly. A CI job goes by the exit code, and shows gate.xml.
    marft(f"eval {TEST} --engines runs/till {FOUR} --out evals/trained")
    marft("eval --compare evals/hosted evals/trained --margin 15 --gate cost=+0 --junit gate.xml")
    marft(f"eval {TEST} --engines {clerk} reasoner_0=embedded actor_0=embedded {FOUR} --out evals/untrained")
    marft("eval --compare evals/hosted evals/untrained --cohort kind --margin 15", code=REGRESSION)

    # What was judged is what is shipped: the served export gives the answers of the run's evaluation.
    marft("export runs/till --out exports/till")
    marft(f"eval {TEST} --engines runs/till --out evals/greedy")
    serve = [sys.executable, "-m", "marft_algos", "serve", "exports/till", "--trust"]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        line = next(line for line in server.stdout if line.startswith("address:"))
        try:
            for episode in trajectory.read(Path("evals/greedy/episodes.jsonl")):
                (text,) = make("test").unwrapped.task.problems.get(episode.task_id).turns
                answer = ask(line.split()[1], text)
                assert answer == episode.turns[-1].text, (answer, episode.turns[-1].text)
        finally:
            server.terminate()
    print(f"\n{text} -> {answer}: all served answers are the evaluated ones")


if __name__ == "__main__":
    path(sys.argv[1])
