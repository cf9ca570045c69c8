"""Random team episodes and a two-table stand-in for language models: no tokenizer, no environment, no download."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marft_algos.types import Generation, GenerationRequest, StopReason, Trajectory, Transition
from marft_envs.core.types import AgentSpec, Episode, LayerRecord, TurnRecord

VOCABULARY = 7


def episode(
    layers: Sequence[Sequence[str]],
    *,
    seed: int = 0,
    number: int = 0,
    policies: dict[str, str] | None = None,
    rewards: Sequence[float] | None = None,
    tokens: Sequence[int] | None = None,
    rounds: Sequence[int] | None = None,
    **fields: Any,
) -> Trajectory:
    """An episode whose layers hold these agents; team rewards per layer (default: 1 at the end), tokens per turn.

    Other fields are those of the environment's record (``success``, ``truncated``) or of the trajectory (``group``).
    """
    rng = np.random.default_rng([seed, number])
    turns: list[Transition] = []
    records: list[LayerRecord] = []
    total = sum(len(layer) for layer in layers)
    paid = list(rewards) if rewards is not None else [0.0] * (len(layers) - 1) + [1.0]
    for i, layer in enumerate(layers):
        before = tuple(t.index for t in turns)
        for agent in layer:
            n = int(rng.integers(1, 6)) if tokens is None else tokens[len(turns)]
            ids = [int(x) for x in rng.integers(0, VOCABULARY, n)]
            record = TurnRecord(
                index=len(turns),
                round=rounds[i] if rounds else 0,
                layer=i,
                agent=agent,
                role=agent,
                sees=before,
                text=" ".join(map(str, ids)),
            )
            prompt = [int(x) for x in rng.integers(0, VOCABULARY, 3)]
            logprobs = np.log(rng.uniform(0.1, 0.9, n)).astype(np.float32)
            turns.append(
                Transition(
                    turn=record,
                    request=GenerationRequest((policies or {}).get(agent, agent), prompt, 0),
                    reply=Generation(ids, logprobs, StopReason.EOS, 0, record.text),
                    observation="the task",
                )
            )
        number_of_round = rounds[i] if rounds else 0
        records.append(LayerRecord(i, number_of_round, tuple(t.index for t in turns if t.layer == i), paid[i]))
    assert len(turns) == total
    names = dict.fromkeys(t.agent for t in turns)
    record_fields = {name: fields.pop(name) for name in list(fields) if name in Episode.__dataclass_fields__}
    facts = {"terminated": True, "truncated": False, "index": number, **record_fields}
    played = Episode(
        env_id="teams-v0",
        seed=seed,
        task_id=facts.pop("task_id", "t"),
        agents=tuple(AgentSpec(name, name) for name in names),
        turns=[t.turn for t in turns],
        layers=records,
        rounds=[],
        **facts,
    )
    return Trajectory(played, turns, number=number, **fields)


def put(record: Transition | Trajectory | Generation, **fields: Any) -> None:
    """Changes a record that nobody may change, for a test that wants another one with the same identity.

    A turn's ``policy`` and ``prompt_ids`` are those of its request.
    """
    if asked := {name: fields.pop(name) for name in ("policy", "prompt_ids") if name in fields}:
        fields["request"] = dataclasses.replace(record.request, **asked)  # type: ignore[union-attr]
    for name, value in fields.items():
        object.__setattr__(record, name, value)


def say(t: Transition, **fields: Any) -> None:
    """Changes a turn's reply: ``action_ids``, ``logprobs``, ``stop_reason``, ``version``; ``text`` in the record, too."""
    put(t, reply=dataclasses.replace(t.reply, **fields))
    if "text" in fields:
        t.turn.text = fields["text"]


def random_team(rng: np.random.Generator, agents: int = 4) -> list[list[str]]:
    """The layers of a random dependency function over some rounds: agents may be skipped or act again later."""
    names = [f"a{i}" for i in range(agents)]
    return [
        sorted(rng.choice(names, size=int(rng.integers(1, agents + 1)), replace=False).tolist())
        for _ in range(int(rng.integers(1, 7)))
    ]


