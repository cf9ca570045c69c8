"""Defines what an agent sees, and renders it.

One rollout observation (profile, task observation, the actions that D lets the agent see, feedback)
has three renderings: ``messages`` (chat messages, the default), ``prompt`` (one string) and
``structured`` (fields). Everything but the profile is untrusted text and is neutralised: chat-template
control tokens and forged role tags stay readable and stop working.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from gymnasium import spaces

from marft_envs.core.spaces import UnicodeText
from marft_envs.core.types import AgentSpec, TurnRecord
from marft_envs.errors import ConfigError, did_you_mean

Message = dict[str, Any]
"""``role``, ``content``, and ``images`` of the message that shows some."""

_UNPRINTABLE = re.compile(r"[\x00\ud800-\udfff]")
# Openers of control tokens in the common chat templates: <|im_end|>, <｜User｜>, <s>, </s>, <bos>,
# <start_of_turn>, [INST], <<SYS>>, <think> is content and stays. One pattern per bracket: a search for one letter
# runs through a long text at once. Most brackets are passed over by the letter behind them.
_ANGLE = re.compile(
    r"<(?=[|｜]|/?(?:s|bos|eos|pad|unk|mask|start_of_turn|end_of_turn|tool_call|tool_response|tools|begin_of_text|"
    r"start_of_image|end_of_image)>|<SYS>>|</?SYS>)"
)
_SQUARE = re.compile(
    r"\[(?=[/A-Z])(?=/?(?:INST|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|SYSTEM_PROMPT|TOOL_CONTENT|CALL_ID|ARGS|THINK|IMG|"
    r"IMG_BREAK|IMG_END|AUDIO|BEGIN_AUDIO|PREFIX|MIDDLE|SUFFIX)\])"
)
_LINE_ENDS = "\n\r\v\f\x85\u2028\u2029"
"""Whatever a reader may take for a line's end."""


def neutralise(text: str, roles: re.Pattern[str] | None = None) -> str:
    """Returns ``text`` with control tokens, forged role tags, NULs and lone surrogates made harmless.

    A space after the opening bracket is enough: the text stays readable and no template or tokenizer
    reads it as control.

    Args:
        text: Untrusted text.
        roles: Pattern of role tags (see :func:`role_tags`), which are forged at a line's start only.
    """
    if "\x00" in text or not text.isascii():
        text = _UNPRINTABLE.sub("\ufffd", text)
    if "<" in text:
        text = _ANGLE.sub("< ", text)
    if "[" in text:
        text = _SQUARE.sub("[ ", text)
        if roles is not None:
            text = roles.sub(_unless_inside, text)
    return text


def _unless_inside(bracket: re.Match[str]) -> str:
    """Returns the bracket of what is a role tag if only blanks stand before it in its line, and words otherwise."""
    text, i = bracket.string, bracket.start()
    while i and text[i - 1].isspace() and text[i - 1] not in _LINE_ENDS:  # no position lies in two runs of blanks
        i -= 1
    return "[ " if i == 0 or text[i - 1] in _LINE_ENDS else "["


def role_tags(agents: Sequence[AgentSpec]) -> re.Pattern[str]:
    """Returns a pattern of how the tags begin under which agents' words are shown, as forgers would write them."""
    return _tags_of(frozenset(agent.role for agent in agents))


@lru_cache
def _tags_of(roles: frozenset[str]) -> re.Pattern[str]:
    names = sorted(roles | {"feedback"})
    first, whole = "".join(re.escape(name[0]) for name in names), "|".join(map(re.escape, names))
    return re.compile(rf"\[(?=[{first}])(?=(?:{whole})\b)", re.IGNORECASE)


