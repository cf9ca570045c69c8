"""Enumerates the episodes of a task, with tabular policies that say them.

A state is what an agent is shown. A reply is a path of tokens through a tree that hangs on its state, so a token's id
names the whole path to it. A policy has one logit for each branch of these trees, or one for each word where words are
tied. At zero all branches of a node are equally likely, so every episode's probability is a fraction.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marft_algos.types import NO_REPLY, Generation, GenerationRequest, StopReason, Trajectory, Transition
from marft_envs.core.env import FlexEnv
from marft_envs.core.types import Episode, TurnRecord
from marft_envs.errors import ConfigError

MOST_EPISODES = 4096
"""Episodes of a task at most: of more, an exact answer takes too long."""
MOST_TURNS = 12
END = "<end>"


@dataclass(eq=False)
class ReplyTree:
    """The states of a team and the tokens that can be said in each.

    Args:
        policies: Agent -> its policy.
        tied: Whether a word has one logit for all states of an agent.
    """

    policies: Mapping[str, str]
    tied: bool = False
    nodes: dict[tuple[str, ...], int] = field(default_factory=dict)
    """Path -> token id: policy, state and the words said there. The path of a state is the prompt's one token."""
    children: dict[int, list[int]] = field(default_factory=dict)
    """Token -> tokens that can follow."""
    logits: dict[str, dict[tuple[str, ...], int]] = field(default_factory=dict)
    """Policy -> what a logit stands for -> its place."""
    places: dict[int, int] = field(default_factory=dict)
    """Token -> the place of its logit."""

    def state(self, agent: str, shown: str, replies: Sequence[str]) -> int:
        """Returns the token of a state, which is made with all that can be said there where it is new."""
        policy = self.policies[agent]
        path = (policy, shown)
        if path not in self.nodes:
            self._node(path)
            texts = [tuple(reply.split()) for reply in replies]
            prefixes = {text[:n] for text in texts for n in range(len(text))}
            for text in texts:
                words = (*text, END) if text in prefixes else text
                for n, word in enumerate(words):
                    if (*path, *words[: n + 1]) not in self.nodes:
                        token = self._node((*path, *words[: n + 1]))
                        self.children[self.nodes[(*path, *words[:n])]].append(token)
                        key = (agent, word) if self.tied else (*path, *words[: n + 1])
                        known = self.logits.setdefault(policy, {})
                        self.places[token] = known.setdefault(key, len(known))
        return self.nodes[path]

    def tokens(self, state: int, reply: str) -> list[int]:
        """Returns the tokens of a reply in a state."""
        (path,) = (path for path, node in self.nodes.items() if node == state)
        words = tuple(reply.split())
        if self.children[self.nodes[(*path, *words)]]:
            words = (*words, END)
        return [self.nodes[(*path, *words[: n + 1])] for n in range(len(words))]

    def _node(self, path: tuple[str, ...]) -> int:
        self.nodes[path] = len(self.nodes)
        self.children[self.nodes[path]] = []
        return self.nodes[path]


@dataclass(frozen=True, eq=False)
class Play:
    """One episode that can happen."""

    episode: Episode
    turns: tuple[tuple[str, int, tuple[int, ...]], ...]
    """Agent, state and tokens of every turn."""
    prompt: int
    """Number of the problem; all are equally likely."""
    planned: tuple[tuple[str, int], ...] = ()
    """Agent and state of the layer that would have run, of a truncated episode."""
    replayed: tuple[float, ...] = ()
    """What a credit rule that replays rewards each turn with."""

    def value(self, agent: str) -> float:
        """Returns the return of an agent: the team's and turns' rewards, and its own."""
        own = sum(layer.agent_rewards.get(agent, 0.0) for layer in self.episode.layers)
        return self.episode.team_return + own

    def history(self, t: int, *, kept: bool) -> Hashable:
        """Names what was said before the layer of turn t, and in this turn if that is kept."""
        layer = self.episode.turns[t].layer
        turns = enumerate(zip(self.episode.turns, self.turns, strict=True))
        return self.prompt, tuple((i, said) for i, (turn, said) in turns if turn.layer < layer or (kept and i == t))


