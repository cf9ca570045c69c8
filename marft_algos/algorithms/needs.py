"""What a run offers, what an algorithm needs of it, and the refusal of runs that cannot work."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from marft_algos import credit as credit_rules
from marft_algos.algorithms.base import Algorithm
from marft_algos.algorithms.settings import GroupConfig
from marft_algos.types import Need
from marft_envs.core.types import AgentSpec
from marft_envs.errors import ConfigError

NEEDS: Mapping[Need, tuple[str, str]] = {
    "groups": ("several episodes of one start", "train with the project's trainer"),
    "unshared": ("a policy for each agent", "use --policies own"),
    "blocks": ("policies to update one after the other", "use --policies own, or let some agents have their own"),
    "shared": ("one policy for all agents", "use --policies shared"),
    "branches": ("several replies at one state of an episode", "name an environment that can be forked"),
    "start": ("the weights that the run started from", "sample trained policies in this process: no engines"),
    "critic": ("value heads on the policies' hidden states", "use a model that runs here, not a hosted one"),
    "team_state": ("a view of the whole team for its critic", "name an environment that has team_view"),
}
"""What each need is, and what to type where it is not met."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a run offers, known before a model is loaded; see ``setup.facts``."""

    offers: frozenset[Need]
    """Needs that it can meet."""
    episodes: int
    """Episodes per iteration."""
    agent_specs: tuple[AgentSpec, ...] = ()
    """The team."""
    staleness: int = 0
    """Updates that may lie between who plays and who learns."""
    repeats: bool = False
    """Whether an agent may act several times in an episode, so that what is said may decide how often."""


def check(algorithm: Algorithm, facts: RunFacts) -> None:
    """Refuses a run that cannot work, before a model is loaded; warns where an update may be biased.

    Raises:
        ConfigError: Something the algorithm needs is not there, or the settings contradict each other.
    """
    name, config, rule = algorithm.name or type(algorithm).__name__, algorithm.config, algorithm.rule
    for needs, who, kind in (
        (algorithm.needs, name, "algorithm"),
        (rule.needs, f"credit rule '{rule.name}'", "credit rule"),
    ):
        for need in sorted(needs - facts.offers):
            what, advice = NEEDS[need]
            raise ConfigError(f"{who} needs {what}, which this run does not offer; {advice}, or use another {kind}.")
    if algorithm.chain not in rule.chains:
        raise ConfigError(
            f"Credit rule '{rule.name}' works along {' and '.join(sorted(rule.chains))} chains, and {name} has "
            f"{algorithm.chain} chains. Use another rule ({', '.join(credit_rules.rules())}), or another algorithm "
            "(agent chains: ippo, mappo, or chain='agent' where an algorithm has that setting)."
        )
    if facts.agent_specs:
        rule.check(facts.agent_specs)
    size = algorithm.group_size
    if "groups" in algorithm.needs and size < 2:
        own = type(config).__name__
        how = "" if isinstance(config, GroupConfig) else f": derive {own} from marft_algos.GroupConfig"
        raise ConfigError(f"{name} compares episodes of one start: group_size is {size}, expected at least 2{how}.")
    if facts.episodes % size:
        raise ConfigError(
            f"episodes_per_iteration is {facts.episodes}, which is no multiple of {name}'s group_size {size}; "
            f"try --episodes-per-iteration {max(facts.episodes // size, 1) * size}."
        )
    if facts.staleness:
        _check_stale(algorithm, name)
    if facts.repeats and (bias := algorithm.length_bias()):
        warnings.warn(
            f"The update of {name} is biased if policies decide how many turns an episode has, as this task may let "
            f"them: {bias}. Its page names the setting without this bias; marft audit {name} shows the difference.",
            stacklevel=2,
        )
    if config.tis_cap is not None and config.old_logprobs != "learner":
        raise ConfigError(
            "tis_cap corrects for the gap between sampler and learner, and so does the ratio against the sampler's "
            "log-probs: set old_logprobs='learner' beside it."
        )
    if config.critic_features == "policy" and (algorithm.view != "own" or config.old_logprobs != "learner"):
        raise ConfigError(
            "critic_features='policy' reads the states of the pass that computes old log-probs of each agent's own "
            f"prompt. Here old_logprobs is '{config.old_logprobs}', and the critic sees '{algorithm.view}': set "
            "old_logprobs='learner' and critic='own', or leave it out."
        )


def _check_stale(algorithm: Algorithm, name: str) -> None:
    if algorithm.imitates:
        raise ConfigError(f"{name} learns from demonstrations, which no policy plays ahead: leave out --staleness.")
    if algorithm.config.one_step and algorithm.config.tis_cap is None:
        raise ConfigError(
            f"{name} has no ratio between who sampled a turn and who learns from it, and with staleness they differ. "
            "Set old_logprobs='learner' and tis_cap=2, leave out --staleness, or use an algorithm with a ratio: marft, "
            "grpo, mappo."
        )
