"""Plays chunks on the workers of a Ray cluster; who dies or hangs is replaced, and the chunk is given away."""

from __future__ import annotations

import pickle
import statistics
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from marft_algos.config.arguments import typed
from marft_algos.engines.base import EngineError
from marft_algos.extras.cluster import connect, kept
from marft_algos.extras.cluster.worker import HashedBytes, RayWorker, TransferError, pack
from marft_algos.ranks.consistency import ProcessFacts
from marft_algos.ranks.group import lead
from marft_algos.ranks.reduction import ReductionSlots
from marft_algos.rollout.collector import OnProgress
from marft_algos.rollout.episodes import Chunk, Played, chunk_of, lost
from marft_algos.terminal import say
from marft_algos.training.parts import Parts
from marft_algos.training.rollouts import RolloutBackend, RolloutStats
from marft_envs.errors import MarftError

TICK_S = 1.0
"""How often it is looked whether a worker hangs, at least."""
PATIENCE = 10.0, 60.0
"""A worker hangs after so many times the usual time of a chunk, and so many seconds more."""
RESTARTS, WITHIN_S = 3, 600.0
"""A worker that was replaced more often than that, within so many seconds, is left out."""


@dataclass(slots=True)
class _Seat:
    """A place for a worker, and who has it."""

    number: int
    actor: Any = None
    placed: bool = False
    """Whether the cluster has found it a place; until then a worker that may come later is waited for."""
    facts: ProcessFacts | None = None
    """None: it is not ready."""
    node: str = ""
    call: Any = None
    """What it does: getting ready, or a chunk."""
    chunk: int | None = None
    since: float = 0.0
    ends: deque[float] = field(default_factory=lambda: deque(maxlen=RESTARTS))
    """When its workers ended."""


@dataclass(slots=True)
class _Weights:
    """Of a policy, and where workers find them."""

    version: int
    packed: HashedBytes
    ref: Any = None


