"""Which agent plays with which policy, and which base model a policy stands on, as settings name them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from marft_envs import errors
from marft_envs.core.env import FlexEnv
from marft_envs.core.types import AgentSpec
from marft_envs.errors import ConfigError, did_you_mean

_POLICY_ID = re.compile(r"[\w-]+")


def played(env: FlexEnv) -> list[AgentSpec]:
    """Returns the agents that policies play: not those that a wrapper of the environment does."""
    return [agent for agent in env.unwrapped.team if agent.name in env.possible_agents]


def assign(agents: Sequence[AgentSpec], policies: str | Mapping[str, str]) -> dict[str, str]:
    """Returns the policy id of every agent.

    Args:
        agents: the team.
        policies: ``own`` (one policy an agent, named after it), ``shared`` (one for all that are trained), or a mapping
            from agent name or role to policy id that covers the team.

    Raises:
        ConfigError: an unknown agent is named, or one is left out.
    """
    if policies == "own":
        return {agent.name: agent.name for agent in agents}
    if policies == "shared":
        return {agent.name: "shared" if agent.trained else agent.name for agent in agents}
    if isinstance(policies, str):
        raise ConfigError(f"Unknown sharing '{policies}'. {did_you_mean(policies, ('own', 'shared'))}")
    known = {agent.name for agent in agents} | {agent.role for agent in agents}
    errors.check_known(policies, known, "No agent or role is called '{}' in this team.")
    chosen = {agent.name: policies.get(agent.name, policies.get(agent.role)) for agent in agents}
    if missing := [name for name, policy in chosen.items() if policy is None]:
        raise ConfigError(
            f"No policy was given for {', '.join(missing)}. Expected one for every agent: name the agent or its"
            " role, or use 'own' or 'shared'."
        )
    return {name: policy for name, policy in chosen.items() if policy is not None}


def base_specs(models: str | Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """Returns the model of every policy id; an id or a model that is missing or unknown is an error."""
    if not names:
        raise ConfigError("No agent has a policy. Expected a mapping from agent to policy id.")
    for name in names:
        if not _POLICY_ID.fullmatch(name):
            raise ConfigError(f"'{name}' cannot be a policy id. Use letters, digits, '_' and '-'.")
    if isinstance(models, str):
        return dict.fromkeys(names, models)
    check_known(models, names, "models")
    if missing := [name for name in names if name not in models]:
        raise ConfigError(
            f"No model was given for policy '{missing[0]}'. Add it to models: {missing[0]} = \"embedded\""
        )
    return dict(models)


def check_known(policies: Iterable[str], names: Sequence[str], setting: str) -> frozenset[str]:
    """Returns the policies that a setting names; an unknown one is an error."""
    errors.check_known(policies, names, f"'{setting}' names an unknown policy '{{}}'.")
    return frozenset(policies)


def templates_by_model(given: str | Mapping[str, str], models: Mapping[str, str]) -> str | dict[str, str]:
    """Returns chat templates by model, of one for all of them or of some policies'.

    Raises:
        ConfigError: An unknown policy, or two templates of one model.
    """
    if isinstance(given, str):
        return given
    found: dict[str, str] = {}
    for policy in check_known(given, list(models), "chat_template"):
        if found.setdefault(models[policy], given[policy]) != given[policy]:
            raise ConfigError(f"'chat_template' gives {models[policy]} two templates. Policies on one model share it.")
    return found
