"""FlexEnv with tools."""

from __future__ import annotations

from typing import Any

from marft_envs.core import FlexEnv


class ToolEnv(FlexEnv):
    """A :class:`FlexEnv` whose task is a :class:`marft_envs.tools.task.ToolTask`."""

    @property
    def tools(self) -> dict[str, list[dict[str, Any]]]:
        """Agent -> the tools that it can call now, as OpenAI's chat API takes them."""
        return {name: self.task.tools_of(name) for name in self.possible_agents}  # type: ignore[attr-defined]
