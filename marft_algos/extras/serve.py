"""``marft serve``: a team as one model, or each of its policies as one, by OpenAI's API, on this machine alone."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from marft_algos.config import arguments, keys
from marft_algos.evaluation import answers
from marft_algos.ranges import Range
from marft_algos.terminal import say
from marft_algos.types import STRAIGHT, Generation, SamplingParams, StopReason
from marft_envs.core.types import Episode, optional
from marft_envs.errors import ConfigError
from marft_envs.server.chat import ChatRequest, Only, checked, cut, wrong
from marft_envs.server.door import HOST, RefusedRequest, gone
from marft_envs.server.openai import ChatHandler, OneByOne

if TYPE_CHECKING:
    from marft_algos.extras import shadow
    from marft_algos.training.team import TrainedTeam
    from marft_envs.adapters.inward.served import PolicyReply, PolicyServer

    Sink = shadow.Record | shadow.Shadow | None

_STRAIGHT: Only = {
    name: ((value,), "none: replies are sampled from the whole distribution")
    for name, value in {**STRAIGHT, "frequency_penalty": 0, "presence_penalty": 0, "logit_bias": {}}.items()
}
"""Settings of sampling that no policy was trained with."""


@dataclass(frozen=True)
class ServeArguments:
    """Serves a trained team as one model, by POST /v1/chat/completions and /v1/responses; Ctrl-C ends it.

    A user's message is the team's task, and the answer is what the team says last, or what its program answers. Who is
    hosted in the run's settings is asked where they say.
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
    policies: bool = False
    """Serve each agent's policy, as a model of the agent's name, for a program that runs elsewhere."""


class ServedTeam:
    """Plays what users ask as tasks.

    Args:
        env: The team's environment.
        reply: Writes what an agent says.
        options: Of ``reset``.

    Raises:
        ConfigError: A task of this environment is more than a text.
    """

    def __init__(self, env: Any, reply: answers.Reply, options: Mapping[str, Any] | None = None) -> None:
        self.env, self._reply, self._options = env, reply, options
        answers.check_answers(env)
        self.answer_key: Callable[[str], str] | None = optional(env.unwrapped.task, "answer_key")

    def play(self, words: answers.Words, wanted: Callable[[], bool] = lambda: True) -> Episode:
        """Plays a user's words as a task; returns the record, which nobody has judged.

        Args:
            words: The task.
            wanted: Is asked before each turn whether anybody waits for the answer.

        Raises:
            ConnectionAbortedError: Nobody does.
            MarftError: Nobody replied, or the team did not come to an answer.
            RefusedRequest: A prompt is refused: the task is too long.
        """

        def reply(agent: str, messages: Sequence[answers.Message]) -> str | Generation:
            if not wanted():
                raise ConnectionAbortedError
            return self._reply(agent, messages)

        began = time.monotonic()
        try:
            episode = answers.answered(self.env, words, reply, self._options)
        except answers.RefusedPrompt as error:
            raise _refused(error) from error
        seconds = time.monotonic() - began
        kept = [{k: v for k, v in (turn.extras or {}).items() if k != "messages"} for turn in episode.turns]
        turns = [replace(turn, extras=extras) for turn, extras in zip(episode.turns, kept, strict=True)]
        return replace(episode, turns=turns, metrics={"seconds": seconds})


def _refused(error: answers.RefusedPrompt) -> RefusedRequest:
    return RefusedRequest(400, str(error), error.code, "messages")


def run_serve(options: ServeArguments) -> int:
    """``marft serve RUN``."""
    if options.shadow and not options.record:
        raise ConfigError("What a shadow says is only recorded. Type: marft serve RUN --shadow OTHER --record DIR")
    if options.policies and options.record:
        raise ConfigError("A policy's replies are no episodes to record. Leave --record out, or --policies.")
    if options.policies:
        from marft_algos.training.team import load_team

        with policy_server(load_team(options.run), options.port, keys.of_users(options.key)) as policies:
            return _serve(policies, options)
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
        return _serve(server, options)


def _serve(server: OneByOne, options: ServeArguments) -> int:
    key = f"key {server.key}" if options.key == "drawn" else f"the key in {options.key}"
    key = key if options.key else "any key: every user of this machine can ask; --key drawn shuts others out"
    models = ", ".join(f"'{model}'" for model in server.models)
    say(f"address: http://{HOST}:{server.server_address[1]}/v1 (model {models}, {key}); Ctrl-C ends")
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


