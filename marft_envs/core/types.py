"""Defines the records of a Flex-POMDP episode: which agents act, what they say, and the rewards.

Everything here is plain data. ``Turn`` is a plan (who acts next and what they see), ``TurnRecord`` is
what happened, ``Outcome`` is what a task says about it, ``Episode`` is the whole record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

from marft_envs.core import thoughts
from marft_envs.core.plain_data import Prompted, Shown
from marft_envs.errors import hinted

Fault = Literal["", "text", "engine", "world", "machine"]
"""Whose fault it is that an episode could not go on. ``text``: an agent's words, which get the worst return and are
learnt from. ``engine`` (no reply), ``world`` (of a task: a server, a tool) and ``machine`` (workers, sandbox, network,
disk): an infrastructure error, which counts in ``infrastructure_errors`` only. See ``core/faults.py``."""
Segment = tuple[int, int, float]
"""Start and end of a span of a turn's text, in characters, and the reward of the span."""


@dataclass(frozen=True, slots=True)
class Example:
    """One worked example of a profile, shown as two messages of a chat before the task."""

    user: str
    """What the agent is shown: a task and the others' words, written as an observation shows them."""
    assistant: str
    """What it should say then."""


@dataclass(frozen=True, slots=True)
class Skill:
    """A procedure of a profile that its agent reads when it needs it, by a tool."""

    name: str
    when: str
    """What it is for, in a few words: this much stands in every prompt."""
    text: str


@hinted
@dataclass(frozen=True, slots=True)
class AgentSpec:
    """One member of a team: an agent of N with its profile (arXiv 2504.16129, section 3.1)."""

    name: str
    """Unique in the team, by convention ``<role>_<n>``."""
    role: str
    """What the agent is called in prompts, e.g. ``reasoner``."""
    prompt: str = ""
    """The profile: the system message of this agent."""
    with_answer: bool = False
    """True for the agent whose action is graded as the team's answer."""
    examples: tuple[Example, ...] = ()
    """Worked examples (few-shot prompting). They are a part of the profile: trusted, and never cut."""
    skills: tuple[Skill, ...] = ()
    """Procedures that it may read, where a family has tools (``read_skill``)."""
    trained: bool = True
    """False: whatever plays it is left as it is, in every run (a judge, a simulated user)."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A planned action: ``agent`` acts, seeing the actions at the history indices in ``sees``."""

    agent: str
    sees: tuple[int, ...] = ()


@hinted
@dataclass(slots=True)
class TurnRecord(Prompted):
    """One committed action."""

    index: int
    """Position in the episode's history."""
    round: int
    """Time step t of the Flex-POMDP, from 0."""
    layer: int
    """Index of the layer in the episode (not in the round), from 0."""
    agent: str
    role: str
    sees: tuple[int, ...]
    """History indices of the actions put before it, by D and by ``history``. What a length limit cut away whole of them
    is listed in ``Episode.cuts``, and is no edge of the round."""
    text: str
    """The action, exactly as the environment received it."""
    reward: float = 0.0
    """The turn's reward (unattributed): the sum of all its parts, also those that came later
    (``LayerRecord.late_rewards``) or belong to spans of the text (``LayerRecord.segments``)."""
    extras: Mapping[str, Any] | None = None
    """What the driver attached to the action (token ids, log-probs, …); agents never see it."""
    result: str = ""
    """The results of its tool calls, as the task gave them; agents that see the turn see them behind the action."""
    max_chars: int | None = None
    """The length to which the driver had this turn's prompt cut (:meth:`FlexEnv.attach`); None: it set no limit."""

    @property
    def spoken(self) -> str:
        """Returns what others see of the action: no thoughts, and a final message without its frame."""
        return thoughts.spoken(self.text)

    @property
    def length(self) -> int:
        """Returns the action's tokens as the driver recorded them (``extras``), or its words where it has not."""
        return self._count("tokens") or len(self.text.split())

    @property
    def processed(self) -> int:
        """Returns the same and the prompt's tokens, as far as the driver recorded them."""
        return self.length + self._count("prompt_tokens")

    def _count(self, name: str) -> int:
        recorded = (self.extras or {}).get(name)
        return recorded if isinstance(recorded, int) and recorded > 0 else 0


