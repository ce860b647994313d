"""A standby: an aggregator that leads while no other one does, and stands by again when another takes over."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from aggregator.broken_jobs import JobsCrashed
from aggregator.core.succession import Deposed, EpochBehind, LeaderSighting, Succession
from aggregator.leader import LEADER_LOCK, LeaderHandlers, skip_epochs
from aggregator.service import AggregatorService
from aggregator.storage.job_queue import JobQueue, open_queue
from services.errors import TiermeshError
from services.runtime.cluster_identity import StateDirUse
from services.runtime.file_locks import try_lock
from services.threads import finish_in_thread
from services.timeouts import Timeouts

log = logging.getLogger("tiermesh.aggregator")


class StandbyService:
    """Serves like an aggregator while it leads; at other times refuses calls and names the leader.

    Args:
        name: the aggregator's name.
        state_dir: the state folder, on storage shared with the other aggregators.
        timeouts: how often to look for the leader (`tick`), and after how long to take over (`takeover`).
        make: makes an aggregator that leads, from the queue, whose epoch was raised, and the tensor port.
    """

    service_names = AggregatorService.service_names

    def __init__(
        self,
        *,
        name: str,
        state_dir: Path,
        timeouts: Timeouts,
        make: Callable[[JobQueue, int], AggregatorService],
    ) -> None:
        self._name = name
        self._tensor_port = 0
        self._state_dir = state_dir
        self._timeouts = timeouts
        self._make = make
        self._handlers = LeaderHandlers(self._refusal)
        self.handlers = self._handlers.handlers
        self.tensor_methods = self._handlers.tensor_methods
        self._sighting: LeaderSighting | None = None
        self._last_warning = ""

    # ---- life ----

    async def start(self, tensor_port: int = 0) -> None:
        """Check that the state folder can be used.

        Args:
            tensor_port: the port of data streams; 0 for none.

        Raises:
            Refused: it can't.
        """
        self._tensor_port = tensor_port
        self._use = StateDirUse(self._state_dir)
        (await asyncio.to_thread(open_queue, self._state_dir, self._timeouts)).close()

    async def run(self) -> None:
        """Stand by and lead in turn, until cancelled or until leading fails."""
        while True:
            queue = await self._stand_by()
            # Keeps out aggregators without --standby. A frozen leader may still have it.
            lock = try_lock(self._state_dir / LEADER_LOCK, exclusive=False)
            service = self._make(queue, self._tensor_port)
            self._handlers.set_leading(service)
            try:
                await _lead(service, queue)
            except Deposed as deposed:
                log.warning("%s; this aggregator is now a standby", deposed)
            except JobsCrashed as crash:
                service.note_crash(crash)
            finally:
                self._handlers.set_leading(None)
                self._sighting = None
                await service.stop()
                if lock is not None:
                    lock.close()

    async def stop(self) -> None:
        """Do nothing: `run` has ended everything it started."""

    async def _stand_by(self) -> JobQueue:
        """Wait until this aggregator must lead; return the queue, whose epoch it has raised."""
        while (queue := await self._open()) is None:
            await asyncio.sleep(self._timeouts.tick)
        succession = Succession(self._timeouts.takeover)
        try:
            while not await self._takes_over(queue, succession):
                await asyncio.sleep(self._timeouts.tick)
        except BaseException:
            with suppress(TiermeshError):
                queue.leave(self._name)
            with suppress(TiermeshError):  # it leads only if it was cancelled as it took over
                queue.resign()
            queue.close()
            raise
        return queue

    async def _open(self) -> JobQueue | None:
        try:
            return await asyncio.to_thread(open_queue, self._state_dir, self._timeouts)
        except TiermeshError as error:
            self._warn(error)
            return None

    async def _takes_over(self, queue: JobQueue, succession: Succession) -> bool:
        """Look for the leader; if there is none, raise the epoch and return True."""
        try:
            sighting = await finish_in_thread(queue.look, self._name)
            if self._sighting is None or sighting.epoch != self._sighting.epoch:
                log.info("standby: the leader is %s", _describe_leader(sighting))
            self._sighting = sighting
            now = time.monotonic()
            if not succession.is_due(sighting, now):
                return False
            epoch = await finish_in_thread(queue.take_over, sighting, self._name, self._timeouts.takeover)
        except TiermeshError as error:
            self._warn(error)
            return False
        if epoch is None:
            return False  # another standby was faster, or the leader lives
        log.warning(
            "takes over with epoch %d: %s", epoch, _describe_end(sighting, succession.silent_seconds(now))
        )
        return True

    def _warn(self, error: TiermeshError) -> None:
        if str(error) != self._last_warning:
            self._last_warning = str(error)
            log.warning("%s; trying again", error)

    def _refusal(self) -> str:
        return f"this aggregator is a standby; the leader is {_describe_leader(self._sighting)}"


async def _lead(service: AggregatorService, queue: JobQueue) -> None:
    """Lead until another aggregator must, or until this one must again with a newer epoch (Deposed)."""
    try:
        await service.run()
    except EpochBehind as behind:
        skip_epochs(queue, behind)
        raise Deposed(str(behind)) from None


def _describe_leader(sighting: LeaderSighting | None) -> str:
    if sighting is None or not sighting.epoch:
        return "not known yet"
    return f"{sighting.leader or 'an aggregator'} (epoch {sighting.epoch})"


def _describe_end(sighting: LeaderSighting, silent_seconds: float) -> str:
    if not sighting.epoch:
        return "there was no leader before"
    return f"{_describe_leader(sighting)} " + (
        f"was silent for {silent_seconds:.1f} s" if sighting.takeover_seconds else "has resigned"
    )
