"""Domains for other people's agents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from marft_envs.families.tools.types import ToolDomain


class Servable:
    """A domain that other people's agents can use."""

    def as_mcp_server(self, splits: Sequence[str] = ("train", "test")) -> Any:
        """Returns an MCP server with the domain's tools; see :func:`marft_envs.families.tools.mcp.as_mcp_server`."""
        from marft_envs.families.tools.mcp.server import as_mcp_server  # an extra

        return as_mcp_server(cast(ToolDomain, self), splits)
