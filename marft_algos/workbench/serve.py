"""``marft serve``: a whole team behind one endpoint that speaks OpenAI's chat API, on this machine alone."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import unquote

import tyro

from marft_algos.config import arguments
from marft_algos.ranges import Range
from marft_algos.runs import paths
from marft_algos.runs.folder import RunFolder
from marft_algos.terminal import say
from marft_algos.workbench.evaluation.options import POSED
from marft_algos.workbench.loopback import NAMES, LoopbackHandler, LoopbackServer
from marft_algos.workbench.play import PlayArguments, Reply, team_of
from marft_envs.core.types import Episode, optional
from marft_envs.errors import ConfigError, MarftError
from marft_envs.records.chats import UnreadableError, chat
from marft_envs.registration import make

if TYPE_CHECKING:
    from marft_algos.workbench import shadow

MOST = 4 << 20
"""Bytes of a request."""
_PIECE = 16
"""Characters of a piece of a streamed answer."""


@dataclass(frozen=True)
class ServeArguments:
    """Serves a trained team as one model, by POST /v1/chat/completions; Ctrl-C ends it.

    The last words of a user are the team's task, and the answer is what the team says last. Earlier messages are not
    read. Who is hosted in the run's settings is asked where they say.
    """

    run: Annotated[str, tyro.conf.Positional]
    """Folder or name of a run, folder of an export, or team on the hub (USER/NAME)."""
    port: Annotated[int, Range(0, 65535)] = 0
    """Where to listen; 0: any port that is free."""
    shadow: str = ""
    """Another team, named as RUN is, that plays every request after it has been answered, and is heard by nobody."""
    record: str = ""
    """Folder for what was said, as evaluations: live, and shadow, for marft eval --compare DIR/live DIR/shadow."""


class ServedTeam:
    """Plays a user's task, one at a time.

    Args:
        env: The team's environment.
        reply: Writes what an agent says.

    Raises:
        ConfigError: A task of this environment is more than a text.
    """

    def __init__(self, env: Any, reply: Reply) -> None:
        self.env, self._reply, self._lock = env, reply, threading.Lock()
        env.reset(seed=0)
        if (pose := optional(env.unwrapped.task, "pose")) is None:
            raise ConfigError(
                f"A task of {env.unwrapped.env_id} is more than a text, so no message can be one. Expected a"
                " team of the families math, rag or cases, or a task of your own with pose(text): docs/custom-tasks.md"
            )
        pose("")
        self.answer_key: Callable[[str], str] | None = optional(env.unwrapped.task, "answer_key")

    def play(self, text: str) -> Episode:
        """Plays the text as a task; returns the record, whose last turn is the answer, and which nobody has judged."""
        with self._lock:
            began = time.monotonic()
            self.env.reset(seed=0)
            base = self.env.unwrapped
            optional(base.task, "pose")(text)
            while not base.done:
                for agent in base.ready_agents:
                    words = self._reply(agent, base.messages(agent))
                    base.select(agent)
                    self.env.step(words)
            episode: Episode = base.episode
            seconds = time.monotonic() - began
        if episode.failed or not episode.turns:
            raise MarftError(f"The team did not come to an answer: {episode.stop_reason}.")
        return replace(episode, success=None, metrics={"seconds": seconds}, info={POSED: True})


def run_serve(argv: list[str]) -> int:
    """``marft serve RUN``."""
    options: ServeArguments = arguments.parse(ServeArguments, argv, prog="marft serve")
    if options.shadow and not options.record:
        raise ConfigError("What a shadow says is only recorded. Type: marft serve RUN --shadow OTHER --record DIR")
    team, said, live = _team(options.run, options.record, "live")
    with ExitStack() as open_:
        heard: shadow.Record | shadow.Shadow | None = live
        if options.shadow:
            from marft_algos.workbench import shadow

            other, shown, kept = _team(options.shadow, options.record, "shadow")
            assert live is not None and kept is not None
            heard = open_.enter_context(closing(shadow.Shadow(other.play, live, kept, other.answer_key)))
            said += f"; its shadow: {shown}"
        server = open_.enter_context(TeamServer(team, options.run, options.port, heard))
        say(f"serving: {said}")
        say(f"address: http://{NAMES[0]}:{server.server_address[1]}/v1 (any key, model '{options.run}'); Ctrl-C ends")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            say("closed")
    return 0


def _team(name: str, record: str, part: str) -> tuple[ServedTeam, str, shadow.Record | None]:
    """Loads a team; returns it, what is said of it, and the folder in which its answers are kept."""
    run = RunFolder.team(name)
    settings = paths.of_run(run)
    env = make(settings.env, **settings.env_kwargs)
    team = ServedTeam(env, team_of(run, settings, PlayArguments(settings.env), env.possible_agents))
    kept = None
    if record:
        from marft_algos.workbench import shadow

        if part == "shadow":
            shadow.check(env, name)
        kept = shadow.Record(Path(record, part), run, settings)
    return team, f"{settings.env}, {', '.join(env.possible_agents)}", kept


class TeamServer(LoopbackServer):
    """The server of one ``marft serve``."""

    def __init__(
        self, team: ServedTeam, name: str, port: int = 0, heard: shadow.Record | shadow.Shadow | None = None
    ) -> None:
        """Listens on a port of the loopback interface; ``name``: of the model; ``heard``: is told what was answered."""
        self.team, self.name, self.heard = team, name, heard
        super().__init__(_Handler, port)


class _Handler(LoopbackHandler):
    server: TeamServer
    timeout = 600

    def do_GET(self) -> None:
        """Lists the one model, which clients ask for before they talk to it."""
        models, path = "/v1/models", unquote(self.path)
        if self._is_right((path not in (models, f"{models}/{self.server.name}"), HTTPStatus.NOT_FOUND, models)):
            model = {"id": self.server.name, "object": "model", "created": 0, "owned_by": "marft"}
            self._send(HTTPStatus.OK, {"object": "list", "data": [model]} if path == models else model)

    def do_POST(self) -> None:
        """Answers a chat; a page of a stranger cannot ask from a browser, which sends no JSON to others unasked."""
        length, kind = self.headers.get("Content-Length", ""), self.headers.get("Content-Type", "")
        large = not length.isdecimal() or int(length) > MOST
        if not self._is_right(
            (self.path != "/v1/chat/completions", HTTPStatus.NOT_FOUND, "/v1/chat/completions"),
            ("json" not in kind, HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Content-Type: application/json"),
            (large, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"{MOST} bytes at most"),
        ):
            return
        try:
            asked = json.loads(self.rfile.read(int(length)))
            text = [m.content for m in chat(asked["messages"]) if m.role == "user" and not m.results][-1]
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            why = f": {error}" if isinstance(error, UnreadableError) else ""
            return self._refuse(HTTPStatus.BAD_REQUEST, f"Expected a message of a user, of text{why}.")
        try:
            episode = self.server.team.play(text)
        except MarftError as error:
            return self._refuse(HTTPStatus.BAD_GATEWAY, str(error))
        self._answer(episode, bool(asked.get("stream")), bool(asked.get("marft_trace")))
        if self.server.heard is not None:
            self.server.heard.answered(text, episode)

    def _is_right(self, *checks: tuple[bool, HTTPStatus, str]) -> bool:
        """Whether nothing is wrong with a request's head; refuses it for the first thing that is."""
        for wrong, status, expected in ((self.is_strangers, HTTPStatus.FORBIDDEN, "this machine's name"), *checks):
            if wrong:
                self._refuse(status, f"Expected {expected}.")
                return False
        return True

    def _answer(self, episode: Episode, streamed: bool, traced: bool) -> None:
        words = episode.turns[-1].text
        common = {"id": f"marft-{time.time_ns()}", "created": int(time.time()), "model": self.server.name}
        keys = ("agent", "text", "sees", "result")
        more = {"marft_trace": [{k: getattr(turn, k) for k in keys} for turn in episode.turns]} if traced else {}
        if not streamed:
            choice = {"index": 0, "message": {"role": "assistant", "content": words}, "finish_reason": "stop"}
            answer = {**common, "object": "chat.completion", "choices": [choice], **more}
            return self._send(HTTPStatus.OK, answer)
        pieces = [{"role": "assistant", "content": words[at : at + _PIECE]} for at in range(0, len(words), _PIECE)]
        events = []
        for delta in [*pieces, {}]:
            choice = {"index": 0, "delta": delta, "finish_reason": None if delta else "stop"}
            event = {**common, "object": "chat.completion.chunk", "choices": [choice], **({} if delta else more)}
            events.append(f"data: {json.dumps(event)}\n\n")
        self.send(HTTPStatus.OK, "text/event-stream", ("".join(events) + "data: [DONE]\n\n").encode())

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self.close_connection = True
        self._send(status, {"error": {"message": why, "type": status.phrase, "code": int(status)}})

    def _send(self, status: HTTPStatus, answer: object) -> None:
        self.send(status, "application/json", json.dumps(answer).encode())
