"""Policies whose weights are elsewhere: what a :class:`PolicySet` is to a learner, over the Tinker protocol.

No gradient crosses the wire, only numbers for each token. **The carrier**: of any loss ℓ of the log-probs, the learner
computes ∂ℓ/∂log-prob here, and the server takes −∂ℓ/∂log-prob as the advantages of ``importance_sampling`` at the very
weights that gave the log-probs, where the ratio is 1; so its gradient is that of ℓ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from marft_algos.batching import UpdateError
from marft_algos.extras.tinker import saved
from marft_algos.extras.tinker.client import ADAM, Model, TinkerServer, grad_norm, sample
from marft_algos.extras.tinker.dialect import NEAR, Dialect
from marft_algos.extras.tinker.wire import Row
from marft_algos.learner.steps import LocalOptimiser, Optimiser
from marft_algos.models.chat import Chat, Renderer
from marft_algos.models.policy import PolicySet
from marft_algos.types import FloatArray
from marft_envs.errors import ConfigError

EQUAL = 1e-5
"""Difference of log-probs of sampler and trainer, in nats, that is rounding: what was sampled is then scored, too."""


class Published(NamedTuple):
    """A snapshot of a policy's weights, which replies come from."""

    session: str
    version: int
    heard: dict[tuple[int, ...], FloatArray]
    """Rows that it has written -> log-probs [T] of their targets; NaN: of what it has not written."""


class RemotePolicy:
    """One policy: its weights on the server, and the gradients of log-probs that wait for a step.

    Args:
        server: Where the weights are.
        chat: How it is spoken to; its vocabulary is the model's.
        base: The model that it stands on, as the server calls it.
        dialect: How the server understands the protocol.
        rank: Of the adapter.
        seed: Of its initial weights.
    """

    def __init__(self, server: TinkerServer, chat: Chat, base: str, dialect: Dialect, rank: int, seed: int) -> None:
        self.server, self.chat, self.base, self.dialect = server, chat, base, dialect
        self._rank, self._seed = rank, seed
        self._model: Model | None = None
        self._state, self._goes_on = "", False
        self.kept: dict[tuple[int, ...], FloatArray] = {}
        """Ids of a row -> the gradient [T] of its log-probs: equal rows are one, as what they say may cancel out."""
        self._known: dict[tuple[int, ...], FloatArray] = {}
        """Log-probs of rows at the present weights."""
        self.sampler: Published | None = None
        self._reference = ""

    @property
    def model(self) -> Model:
        """The weights, made when they are first asked for: a run that goes on takes no place for fresh ones."""
        if self._model is None:
            start = self._seed, self._state, self._goes_on
            self._model = Model(self.server, self.base, self.chat.vocabulary, self._rank, *start)
        return self._model

    def load(self, state: str) -> None:
        """Begins with weights that the server has saved, and with a fresh optimiser unless ``go_on`` says otherwise."""
        self.unload()
        self._model, self._state, self._goes_on, self.sampler = None, state, False, None
        self.forget()

    def go_on(self) -> None:
        """Takes the optimiser that was saved with the weights over with them."""
        self._goes_on = True

    def unload(self) -> None:
        """Gives the weights' place on the server back."""
        if self._model is not None:
            self._model.unload()

    def publish(self, version: int) -> None:
        """Takes a snapshot of the weights: replies come from it until the next.

        If samplers score as the trainer does, what this one writes is known until the next step.
        """
        self.sampler = Published(self.model.sampler(), version, self._known if self.dialect.gap < EQUAL else {})

    def forget(self) -> None:
        """Lets go of what was true of the weights before; a sampler that still writes tells nobody."""
        self.kept.clear()
        self._known = {}

    def score(self, rows: Sequence[tuple[int, ...]], starts: Sequence[int] = ()) -> list[FloatArray]:
        """Returns the log-probs [T] of each row's targets at the present weights; no row is sent twice.

        Args:
            rows: Their ids.
            starts: The first target of each that counts: log-probs before it may be NaN.
        """
        wanted = zip(rows, starts or [0] * len(rows), strict=True)
        new = dict.fromkeys(x for x, i in wanted if x not in self._known or np.isnan(self._known[x][i:]).any())
        self._known |= zip(new, self.model.forward([Row(row) for row in new]), strict=True)
        return [self._known[row] for row in rows]

    def reference(self, rows: Sequence[tuple[int, ...]]) -> list[FloatArray]:
        """Returns the log-probs [T] of each row's targets under the base model, without an adapter."""
        if not self._reference:
            body = {"session_id": self.server.session, "sampling_session_seq_id": self.server.number()}
            answer = self.server.call("create_sampling_session", body | {"base_model": self.base})
            self._reference = str(answer["sampling_session_id"])

        def prompt(row: tuple[int, ...]) -> FloatArray:
            asked = sample(
                self.server, self._reference, row, self.chat.vocabulary, prompt=True, max_tokens=1, temperature=1.0
            )
            scored = asked.prompt[-len(row) + 1 :]  # some begin with an entry for the first token, some do not
            if len(scored) != len(row) - 1 or not np.isfinite(scored).all():
                raise UpdateError(f"{self.server.url} gave no log-probs of a prompt. Leave out kl_coef.")
            return scored

        return [job.result() for job in [self.server.later(lambda row=row: prompt(row)) for row in rows]]  # type: ignore[misc]