@dataclass(frozen=True, slots=True)
class PlannedTurn:
    """A turn that would have been played next, of an episode that a limit cut, and what its agent would have read."""

    turn: TurnRecord
    """Without a text."""
    observation: str
    """The task's observation of the agent."""
    messages: Sequence[Mapping[str, str]]
    tools: Sequence[Mapping[str, Any]]
    team_view: str
    """What a team critic may see before it."""


@hinted
@dataclass(slots=True)
class Outcome:
    """Holds what a task says after a layer or a round. Every field has a default."""

    team_reward: float = 0.0
    turn_rewards: Mapping[int, float] = field(default_factory=dict)
    """History index -> reward of that turn. The turn may be one of an earlier layer; the reward is then credited late,
    at the layer of this outcome."""
    segments: Mapping[int, Sequence[Segment]] = field(default_factory=dict)
    """History index -> spans of that turn's text with a reward each; the reward of ``text[start:end]`` stands at its
    last token. Spans may overlap, and come on top of ``turn_rewards``; those of an earlier layer are late, too."""
    agent_rewards: Mapping[str, float] = field(default_factory=dict)
    feedback: Mapping[str, str] = field(default_factory=dict)
    """Agent -> text that it sees in its later observations (verdicts)."""
    results: Mapping[int, str] = field(default_factory=dict)
    """History index -> what came of that turn (results of tool calls). It belongs to the turn: it stands behind it
    wherever D lets the turn be seen, and nowhere else."""
    dead: frozenset[str] = frozenset()
    """Agents that leave the episode now."""
    terminated: bool = False
    stop_reason: str = ""
    """Why it is terminated; empty: ``task``. Whatever it says, only ``fault`` makes it an infrastructure error."""
    fault: Fault = ""
    """Whose fault it is that the episode cannot go on; if any, it ends here."""
    success: bool | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Numbers to average over episodes; kept apart from the reward."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """Named facts for ``infos`` (grader status, tier, …): JSON-serialisable, no clocks, no secrets."""


@dataclass(slots=True)
class LayerRecord:
    """One committed layer and the rewards between its commit and the next layer's."""

    index: int
    round: int
    turns: tuple[int, ...]
    """History indices, in canonical agent order."""
    team_reward: float = 0.0
    agent_rewards: dict[str, float] = field(default_factory=dict)
    late_rewards: dict[int, float] = field(default_factory=dict)
    """History index -> reward that came here for a turn of an earlier layer; a part of that turn's ``reward``."""
    segments: dict[int, list[Segment]] = field(default_factory=dict)
    """History index -> spans of that turn's text with rewards that came here; their sum is a part of the turn's
    ``reward``, and of ``late_rewards`` if the turn is one of an earlier layer."""


@dataclass(slots=True)
class RoundRecord:
    """The dependency function of one round, as it was executed and as it was asked for."""

    index: int
    D: list[list[int]]
    """n x n; ``D[i][j] = 1``: agent j's action was conditioned on agent i's (paper, section 3.1), whatever the reason:
    an edge of D, ``history``, a word of an earlier round. The diagonal is 0."""
    edges: list[tuple[int, int]]
    """Turn-level edges ``(seen, seer)``, as history indices: what the observation showed, an agent's own turns too."""
    asked: list[list[int]] = field(default_factory=list)
    """n x n like ``D``: what was asked for in the turns played, before ``history`` and a length limit changed it."""


