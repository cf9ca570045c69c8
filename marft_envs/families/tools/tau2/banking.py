"""Banking of τ²-bench, on the tools of the ``inspect-evals`` package: two sides of one database, and 698 documents.

Its modules import ``inspect_ai``, of which they need a few names; these are stood in for while they are imported, so
that neither it nor what it depends on has to be there.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

from pydantic import BaseModel

from marft_envs import tables
from marft_envs.families.tools.packages import Package
from marft_envs.families.tools.schema import tool
from marft_envs.families.tools.tau2.data import Upstream
from marft_envs.families.tools.types import ToolError
from marft_envs.problems.index import Index, Passage

_TABLE = tables.read(__package__, "tau2")["banking"]
PACKAGE = Package(**_TABLE["package"])
TOP_K = 10
TEST_EVERY = 5
"""Every fifth task is held out: the package has no split, and this one is ours."""
Search = Callable[[str, int], Sequence[Any]]
"""``search(query, k)``: ids of documents, best first, or tuples that begin with one."""


class KeptModel(BaseModel):
    """In place of a model that inspect_ai keeps between calls: here the world keeps it."""


@dataclass
class Bank:
    """Both sides of the bank, in the form of tau2's environment."""

    policy: str
    tools: Any
    user_tools: Any
    begin: Callable[..., None]
    search: Callable[..., str]

    def get_response(self, call: Any) -> Any:
        """Runs a tool; upstream's report errors as texts."""
        kit = self.user_tools if call.requestor == "user" else self.tools
        try:
            content = (self.search if call.name == "KB_search" else getattr(kit, call.name))(**call.arguments)
        except Exception as error:  # upstream's code: whatever it raises is what the tool answers
            content = f"Error: {error}"
        return SimpleNamespace(content=content, error=content.startswith("Error"))

    def set_state(self, data: Any, actions: Any, _: Any) -> None:
        """Brings a fresh database into a task's initial state."""
        state = SimpleNamespace(initialization_data=data, initialization_actions=actions)
        self.begin(self.tools, self.user_tools, state)


@lru_cache(maxsize=4)
def load(package: str | None = None, search: Search | None = None) -> Upstream:
    """Imports the bank; once.

    Args:
        package: Where ``inspect_evals`` is, if it is not installed.
        search: What the agent's ``KB_search`` asks; None: BM25 over the documents.

    Raises:
        MissingPackageError: The package is not there, or something it imports.
        ConfigError: Another copy is loaded already.
    """
    agent, user, wrapped, users_wrapped, environment, models, utils = _modules(package)
    folder = utils.TAU2_DATA_DIR / "domains" / "banking_knowledge"
    documents = {row["id"]: row for row in json.loads(gzip.decompress((folder / "documents.json.gz").read_bytes()))}
    ask = search or Index.of(Passage(key, row["title"], row["content"]) for key, row in documents.items()).search

    def KB_search(query: str) -> str:
        """Search the knowledge base. Returns the most relevant documents, best first.

        Args:
            query: What to look for, in words.
        """
        ids = (item if isinstance(item, str) else getattr(item[0], "id", item[0]) for item in ask(query, TOP_K))
        found = [documents[one] for one in ids]
        return "\n".join(f"{row['title']}\n   ID: {row['id']}\n   {row['content']}\n" for row in found)

    sides = (wrapped.all_banking_agent_tools, users_wrapped.all_banking_user_tools)
    own, theirs = ({one.__name__.removeprefix("banking_"): one() for one in side} for side in sides)
    tools, reads = {}, tuple(_TABLE["reads"])
    for name, run in {**own, "KB_search": KB_search, **theirs}.items():
        tools[name] = tool(run, name=name, read_only=name.startswith(reads), idempotent=name.startswith(reads))
    kit, user_kit = agent.BankingAgentTools(), user.BankingUserTools(initialized=True)
    kit.initialize()
    user_kit.db = kit.db
    bank = Bank(_policy(folder / "prompts"), kit, user_kit, environment.apply_initial_state, KB_search)
    rows = {row["id"]: row for row in json.loads((folder / "tasks.json").read_text(encoding="utf-8"))}
    tasks = {name: models.Task.model_validate({"initial_state": None, **row}) for name, row in rows.items()}
    held = {name: frozenset([*(row["user_tools"] or ()), "list_discoverable_user_tools"]) for name, row in rows.items()}
    base, test = frozenset(rows), frozenset([*rows][::TEST_EVERY])
    splits, same = {"train": base - test, "test": test, "base": base}, partial(_same, utils.deep_equal_unordered)
    return Upstream(bank, tasks, splits, tools, frozenset(theirs), bank.policy, SimpleNamespace, same, held=held)


def _modules(package: str | None) -> list[ModuleType]:
    """Upstream's modules, without what the packages around them import."""
    root, top = PACKAGE.imported(package)[0] / "tau2", "inspect_evals.tau2"
    for name, folder in ((top, root), (f"{top}.banking", root / "banking")):
        sys.modules.setdefault(name, ModuleType(name)).__path__ = [str(folder)]
    stand = SimpleNamespace(tool=lambda made: made, ToolError=ToolError, StoreModel=KeptModel, store_as=None)
    stand.Tool = stand.Content = stand.ContentText = Any
    with mock.patch.dict(sys.modules, {f"inspect_ai{part}": stand for part in ("", ".tool", ".util", ".model")}):
        found = PACKAGE.imported(package, [f"{top}.{name}" for name in _TABLE["modules"]])[1]
        loaded = {name: module for name, module in sys.modules.items() if name.startswith(top)}
    sys.modules.update(loaded)  # they are found again when a world is unpickled
    return found


def _policy(folder: Path) -> str:
    """Upstream's prompt for an agent that searches by BM25, with its parts put in."""
    text = (folder / "classic_rag_bm25_no_grep.md").read_text(encoding="utf-8")
    parts = {file.stem: file.read_text(encoding="utf-8") for file in (folder / "components").glob("*.md")}
    return re.sub(r"\{\{component:(\w+)\}\}", lambda part: parts[part.group(1)], text)


def _same(equal: Callable[[Any, Any], bool], action: Any, call: Any) -> bool:
    """Upstream's rule: the side, and the arguments that the task names, lists being in any order."""
    if (action.name, action.requestor) != (call.name, call.requestor):
        return False
    names = [] if action.name == "transfer_to_human_agents" else action.compare_args
    mine, theirs = call.arguments, action.arguments
    if names is None:
        return equal(mine, theirs)
    return equal({name: mine.get(name) for name in names}, {name: theirs.get(name) for name in names})
