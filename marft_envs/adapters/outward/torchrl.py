"""TorchRL: a team as an environment of tensordicts, text or numbers.

::

    from marft_envs.adapters.outward.torchrl import TeamEnv

    env = TeamEnv(marft_envs.make("math-debate-v0"))
    td = env.reset(seed=0)
    env.texts(td, "solver")                          # three prompts
    td["solver", "mask"]                             # who acts in this step

Needs the extra ``torchrl``. TorchRL's own wrapper resets such an environment and fails at the first text step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marft_envs.adapters.optional import require
from marft_envs.adapters.outward.numeric import Numeric
from marft_envs.adapters.outward.parallel_play import LayerParallel
from marft_envs.core.env import FlexEnv
from marft_envs.core.spaces import UnicodeText
from marft_envs.core.wrappers import FlexWrapper, PromptObservation

PettingZooWrapper: Any = require("torchrl.envs.libs.pettingzoo", "torchrl", "0.8", below="0.15").PettingZooWrapper
NonTensorStack: Any = require("tensordict", "torchrl", "0.8").NonTensorStack
torch: Any = require("torch", "torchrl", "2.7")


class _Plain(LayerParallel):
    """What a tensordict of fixed keys can hold: prompts as plain text, and no infos."""

    def __init__(self, env: FlexEnv | FlexWrapper) -> None:
        base: Any = env
        while isinstance(base, FlexWrapper) and not isinstance(base, Numeric | PromptObservation):
            base = base.env
        self.text = not isinstance(base, Numeric)
        super().__init__(PromptObservation(base) if base is env.unwrapped and self.text else env)
        if self.text:
            self.observation_spaces = {name: UnicodeText() for name in self.possible_agents}

    def _observed(self) -> dict[str, Any]:
        seen = super()._observed()
        return {name: observation["prompt"] for name, observation in seen.items()} if self.text else seen

    def _infos(self) -> dict[str, Any]:
        return {name: {} for name in self.agents}


class TeamEnv(PettingZooWrapper):
    """A layer a step; ``(group, "mask")`` says whose action counts, and what others answer is dropped.

    Observations are prompts and actions replies (both non-tensor data), or with
    :class:`marft_envs.adapters.outward.numeric.Numeric` bits and indices. An episode is done when all agents are.

    Args:
        env: The environment. Text is shown as one prompt; wrap it in ``PromptObservation(env, render)`` to say how.
        group_map: Which agents share a group (TorchRL's ``MarlGroupMapType`` or a mapping); by default those whose
            names differ in the number only.
        **settings: Further arguments of TorchRL's ``PettingZooWrapper``.
    """

    def __init__(self, env: FlexEnv | FlexWrapper, group_map: Any = None, **settings: Any) -> None:
        super().__init__(env=_Plain(env), group_map=group_map, use_mask=True, done_on_any=False, **settings)

    def texts(self, tensordict: Any, group: str, key: str = "observation") -> list[str]:
        """Returns the texts of a group, one per agent; TorchRL hands out a stack, or one bare string for all."""
        values = tensordict.get((group, key))
        return [values] * len(self.group_map[group]) if isinstance(values, str) else list(values.tolist())

    def _reset(self, tensordict: Any = None, **kwargs: Any) -> Any:
        return self._written(super()._reset(tensordict, **kwargs))

    def _step(self, tensordict: Any) -> Any:
        return self._written(super()._step(tensordict))

    def _written(self, tensordict: Any) -> Any:
        """Puts in the prompts as a stack per group: written one by one they would take the first one's place."""
        if self._env.text:
            for group, agents in self.group_map.items():
                seen = [self._env.env.observe(name)["prompt"] for name in agents]
                tensordict.set((group, "observation"), NonTensorStack(*seen))
        return tensordict

    def _step_parallel(self, tensordict: Any) -> Any:
        if not self._env.text:
            return super()._step_parallel(tensordict)
        actions: dict[str, Any] = {}
        for group, agents in self.group_map.items():
            actions.update(zip(agents, self.texts(tensordict, group, "action"), strict=True))
        return self._env.step(actions)

    def _update_agent_mask(self, td: Any) -> None:
        ready = self._env.env.ready_agents
        for group, agents in self.group_map.items():
            td.set((group, "mask"), torch.tensor([name in ready for name in agents], device=self.device))


def totals(env: Any, rollout: Any) -> Mapping[str, float]:
    """Returns each agent's sum of rewards in a rollout of one episode."""
    return {
        name: float(rollout["next", group, "reward"][:, i].sum())
        for group, agents in env.group_map.items()
        for i, name in enumerate(agents)
    }
