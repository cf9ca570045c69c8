"""A task and a team of your own: registered, checked, then trained for a few iterations.

Run it: ``python examples/custom_task.py``. Or use it by id: ``marft train --env examples.custom_task:maximum-v0``.
"""

from __future__ import annotations

import marft_envs
from marft_envs import AgentSpec, Chain, FlexEnv, Outcome


class Maximum:
    """The scout sees two digits, the speaker neither; the team's reward is 1 if the speaker says the larger."""

    slow = False
    task_id = ""

    def reset(self, rng, options):
        self.task_id = options.get("task_id") or "/".join(map(str, rng.integers(0, 5, size=2)))
        self.digits = [int(d) for d in self.task_id.split("/")]

    def observe(self, agent):
        return f"digits {self.digits[0]} {self.digits[1]}" if agent == "scout_0" else "digit ?"

    def on_layer(self, turns):
        return Outcome()

    def on_round(self, turns):
        right = bool(turns) and turns[-1].spoken.strip() == str(max(self.digits))
        return Outcome(team_reward=float(right), success=right, terminated=True)

    def sample_actions(self, agent):
        return ["0", "4", "no idea"]

    def validate(self):
        assert not self.on_round([]).success, "a team that says nothing must have no reward"


def make(**flex):
    team = [
        AgentSpec("scout_0", "scout", "Pass on the larger digit."),
        AgentSpec("speaker_0", "speaker", "Say one digit from 0 to 4.", with_answer=True),
    ]
    return FlexEnv(team, Maximum(), Chain(), **flex)


marft_envs.register("maximum-v0", make, summary="example: say the larger of two digits that only the scout sees")

if __name__ == "__main__":
    import sys

    import marft_algos

    print(marft_envs.check_env("maximum-v0"))
    iterations = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    run = marft_algos.train("toy", env="maximum-v0", env_kwargs={}, iterations=iterations)
    print(f"success {run.metrics()[0]['eval/success']:.2f} -> {run.metrics()[-1]['eval/success']:.2f}")
    print(f"report: {run.report_file}")