@hinted
@dataclass(slots=True, repr=False)
class Episode(Shown):
    """The record of one episode: enough to replay it and to train on it."""

    env_id: str
    seed: int | None
    task_id: str
    agents: tuple[AgentSpec, ...]
    turns: list[TurnRecord]
    layers: list[LayerRecord]
    rounds: list[RoundRecord]
    terminated: bool = False
    truncated: bool = False
    success: bool | None = None
    stop_reason: str = ""
    """Why it ended: ``task`` (or the task's own word), ``max_rounds``, ``max_turns``, ``max_turns_per_agent``,
    ``max_path``, ``all_dead``, ``error: …``. For people; whether it failed, and by whose fault, is ``fault``."""
    metrics: dict[str, float] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)
    invalid: int = 0
    """How often an agent's words could not be followed as routing (unknown or dead agent, unparsable)."""
    invalid_routes: list[dict[str, Any]] = field(default_factory=list)
    """Each of them: ``{"round": t, "turn": history index of the words (None: nobody had spoken), "named": the names
    that cannot act, "reason": text}``."""
    cuts: list[dict[str, Any]] = field(default_factory=list)
    """Inputs cut because an observation was too long: ``{"turn": index, "seen": index, "chars": n}``; ``seen`` is -1
    for feedback and results, and -2 for the task's own text."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    index: int = 0
    """Position among the episodes of a vector environment (0 for a single environment)."""
    fault: Fault = ""
    """Whose fault it is that the episode could not go on; empty: it did not fail."""
    planned: list[PlannedTurn] = field(default_factory=list, compare=False)
    """The layer that would have run, where a limit cut it; trainers bootstrap from it. Not written to files."""

    @property
    def failed(self) -> bool:
        """Returns whether the episode could not go on, whatever the fault."""
        return bool(self.fault)

    @property
    def infrastructure_error(self) -> bool:
        """Returns whether an infrastructure error ended it: it belongs in no loss, group, score or metric."""
        return self.fault not in ("", "text")

    @property
    def task_error(self) -> str:
        """Returns the exception of the task's own code that ended the episode (``ValueError: …``), or nothing."""
        return str(self.info.get("task_error", ""))

    @property
    def critical_path(self) -> int:
        """Returns the sum over layers of the longest reply (its ``length``): what is said one after the other."""
        return sum(max((self.turns[i].length for i in layer.turns), default=0) for layer in self.layers)

    @property
    def critical_prefill(self) -> int:
        """Returns the sum over layers of the longest prompt, in tokens: what has to be read one after the other.

        Prompts that nobody has counted, and what an engine keeps of an earlier turn, are 0 and full length here.
        """
        prompts = [turn.processed - turn.length for turn in self.turns]
        return sum(max((prompts[i] for i in layer.turns), default=0) for layer in self.layers)

    @property
    def team_return(self) -> float:
        """Returns the undiscounted sum of the team and per-turn channels."""
        return sum(layer.team_reward for layer in self.layers) + sum(t.reward for t in self.turns)