@dataclass(slots=True)
class Part:
    """One piece of what an agent sees: the words of an earlier turn, the turn's result, or feedback."""

    text: str
    """Neutralised, and as far as it is shown."""
    round: int
    turn: TurnRecord | None = None
    """The turn whose words or result this is; None for feedback of the task."""
    own: bool = False
    """The words are the reader's own."""
    result: bool = False
    quotes: tuple[int, ...] | None = None
    """History indices of the turns whose words stand in a message of a task's own program, which is under no tag."""

    @property
    def index(self) -> int:
        """Returns the history index of the turn whose words these are; -1 for results and feedback."""
        return -1 if self.turn is None or self.result else self.turn.index

    @property
    def role(self) -> str:
        """Returns the role whose tag it stands under."""
        return "feedback" if self.turn is None or self.result else self.turn.role


@dataclass(slots=True)
class RolloutObservation:
    """ô of one agent: its profile, the task's observation, and the parts that it may see, oldest first."""

    agent: AgentSpec
    turn: int
    task: str
    parts: list[Part]
    cuts: list[tuple[int, int]]
    """``(history index, characters)`` that were cut to make it fit."""
    tag_first_round: bool = False
    """Whether contributions of the first round say so."""
    quoted: tuple[int, ...] = ()
    """History indices of the turns whose words its profile holds, where a task's own program writes it."""
    images: tuple[str, ...] | None = None
    """What is shown beside the text; None: the task shows no agent any."""

    @property
    def seen(self) -> set[int]:
        """Returns the history indices of which anything is shown: the words, or their result.

        What was cut away whole is not seen, though its author's tag stays; an action that said nothing is.
        """
        cut = {index for index, _ in self.cuts}
        left, silent, gone = set[int](self.quoted), set[int](), set[int]()
        for part in self.parts:
            left.update(part.quotes or () if part.text else ())
            if part.turn is not None:
                index = part.turn.index
                (left if part.text else gone if part.result or index in cut else silent).add(index)
        return left | (silent - gone)


def fit(task: str, parts: list[Part], max_chars: int) -> tuple[str, list[Part], list[tuple[int, int]]]:
    """Cuts what is too long, the oldest part first and the task's text last; the profile is never cut.

    An ellipsis stands for what is missing, so that the rest cannot begin with what looks like a role tag.

    Returns:
        The task text, the parts, and what was cut as ``(history index, characters)`` (index -2: the task).
    """
    excess = len(task) + sum(len(p.text) for p in parts) - max_chars
    cuts, kept = [], []
    for part in parts:
        if excess > 0 and part.text:
            gone = min(excess + 1, len(part.text))
            rest = "…" + part.text[gone:] if gone < len(part.text) else ""
            excess -= len(part.text) - len(rest)
            cuts.append((part.index, gone))
            part = replace(part, text=rest)
        kept.append(part)
    if excess > 0:
        cuts.append((-2, excess))
        task = task[: max(len(task) - excess, 0)]
    return task, kept, cuts


def tagged(part: Part, *, first_round: bool = False) -> str:
    """Returns a contribution under the line that says whose it is and, from the second round on, when it came.

    The line stays what it is from round to round: an agent's next prompt extends its last one.

    Args:
        part: The contribution.
        first_round: Those of the first round say so, too.
    """
    if part.quotes is not None:
        return part.text
    when = f", round {part.round + 1}" if part.round or first_round else ""
    return f"[{part.role}{when}]\n{part.text}"


def to_messages(obs: RolloutObservation) -> list[Message]:
    """Renders chat messages: system (profile), examples, user (task, contributions), own past turns as assistant."""
    out: list[Message] = []
    if obs.agent.prompt:
        out.append({"role": "system", "content": obs.agent.prompt})
    for example in obs.agent.examples:
        out += [{"role": "user", "content": example.user}, {"role": "assistant", "content": example.assistant}]
    first = len(out)
    blocks = [obs.task] if obs.task else []
    for part in obs.parts:
        if part.own:  # chat templates want user and assistant to alternate, even where the user has nothing to say
            out += [{"role": "user", "content": "\n\n".join(blocks)}, {"role": "assistant", "content": part.text}]
            blocks = []
        else:
            blocks.append(tagged(part, first_round=obs.tag_first_round))
    out.append({"role": "user", "content": "\n\n".join(blocks)})
    if obs.images:
        out[first]["images"] = obs.images
    return out


