"""Value heads: a small MLP per policy on final hidden states of the frozen base model (the paper's critic).

The trunk never changes, so the hidden states of a turn are computed once, without the output head, and kept with
the update; only the MLP is trained. By an option the states are the policy's own, as the update begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain, pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from marft_algos import seeds
from marft_algos.models.policy import PolicySet
from marft_algos.types import Transition
from marft_envs.errors import ConfigError, did_you_mean


class Critics:
    """One value head per policy id; agents that share a policy share its head (their role is in the prompt).

    Args:
        policies: whose frozen base models give the features. Frozen policies get a head too: their turns are
            nodes of the team's chain.
        hidden: widths of the hidden layers. The paper: (64,); released code: (1024, 512).
        seed: of the initial weights. The last layer starts at 0, so V does.
        features: whose states they read, ``UpdateConfig.critic_features``.
    """

    def __init__(
        self, policies: PolicySet, hidden: Sequence[int] = (64,), seed: int = 0, features: str = "base"
    ) -> None:
        self._policies, self._own = policies, features == "policy"
        with seeds.initial_weights(seed):
            heads = {p: _mlp([policies.base(p).hidden_size, *hidden, 1]) for p in policies.policies}
        self._heads = {policy: head.to(policies.device) for policy, head in heads.items()}

    @property
    def policies(self) -> list[str]:
        """Policies that have a head: all of them."""
        return list(self._heads)

    @property
    def device(self) -> torch.device:
        """Where the heads are."""
        return self._policies.device

    def parameters(self, policy: str) -> list[Tensor]:
        """Returns the trainable tensors of one head."""
        return list(self._get(policy).parameters())

    def featurise(
        self,
        transitions: Sequence[Transition],
        *,
        view: Literal["own", "team"],
        level: Literal["action", "token"],
        logprobs: dict[Transition, Tensor] | None = None,
    ) -> dict[Transition, Tensor]:
        """Returns the features of each turn: what V is read from, before the action (the token) is known.

        Token level has one row per action token, the state that predicts it. Action level has one row, the last
        prompt position; so have turns that carry no loss or no tokens. Turns without a prompt (scripted agents) are
        left out.

        Args:
            transitions: turns of any policies.
            view: ``own`` reads the agent's own prompt; ``team`` reads ``team_view``, rendered as a user message.
            level: of the values.
            logprobs: gets log-probs [L] of turns where the same pass gives them, of a turn's own prompt: under the
                weights that their policies started from, if those are the base's, or with features of the policies'
                own under the present ones. None: they are not wanted.
        """
        # Policies on one base share the pass where features are the base's, without any adapter.
        features: dict[Transition, Tensor] = {}
        teams: dict[int, list[str]] = {}
        for policy in self._policies.policies:
            teams.setdefault(id(self._policies.base(policy) if not self._own else policy), []).append(policy)
        for names in teams.values():
            turns = [t for t in transitions if t.policy in names and t.request.prompt_ids]
            policy, context = names[0], self._policies.renderer.chat(names[0]).context
            scored = [logprobs is not None and view == "own" and self._scores(t, context) for t in turns]
            if view == "own":
                prompts: Sequence[Sequence[int]] = [t.request.prompt_ids for t in turns]
            else:
                chats = [[{"role": "user", "content": t.team_view}] for t in turns]
                prompts = self._policies.renderer.render_many(policy, chats)
            counts = [
                len(t.reply.action_ids) if (level == "token" or s) and t.trainable and t.reply.action_ids else 1
                for t, s in zip(turns, scored, strict=True)
            ]
            rows = [[*p, *t.reply.action_ids[: n - 1]] for p, t, n in zip(prompts, turns, counts, strict=True)]
            rows = [row[-context:] for row in rows]  # prompts were cut to it, a team's view was not: its end is read
            spans = [range(len(row) - n, len(row)) for row, n in zip(rows, counts, strict=True)]

            take = partial(self._take, turns, scored, short=level == "action", logprobs=logprobs)
            features |= zip(turns, self._policies.features(policy, rows, spans, take, own=self._own), strict=True)
        return features

    def _take(
        self,
        turns: Sequence[Transition],
        scored: Sequence[bool],
        numbers: Sequence[int],
        states: Sequence[Tensor],
        *,
        short: bool,
        logprobs: dict[Transition, Tensor] | None,
    ) -> Sequence[Tensor]:
        """Fills the log-probs of a pass's scored turns; returns what is kept of its states, of those one if short."""
        found = [(turns[i], x) for i, x in zip(numbers, states, strict=True) if scored[i]]
        if logprobs is None or not found:
            return states
        replies = [t.reply.action_ids for t, _ in found]
        at = [t.temperature for t, _ in found for _ in t.reply.action_ids]
        every = torch.cat([x for _, x in found]), list(chain.from_iterable(replies)), at
        flat = self._policies.score_features(found[0][0].policy, *every, own=self._own)
        logprobs.update(zip((t for t, _ in found), flat.split(list(map(len, replies))), strict=True))
        return [x[:1].clone() if short and scored[i] else x for i, x in zip(numbers, states, strict=True)]

    def _scores(self, t: Transition, context: int) -> bool:
        """Returns whether the pass gives a turn's log-probs, and reads all that predicts its tokens."""
        actions, policies = t.reply.action_ids, self._policies
        learns = t.trainable and bool(actions) and policies.trainable(t.policy)
        learns = learns and (self._own or policies.starts_as_base(t.policy))
        return learns and len(t.request.prompt_ids) + len(actions) - 1 <= context

    def values(self, policy: str, features: Tensor) -> Tensor:
        """Returns V of each feature row, float32: [N, d] -> [N]."""
        return self._get(policy)(features.float())[:, 0]

    def state_dict(self) -> dict[str, Tensor]:
        """Returns all heads' weights as ``policy/name``."""
        return {
            f"{policy}/{name}": tensor.detach().cpu().clone()
            for policy, head in self._heads.items()
            for name, tensor in head.state_dict().items()
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restores what ``state_dict`` gave."""
        for policy, head in self._heads.items():
            tensors = {k.removeprefix(f"{policy}/"): v for k, v in state.items() if k.startswith(f"{policy}/")}
            shapes = {name: tensor.shape for name, tensor in head.state_dict().items()}
            if {name: tensor.shape for name, tensor in tensors.items()} != shapes:
                raise ConfigError(
                    f"The saved value head of policy '{policy}' does not fit. Expected the base model, policies and"
                    " critic widths it was trained with."
                )
            head.load_state_dict(tensors)

    def _get(self, policy: str) -> nn.Module:
        if policy not in self._heads:
            raise ConfigError(f"No value head for policy '{policy}'. {did_you_mean(policy, self._heads)}")
        return self._heads[policy]


def _mlp(sizes: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        layers += [nn.Linear(fan_in, fan_out, dtype=torch.float32), nn.ReLU()]
    last = layers[-2]
    nn.init.zeros_(last.weight)  # type: ignore[arg-type]
    nn.init.zeros_(last.bias)  # type: ignore[arg-type]
    return nn.Sequential(*layers[:-1])
