"""``marft serve``: a whole team behind one endpoint that speaks OpenAI's chat API, on this machine alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from marft_algos.config import arguments, keys
from marft_algos.evaluation.answers import RefusedPrompt, Reply, answered, check_answers, only_message
from marft_algos.ranges import Range
from marft_algos.terminal import say
from marft_algos.types import Generation
from marft_envs.core.types import Episode, optional
from marft_envs.errors import ConfigError
from marft_envs.server.api import ChatHandler, ChatServer
from marft_envs.server.chat import ChatRequest
from marft_envs.server.door import HOST, LOOK_S, RefusedRequest, gone
from marft_envs.workers.pool import Ticket, Turns

if TYPE_CHECKING:
    from marft_algos.extras import shadow

    Sink = shadow.Record | shadow.Shadow | None

WAITING = 64
"""Requests that may wait for the team; one more is refused."""


@dataclass(frozen=True)
class ServeArguments:
    """Serves a trained team as one model, by POST /v1/chat/completions; Ctrl-C ends it.

    A user's message is the team's task, and the answer is what the team says last. Who is hosted in the run's settings
    is asked where they say.
    """

    run: Annotated[str, tyro.conf.Positional]
    """Folder or name of a run, folder of an export, or team on the hub (USER/NAME)."""
    port: Annotated[int, Range(0, 65535)] = 0
    """Where to listen; 0: any port that is free."""
    key: str = ""
    """Environment variable with a key that users have to show; ``drawn``: a new one, printed; none: everybody of this
    machine can ask."""
    shadow: str = ""
    """Another team, named as RUN is, that plays every request after it has been answered; its replies go to no user."""
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

    def __init__(self, env: Any, reply: Reply, options: Mapping[str, Any] | None = None) -> None:
        self.env, self._reply, self._options = env, reply, options
        self._turns, self._places = Turns([self]), threading.Semaphore(WAITING + 1)
        env.reset(seed=0)
        check_answers(env)
        self.answer_key: Callable[[str], str] | None = optional(env.unwrapped.task, "answer_key")

    def play(self, text: str, wanted: Callable[[], bool] = lambda: True) -> Episode:
        """Plays the text as a task; returns the record, whose last turn is the answer, and which nobody has judged.

        Args:
            text: The task.
            wanted: Is asked before each turn whether anybody waits for the answer.

        Raises:
            ConnectionAbortedError: Nobody does.
            MarftError: Nobody replied, or the team did not come to an answer.
            RefusedRequest: Too many wait, or a prompt is refused: the task is too long.
        """
        if not self._places.acquire(blocking=False):
            says = f"{WAITING} requests wait already. Ask again later."
            raise RefusedRequest(429, says, "queue_full", headers={"Retry-After": "5"})
        self._turns.arrive(ticket := Ticket["ServedTeam"]())
        try:
            while not ticket.called.wait(LOOK_S):
                if not wanted():
                    raise ConnectionAbortedError
            began = time.monotonic()
            episode = self._episode(text, wanted)
            seconds = time.monotonic() - began
        finally:
            self._turns.leave(ticket)
            self._places.release()
        return replace(episode, metrics={"seconds": seconds})

    def _episode(self, text: str, wanted: Callable[[], bool]) -> Episode:
        def reply(agent: str, messages: Sequence[Mapping[str, str]]) -> str | Generation:
            if not wanted():
                raise ConnectionAbortedError
            return self._reply(agent, messages)

        try:
            episode = answered(self.env, text, reply, self._options)
        except RefusedPrompt as error:
            raise RefusedRequest(400, str(error), error.code, "messages") from error
        kept = [{k: v for k, v in (turn.extras or {}).items() if k != "messages"} for turn in episode.turns]
        return replace(episode, turns=[replace(t, extras=x) for t, x in zip(episode.turns, kept, strict=True)])


def run_serve(argv: list[str]) -> int:
    """``marft serve RUN``."""
    options: ServeArguments = arguments.parse(ServeArguments, argv, prog="marft serve")
    if options.shadow and not options.record:
        raise ConfigError("What a shadow says is only recorded. Type: marft serve RUN --shadow OTHER --record DIR")
    team, said, live = _team(options.run, options.record, "live")
    with ExitStack() as open_:
        sink: Sink = live
        if options.shadow:
            from marft_algos.extras import shadow

            other, shown, kept = _team(options.shadow, options.record, "shadow")
            assert live is not None and kept is not None
            sink = open_.enter_context(closing(shadow.Shadow(other.play, live, kept, other.answer_key)))
            said += f"; its shadow: {shown}"
        server = open_.enter_context(TeamServer(team, options.run, options.port, sink, keys.of_users(options.key)))
        say(f"serving: {said}")
        key = f"key {server.key}" if options.key == "drawn" else f"the key in {options.key}"
        key = key if options.key else "any key: every user of this machine can ask; --key drawn shuts others out"
        say(f"address: http://{HOST}:{server.server_address[1]}/v1 (model '{options.run}', {key}); Ctrl-C ends")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            say("closed")
    return 0


def _team(name: str, record: str, part: str) -> tuple[ServedTeam, str, shadow.Record | None]:
    """Loads a team; returns it, what is said of it, and the folder in which its answers are kept."""
    from marft_algos.training.team import load_team

    loaded = load_team(name)
    env, settings = loaded.env, loaded.settings
    team = ServedTeam(env, loaded.reply, loaded.options)
    kept = None
    if record:
        from marft_algos.extras import shadow

        if part == "shadow":
            shadow.check(env, name)
        kept = shadow.Record(Path(record, part), loaded.run, settings)
    return team, f"{arguments.task(settings.env, settings.env_kwargs)}, {', '.join(env.possible_agents)}", kept


class TeamServer(ChatServer):
    """The server of one ``marft serve``."""

    def __init__(self, team: ServedTeam, name: str, port: int = 0, sink: Sink = None, key: str | None = None) -> None:
        """Listens on a port of the loopback interface.

        Args:
            team: Answers.
            name: Of the model.
            port: 0: any that is free.
            sink: Records what was answered.
            key: What users have to show; None: nothing.
        """
        self.team, self.models, self.sink = team, (name,), sink
        super().__init__(_Handler, port, key=key)


class _Handler(ChatHandler):
    server: TeamServer
    most = 4 << 20
    key_expected = "Authorization: Bearer KEY, with the key of marft serve --key"

    def do_POST(self) -> None:
        """Answers a chat."""
        asked = self.chat()
        text = _task(asked)
        episode = self.server.team.play(text, lambda: not gone(self.connection))
        extras = [turn.extras or {} for turn in episode.turns]
        read, wrote = (sum(int(one.get(name) or 0) for one in extras) for name in ("prompt_tokens", "tokens"))
        usage = {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote}
        finish = "length" if extras[-1].get("stop_reason") == "length" else "stop"
        keys = ("agent", "text", "sees", "result")
        played = [{key: getattr(turn, key) for key in keys} for turn in episode.turns]
        more = {"marft_trace": played} if asked.body.get("marft_trace") else {}
        self.answer(asked, self.server.models[0], {"content": episode.turns[-1].text}, finish, usage, **more)
        if self.server.sink is not None:
            self.server.sink.answered(text, episode)


def _task(asked: ChatRequest) -> str:
    """Returns the task that a request is.

    Raises:
        RefusedRequest: It asks for more than an answer to one message of a user.
    """
    if asked.tools or asked.choice == "required":
        raise RefusedRequest(400, "tools are not taken: the team has its own. Expected none.", field="tools")
    try:
        return only_message(asked.messages)
    except ConfigError as error:
        raise RefusedRequest(400, str(error), field="messages") from error