class RayRollouts(RolloutBackend):
    """Plays on a cluster, by workers with environments and memory of their own; rank 0 deals the chunks.

    Args:
        parts: Of the run.
        reduction: The ranks.

    Raises:
        ConfigError: Workers do not fit on the cluster, run other code, or lack what the settings name.
        EngineError: The cluster cannot be reached, or no worker is ready in time.
    """

    def __init__(self, parts: Parts, reduction: ReductionSlots) -> None:
        self._config, self._parts, self._group, self.apart = parts.config, parts, reduction.group, True
        config = parts.config
        on_gpus = bool(config.worker_vllm) or parts.policies.device.type == "cuda"
        self.chunk = chunk_of(config, config.workers or config.max_workers or reduction.count, on_gpus=on_gpus)
        self.lost: Path | None = None
        self._weights: dict[str, _Weights] = {}
        self._playing: dict[str, _Weights] = {}
        self._seats: list[_Seat] = []
        self._times: deque[float] = deque(maxlen=100)
        self._counted: defaultdict[str, float] = defaultdict(float)
        self._damages = Counter[int | None]()
        self._stats = RolloutStats()
        self._lock, self._counting, self._closed = threading.RLock(), threading.Lock(), False
        lead(self._group, self._open)

    def publish(self, policies: Iterable[str], version: int) -> None:
        """Puts the policies' present weights where workers find them; those that play now keep theirs."""
        if self._group.rank:
            return
        started = time.monotonic()
        for policy in policies:
            packed = pack(self._parts.policies.weights(policy).tensors)
            self._weights[policy] = _Weights(version, packed)
            self._count("publish_bytes", len(packed.data))
        self._count("time_publish", time.monotonic() - started)

    def pin(self) -> dict[str, _Weights]:
        """Returns what is published now."""
        return dict(self._weights)

    def metrics(self) -> dict[str, Any]:
        """Returns what engines and workers counted since the last call."""
        with self._counting:
            counted, self._counted = dict(self._counted), defaultdict(float)
            players = self._stats.take()
        ready = sum(seat.facts is not None for seat in self._seats)
        return {**counted, "workers": ready, "time_players": players} if not self._group.rank else {}

    def close(self) -> None:
        """Ends the workers, and the cluster if it was made for this run."""
        if self._group.rank:
            return
        self._closed = True
        with self._lock:  # another thread that plays stops, and lets go of it
            for seat in self._seats:
                if seat.actor is not None:
                    self._ray.kill(seat.actor)
            self._seats = []
        if self._owned:
            self._ray.shutdown()

    # Workers ----------------------------------------------------------------------------------------

    def _open(self) -> None:
        config, ranks = self._config, self._group.size
        self._here = ProcessFacts.here()
        self._ray, self._owned = connect.connect(config.workers + ranks)
        gpu = self._parts.policies.device.type == "cuda"
        count, of_one = connect.workers(config, connect.free(self._ray), gpu, ranks)
        self._kind = self._ray.remote(max_restarts=0, runtime_env={"env_vars": connect.variables(config)}, **of_one)(
            _Actor
        )
        self._reaper = self._ray.remote(num_cpus=0, max_retries=0)(connect.reap)
        self._settings = self._ray.put((config, self.chunk, of_one, count))
        self._seats = [_Seat(number) for number in range(count)]
        try:
            for seat in self._seats:
                self._hire(seat)
            self._await_first()
        except BaseException:
            self.close()
            raise

    def _hire(self, seat: _Seat) -> None:
        seat.actor = self._kind.remote(self._settings)
        seat.call, seat.placed, seat.chunk, seat.facts = seat.actor.placed.remote(), False, None, None
        seat.since = time.monotonic()

    def _await_first(self) -> None:
        """Waits until a worker is ready, or as many as there have to be where more may come later."""
        config, until = self._config, time.monotonic() + self._config.worker_start
        least = max(config.workers, 1) if config.max_workers else 1
        while (ready := sum(seat.facts is not None for seat in self._seats)) < least:
            if time.monotonic() > until or not any(seat.actor for seat in self._seats):
                raise EngineError(
                    f"{ready or 'No'} worker{'s were' if ready > 1 else ' was'} ready within {config.worker_start:g} s "
                    f"({least} needed, {len(self._seats)} asked for). See ray status for what the cluster waits for; "
                    "--worker-start gives it more time."
                )
            self._listen({}, Counter())

    def _replace(self, seat: _Seat, why: str) -> int | None:
        """Ends a worker and hires another; returns the number of the chunk that it had."""
        chunk, now = seat.chunk, time.monotonic()
        self._ray.kill(seat.actor)
        if seat.facts is not None:  # a process that does not run does not end when it is asked to
            strategy = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(seat.node, soft=False)
            self._reaper.options(scheduling_strategy=strategy).remote(seat.facts.pid)
        host = seat.facts.host if seat.facts else "a node"
        self._count("restarts", 1)
        if len(seat.ends) == RESTARTS and now - seat.ends[0] < WITHIN_S:
            say(f"worker {seat.number} on {host} {why}, again and again: it is left out")
            seat.actor = seat.call = seat.facts = seat.chunk = None
            return chunk
        say(f"worker {seat.number} on {host} {why}: another one takes its place")
        seat.ends.append(now)
        self._hire(seat)
        return chunk

    def _count(self, name: str, number: float) -> None:
        with self._counting:
            self._counted[name] += number

    # Chunks -----------------------------------------------------------------------------------------

    def play(
        self, chunks: Sequence[Chunk], on_progress: OnProgress, weights: dict[str, _Weights] | None = None
    ) -> list[Played]:
        """Plays every chunk on one of the workers.

        Raises:
            EngineError: There is no worker, for too long.
        """
        with self._lock:
            for seat in self._seats:
                seat.chunk = None  # of prompts that were abandoned: results that still arrive are dropped
            done: dict[int, Played] = {}
            self._playing = self.pin() if weights is None else weights
            attempts = Counter[int]()
            self._damages.clear()
            todo = deque(range(len(chunks)))
            total, idle_since = sum(len(chunk.prompts) for chunk in chunks), time.monotonic()
            while len(done) < len(chunks):
                if self._closed:
                    raise EngineError("The workers were sent home while they played.")
                for seat in self._seats:
                    if todo and seat.facts is not None and seat.call is None:
                        number = todo.popleft()
                        self._give(seat, number, chunks[number])
                busy, hired = any(seat.facts for seat in self._seats), any(seat.actor for seat in self._seats)
                idle_since = time.monotonic() if busy else idle_since
                if not hired or time.monotonic() - idle_since > self._config.worker_start:
                    why = f"none was ready within {self._config.worker_start:g} s" if hired else "all are left out"
                    raise EngineError(
                        f"All workers are gone, and {why}. What was saved is whole: fix the cluster (ray status), and"
                        " go on with --resume."
                    )
                for number in self._listen(done, attempts):
                    if attempts[number] > self._config.retries:
                        done[number] = self._give_up(chunks[number], attempts[number])
                    else:
                        self._count("chunks_redone", 1)
                        todo.appendleft(number)
                tokens = sum(t.tokens for played in done.values() for t in played.trajectories)
                on_progress(sum(len(chunks[number].prompts) for number in done), total, tokens)
            with self._counting:
                for number, chunk in enumerate(chunks):
                    self._stats.add(chunk, done[number])
            return [done[number] for number in range(len(chunks))]

    def _give_up(self, chunk: Chunk, times: int) -> Played:
        """Keeps a chunk that ended so many workers; returns its episodes as infrastructure errors."""
        there = ""
        if self.lost is not None:
            weights = {policy: (of.version, of.packed) for policy, of in self._playing.items()}
            there = f", and it is kept: {typed('replay', kept.keep(self.lost, chunk, weights))}"
        say(f"chunk {chunk.place} ended {times} workers: its episodes count as lost{there}")
        self._count("chunks_lost", 1)
        return lost(chunk, self._config.env, f"{times} workers died of it")

    def _give(self, seat: _Seat, number: int, chunk: Chunk) -> None:
        started = time.monotonic()
        for of in self._playing.values():
            if of.ref is None:
                of.ref = self._ray.put(of.packed)
        self._count("time_publish", time.monotonic() - started)
        sent = [
            (policy, of.version, [of.ref]) for policy, of in self._playing.items()
        ]  # in a list: not fetched unasked
        seat.call, seat.chunk, seat.since = seat.actor.play.remote(chunk, sent), number, time.monotonic()

    def _listen(self, done: dict[int, Played], attempts: Counter[int]) -> list[int]:
        """Waits for one worker, or a moment; returns the chunks that have to be played again."""
        calls = {seat.call: seat for seat in self._seats if seat.call is not None}
        if not calls:
            time.sleep(TICK_S)
        ready = self._ray.wait(list(calls), timeout=TICK_S)[0] if calls else ()
        again = [self._finish(calls[call], done) for call in ready]
        for seat in self._seats:
            spent = time.monotonic() - seat.since
            if seat.call is not None and seat.facts is not None and spent > self._patience():
                again.append(self._replace(seat, f"has not answered for {spent:.0f} s"))
            elif seat.call is None or seat.facts is not None or (self._config.max_workers and not seat.placed):
                continue
            elif spent > self._config.worker_start:
                again.append(self._replace(seat, f"was not ready within {spent:.0f} s"))
        numbers = [number for number in again if number is not None]
        for number in numbers:
            attempts[number] += 1
        return numbers

    def _finish(self, seat: _Seat, done: dict[int, Played]) -> int | None:
        """Takes what a worker returns; returns its chunk if it has to be played again."""
        errors, chunk = self._ray.exceptions, seat.chunk
        try:
            result = self._ray.get(seat.call)
            if not seat.placed:
                seat.placed, seat.since, seat.call = True, time.monotonic(), seat.actor.ready.remote()
                return None
            if seat.facts is None:
                seat.facts, seat.node = result
                connect.check_alike(seat.facts, self._here)
            elif chunk is not None:
                packed, seconds = result
                played: Played = pickle.loads(packed.checked(f"chunk {chunk} from {seat.facts.host}"))
                played.player, played.seconds = f"worker {seat.number} on {seat.facts.host}", seconds
                done[chunk] = played
                self._times.append(seconds)
                for name, number in played.engine.items():
                    self._count(name, number)
                self._count("time_played", seconds)
        except (TransferError, errors.ObjectLostError, errors.OwnerDiedError) as error:
            self._damages[chunk] += 1
            if self._damages[chunk] > self._config.retries:
                raise EngineError(
                    f"{error}: for the {self._damages[chunk]}. time, and --retries is {self._config.retries}. Memory,"
                    " disk or network of a node may be faulty. What was saved is whole: --resume goes on."
                ) from error
            say(f"{error}: it is played again")
            for of in [*self._weights.values(), *self._playing.values()]:
                of.ref = None  # it may be gone, too: it is put again from what is kept here
            seat.call = seat.chunk = None
            return chunk
        except errors.RayTaskError as error:  # the worker's own error, which would come again
            self._raise(seat, error)
        except errors.RayError as error:
            return self._replace(seat, f"died ({type(error).__name__})")
        seat.call = seat.chunk = None
        return None

    def _raise(self, seat: _Seat, error: Any) -> None:
        cause, host = error.cause, seat.facts.host if seat.facts else "a node of the cluster"
        if isinstance(cause, MarftError):
            cause.args = (f"{cause} (on {host})",)
            raise cause
        raise EngineError(f"The worker on {host} failed: {error}") from error

    def _patience(self) -> float:
        if self._config.worker_timeout:
            return self._config.worker_timeout
        times, more = PATIENCE
        return times * statistics.median(self._times) + more if self._times else self._config.worker_start


class _Actor:
    """A worker on the cluster. It is made in ``ready``: what goes wrong there is an error, and not a death."""

    def __init__(self, settings: Any) -> None:
        self._settings = settings

    def placed(self) -> None:
        """Answers as soon as it runs somewhere."""

    def ready(self) -> tuple[ProcessFacts, str]:
        """Builds what is played with."""
        import ray

        config, chunk, of_one, most = self._settings
        connect.share_node(ray, of_one, most)
        self._worker = RayWorker(config, chunk)
        return self._worker.facts(), ray.get_runtime_context().get_node_id()

    def play(self, chunk: Chunk, weights: Sequence[tuple[str, int, list[Any]]]) -> tuple[HashedBytes, float]:
        """Takes over what weights it lacks, and plays."""
        import ray

        lacking = set(self._worker.lacks({policy: version for policy, version, _ in weights}))
        for policy, version, (ref,) in weights:
            if policy in lacking:
                self._worker.take(policy, version, ray.get(ref))
        return self._worker.play(chunk)
