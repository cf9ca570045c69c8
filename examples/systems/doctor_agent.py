"""DoctorAgent-RL (Feng et al., arXiv 2505.19630): a doctor asks a patient, question by question, and then diagnoses.

Reproduced: a patient that is not trained and says what it is asked, a doctor that chooses what to ask, a diagnosis that
is graded, and a penalty for asking twice. Departs: a script plays the patient (the task's expert), two symptoms tell
four diseases apart, and a diagnosis is right or wrong in place of an evaluator's scores.

    python examples/systems/doctor_agent.py
"""

from __future__ import annotations

import marft_envs
from examples.systems.system import System, Test, main
from marft_envs import AgentSpec, FlexEnv, Outcome, Router
from marft_envs.families.toy.base import ToyTask, digit

DOCTOR, PATIENT = "doctor_0", "patient_0"
QUESTIONS = 2
TEAM = (
    AgentSpec(DOCTOR, "doctor", "Ask for symptom 0 or 1. Find the digit. Say one digit from 0 to 3.", with_answer=True),
    AgentSpec(PATIENT, "patient", "Answer what you are asked. Say 0 or 1.", trained=False),
)


class Consultation(ToyTask):
    """A disease from 0 to 3; symptom 0 is its high bit, symptom 1 its low bit."""

    name = "consultation"
    rounds = QUESTIONS + 1
    worst_return = -0.2
    states = tuple((x,) for x in range(4))
    sizes = dict.fromkeys((DOCTOR, PATIENT), 4)

    def observe(self, agent):
        asked = len([t for t in self._said if t.agent == DOCTOR])
        if agent == PATIENT:
            return f"symptoms {self.state[0] // 2} {self.state[0] % 2}"
        return "digit ?" if asked >= QUESTIONS else "symptom ?"

    def on_layer(self, turns):
        asked = [digit(t.text, 2) for t in self._said if t.agent == DOCTOR]
        super().on_layer(turns)
        again = [t for t in turns if t.agent == DOCTOR and t.round < QUESTIONS and digit(t.text, 2) in (None, *asked)]
        return Outcome(turn_rewards={t.index: -0.1 for t in again})

    def right(self, turns):
        said = [t.text for t in turns if t.agent == DOCTOR]
        return len(said) > QUESTIONS and digit(said[-1], 4) == self.state[0]

    def gold_turns(self):
        high, low = divmod(self.state[0], 2)
        return [(DOCTOR, "0"), (PATIENT, str(high)), (DOCTOR, "1"), (PATIENT, str(low)), (DOCTOR, str(self.state[0]))]

    def expert(self, agent):
        """The patient answers what it was asked, and nothing else."""
        if agent == DOCTOR:
            return super().expert(agent)
        asked = digit(self._said[-1].text, 2) if self._said else None
        return "0" if asked is None else str(divmod(self.state[0], 2)[asked])


def speaks(view):
    """Doctor and patient in turn; in the last round the doctor alone."""
    return [DOCTOR] if view.layer == 0 else [PATIENT] if view.layer == 1 and view.round < QUESTIONS else []


def make(dependency=None, **kwargs):
    kwargs = {"history": "public", "max_rounds": Consultation.rounds, **kwargs}
    return FlexEnv(TEAM, Consultation(), dependency or Router(speaks), **kwargs)


marft_envs.register("systems/doctor_agent-v0", make, summary="DoctorAgent-RL: a doctor asks, a patient answers")
SYSTEM = System(
    "DoctorAgent-RL (2505.19630)",
    env="systems/doctor_agent-v0",
    algo="grpo",
    settings={"env_kwargs": {"partners": {"patient_0": "expert"}}, "warm_start": 8, "iterations": 24},
    claim="A doctor that is rewarded for the diagnosis learns what to ask, beyond what imitation has taught it.",
    tests=(Test("imitated"), Test("zero", by=0.9)),
)

if __name__ == "__main__":
    main(SYSTEM)