class Tabular:
    """Policies whose next token depends on the last one only: one table of logits each."""

    def __init__(self, names: Sequence[str], frozen: Sequence[str] = (), seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.tables = {p: torch.randn(VOCABULARY, VOCABULARY, generator=generator).requires_grad_() for p in names}
        self.reference = {p: table.detach().clone() for p, table in self.tables.items()}
        self.frozen = set(frozen)
        self.device = torch.device("cpu")
        self.forwards = self.version = 0

    @property
    def policies(self) -> list[str]:
        return list(self.tables)

    def trainable(self, policy: str) -> bool:
        return policy not in self.frozen

    def parameters(self, policy: str) -> list[Tensor]:
        return [self.tables[policy]]

    def shares(self, policy: str) -> bool:
        return False

    def logprobs(
        self, policy: str, input_ids: Tensor, action_mask: Tensor, temperature: Any, *, entropy_grad: bool = False
    ) -> tuple[Tensor, Tensor]:
        self.forwards += 1
        scaled = self.tables[policy][input_ids[:, :-1]] / torch.as_tensor(temperature).reshape(-1, 1, 1)
        logp = torch.log_softmax(scaled, -1)
        mask = action_mask[:, 1:]
        chosen = logp.gather(-1, input_ids[:, 1:, None]).squeeze(-1)
        entropy = -(logp.exp() * logp).sum(-1)
        return torch.where(mask, chosen, 0.0), torch.where(mask, entropy if entropy_grad else entropy.detach(), 0.0)

    def reference_logprobs(self, policy: str, input_ids: Tensor, action_mask: Tensor, temperature: Any) -> Tensor:
        scaled = self.reference[policy][input_ids[:, :-1]] / torch.as_tensor(temperature).reshape(-1, 1, 1)
        chosen = torch.log_softmax(scaled, -1).gather(-1, input_ids[:, 1:, None]).squeeze(-1)
        return torch.where(action_mask[:, 1:], chosen, 0.0)

    def score(self, turn: Transition) -> None:
        """Writes the log-probs of the turn's tokens as its policy would sample them."""
        ids = torch.tensor([*turn.request.prompt_ids, *turn.reply.action_ids])
        with torch.no_grad():
            logp = torch.log_softmax(self.tables[turn.policy] / turn.temperature, -1)
        start = len(turn.request.prompt_ids)
        say(turn, logprobs=logp[ids[start - 1 : -1], ids[start:]].numpy().astype(np.float32))

    def play(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """Makes the episodes' log-probs and trainable flags those of these policies."""
        for t in (t for trajectory in trajectories for t in trajectory.transitions):
            put(t, trainable=t.policy in self.tables and self.trainable(t.policy))
            self.score(t)
        return list(trajectories)


class Heads:
    """Value heads that are linear in a one-hot feature of (view, last token)."""

    def __init__(self, names: Sequence[str]) -> None:
        self.weights = {p: torch.zeros(VOCABULARY, requires_grad=True) for p in names}
        self.device = torch.device("cpu")
        self.seen: list[tuple[str, int]] = []

    @property
    def policies(self) -> list[str]:
        return list(self.weights)

    def parameters(self, policy: str) -> list[Tensor]:
        return [self.weights[policy]]

    def featurise(
        self, transitions: Sequence[Transition], *, view: str, level: str, logprobs: Any = None
    ) -> Mapping[Transition, Tensor]:
        found = {}
        for t in transitions:
            self.seen.append((view, t.index))
            ids = [t.request.prompt_ids[-1] if view == "own" else len(t.team_view) % VOCABULARY]
            if level == "token" and t.trainable:
                ids += t.reply.action_ids[:-1]
            found[t] = torch.eye(VOCABULARY)[torch.tensor(ids)]
        return found

    def values(self, policy: str, features: Tensor) -> Tensor:
        return features @ self.weights[policy]