class RemoteOptimiser:
    """Adam where the weights are. What has landed is sent with the step, not before: the protocol cannot take it back.

    Args:
        policy: Whose.
        name: Its id, for messages.
        lr: Learning rate.
        eps: Adam's ε.
        max_norm: Of the gradient; None: it is not clipped.
    """

    def __init__(self, policy: RemotePolicy, name: str, lr: float, eps: float, max_norm: float | None) -> None:
        self._policy, self._name, self._lr = policy, name, lr
        self._adam = ADAM | {"eps": eps}
        self._adam |= {"grad_clip_norm": max_norm} if max_norm is not None else {}

    def zero_grad(self) -> None:
        """Forgets what has landed."""
        self._policy.kept.clear()

    def rate(self, lr: float) -> None:
        """Sets the learning rate."""
        self._lr = lr

    def step(self) -> float:
        """Sends what has landed, and steps; nothing is sent where there is no gradient.

        Returns:
            The gradient's norm before it was clipped, as the server says it; NaN: it does not say; 0: no step.

        Raises:
            UpdateError: The gradient is not finite.
        """
        kept = {ids: grad for ids, grad in self._policy.kept.items() if grad.any()}
        self._policy.kept.clear()
        if not kept:
            return 0.0
        if not all(np.isfinite(grad).all() for grad in kept.values()):
            raise UpdateError(
                f"The gradient of '{self._name}' is not finite, and was not sent; lower its learning rate or the"
                " reward's scale."
            )
        starts = [int(grad.nonzero()[0][0]) for grad in kept.values()]
        scored = zip(kept.items(), self._policy.score(list(kept), starts), strict=True)
        rows = [self._policy.dialect.carrier(ids, np.nan_to_num(x), grad, len(kept)) for (ids, grad), x in scored]
        metrics = self._policy.model.step(rows, {**self._adam, "learning_rate": self._lr})
        self._policy.forget()
        if not metrics["gap"] < NEAR:
            raise UpdateError(
                f"The log-probs that '{self._name}' was trained by are {metrics['gap']:.3g} nats a token off those of"
                " the server's trainer: learner and sampler differ, as if its samplers were late. Go on from the last"
                " checkpoint: marft train --resume RUN"
            )
        norm = grad_norm(metrics)
        if norm is not None and not math.isfinite(norm):
            raise UpdateError(
                f"The gradient of '{self._name}' had norm {norm} on the server, whose weights are spoilt now. Go on"
                " from the last checkpoint with a lower rate: marft train --resume RUN --lr …"
            )
        return math.nan if norm is None else norm

    def state_dict(self) -> dict[str, Any]:
        """Returns nothing: Adam's means are saved with the weights, by the server."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Lets them come with the weights."""
        self._policy.go_on()


