"""Makes the pages of the reference: every name that the two packages export, and the modules that pages speak of.

What is public is said by ``__all__`` of ``marft_envs`` and of ``marft_algos``: those names are stable. A name that
stands in no group below stops the build.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence

PACKAGES: Mapping[str, Mapping[str, Sequence[str]]] = {
    "marft_envs": {
        "Making environments": (
            "make", "make_vec", "register", "spec", "list_envs", "registry", "pprint_registry", "EnvSpec",
            "check_env", "from_rows",
        ),
        "Environment and task": (
            "FlexEnv", "Task", "ToolTask", "Team", "AgentSpec", "Outcome", "CompositeReward", "Rubric", "judged",
            "UnicodeText",
        ),
        "Dependency functions": (
            "DependencyFunction", "View", "Chain", "Layered", "Independent", "StaticDAG", "Router", "Scheduled",
            "Tree", "Orchestrator", "Spawn", "InvalidRouting", "as_dependency",
        ),
        "Records": ("Episode", "Turn", "TurnRecord"),
        "Errors": ("MarftError", "ConfigError", "DataError", "DependencyError", "MissingExtraError"),
    },
    "marft_algos": {
        "Training": ("train", "evaluate", "compare", "EvaluationResult", "ComparisonResult"),
        "Settings": ("TrainConfig",),
        "Runs": ("RunFolder", "load_team", "TrainedTeam"),
        "Parts of a run": ("build", "Parts", "Trainer", "Collector", "Learner"),
        "Algorithms": ("Algorithm", "UpdateConfig", "GroupConfig", "ClipConfig", "register"),
        "Engines and models": ("RolloutEngine", "check_engine", "Renderer"),
    },
}  # fmt: skip
"""Package -> page -> names, in the order in which they stand."""
MODULES = {
    "marft_envs.core.types": "Records of an episode, and what a task may have",
    "marft_envs.records.trajectory": "Writing episodes to files, reading and replaying them",
    "marft_envs.core.vector": "Many episodes at once",
    "marft_algos.types": "What a learner reads: turns with their tokens, episodes, estimates",
    "marft_algos.functional": "The formulas, each tested against brute force",
    "marft_algos.credit": "Credit rules and successor relations",
    "marft_algos.runs.loggers": "Loggers, and the display of a run",
}
"""Modules below the stable names that pages use; they may move."""


def documented(package: str) -> list[str]:
    """Names of a package that have a place in the reference."""
    return [name for names in PACKAGES[package].values() for name in names]


def exported(package: str) -> set[str]:
    """Names that a package says are public."""
    return set(importlib.import_module(package).__all__)


def _file(package: str, title: str) -> str:
    return f"reference/{package}-{title.lower().replace(' ', '-')}.md"


def pages() -> Iterator[tuple[str, str, str]]:
    """Yields source address, title and text of every page.

    Raises:
        ValueError: A public name is on no page, or a page has a name that is not public.
    """
    yield "reference/index.md", "Overview", _overview()
    for package, groups in PACKAGES.items():
        wrong = exported(package) ^ set(documented(package))
        if wrong:
            raise ValueError(f"{__name__} and {package}.__all__ differ in {sorted(wrong)}: put them into a group")
        for title, names in groups.items():
            blocks = "\n\n".join(f"::: {package}.{name}" for name in names)
            yield _file(package, title), f"{package}: {title.lower()}", f"# {title}\n\n`{package}`\n\n{blocks}\n"
    for module, summary in MODULES.items():
        options = "    options: {show_root_heading: false, show_root_toc_entry: false, heading_level: 2}"
        text = f"# {module}\n\n{summary}. Modules below the packages' own names may move.\n\n::: {module}\n{options}\n"
        yield f"reference/{module}.md", module, text


def _overview() -> str:
    lines = ["# API", "", "Made from the docstrings. The names below are stable: one that is to go works for one more"]
    lines += ["release, with a warning that names what to use. Modules below them may move.", ""]
    for package, groups in PACKAGES.items():
        lines += [f"## `{package}`", "", "| | |", "|---|---|"]
        for title, names in groups.items():
            links = ", ".join(f"[`{name}`][{package}.{name}]" for name in names)
            lines.append(f"| [{title}]({_file(package, title).partition('/')[2]}) | {links} |")
        lines.append("")
    lines += ["## Modules that pages use", "", "| | |", "|---|---|"]
    lines += [f"| [`{module}`]({module}.md) | {summary} |" for module, summary in MODULES.items()]
    return "\n".join(lines) + "\n"