def to_prompt(obs: RolloutObservation) -> str:
    """Renders one string: profile, its examples, task, contributions."""
    examples = (text for example in obs.agent.examples for text in (example.user, example.assistant))
    pieces = [
        obs.agent.prompt,
        *examples,
        obs.task,
        *(tagged(part, first_round=obs.tag_first_round) for part in obs.parts),
    ]
    return "\n\n".join(piece for piece in pieces if piece)


def render(kind: str, obs: RolloutObservation) -> dict[str, Any]:
    """Returns the observation value of one kind; a member of :func:`space` of that kind."""
    beside: dict[str, Any] = {"turn": obs.turn} if obs.images is None else {"turn": obs.turn, "images": obs.images}
    if kind == "messages":
        return {"messages": tuple(to_messages(replace(obs, images=None))), **beside}
    if kind == "prompt":
        return {"prompt": to_prompt(obs), **beside}
    seen = tuple(
        {"agent": p.turn.agent if p.turn and not p.result else "", "role": p.role, "round": p.round, "text": p.text}
        for p in obs.parts
    )
    examples = tuple({"user": e.user, "assistant": e.assistant} for e in obs.agent.examples)
    fields = {"profile": obs.agent.prompt, "examples": examples, "seen": seen, "task": obs.task}
    return {**fields, **beside}


def limited(agents: Sequence[AgentSpec], tokens: int | None) -> tuple[AgentSpec, ...]:
    """Returns the agents with profiles that say, once, how long a reply may be; None: as they are.

    Raises:
        ConfigError: That is no number of tokens.
    """
    if tokens is None:
        return tuple(agents)
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
        raise ConfigError(f"reply_tokens is {tokens!r}; expected how many tokens a reply may have, 1 or more.")
    words = f"A reply has at most {tokens} tokens; what is longer is cut."
    return tuple(replace(a, prompt=f"{a.prompt.removesuffix(words).rstrip()}\n\n{words}".lstrip()) for a in agents)


def with_profiles(agents: Sequence[AgentSpec], profiles: Any) -> tuple[AgentSpec, ...]:
    """Returns the agents with other profiles, by name or role, for one episode.

    Raises:
        ConfigError: No agent or role has that name, or a profile is no text.
    """
    known = {name for agent in agents for name in (agent.name, agent.role)}
    for name, text in profiles.items() if isinstance(profiles, Mapping) else [(profiles, None)]:
        if name not in known or not isinstance(text, str):
            raise ConfigError(f"The option 'profiles' has {name!r}: {text!r}. Expected agent or role, and text.")
    return tuple(replace(a, prompt=profiles.get(a.name, profiles.get(a.role, a.prompt))) for a in agents)


_TURNS = 1_000_000


def space(kind: str, *, images: bool = False) -> spaces.Dict:
    """Returns a fresh observation space of that kind (no key is called "observation": see PettingZoo's api_test)."""
    beside: dict[str, Any] = {"turn": spaces.Discrete(_TURNS)}
    if images:
        beside["images"] = spaces.Sequence(UnicodeText(20_000_000))
    if kind == "messages":
        message = spaces.Dict({"role": UnicodeText(32), "content": UnicodeText()})
        return spaces.Dict({"messages": spaces.Sequence(message), **beside})
    if kind == "prompt":
        return spaces.Dict({"prompt": UnicodeText(), **beside})
    if kind == "structured":
        part = {"agent": UnicodeText(), "role": UnicodeText(), "round": spaces.Discrete(_TURNS), "text": UnicodeText()}
        example = spaces.Dict({"user": UnicodeText(), "assistant": UnicodeText()})
        lists = {"examples": spaces.Sequence(example), "seen": spaces.Sequence(spaces.Dict(part))}
        fields = {"profile": UnicodeText(), **lists, "task": UnicodeText()}
        return spaces.Dict({**fields, **beside})
    kinds = ("messages", "prompt", "structured")
    raise ConfigError(f"There is no observation kind '{kind}'. {did_you_mean(kind, kinds)}")
