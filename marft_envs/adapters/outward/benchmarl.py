"""BenchMARL: any team as a task, through the numeric bridge.

::

    from benchmarl.experiment import Experiment
    from marft_envs.adapters.outward.benchmarl import TeamTask

    task = TeamTask(lambda: Numeric(marft_envs.make("relay-v0")), "relay")
    Experiment(task=task, algorithm_config=MappoConfig.get_from_yaml(), …).run()

BenchMARL 1.5 wants TorchRL 0.8 and a torchvision that it does not use; see ``docs/adapters.md`` for how to install it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from marft_envs.adapters.optional import require
from marft_envs.adapters.outward.numeric import Numeric
from marft_envs.errors import ConfigError

TaskClass: Any = require("benchmarl.environments.common", "benchmarl", "1.5", below="2").TaskClass
# BenchMARL 1.5.0 wants torchrl~=0.8, 1.5.2 wants 0.10 or 0.11.
MarlGroupMapType: Any = require("torchrl.envs.utils", "benchmarl", "0.8", below="0.12").MarlGroupMapType
cloudpickle: Any = require("cloudpickle", "benchmarl")

# After BenchMARL, so that its extra is named where both are missing.
from marft_envs.adapters.outward.torchrl import TeamEnv  # noqa: E402


class TeamTask(TaskClass):
    """A team in BenchMARL's terms.

    Where all agents have the same number of replies they form one group, so that a central critic sees what all of
    them see; else each forms a group of its own. ``share_policy_params=False`` gives each agent of a group its own
    policy. Agents that are not on turn have one legal action, whose probability is 1: they learn nothing from it.

    Args:
        make: Builds the environment, a :class:`marft_envs.adapters.outward.numeric.Numeric` with its mask.
        name: Of the task, in BenchMARL's records.
        max_steps: Most layers of an evaluation episode.

    Raises:
        ConfigError: ``make`` builds something else.
    """

    def __init__(self, make: Callable[[], Numeric], name: str = "team", max_steps: int = 100) -> None:
        super().__init__(name=name, config={"max_steps": max_steps})
        env = make()
        if not isinstance(env, Numeric) or not env.mask:
            raise ConfigError("BenchMARL needs numbers with their mask. Expected make to return Numeric(env).")
        self.make = make
        alike = len({env.action_space(agent).n for agent in env.possible_agents}) == 1
        self.groups = MarlGroupMapType.ALL_IN_ONE_GROUP if alike else MarlGroupMapType.ONE_GROUP_PER_AGENT
        env.close()

    def __getstate__(self) -> dict[str, Any]:
        # BenchMARL pickles tasks beside its results, and ``make`` is most often a lambda.
        return {**self.__dict__, "make": cloudpickle.dumps(self.make)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, make=cloudpickle.loads(state["make"]))

    def get_env_fun(self, num_envs: int, continuous_actions: bool, seed: int | None, device: Any) -> Callable[[], Any]:
        """Returns what builds one environment; BenchMARL puts several in a row itself."""
        return lambda: TeamEnv(self.make(), self.groups, categorical_actions=True, seed=seed, device=device)

    def supports_continuous_actions(self) -> bool:
        """Replies are chosen, not dosed."""
        return False

    def supports_discrete_actions(self) -> bool:
        """Replies are chosen."""
        return True

    def has_render(self, env: Any) -> bool:
        """Transcripts are no images."""
        return False

    def max_steps(self, env: Any) -> int:
        """Returns the most layers of an evaluation episode."""
        return int(self.config["max_steps"])

    def group_map(self, env: Any) -> Any:
        """Returns group -> agents."""
        return env.group_map

    def observation_spec(self, env: Any) -> Any:
        """Returns the spec of the bits."""
        return self._only(env, "observation")

    def action_mask_spec(self, env: Any) -> Any:
        """Returns the spec of the masks."""
        return self._only(env, "action_mask")

    def action_spec(self, env: Any) -> Any:
        """Returns the spec of the choices."""
        return env.full_action_spec

    def state_spec(self, env: Any) -> None:
        """There is no state beside the observations."""

    def info_spec(self, env: Any) -> None:
        """There are no infos."""

    @staticmethod
    def env_name() -> str:
        """Returns the family's name, in BenchMARL's records."""
        return "marft"

    def _only(self, env: Any, key: str) -> Any:
        spec = env.observation_spec.clone()
        for group in self.group_map(env):
            for other in list(spec[group].keys()):
                if other != key:
                    del spec[group][other]
        return spec