def policy_server(team: TrainedTeam, port: int = 0, key: str | None = None) -> PolicyServer:
    """Returns a server of each policy of a team, by its agent's name.

    Args:
        team: Whose policies; they reply as in its evaluations, where a request does not say otherwise.
        port: 0: any that is free.
        key: What clients have to show; None: nothing.
    """
    from marft_envs.adapters.inward.served import PolicyReply, PolicyServer

    def reply(agent: str, messages: Sequence[answers.Message], tools: Any, asked: ChatRequest) -> PolicyReply:
        sampling, seed = _sampling(asked, team)
        generation = team.say(agent, messages, tools, seed, sampling)
        try:
            extras = answers.counted(generation)
        except answers.RefusedPrompt as error:
            raise _refused(error) from error
        logprobs = _logprobs(team, agent, generation) if asked.body.get("logprobs") else None
        if logprobs is None and asked.body.get("logprobs"):
            raise wrong(asked.body, "logprobs", f"none of {agent}, which is hosted")
        return PolicyReply(generation.text, extras, logprobs)

    base = team.env.unwrapped
    return PolicyServer(base.team, reply, share_thoughts=base.rules.share_thoughts, port=port, key=key)


def _logprobs(team: TrainedTeam, agent: str, said: Generation) -> list[dict[str, Any]] | None:
    """Returns the tokens of a reply with their log-probabilities, as OpenAI's API does; None: of a hosted policy."""
    renderer = team.player.renderer
    if (policy := renderer.policy_of(agent)) not in renderer.policies:
        return None
    shown = said.action_ids[: -1 if said.stop_reason is StopReason.EOS else None]
    pieces = renderer.tokenizer(policy).batch_decode([[token] for token in shown])
    rows = zip(pieces, said.logprobs[: len(shown)].tolist(), strict=True)
    known = {piece: list(piece.encode()) for piece in pieces if "\ufffd" not in piece}  # a part of a character has none
    return [{"token": p, "logprob": x, "bytes": known.get(p), "top_logprobs": []} for p, x in rows]


def _sampling(asked: ChatRequest, team: TrainedTeam) -> tuple[SamplingParams, int]:
    """Returns how a request wants its reply sampled, and the seed."""
    body, changes = asked.body, dict[str, Any]()
    checked(body, _STRAIGHT)
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens", "seed", "temperature"):
        value, least = body.get(name), 0 if name in ("seed", "temperature") else 1
        kinds: Any = (int, float) if name == "temperature" else int
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, kinds) or not least <= value < 2**63
        ):
            raise wrong(body, name, f"a number from {least} on")
        if value is not None and name.startswith("max"):
            changes["max_new_tokens"] = value
    if (temperature := body.get("temperature")) is not None:
        changes |= {"greedy": True} if temperature == 0 else {"greedy": False, "temperature": float(temperature)}
    seed = body.get("seed")
    return replace(team.player.sampling, **changes), secrets.randbits(31) if seed is None else seed


class TeamServer(OneByOne):
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
        asked, team = self.chat(), self.server.team
        words = _task(asked, team)
        with self.server.turn(self.connection):
            episode = team.play(words, lambda: not gone(self.connection))
        extras = [turn.extras or {} for turn in episode.turns]
        read, wrote = (sum(int(one.get(name) or 0) for one in extras) for name in ("prompt_tokens", "tokens"))
        usage = {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote}
        ends = {turn.spoken: more.get("stop_reason") for turn, more in zip(episode.turns, extras, strict=True)}
        answer, finish = episode.answer, "length" if ends.get(episode.answer) == "length" else "stop"
        keys = ("agent", "text", "sees", "result")
        played = [{key: getattr(turn, key) for key in keys} for turn in episode.turns]
        more = {"marft_trace": played} if asked.body.get("marft_trace") else {}
        message = {"content": cut(answer, asked.stop)}
        reply = {"message": message, "finish_reason": finish, "usage": usage, "more": more}
        self.answer(asked, self.server.models[0], reply)
        if self.server.sink is not None:
            self.server.sink.answered(words, episode)


def _task(asked: ChatRequest, team: ServedTeam) -> answers.Words:
    """Returns the task that a request is.

    Raises:
        RefusedRequest: It asks for more than an answer to what the team's task reads.
    """
    if asked.tools or asked.choice == "required":
        raise RefusedRequest(400, "tools are not taken: the team has its own. Expected none.", field="tools")
    try:
        words = answers.words_of(team.env, asked.messages)
    except ConfigError as error:
        raise RefusedRequest(400, str(error), field="messages") from error
    for message in asked.messages:
        if message["role"] in ("tool", "function") or message.get("tool_calls") or message.get("function_call"):
            says = "Calls of tools are no part of a team's task: it has its own. Expected texts."
            raise RefusedRequest(400, says, field="messages")
    return words
