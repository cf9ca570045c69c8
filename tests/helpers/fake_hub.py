"""A stand-in of the Hugging Face hub's API on the loopback: repositories, uploads as LFS and in commits, downloads."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

LARGE = (".safetensors", ".gguf")
"""Files that the hub wants as LFS objects."""


COMMIT = f"{7:040x}"


def _entry(file: str, data: bytes) -> dict[str, Any]:
    """A file as the hub lists it: large ones by the sha256 of what they hold."""
    entry: dict[str, Any] = {"type": "file", "path": file, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
    if file.endswith(LARGE):
        entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 100}
    return entry


class FakeHub:
    """Keeps repositories in memory; refuses tokens other than its own."""

    def __init__(self, token: str = "hf_stand_in") -> None:
        self.token = token
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.commits: list[tuple[str, str]] = []
        """Repository and message, in order."""
        self.gated: set[str] = set()
        self.damaged: dict[str, bytes] = {}
        """File -> what is sent in its place."""
        self.asked: list[str] = []
        """What was read."""
        self._objects: dict[str, bytes] = {}
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.asked.append(self.path)
                self.answer(*hub._read(unquote(self.path.partition("?")[0]), self.headers.get("Authorization", "")))

            do_HEAD = do_GET

            def answer(
                self, content: Any, status: int = 200, headers: Mapping[str, str] = MappingProxyType({})
            ) -> None:
                if not isinstance(content, bytes):
                    self.send(content, status, headers)
                    return
                self.send_response(status)
                for name, value in {"Content-Length": str(len(content)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            def do_PUT(self) -> None:
                hub._objects[self.path.rpartition("/")[2]] = self.body()
                self.send({})

            def do_POST(self) -> None:
                if self.headers.get("Authorization") != f"Bearer {hub.token}":
                    self.send({"error": "Invalid credentials"}, 401)
                    return
                self.send(*hub._answer(self.path.partition("?")[0], self.body()))

            def body(self) -> bytes:
                if "chunked" not in self.headers.get("Transfer-Encoding", ""):
                    return self.rfile.read(int(self.headers.get("Content-Length", 0)))
                data = b""
                while size := int(self.rfile.readline(), 16):
                    data += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return data

            def send(self, content: Any, status: int = 200, headers: Mapping[str, str] = MappingProxyType({})) -> None:
                data = json.dumps(content).encode()
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            def log_message(self, *args: Any) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _read(self, path: str, authorization: str) -> tuple[Any, int, dict[str, str]]:
        """A repository's files, one of them, or what is known of it; at its only commit, ``main``."""
        parts = path.removeprefix("/api/models").strip("/").split("/")
        name, rest = "/".join(parts[:2]), parts[2:]
        revision = rest[1] if len(rest) > 1 else "main"
        if name in self.gated:
            return {"error": "Access is restricted"}, 403, {"X-Error-Code": "GatedRepo"}
        hidden = self.private.get(name) and authorization != f"Bearer {self.token}"
        if name not in self.repositories or hidden:
            return {"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"}
        if revision not in ("main", COMMIT):
            return {"error": "Invalid rev id"}, 404, {"X-Error-Code": "RevisionNotFound"}
        files = self.repositories[name]
        if rest[:1] == ["resolve"]:
            return self._file(files, "/".join(rest[2:]))
        if rest[:1] == ["tree"]:
            return [_entry(file, data) for file, data in files.items()], 200, {}
        return {"id": name, "sha": COMMIT, "siblings": [{"rfilename": file} for file in files]}, 200, {}

    def _file(self, files: Mapping[str, bytes], file: str) -> tuple[Any, int, dict[str, str]]:
        if file not in files:
            return {"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT}
        entry = _entry(file, files[file])
        etag = entry.get("lfs", entry)["oid"]
        data = self.damaged.get(file, files[file])
        return data, 200, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT, "X-Linked-Etag": f'"{etag}"'}

    def _answer(self, path: str, body: bytes) -> tuple[Any, int]:
        if path == "/api/validate-yaml":
            return {"errors": [], "warnings": []}, 200
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
            if name in self.repositories:
                return {"error": "exists", "url": f"{self.url}/{name}"}, 409
            self.repositories[name] = {}
            self.private[name] = bool(asked.get("private")) or asked.get("visibility") == "private"
            return {"url": f"{self.url}/{name}"}, 200
        if "/preupload/" in path:
            return {"files": [self._mode(file["path"]) for file in json.loads(body)["files"]]}, 200
        if path.endswith("/info/lfs/objects/batch"):
            return {"transfer": "basic", "objects": [self._room(item) for item in json.loads(body)["objects"]]}, 200
        if "/commit/" in path:
            return self._commit(path.removeprefix("/api/models/").partition("/commit/")[0], body)
        return {"error": f"no such page: {path}"}, 404

    def _mode(self, file: str) -> dict[str, Any]:
        mode = "lfs" if file.endswith(LARGE) else "regular"
        return {"path": file, "uploadMode": mode, "shouldIgnore": False, "oid": None}

    def _room(self, item: dict[str, Any]) -> dict[str, Any]:
        return {**item, "actions": {"upload": {"href": f"{self.url}/objects/{item['oid']}"}}}

    def _commit(self, name: str, body: bytes) -> tuple[Any, int]:
        for line in body.splitlines():
            item = json.loads(line)
            value = item["value"]
            if item["key"] == "header":
                self.commits.append((name, value["summary"]))
            elif item["key"] == "file":
                self.repositories[name][value["path"]] = base64.b64decode(value["content"])
            elif item["key"] == "lfsFile":
                self.repositories[name][value["path"]] = self._objects[value["oid"]]
        oid = f"{len(self.commits):040x}"
        return {
            "success": True, "commitUrl": f"{self.url}/{name}/commit/{oid}", "commitOid": oid, "pullRequestUrl": "",
        }, 200  # fmt: skip


@contextmanager
def serving() -> Iterator[FakeHub]:
    """A hub while inside."""
    hub = FakeHub()
    try:
        yield hub
    finally:
        hub.close()
