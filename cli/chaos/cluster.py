"""A cluster on this machine for fault injection: its daemons, and a proxy in each link between them."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path
from types import TracebackType

from cli.chaos.plan import Direction, Fault, FaultKind
from cli.chaos.proxy import Line, Proxy
from services.errors import Failed
from services.runtime.launcher import DaemonProcess, stop_all


class Cluster:
    """Async context manager of an aggregator, its optimizer (3 tiers) and workers; ready once entered.

    Tensors go over the links, not through shared memory. A restarted daemon keeps its address, because peers connect
    to its proxy.

    Args:
        tiers: 2 or 3.
        workers: number of workers; they are named worker-1, worker-2, ...
        state_dir: folder for queue, checkpoints and, in `logs/`, the daemons' logs.
        heartbeat_seconds: heartbeat of the aggregator.
        log_level: lowest level that the daemons log.
        rows: whether workers also link to each other, because the job has a pipeline.

    Attributes:
        links: proxy of each link, by names like `worker-1>aggregator` and `aggregator>optimizer`; `row>worker-1` stands
            for the links that other workers of a row open to a worker.
    """

    def __init__(
        self,
        *,
        tiers: int,
        workers: int,
        state_dir: Path,
        heartbeat_seconds: float,
        log_level: str,
        rows: bool = False,
    ) -> None:
        self._rows = rows
        self.links: dict[str, Proxy] = {}
        self._tiers = tiers
        self._workers = workers
        self._state_dir = state_dir
        self._heartbeat_seconds = heartbeat_seconds
        self._common = ("--no-shared-memory", "--log-level", log_level)
        self._daemons: dict[str, DaemonProcess] = {}
        self._proxies: dict[str, list[Proxy]] = {}
        self._running: dict[str, asyncio.Event] = {}
        self._fault_locks: dict[str, asyncio.Lock] = {}

    async def __aenter__(self) -> Cluster:
        try:
            await self._start_all()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.shield(self._stop())

    @property
    def daemons(self) -> tuple[str, ...]:
        """Names of the daemons."""
        return tuple(self._daemons)

    @property
    def address(self) -> str:
        """`HOST:PORT` of the aggregator for commands; this link has no faults."""
        return self._proxies["aggregator"][0].address

    async def watch(self) -> None:
        """Watch the daemons until this task is cancelled.

        Raises:
            Failed: a daemon ended without being killed by a fault.
        """
        await asyncio.gather(*map(self._watch, self._daemons))

    async def inject(self, fault: Fault) -> None:
        """Carry out a fault and wait until it is over; faults of one daemon or link run one after another.

        Raises:
            Failed: a killed daemon can't be restarted.
        """
        async with self._fault_locks.setdefault(fault.target, asyncio.Lock()):
            if fault.kind is FaultKind.KILL:
                await self._kill(fault)
            elif fault.kind is FaultKind.FREEZE:
                await self._freeze(fault)
            else:
                proxy = self.links[fault.target]
                lines = {
                    Direction.FORWARD: [proxy.to_target],
                    Direction.BACK: [proxy.from_target],
                    Direction.BOTH: [proxy.to_target, proxy.from_target],
                }
                await asyncio.gather(*(_disturb(line, fault) for line in lines[fault.way]))

    async def _start_all(self) -> None:
        others: tuple[str, ...] = ()
        if self._tiers == 3:
            await self._start("optimizer", "--state-dir", str(self._state_dir))
            others = ("--optimizer", await self._link("aggregator", "optimizer"))
        heartbeat = ("--heartbeat-seconds", str(self._heartbeat_seconds))
        await self._start("aggregator", "--state-dir", str(self._state_dir), *heartbeat, *others)
        self._proxies["aggregator"].append(await self._proxy("aggregator"))
        names = [f"worker-{number}" for number in range(1, self._workers + 1)]
        folder = str(self._state_dir / "workers")
        options = {
            name: ["--aggregator", await self._link(name, "aggregator"), "--state-dir", folder]
            for name in names
        }
        for name in names:
            self._proxies[name] = []
            if self._rows:
                proxy = self.links[f"row>{name}"] = Proxy(self._next_host())
                self._proxies[name].append(proxy)
                options[name] += ["--advertise", proxy.host]
        await asyncio.gather(*(self._start(name, *options[name]) for name in names))

    async def _start(self, name: str, *arguments: str) -> None:
        role, logs = name.partition("-")[0], self._state_dir / "logs"
        self._proxies.setdefault(name, [])
        self._running[name] = asyncio.Event()
        self._daemons[name] = DaemonProcess(role, name, logs, [*arguments, *self._common]).start()
        await self._wait_serving(name)

    async def _wait_serving(self, name: str) -> None:
        await self._daemons[name].wait_ready()
        for proxy in self._proxies[name]:
            await _aim(proxy, self._daemons[name])
        self._running[name].set()

    async def _link(self, caller: str, name: str) -> str:
        """Add a link from `caller` to the daemon `name`; return the address to call."""
        proxy = self.links[f"{caller}>{name}"] = await self._proxy(name)
        self._proxies[name].append(proxy)
        return proxy.address

    async def _proxy(self, name: str) -> Proxy:
        proxy = Proxy(self._next_host())
        await _aim(proxy, self._daemons[name])
        return proxy

    def _next_host(self) -> str:
        return f"127.0.0.{2 + sum(map(len, self._proxies.values()))}"

    async def _stop(self) -> None:
        await stop_all(self._daemons.values())
        for proxy in [proxy for proxies in self._proxies.values() for proxy in proxies]:
            await proxy.close()

    async def _watch(self, name: str) -> None:
        daemon = self._daemons[name]
        while True:
            await daemon.wait_ended()
            if self._running[name].is_set():
                raise Failed(daemon.describe_end())
            await self._running[name].wait()

    async def _kill(self, fault: Fault) -> None:
        daemon = self._daemons[fault.target]
        self._running[fault.target].clear()
        daemon.send_signal(signal.SIGKILL)
        await daemon.wait_ended()
        await asyncio.sleep(fault.seconds)
        daemon.start()
        await self._wait_serving(fault.target)

    async def _freeze(self, fault: Fault) -> None:
        daemon = self._daemons[fault.target]
        daemon.freeze()
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            daemon.thaw()


async def _aim(proxy: Proxy, daemon: DaemonProcess) -> None:
    try:
        await proxy.aim(daemon)
    except OSError as error:
        raise Failed(
            f"proxy of {daemon.name}: can't listen on {proxy.host}, port {daemon.tensor_port} "
            f"({error.strerror}); free the "
            "port, and run on a host whose loopback has all of 127.x.x.x, as Linux has"
        ) from None


async def _disturb(line: Line, fault: Fault) -> None:
    try:
        if fault.kind is FaultKind.BREAK:
            line.break_after(fault.after_bytes)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(line.broken.wait(), fault.seconds)
            return
        if fault.kind is FaultKind.CUT:
            line.pause()
        elif fault.kind is FaultKind.SLOW:
            line.bytes_per_second = fault.bytes_per_second
        else:
            line.delay_seconds = fault.delay_seconds
        await asyncio.sleep(fault.seconds)
    finally:
        line.break_after(None)
        line.resume()
        line.bytes_per_second = None
        line.delay_seconds = 0.0