@runtime_checkable
class Task(Protocol):
    """Defines the work, and nothing about who acts when (see ``docs/architecture.md``).

    These members a task must have, or inherit. :class:`TaskDefaults` lists those that it may have beside them.
    """

    task_id: str
    """Identifies the current problem; set by ``reset``."""
    slow: bool = False
    """True when ``on_layer``/``on_round`` may wait for a worker process: drivers then commit in the background."""

    def reset(self, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
        """Starts an episode: ``options["task_id"]`` first, else draws with ``rng``."""

    def observe(self, agent: str) -> str:
        """Returns o_t of this agent. Pure: same state, same text."""

    def on_layer(self, turns: Sequence[TurnRecord]) -> Outcome:
        """Called when a layer commits (tool results, per-turn rewards)."""
        return Outcome()

    def on_round(self, turns: Sequence[TurnRecord]) -> Outcome:
        """Called when a round ends, with all its turns (transition, team reward, end)."""
        return Outcome()

    def sample_actions(self, agent: str) -> Sequence[str]:
        """Returns plausible replies of this agent, right and wrong, for the conformance tests."""

    def validate(self) -> None:
        """Raises unless the gold answer scores 1 and the null team scores what the documentation says."""


class Written(NamedTuple):
    """One message that a task's own program has written to an agent."""

    role: str
    """``system``, ``user`` or ``assistant``."""
    text: str
    quotes: tuple[int, ...] = ()
    """History indices of the turns whose words stand in it."""
    whole: bool = False
    """It is that turn, and nothing else: what stands there is what the record has of it."""


Show = Callable[[TurnRecord, str, Sequence[int]], tuple[str, str] | None]


class TaskDefaults:
    """Defines what a task may have beside the members of :class:`Task`, each with what holds for a task without it.

    A task has such a member by defining it, as an attribute, a property or a method; there is nothing to derive from.
    Callers get one through :func:`optional`.
    """

    turn_limit: int | None = None
    """Most turns of an episode on the present problem, where the task itself ends episodes; memory is estimated by it.
    None: as many as the environment allows."""
    worst_return: float | None = None
    """The lowest return that an episode can have, and the return of an episode that ends by the fault of an agent's
    text. None: that is 0, or the lowest return of the episodes played together if lower."""
    copyable: bool = True
    """Whether an episode can be forked and pickled half-way."""
    show: Show | None = None
    """``show(turn, reader, sees)``: how a turn stands in the observation of another agent that sees these turns: its
    words, and what came of it ("" for nothing; both empty: the turn is left out). The environment neutralises them.
    None, or a return value of None: words and result as they are. Pure; an agent's own turns are not asked for."""
    images: Callable[[str], Sequence[str]] | None = None
    """``images(agent)``: what the agent is shown beside its text, as addresses (``https://…``) or ``data:image/…``. A
    hosted model is sent them; a model that runs here reads text, and is refused. None: no images."""
    graded_by_state: bool = False
    """Whether the score is that of the world's state: then it needs no agent that answers."""
    starts_slowly: bool = False
    """Whether ``reset`` waits: vectors then begin its episodes in the background, too."""
    conversation: Callable[[str], Sequence[Written] | None] | None = None
    """``conversation(agent)``: what stands in the agent's prompt in place of profile, observation and turns, where a
    program of the task's own writes it. The environment neutralises it. None, or a return value of None: nothing."""
    answer_key: Callable[[str], str] | None = None
    """``answer_key(text)``: what a reply answers; equal keys are equal votes. None: replies cannot be voted on."""
    evaluation_set: Callable[[int | None], list[str]] | None = None
    """``evaluation_set(n)``: n task ids without replacement for evaluation (all when n is None), the same in every run.
    None: evaluation draws problems by seeds."""
    kind_of: Callable[[str], str] | None = None
    """``kind_of(task_id)``: the kind whose success rate a curriculum estimates: generator and level where problems are
    generated and seldom repeat, else the problem itself. A curriculum draws by it. Pure. None: no curriculum."""
    followed: Sequence[str] = ()
    """Names of metrics of outcomes whose progress a trainer passes to ``reset`` in training: ``options["progress"]``
    has the mean of each over the last iteration that measured it. It is part of the record, as all options."""
    expert: Callable[[str], str] | None = None
    """``expert(agent)``: what an expert who knows the gold answer says now as this agent; ``marft sft`` learns from its
    episodes. Without a solution it raises :class:`marft_envs.errors.UnsolvedError`. None: no expert."""
    pose: Callable[[str], None] | None = None
    """``pose(text)``: after ``reset``, puts a user's words in the problem's place; rewards then mean nothing."""
    asked: Callable[[Sequence[Mapping[str, str]]], Mapping[str, Any]] | None = None
    """``asked(messages)``: options with which ``reset`` begins on a user's conversation. None: see ``pose``."""
    gold: Callable[[], str] | None = None
    """``gold()``: the gold answer of the present problem; ``check_env`` looks for it in observations. None: unknown."""

    def tools(self, agent: str) -> list[dict[str, Any]]:
        """Returns the tools that an agent can call now, as OpenAI's chat API and chat templates take them."""
        return []

    def prefix(self, agent: str) -> str:
        """Returns the beginning of what an agent says next: it goes on from there, and answers for the rest alone."""
        return ""

    def late(self, outcome: Outcome) -> Outcome:
        """Returns the outcome of an episode that ``max_path`` ends, with rewards if it shall have some."""
        return outcome

    def restored(self, agent: str, text: str) -> str:
        """Returns an agent's own earlier words, which were neutralised, with the marks of its calls whole again."""
        return text.replace("< tool_call>", "<tool_call>").replace("< /tool_call>", "</tool_call>")

    def final_metrics(self) -> Mapping[str, float]:
        """Returns metrics that are worked out when the record is asked for; ``Outcome.metrics`` go before these."""
        return {}

    def close(self) -> None:
        """Releases what the task holds (worker processes, worlds)."""


_DEFAULTS = TaskDefaults()


def optional(task: Task, name: str) -> Any:
    """Returns the member of a task that :class:`TaskDefaults` lists under this name, or its default."""
    return getattr(task, name, getattr(_DEFAULTS, name))
