"""Any MCP server as the tools of a team. The extra ``mcp`` is imported when a domain is connected, not here."""

from marft_envs.families.tools.mcp.domain import MCPToolDomain
from marft_envs.families.tools.mcp.worlds import ForeignWorld, PastCall

__all__ = ["ForeignWorld", "MCPToolDomain", "PastCall"]
