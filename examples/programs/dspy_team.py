"""DSPy: a module of two predictors, each with a language model of its own.

``pip install dspy``; the commands are in docs/your-team.md.
"""

import os
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "true"  # else DSPy fetches a list of models at its first request
import dspy

AGENTS = ["reasoner_0", "actor_0"]


class Team(dspy.Module):
    """Works out the first step of a problem, and answers."""

    def __init__(self) -> None:
        self.reasoner = dspy.Predict("problem -> step")
        self.actor = dspy.Predict("problem, step -> answer")

    def forward(self, problem: str) -> dspy.Prediction:
        """Returns the ``answer``."""
        step = self.reasoner(problem=problem).step
        return self.actor(problem=problem, step=step)


def team(problem: dict[str, Any], api: dict[str, str]) -> str:
    """The program. DSPy's cache would answer equal requests without the agents."""
    module = Team()
    for name, predictor in module.named_predictors():
        lm = dspy.LM(f"openai/{name}_0", api_base=api["base_url"], api_key=api["api_key"], cache=False)
        predictor.set_lm(lm)
    return module(problem=problem["problem"]).answer


PROBLEMS = [
    {"problem": f"Compute $({a}+{b})\\cdot {c}$.", "a": a, "b": b, "c": c, "answer": (a + b) * c}
    for a in range(2, 10)
    for b in range(2, 14)
    for c in range(2, 7)
]


def grade(problem: dict[str, Any], answer: str) -> float:
    """The reward: 1 for the right number in a box."""
    return float(f"\\boxed{{{problem['answer']}}}" in answer)


def expert(problem: dict[str, Any], agent: str, messages: list[dict[str, Any]]) -> str:
    """Demonstrates what an agent says, for a warm start."""
    a, b, c = problem["a"], problem["b"], problem["c"]
    answer = f"{a + b}*{c}={problem['answer']}. \\boxed{{{problem['answer']}}}"
    fields = {"step": f"{a}+{b}={a + b}"} if agent == "reasoner_0" else {"answer": answer}
    return "".join(f"[[ ## {k} ## ]]\n{v}\n\n" for k, v in fields.items()) + "[[ ## completed ## ]]"
