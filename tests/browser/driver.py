"""Drives the machine's own Chromium, and notes what no reader should meet.

A test asks for the fixture ``visit``, which is a page at one of the ``LOOKS``. At its end the test fails if the page wrote
an error to the console, asked another host for anything, or was answered with an error.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[2]
SHOTS = ROOT / ".browser"
"""Where screenshots go; git ignores it."""
LOOKS: dict[str, dict[str, Any]] = {
    "desktop": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light", "has_touch": True},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
}
PROGRAMS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
MISSING = (
    f"no browser on this machine (looked for {', '.join(PROGRAMS)}). On Debian or Ubuntu: sudo apt install chromium; "
    "elsewhere install Chromium or Chrome. Then: make test-browser"
)
LOOPBACK = {"127.0.0.1", "localhost", "::1"}
WIDER = """() => {
    const room = document.documentElement.clientWidth;
    if (document.documentElement.scrollWidth <= room) return [];
    return [...document.querySelectorAll("body *")].filter(e => e.getBoundingClientRect().right > room + 1)
        .slice(0, 5).map(e => `${e.tagName}.${e.className} ${Math.round(e.getBoundingClientRect().right)} > ${room}`);
}"""


def program() -> str | None:
    """Path of the first browser of ``PROGRAMS`` that is installed."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serves a folder on the loopback interface; yields the address, without a slash at its end."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/favicon.ico":  # a browser asks for it unasked
                return self.send_response_only(204) or self.end_headers()
            return super().do_GET()

        def log_message(self, *words: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


class Visit:
    """One page (``page``, Playwright's) at one look, with what went wrong on it (``faults``)."""

    def __init__(self, page: Any, look: str) -> None:
        self.page, self.look, self.faults = page, look, list[str]()
        page.on("console", lambda said: self.faults.append(f"console: {said.text}") if said.type == "error" else None)
        page.on("pageerror", lambda error: self.faults.append(f"exception: {error}"))
        page.on("request", lambda request: self._asked(request.url))
        page.on("response", lambda r: self.faults.append(f"{r.status}: {r.url}") if r.status >= 400 else None)

    def _asked(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https", "ws", "wss") and parts.hostname not in LOOPBACK:
            self.faults.append(f"asked another host: {url}")

    def open(self, url: str) -> None:
        """Goes to an address and waits until nothing is loaded any more."""
        self.page.goto(url, wait_until="networkidle")

    def shot(self, name: str, whole: bool = False) -> None:
        """Checks that nothing is wider than the window, and keeps a picture as ``NAME-LOOK.png``."""
        SHOTS.mkdir(exist_ok=True)
        self.page.screenshot(path=str(SHOTS / f"{name}-{self.look}.png"), full_page=whole)
        wider = self.page.evaluate(WIDER)
        if wider:
            self.faults.append(f"{name} is wider than the window: {'; '.join(wider)}")
