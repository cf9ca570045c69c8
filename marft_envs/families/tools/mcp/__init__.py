"""Any MCP server as the tools of a team. The extra ``mcp`` is imported when a domain is connected, not here."""

from marft_envs.families.tools.mcp.domain import ForeignWorld, MCPToolDomain, PastCall

__all__ = ["ForeignWorld", "MCPToolDomain", "PastCall"]