class RemoteTeam(PolicySet):
    """Policies of a team of which some have their weights on a server; the others are here, as in every team.

    Args:
        here: The others.
        remote: Policy id -> what is elsewhere.
        agents: Agent -> policy, of all.
        trained: Policies that are updated.
    """

    def __init__(
        self, here: PolicySet, remote: Mapping[str, RemotePolicy], agents: Mapping[str, str], trained: Sequence[str]
    ) -> None:
        names = {policy: here.weights(policy) for policy in here.policies}
        super().__init__(names, agents, here._starts)
        self.remote, self._trained = dict(remote), frozenset(trained)
        self.server = next(iter(remote.values())).server
        chats = {p: remote[p].chat if p in remote else here.renderer.chat(p) for p in [*here.policies, *remote]}
        ordered = [p for p in dict.fromkeys(agents.values()) if p in chats]
        self._order = [*ordered, *(p for p in chats if p not in ordered)]
        self.renderer = Renderer({p: chats[p] for p in self._order}, agents, trained)

    @property
    def policies(self) -> list[str]:
        """Policy ids, in the order the agents name them."""
        return list(self._order)

    def trainable(self, policy: str) -> bool:
        """Returns whether this policy is updated."""
        return policy in self._trained if policy in self.remote else super().trainable(policy)

    def parameters(self, policy: str) -> list[Any]:
        """Returns the tensors of a policy that is here; none of one that is not."""
        return [] if policy in self.remote else super().parameters(policy)

    def optimiser(
        self, policy: str, parameters: Sequence[Tensor], lr: float, eps: float, max_norm: float | None
    ) -> Optimiser:
        """Makes a policy's optimiser, where its weights are."""
        if policy in self.remote:
            return RemoteOptimiser(self.remote[policy], policy, lr, eps, max_norm)
        return LocalOptimiser(policy, parameters, lr, eps, max_norm)

    def shares(self, policy: str) -> bool:
        """Returns whether a pass computes once what several of its rows begin with: the server knows."""
        return policy not in self.remote and super().shares(policy)

    def starts_as_base(self, policy: str) -> bool:
        """Returns whether the reference is the base model: it is."""
        return policy in self.remote or super().starts_as_base(policy)

    def logprobs(
        self,
        policy: str,
        input_ids: Tensor,
        action_mask: Tensor,
        temperature: Tensor | float = 1.0,
        *,
        entropy_grad: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Scores actions; see :meth:`PolicySet.logprobs`. In place of a remote policy's entropy, −log p of the token.

        Raises:
            ConfigError: Another temperature than 1, or gradients of the entropy, of a remote policy.
        """
        if (remote := self.remote.get(policy)) is None:
            return super().logprobs(policy, input_ids, action_mask, temperature, entropy_grad=entropy_grad)
        if entropy_grad or bool((torch.as_tensor(temperature) != 1).any()):
            raise ConfigError(
                f"The weights of '{policy}' are on a Tinker server, which scores at temperature 1 and knows no"
                " entropies. Type: --temperature 1 --entropy-coef 0"
            )
        rows, starts = _rows(input_ids, action_mask), action_mask[:, 1:].int().argmax(1).tolist()
        values = _masked(remote.score(rows, starts), action_mask)
        if torch.is_grad_enabled():
            values = _Carried.apply(torch.zeros((), requires_grad=True), values, remote, rows)
        return values, -values.detach()

    @torch.no_grad()
    def reference_logprobs(
        self, policy: str, input_ids: Tensor, action_mask: Tensor, temperature: Tensor | float = 1.0
    ) -> Tensor:
        """Scores actions under the base model; see :meth:`PolicySet.reference_logprobs`."""
        if policy not in self.remote:
            return super().reference_logprobs(policy, input_ids, action_mask, temperature)
        return _masked(self.remote[policy].reference(_rows(input_ids, action_mask)), action_mask)

    def save_adapter(self, policy: str, folder: Path | str) -> Path:
        """Writes where the server keeps a policy, and the adapter itself, where it gives it."""
        if policy not in self.remote:
            return super().save_adapter(policy, folder)
        remote = self.remote[policy]
        return saved.save(remote.model, remote.dialect, policy, self.version, Path(folder))

    def load_adapter(self, policy: str, folder: Path | str) -> None:
        """Goes on with what ``save_adapter`` has left on the server, optimiser included."""
        if policy in self.remote:
            remote = self.remote[policy]
            remote.load(saved.state(remote.server.url, remote.base, policy, Path(folder)))
        else:
            super().load_adapter(policy, folder)


class _Carried(torch.autograd.Function):
    """Log-probs that came over the wire; their gradient is kept for the step."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, values: Tensor, remote: RemotePolicy, rows: list[tuple[int, ...]]) -> Tensor:
        ctx.remote, ctx.rows = remote, rows
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        grad = grads[0].detach().float().cpu().numpy()
        for ids, mine in zip(ctx.rows, grad, strict=True):
            ctx.remote.kept[ids] = ctx.remote.kept.get(ids, 0) + mine[: len(ids) - 1]
        return torch.zeros(()), None, None, None


def _rows(input_ids: Tensor, action_mask: Tensor) -> list[tuple[int, ...]]:
    """Returns each row's ids up to its last action."""
    ids, mask = input_ids.cpu().numpy(), action_mask.cpu().numpy()
    ends = [int(np.flatnonzero(row)[-1]) + 1 if row.any() else 2 for row in mask]
    return [tuple(map(int, row[:end])) for row, end in zip(ids, ends, strict=True)]


def _masked(scored: Sequence[FloatArray], action_mask: Tensor) -> Tensor:
    """Returns log-probs [B, T - 1] of actions, 0 elsewhere."""
    mask = action_mask[:, 1:].cpu().numpy()
    values = np.zeros(mask.shape, np.float32)
    for row, mine in zip(values, scored, strict=True):
        row[: len(mine)] = mine
    return torch.from_numpy(np.where(mask, values, np.float32(0)))