def blamed(plays: Sequence[Play], probability: Callable[[Play], float]) -> list[Play]:
    """Returns episodes whose turns are rewarded with what they change of the expected return; see ``BlameCredit``."""
    weights, totals = defaultdict[Any, float](float), defaultdict[Any, float](float)
    for play in plays:
        share = probability(play)
        for t, (agent, _, _) in enumerate(play.turns):
            for kept in (False, True):
                at = agent, play.history(t, kept=kept)
                weights[at] += share
                totals[at] += share * play.value(agent)

    def credit(play: Play, t: int) -> float:
        before, after = ((play.turns[t][0], play.history(t, kept=kept)) for kept in (False, True))
        return totals[after] / weights[after] - totals[before] / weights[before]

    return [dataclasses.replace(p, replayed=tuple(credit(p, t) for t in range(len(p.turns)))) for p in plays]


def enumerated(env: FlexEnv, prompts: int, tree: ReplyTree, cut: int = 0) -> list[Play]:
    """Plays every episode that there is.

    Args:
        env: The task with its team; ``sample_actions`` says what each agent can reply.
        prompts: Number of problems, taken by seed, or by ``task_id`` where the task is a game.
        tree: Is filled.
        cut: Turns after which episodes are truncated; 0: they end by themselves.

    Raises:
        ConfigError: There are too many episodes or turns.
    """
    plays = list[Play]()
    for prompt in range(prompts):
        for play in _continued(env, prompt, (), tree, cut):
            plays.append(play)
            if len(plays) > MOST_EPISODES:
                raise ConfigError(
                    f"The task has more than {MOST_EPISODES} episodes, too many to enumerate. Give it fewer turns, "
                    "fewer sample_actions, or fewer --prompts."
                )
    return plays


def _continued(env: FlexEnv, prompt: int, said: tuple[str, ...], tree: ReplyTree, cut: int) -> Iterator[Play]:
    """Plays all episodes of a problem that begin so."""
    if len(said) > MOST_TURNS:
        raise ConfigError(f"An episode has more than {MOST_TURNS} turns, too many to enumerate. Set a lower max_turns.")
    env.reset(seed=prompt, options={"task_id": str(prompt)} if hasattr(env.task, "game") else None)
    turns = list[tuple[str, int, tuple[int, ...]]]()
    for reply in said:
        agent, state, _ = _next(env, tree)
        turns.append((agent, state, tuple(tree.tokens(state, reply))))
        env.step(reply)
    if cut and len(said) == cut and not env.done:
        env.truncate("turn_limit")
    if env.done:
        planned = [
            (p.turn.agent, tree.state(p.turn.agent, _shown(p.messages), _replies(env, p.turn.agent)))
            for p in env.episode.planned
        ]
        yield Play(env.episode, tuple(turns), prompt, tuple(planned))
        return
    _, _, replies = _next(env, tree)
    for reply in replies:
        yield from _continued(env, prompt, (*said, reply), tree, cut)


def _next(env: FlexEnv, tree: ReplyTree) -> tuple[str, int, Sequence[str]]:
    """Selects the next agent; its name, its state, and what it can reply."""
    agent = env.ready_agents[0]
    env.select(agent)
    replies = _replies(env, agent)
    return agent, tree.state(agent, _shown(env.messages(agent)), replies), replies


def _replies(env: FlexEnv, agent: str) -> list[str]:
    return list(dict.fromkeys(" ".join(reply.split()) for reply in env.task.sample_actions(agent)))


