"""Serves the page to this machine alone: loopback, a token in the address, reading only."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from importlib import resources
from urllib.parse import parse_qsl

from marft_algos.extras.view.api import Api
from marft_algos.extras.view.sources import ViewSource
from marft_envs.errors import MarftError
from marft_envs.server.door import HOST, DoorHandler, FrontDoor, RefusedRequest

KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
POLICY = "; ".join(
    (
        "default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "img-src 'self'",
        "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
    )
)  # fmt: skip
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class ViewServer(FrontDoor):
    """The server of one ``marft view``; ``serve_forever`` until ``shutdown``."""

    def __init__(self, sources: Sequence[ViewSource], port: int = 0) -> None:
        """Listens on a port of the loopback interface.

        Args:
            sources: What is shown.
            port: 0: any that is free.

        Raises:
            ConfigError: The port is taken, or may not be used.
        """
        self.api = Api(sources)
        self.token = secrets.token_urlsafe(24)
        folder = resources.files("marft_algos.extras.view") / "web"
        self.pages = {
            file.name: (KINDS[file.name.rpartition(".")[2]], file.read_bytes())
            for file in folder.iterdir()
            if file.name.rpartition(".")[2] in KINDS
        }
        super().__init__(_Handler, port)

    @property
    def address(self) -> str:
        """What is typed into a browser."""
        return f"http://{HOST}:{self.server_address[1]}/{self.token}/"


class _Handler(DoorHandler):
    server: ViewServer
    more_headers = HEADERS

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        first, _, inside = path.removeprefix("/").partition("/")
        known = secrets.compare_digest(first.encode(), self.server.token.encode())
        if not known or not path.startswith(f"/{first}/"):
            raise RefusedRequest(404, "Open the address that marft view has printed, all of it.")
        self.server.known(self.connection)
        if inside.startswith("api/"):
            return self._answer(inside.removeprefix("api/"), dict(parse_qsl(query, keep_blank_values=True)))
        if (page := self.server.pages.get(inside or "index.html")) is None:
            raise RefusedRequest(404, "There is no such page.")
        return self.send(200, f"{page[0]}; charset=utf-8", page[1])

    do_HEAD = do_GET

    def _answer(self, name: str, query: dict[str, str]) -> None:
        try:
            answer = self.server.api.answer(name, query)
        except (MarftError, OSError) as error:
            raise RefusedRequest(400, str(error)) from error
        self.send_json(200, answer)
