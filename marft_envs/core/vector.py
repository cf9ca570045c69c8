"""Plays many episodes at once: ``poll()`` returns what can be generated now, ``push()`` takes the replies.

Episodes do not wait for each other: lock-step batches would cost 1.4 to 1.9 times the time on four-turn episodes.
Layers of slow tasks (graders, sandboxes) commit in threads, which wait for killable worker processes; polling never
waits for them while there is something to generate.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property, partial
from itertools import repeat
from operator import methodcaller
from typing import Any

from marft_envs.core.dependency import View
from marft_envs.core.env import FlexEnv
from marft_envs.core.faults import fault_of, is_infrastructure_error, show
from marft_envs.core.types import AgentSpec, Episode, Fault, Turn, optional
from marft_envs.errors import ConfigError, DataError, DependencyError, MissingExtraError

_CONFIGURATION = (ConfigError, DataError, DependencyError, MissingExtraError)
"""Faults of the set-up: raised. Anything else that goes wrong in an episode is that episode's record."""

_THREADS = 32
"""Most layers that commit in the background at once; they wait rather than compute."""


class _Slot:
    """A place where episodes run one after the other."""

    __slots__ = ("env", "episode", "index", "open", "own", "slow")

    def __init__(self, index: int, env: FlexEnv) -> None:
        self.index = index
        self.own = env
        """What episodes that start from a seed are played in."""
        self.env = env
        """What is played in now: ``own``, or a branch."""
        self.episode = -1
        """Position of what runs here among the episodes to play."""
        self.slow = False
        """Whether layers commit in the background."""
        self.open: dict[str, Request] = {}
        """Requests of the current layer that have no reply yet."""


_Begin = Callable[[FlexEnv], FlexEnv | None]
"""Takes a slot's own environment; returns the one in which the episode runs, or None if it is that one."""


def _enter(fork: Callable[[], FlexEnv], original: FlexEnv) -> FlexEnv:
    try:
        return fork()
    except Exception as error:  # nothing that was said is to blame: the task cannot be copied
        raise ConfigError(f"An episode could not be copied: {type(error).__name__}: {error}") from error


class Request:
    """One turn that can be generated now. What is rendered is rendered when asked for, and only once."""

    def __init__(self, env: FlexEnv, view: View, slot: _Slot, turn: Turn, index: int) -> None:
        self._env: FlexEnv | None = env
        self.slot = slot.index
        self.episode = slot.episode
        """Position of the episode's seed among the episodes to play."""
        self.agent = turn.agent
        self.role = env.profile(turn.agent).role
        self.turn = turn
        self.index_hint = index
        """History index that the turn will have; with the episode it identifies the turn, whatever the batch."""
        self.round = view.round
        self.layer = view.layer
        """Layers committed in this round so far."""
        self.repeats = env.unwrapped.repeats
        """Whether its agent may act again."""
        self.limit: int | None = None
        """Characters to which :meth:`render` cut the prompt; what that took is recorded with the turn."""
        self._messages: list[dict[str, str]] | None = None

    @property
    def messages(self) -> list[dict[str, str]]:
        """Returns the rollout observation as chat messages."""
        return self.render() if self._messages is None else self._messages

    def render(self, max_chars: int | None = None) -> list[dict[str, str]]:
        """Returns the chat messages, inputs cut from the oldest to ``max_chars`` characters; never the profile."""
        self.limit = max_chars
        self._messages = self._open().messages(self.agent, max_chars)
        return self._messages

    @cached_property
    def team_view(self) -> str:
        """Returns what a team critic may see: the task's state, the role, all words committed before this layer."""
        return self._open().team_view(self.agent)

    @cached_property
    def observation(self) -> str:
        """Returns the task's observation of this agent alone, without what others said."""
        return self._open().task.observe(self.agent)

    @property
    def tools(self) -> list[dict[str, Any]]:
        """Returns the tools that the agent can call now, as OpenAI's chat API takes them; none if there are none."""
        return optional(self._open().task, "tools")(self.agent)

    @cached_property
    def prefix(self) -> str:
        """Returns the beginning of the reply, which the task has set; "" for none."""
        return optional(self._open().task, "prefix")(self.agent)

    def _open(self) -> FlexEnv:
        if self._env is None:
            raise ConfigError(
                f"The request of {self.agent} in episode {self.episode} was answered already; "
                "read messages, team_view and observation before push."
            )
        return self._env

    def __repr__(self) -> str:
        return f"Request(episode={self.episode}, turn={self.index_hint}, agent={self.agent!r}, slot={self.slot})"