def _shown(messages: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(message["content"] for message in messages)


class TablePolicies:
    """Tabular policies over a tree, in double precision; their log-probs are asked for as ``Learner`` does."""

    def __init__(self, tree: ReplyTree) -> None:
        self.tree = tree
        self.tables = {p: torch.zeros(len(places), dtype=torch.float64) for p, places in tree.logits.items()}
        for table in self.tables.values():
            table.requires_grad_()
        width = max(map(len, tree.children.values()))
        self._children = torch.full((len(tree.nodes), width), -1)
        for node, children in tree.children.items():
            self._children[node, : len(children)] = torch.tensor(children, dtype=torch.long)
        self._sampled: dict[tuple[int, tuple[int, ...]], np.ndarray] = {}
        self._names = {node: path[0] for path, node in tree.nodes.items()}
        self._places = torch.tensor([tree.places.get(node, -1) for node in range(len(tree.nodes))])

    @property
    def policies(self) -> list[str]:
        """Policy ids in a fixed order."""
        return sorted(self.tables)

    def logprobs(
        self, policy: str, input_ids: Tensor, action_mask: Tensor, temperature: Tensor, *, entropy_grad: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies [B, T-1] of the sampled tokens; 0 elsewhere."""
        mask = action_mask[:, 1:]
        children = self._children[input_ids[:, :-1]]
        there = children >= 0
        logits = self.tables[policy][self._places[children.clamp(min=0)].clamp(min=0)]
        logp = torch.log_softmax(torch.where(there, logits, -torch.inf), -1)
        place = (children == input_ids[:, 1:, None]).long().argmax(-1, keepdim=True)
        chosen = torch.where(mask, logp.gather(-1, place).squeeze(-1), 0.0)
        entropy = torch.where(mask, -torch.where(there, logp.exp() * logp, 0.0).sum(-1), 0.0)
        return chosen, entropy if entropy_grad else entropy.detach()

    def ascend(self, steps: Mapping[str, np.ndarray]) -> None:
        """Adds a step to every policy's logits."""
        with torch.no_grad():
            for policy, step in steps.items():
                self.tables[policy] += torch.as_tensor(step)
        self._sampled.clear()

    def shift(self, step: float) -> None:
        """Adds a step to every other logit, and takes it off the rest."""
        self.ascend({policy: step * (-1.0) ** np.arange(len(table)) for policy, table in self.tables.items()})

    def rescore(self, turns: Sequence[Transition]) -> list[np.ndarray]:
        """Log-probs [L] of turns' replies under the policies as they are, fp32."""
        return [self.sampled(t.request.prompt_ids[0], tuple(t.reply.action_ids)) for t in turns]

    def sampled(self, state: int, tokens: tuple[int, ...]) -> np.ndarray:
        """Log-probs [L] of a reply's tokens, fp32, as an engine reports them."""
        if (state, tokens) not in self._sampled:
            with torch.no_grad():
                self._sampled[state, tokens] = self.reply(state, tokens).numpy().astype(np.float32)
        return self._sampled[state, tokens]

    def reply(self, state: int, tokens: Sequence[int]) -> Tensor:
        """Log-probs [L] of a reply's tokens, with gradient."""
        before = (state, *tokens[:-1])
        rows = []
        for node, token in zip(before, tokens, strict=True):
            children = self.tree.children[node]
            table = self.tables[self._names[node]]
            logp = torch.log_softmax(table[[self.tree.places[child] for child in children]], -1)
            rows.append(logp[children.index(token)])
        return torch.stack(rows)


def fraction(play: Play, tree: ReplyTree, prompts: int) -> Fraction:
    """Returns the probability of an episode where all logits are 0 and words are not tied across unequal choices."""
    share = Fraction(1, prompts)
    for _, state, tokens in play.turns:
        for node in (state, *tokens[:-1]):
            share /= len(tree.children[node])
    return share


def copies(shares: Sequence[Fraction], most: int = 5000) -> list[int]:
    """Returns how often each episode stands in a batch of exact proportions.

    Raises:
        ConfigError: The batch would be larger than ``most``.
    """
    size = math.lcm(*(share.denominator for share in shares))
    if size > most:
        raise ConfigError(f"Exact proportions need a batch of {size} episodes, at most {most}.")
    return [int(share * size) for share in shares]


def trajectory(play: Play, policies: TablePolicies, number: int, group: int) -> Trajectory:
    """Makes an episode of a batch, as the collector would: with log-probs of the policies as they are."""
    turns = play.episode.turns

    def transition(record: TurnRecord, agent: str, state: int, reply: Generation = NO_REPLY) -> Transition:
        request = GenerationRequest(policies.tree.policies[agent], [state], 0)
        said = [f"{turn.agent}: {turn.text}" for turn in turns if turn.layer < record.layer]
        view = "\n".join([str(play.prompt), *said])
        return Transition(record, request, reply, trainable=reply is not NO_REPLY, team_view=view, observation="")

    transitions = list[Transition]()
    for record, (agent, state, tokens) in zip(turns, play.turns, strict=True):
        logprobs = policies.sampled(state, tokens)
        reply = Generation(list(tokens), logprobs, StopReason.EOS, 0, record.text)
        transitions.append(transition(record, agent, state, reply))
    planned = [transition(p.turn, *at) for p, at in zip(play.episode.planned, play.planned, strict=True)]
    episode = dataclasses.replace(play.episode, index=number)
    return Trajectory(episode, transitions, number=number, group=group, planned=planned, replayed=play.replayed)
