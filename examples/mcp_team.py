"""Bring your own tools: an MCP server. A team of two works on a stranger's server; a scripted team plays it.

Here the server runs in this process. A command or a URL does as well: ``MCPToolDomain(["uvx", "some-server"], …)``,
``MCPToolDomain("http://127.0.0.1:8000/mcp", …)``. Needs: pip install -e '.[mcp]'
"""

from mcp.server import MCPServer
from mcp.types import ToolAnnotations

from marft_envs.families.tools import ToolCall, ToolProblem, make, oracle
from marft_envs.families.tools.mcp import MCPToolDomain


def shelf(problem):
    """A fresh server for each episode, with a state of its own."""
    server, books = MCPServer("shelf"), ["Emma", "Ulysses"]

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def titles() -> str:
        """Lists the books on the shelf."""
        return ", ".join(books)

    @server.tool()
    def put(title: str) -> str:
        """Puts a book on the shelf."""
        books.append(title)
        return f"There are {len(books)} books."

    @server.tool()
    def take(title: str) -> str:
        """Takes a book off the shelf."""
        books.remove(title)
        return f"There are {len(books)} books."

    return server


problem = ToolProblem(
    id="shelf/1",
    turns=("Exchange Ulysses for Dubliners.",),
    least_steps=2,
    secret={
        "calls": [[ToolCall("take", {"title": "Ulysses"}), ToolCall("put", {"title": "Dubliners"})]],
        "expected": [(ToolCall("titles", {}), {"result": "Emma, Dubliners"})],  # asked at the end, and compared
    },
)

if __name__ == "__main__":
    with MCPToolDomain(shelf, [problem], policy="The order of the books does not matter.") as domain:
        env = make("dual", domain)
        episode = oracle.play(env, seed=0)
        for turn in episode.turns:
            print(f"{turn.agent}: {turn.text}")
        print(env.state().rpartition("[feedback]")[0][-300:])
        print(f"completion {episode.metrics['completion']:g}, return {episode.team_return:g}")
        env.close()