class VectorEnv:
    """Plays a queue of episodes in a number of slots.

    Equal seeds and replies give equal episodes, whatever the number of slots. For use from one thread.

    Args:
        factories: One callable per slot, returning a :class:`FlexEnv` (possibly wrapped).

    Raises:
        ConfigError: Without factories, or if an environment cannot be built.
    """

    def __init__(self, factories: Sequence[Callable[[], FlexEnv]]) -> None:
        if not factories:
            raise ConfigError("A vector environment needs at least one slot; say num_envs=1 or more.")
        self._slots = [_Slot(i, factory()) for i, factory in enumerate(factories)]
        self.agents: tuple[AgentSpec, ...] = self._slots[0].env.team
        """The team, in canonical order."""
        self._begins: deque[tuple[int, _Begin]] = deque()
        self._ready: list[Request] = []
        self._finished: list[Episode] = []
        self._running = 0
        self._busy = 0
        self._committed: queue.SimpleQueue[tuple[_Slot, BaseException | None]] = queue.SimpleQueue()
        self._threads: ThreadPoolExecutor | None = None
        self._landed: Callable[[], None] | None = None

    @property
    def num_envs(self) -> int:
        """Returns the number of slots."""
        return len(self._slots)

    @property
    def done(self) -> bool:
        """Returns True when every queued episode has been handed over."""
        return not (self._running or self._begins or self._finished)

    def reset(self, seeds: Sequence[int], options: Sequence[Mapping[str, Any]] | None = None) -> None:
        """Queues one episode per seed; what was still running is dropped.

        Args:
            seeds: Position in it is ``Episode.index``.
            options: One mapping per seed, passed to the task (``{"task_id": …}``).
        """
        if options is not None and len(options) != len(seeds):
            raise ConfigError(f"There are {len(seeds)} seeds and {len(options)} options; give one mapping per seed.")
        starts = zip(seeds, options or repeat({}), strict=False)
        self._queue([methodcaller("reset", seed=int(seed), options=dict(start)) for seed, start in starts])

    def branch(self, begin: Sequence[Callable[[], FlexEnv]]) -> None:
        """Queues episodes that go on from where they are; what was still running is dropped.

        Args:
            begin: Per episode what gives an environment in the middle of it (a fork, see :meth:`fork`), which is the
                driver's from then on. It is called when a slot is free, and position in it is ``Episode.index``.
        """
        self._queue([partial(_enter, fork) for fork in begin])

    def fork(self, request: Request) -> FlexEnv:
        """Returns a copy of the episode that a request belongs to, as it is now, wrappers and generators included.

        The request must be open. Taken before any reply of its layer is pushed, it is the state at that decision.
        """
        return self._slot_of(request).env.fork()[0]

    def poll(self, wait: bool = False, *, block: bool = True) -> list[Request]:
        """Returns every turn that can be generated now and has not been returned before.

        Waits while all episodes commit in the background, unless ``block`` is false. An empty list says that there is
        nothing to generate now: call ``push([], [])`` for episodes that have ended, or push the replies that are out.

        Args:
            wait: Wait for every commit in the background, so that what is returned depends on seeds and replies and
                not on timing (log-probs depend on the batch in their last bits).
            block: Whether to wait at all. To wait for something else, too, be notified of commits by :meth:`listen`.
        """
        self._collect()
        while block and self._busy and (wait or not (self._ready or self._finished)):
            self._land(*self._committed.get())
        ready, self._ready = self._ready, []
        return sorted(ready, key=lambda request: (request.episode, request.index_hint))

    def push(
        self,
        requests: Sequence[Request],
        texts: Sequence[str],
        extras: Sequence[Mapping[str, Any] | None] | None = None,
    ) -> list[Episode]:
        """Takes replies, in any order; returns the episodes that have ended since.

        Args:
            requests: From :meth:`poll`; any part of what is out.
            texts: One reply per request.
            extras: Per request what goes to the turn's record (token ids, log-probs); agents never see it.
        """
        if len(texts) != len(requests) or (extras is not None and len(extras) != len(requests)):
            also = "" if extras is None else f" and {len(extras)} extras"
            raise ConfigError(f"There are {len(requests)} requests, {len(texts)} texts{also}; give one per request.")
        for i, request in enumerate(requests):
            slot = self._slot_of(request)
            extra = extras[i] if extras is not None else None
            del slot.open[request.agent]
            request._env = None
            if slot.slow and not slot.open:
                self._submit(slot, partial(self._step, slot, request, texts[i], extra))
                continue
            try:
                self._step(slot, request, texts[i], extra)
            except Exception as error:
                self._break_off(slot, error, fault_of(error))
                self._start(slot)
            else:
                if not slot.open:
                    self._go_on(slot)
        self._collect()
        finished, self._finished = self._finished, []
        return finished

    def fail(self, request: Request, message: str) -> list[Episode]:
        """Ends a request's episode because there was no reply.

        The record is truncated, with the stop reason ``error: message`` and the fault ``engine``. Returns what
        :meth:`push` returns.
        """
        slot = self._slot_of(request)
        slot.env.truncate(f"error: {message}", "engine")
        self._record(slot)
        self._start(slot)
        return self.push([], [])

    def listen(self, landed: Callable[[], None] | None) -> None:
        """Has ``landed`` called, from another thread, whenever a commit in the background is through; None: nobody."""
        self._landed = landed

    def close(self) -> None:
        """Closes the environments; layers that still commit are dropped."""
        self._begins.clear()
        self._ready, self._finished, self._running, self._busy = [], [], 0, 0
        for slot in self._slots:
            slot.open.clear()
            slot.own.close()  # branches share what it holds
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None

    # Slots -----------------------------------------------------------------------------------------

    def _queue(self, begins: Sequence[_Begin]) -> None:
        """Drops what runs, and starts with new episodes to play."""
        while self._busy:
            self._committed.get()
            self._busy -= 1
        self._ready, self._finished, self._running = [], [], 0
        self._begins = deque(enumerate(begins))
        for slot in self._slots:
            slot.open.clear()
        for slot in self._slots:
            self._start(slot)

    def _start(self, slot: _Slot) -> None:
        """Starts the next episode here, if there is one."""
        while self._begins:
            slot.episode, begin = self._begins.popleft()
            self._running += 1
            slot.env = slot.own
            if optional(slot.own.task, "starts_slowly"):
                self._submit(slot, partial(self._begin, slot, begin))
                return
            try:
                slot.env = begin(slot.own) or slot.own
                slot.slow = slot.env.task.slow
            except Exception as error:  # nobody has said anything yet
                self._break_off(slot, error, "machine" if is_infrastructure_error(error) else "world")
                continue
            if not slot.env.done:
                self._request(slot)
                return
            self._record(slot)  # fixed partners in a wrapper played it to its end

    @staticmethod
    def _begin(slot: _Slot, begin: _Begin) -> None:
        """Begins an episode in the background."""
        slot.env = begin(slot.own) or slot.own
        slot.slow = slot.env.task.slow

    def _request(self, slot: _Slot) -> None:
        """Opens a request for every turn of the layer that has no action yet."""
        env = slot.env
        view, ready = env.view, env.ready_agents
        start = len(view.history)
        for offset, (agent, turn) in enumerate(env.layer.items()):
            if agent in ready:
                slot.open[agent] = request = Request(env, view, slot, turn, start + offset)
                self._ready.append(request)

    def _slot_of(self, request: Request) -> _Slot:
        slot = self._slots[request.slot]
        if slot.open.get(request.agent) is not request:
            raise ConfigError(f"{request} is not open: it was answered, its episode ended, or reset was called.")
        return slot

    def _step(self, slot: _Slot, request: Request, text: str, extra: Mapping[str, Any] | None) -> None:
        env = slot.env
        env.select(request.agent)
        if extra is not None or request.limit is not None:
            env.attach(request.agent, extra, request.limit)
        env.step(text)

    def _go_on(self, slot: _Slot) -> None:
        """Goes on after a layer: with the next one, or the next episode."""
        if slot.env.done:
            self._record(slot)
            self._start(slot)
        else:
            self._request(slot)

    def _break_off(self, slot: _Slot, error: BaseException, fault: Fault) -> None:
        """Raises a fault of the set-up; anything else ends the episode and is its record."""
        if isinstance(error, _CONFIGURATION) or not isinstance(error, Exception):
            raise error
        message = f"{type(error).__name__}: {error}"
        show(error, f"the code of {slot.env.env_id}")
        if fault == "text":
            slot.env.episode.info["task_error"] = message
        slot.env.truncate(f"error: {message}", fault)
        self._record(slot)

    def _record(self, slot: _Slot) -> None:
        """Hands the episode over."""
        episode = slot.env.episode
        episode.index = slot.episode
        for request in slot.open.values():
            request._env = None
        slot.open.clear()
        self._finished.append(episode)
        self._running -= 1

    # Layers in the background ----------------------------------------------------------------------

    def _submit(self, slot: _Slot, job: Callable[[], None]) -> None:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(min(len(self._slots), _THREADS), "marft-commit")
        self._busy += 1
        # Until it is reported, nobody else touches the slot's environment.
        self._threads.submit(job).add_done_callback(partial(self._report, slot))

    def _report(self, slot: _Slot, step: Future[None]) -> None:
        """Tells the driver's thread, which raises or records an error; of a step that ``close`` cancelled, nothing."""
        if step.cancelled():
            return
        self._committed.put((slot, step.exception()))
        if self._landed is not None:
            self._landed()

    def _land(self, slot: _Slot, error: BaseException | None) -> None:
        self._busy -= 1
        if error is None:
            self._go_on(slot)
        else:
            fault: Fault = "machine" if is_infrastructure_error(error) else "world"
            self._break_off(slot, error, fault_of(error) if slot.env.view.history else fault)
            self._start(slot)

    def _collect(self) -> None:
        """Takes in the commits that are through, without waiting."""
        while self._busy:
            try:
                landed = self._committed.get_nowait()
            except queue.Empty:
                return
            self._land(*landed)
