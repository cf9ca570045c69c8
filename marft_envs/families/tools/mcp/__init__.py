"""MCP both ways: any MCP server as the tools of a team, and any tool domain as an MCP server.

The extra ``mcp`` is imported when a domain is connected or a server is made, not here.
"""

from marft_envs.families.tools.mcp.domain import MCPToolDomain
from marft_envs.families.tools.mcp.server import as_mcp_server
from marft_envs.families.tools.mcp.worlds import ForeignWorld, Past

__all__ = ["ForeignWorld", "MCPToolDomain", "Past", "as_mcp_server"]
