"""A cluster on this machine to which things happen: its daemons, and a proxy in each link between them."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path
from types import TracebackType

from cli.chaos.plan import Fault, Kind, Way
from cli.chaos.proxy import Line, Proxy
from services.errors import Failed
from services.runtime.launcher import DaemonProcess, stop_all


class Cluster:
    """An aggregator, its optimizer in 3 tiers, and workers; an async context manager, ready once entered.

    Tensors go over the links, not through shared memory. Whoever is started again is found at the same addresses, as
    they are the proxies'.

    Args:
        tiers: 2 or 3.
        workers: how many, named worker-1, worker-2, ...
        state_dir: queue, checkpoints and, in `logs/`, the daemons' logs.
        heartbeat_seconds: of the aggregator.
        log_level: of all.

    Attributes:
        links: each link's proxy by its name: `worker-1>aggregator`, `aggregator>optimizer`.
    """

    def __init__(
        self, *, tiers: int, workers: int, state_dir: Path, heartbeat_seconds: float, log_level: str
    ) -> None:
        self.links: dict[str, Proxy] = {}
        self._tiers = tiers
        self._workers = workers
        self._state_dir = state_dir
        self._heartbeat_seconds = heartbeat_seconds
        self._common = ("--no-shared-memory", "--log-level", log_level)
        self._daemons: dict[str, DaemonProcess] = {}
        self._behind: dict[str, list[Proxy]] = {}
        self._up: dict[str, asyncio.Event] = {}
        self._struck: dict[str, asyncio.Lock] = {}

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
        """The daemons' names."""
        return tuple(self._daemons)

    @property
    def address(self) -> str:
        """Where commands find the aggregator; nothing happens to that link."""
        return self._behind["aggregator"][0].address

    async def watch(self) -> None:
        """Watch the daemons, without an end.

        Raises:
            Failed: one ended that nobody killed.
        """
        await asyncio.gather(*map(self._watch, self._daemons))

    async def strike(self, fault: Fault) -> None:
        """Let it happen, and wait until it is over; what happens to one daemon or link happens one after another.

        Raises:
            Failed: the killed can't be started again.
        """
        async with self._struck.setdefault(fault.target, asyncio.Lock()):
            if fault.kind is Kind.KILL:
                await self._kill(fault)
            elif fault.kind is Kind.FREEZE:
                await self._freeze(fault)
            else:
                proxy = self.links[fault.target]
                ways = {Way.FORTH: [proxy.forth], Way.BACK: [proxy.back], Way.BOTH: [proxy.forth, proxy.back]}
                await asyncio.gather(*(_spoil(line, fault) for line in ways[fault.way]))

    async def _start_all(self) -> None:
        others: tuple[str, ...] = ()
        if self._tiers == 3:
            await self._start("optimizer", "--state-dir", str(self._state_dir))
            others = ("--optimizer", await self._link("aggregator", "optimizer"))
        heartbeat = ("--heartbeat-seconds", str(self._heartbeat_seconds))
        await self._start("aggregator", "--state-dir", str(self._state_dir), *heartbeat, *others)
        self._behind["aggregator"].append(await self._proxy("aggregator"))
        names = [f"worker-{number}" for number in range(1, self._workers + 1)]
        addresses = [await self._link(name, "aggregator") for name in names]
        await asyncio.gather(
            *(
                self._start(name, "--aggregator", address)
                for name, address in zip(names, addresses, strict=True)
            )
        )

    async def _start(self, name: str, *arguments: str) -> None:
        role, logs = name.partition("-")[0], self._state_dir / "logs"
        self._behind[name], self._up[name] = [], asyncio.Event()
        self._daemons[name] = DaemonProcess(role, name, logs, [*arguments, *self._common]).start()
        await self._serves(name)

    async def _serves(self, name: str) -> None:
        await self._daemons[name].wait_ready()
        for proxy in self._behind[name]:
            await _aim(proxy, self._daemons[name])
        self._up[name].set()

    async def _link(self, caller: str, name: str) -> str:
        """A link from `caller` to the daemon of that name; returns the address to call."""
        proxy = self.links[f"{caller}>{name}"] = await self._proxy(name)
        self._behind[name].append(proxy)
        return proxy.address

    async def _proxy(self, name: str) -> Proxy:
        number = sum(map(len, self._behind.values()))
        proxy = Proxy(f"127.0.0.{2 + number}")
        await _aim(proxy, self._daemons[name])
        return proxy

    async def _stop(self) -> None:
        await stop_all(self._daemons.values())
        for proxy in [proxy for proxies in self._behind.values() for proxy in proxies]:
            await proxy.close()

    async def _watch(self, name: str) -> None:
        daemon = self._daemons[name]
        while True:
            await daemon.wait_ended()
            if self._up[name].is_set():
                raise Failed(daemon.describe_end())
            await self._up[name].wait()

    async def _kill(self, fault: Fault) -> None:
        daemon = self._daemons[fault.target]
        self._up[fault.target].clear()
        daemon.send_signal(signal.SIGKILL)
        await daemon.wait_ended()
        await asyncio.sleep(fault.seconds)
        daemon.start()
        await self._serves(fault.target)

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
            f"proxy of {daemon.name}: can't listen on {proxy.host} ({error.strerror}), on a port of its own or on "
            f"{daemon.tensor_port}; all of 127.x.x.x must be this host's, as on Linux"
        ) from None


async def _spoil(line: Line, fault: Fault) -> None:
    try:
        if fault.kind is Kind.BREAK:
            line.break_after(fault.after_bytes)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(line.broken.wait(), fault.seconds)
            return
        if fault.kind is Kind.CUT:
            line.hold()
        elif fault.kind is Kind.SLOW:
            line.bytes_per_second = fault.bytes_per_second
        else:
            line.delay_seconds = fault.delay_seconds
        await asyncio.sleep(fault.seconds)
    finally:
        line.break_after(None)
        line.release()
        line.bytes_per_second = None
        line.delay_seconds = 0.0
