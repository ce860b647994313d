"""Faults of a simulated cluster. Their moments, in steps, are drawn in advance; their kinds when they are due."""

from __future__ import annotations

import re
from itertools import combinations
from typing import TYPE_CHECKING

from aggregator.core.setting_aside import MOST_STARTS
from services.timeouts import STANDARD_TIMEOUTS
from tests.simulation.job_model import require
from tests.simulation.process import Process
from tests.simulation.row_links import RowConnection
from tests.simulation.scenario import MOST_SECONDS
from tests.simulation.simulated_aggregator import SimulatedAggregator
from tests.simulation.simulated_worker import SimulatedWorker

if TYPE_CHECKING:
    from tests.simulation.simulated_cluster import SimulatedCluster

NAMED_SECONDS = STANDARD_TIMEOUTS.stall / 0.9 + 30.0
"""Time after which a hang has been noticed, also by the clock of a worker that is slow."""
FREEZE_SECONDS = (1.0, 10.0, 25.0, 60.0)
HANG_SECONDS = 1500.0
"""Duration of a device's hang, longer than the aggregator waits for a lease."""

LONG_PART_SECONDS = 7200.0
"""Duration for which no worker reaches another one, longer than several pauses of a broken link."""


class Faults:
    """The faults of one run.

    Attributes:
        active: whether more faults may happen.
        hung: workers whose devices have hung.
        named: workers that the aggregator has named for it.
        parted_long: whether no worker could reach another one for long.
        parted_until: times until which two workers can't reach each other, by their names.
    """

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.active = True
        self.hung: set[str] = set()
        self.named: set[str] = set()
        self.parted_long = False
        self.parted_until: dict[frozenset[str], float] = {}
        self._cluster = cluster
        self._disturbed_until = 0.0
        steps = cluster.scenario.fault_steps or cluster.scenario.jobs[0].plan.steps * 9 // 10
        self._at = sorted(cluster.rng.randint(0, steps) for _ in range(cluster.scenario.faults))

    def advance(self, commits: int) -> None:
        """Start the faults that are due after this many committed steps."""
        while self._at and self._at[0] <= commits:
            self._at.pop(0)
            seconds = self._cluster.rng.random() * 2 * max(1.0, self._cluster.scenario.optimizer_seconds)
            self.disturb(seconds)
            self._cluster.loop.after(seconds, self._fault)

    @property
    def are_felt(self) -> bool:
        """Whether the effect of a fault lasts."""
        return self._cluster.loop.now <= self._disturbed_until

    @property
    def over(self) -> bool:
        """Return whether all drawn faults have happened and their effects have ended."""
        return not self._at and not self.are_felt

    def end(self) -> None:
        """Stop all faults, including pending effects of earlier ones."""
        self.active = False
        cluster = self._cluster
        for process in (cluster.aggregator, cluster.optimizer, *cluster.shards, *cluster.workers.values()):
            if process is not None:
                process.doomed_after = None
        for worker in self._cluster.workers.values():
            worker.sick_leases = 0

    def _draw(self) -> str:
        """Draw the kind of the next fault."""
        scenario, rng = self._cluster.scenario, self._cluster.rng
        kinds = ["link", "link", "worker", "worker", "aggregator"]
        kinds += ["silence", "silence", "freeze", "clock", "sick"]
        if scenario.tiers == 3:
            kinds += ["optimizer", "optimizer link"]
        kinds += ["usurper"] if rng.random() < 0.2 else []
        kinds += ["everything"] if rng.random() < 0.3 else []
        kinds += ["hang"] if rng.random() < 0.1 else []
        kinds += ["shard", "shard"] if scenario.shards else []
        kinds += ["row link", "parted"] if any(job.pipeline is not None for job in scenario.jobs) else []
        return rng.choice(scenario.fault_kinds or kinds)

    def _fault(self) -> None:
        """Inject a fault of this kind now, if its target exists."""
        cluster, rng = self._cluster, self._cluster.rng
        cluster.moved()
        kind = self._draw()
        cluster.trace("fault", "!!", kind)
        cluster.links = [link for link in cluster.links if link.up]
        alive = [each for each in cluster.workers.values() if each.alive]
        match kind:
            case "link" if cluster.links:
                cluster.injected["link cut"] += 1
                rng.choice(cluster.links).cut()
            case "optimizer link":
                cluster.injected["optimizer's link cut"] += 1
                for link in cluster.links:
                    if cluster.optimizer in link.ends:
                        link.cut()
            case "worker" if alive:
                self._doom(rng.choice(alive))
            case "aggregator":
                self._doom(cluster.aggregator)
            case "optimizer":
                self._doom(cluster.optimizer)
            case "shard":
                self._doom(rng.choice(cluster.shards))
            case "restore":
                cluster.restore_queue()
            case "everything":
                for process in [cluster.aggregator, cluster.optimizer, *cluster.shards, *alive]:
                    self._doom(process)
            case "silence" if distant := [link for link in cluster.links if not link.local]:
                seconds = self._silence_seconds()
                way = rng.choice(("up", "down", "both"))
                cluster.injected["link silent both ways" if way == "both" else "link silent one way"] += 1
                rng.choice(distant).hold(seconds, up=way != "down", down=way != "up")
            case "freeze":
                processes = [cluster.aggregator, cluster.optimizer, *cluster.shards, *alive]
                self._freeze(rng.choice(processes), rng.choice(FREEZE_SECONDS))
            case "clock":
                self._jump(rng.choice([cluster.aggregator, cluster.optimizer, *cluster.shards, *alive]))
            case "usurper" if cluster.aggregator is not None and cluster.aggregator.alive:
                cluster.injected["second aggregator"] += 1
                self.take_over(cluster.aggregator)
            case "row link" if rows := [each for each in cluster.links if isinstance(each, RowConnection)]:
                cluster.injected["link of a row cut"] += 1
                rng.choice(rows).cut()
            case "parted" if rows := [each for each in cluster.links if isinstance(each, RowConnection)]:
                self._part(rng.choice(rows))
            case "parted long":
                self._part_all()
            case "sick" if alive:
                self._sicken(rng.choice(alive), len(alive))
            case "hang" if healthy := [each for each in alive if each.name not in self.hung]:
                cluster.injected["device hangs"] += 1
                worker = rng.choice(healthy)
                worker.device.hang_seconds = HANG_SECONDS
                # A second hang would start after the first one, long after the last fault.
                self.hung.add(worker.name)
                self.disturb(HANG_SECONDS)

    def check_named(self, text: str) -> None:
        """Check that only a worker whose device has hung, or whose clock has jumped, is named for a hang."""
        found = re.match(r"worker (\S+): its device .* has not got on", text)
        if found is None:
            return
        self.named.add(found[1])
        worker = self._cluster.workers[found[1]]
        require(found[1] in self.hung or worker.clock_ahead_seconds > 0, f"{text}, but it does not hang")

    def check_hangs(self) -> None:
        """Check that each device that hangs amid a job is named in time, if nothing else happens."""
        if self._cluster.scenario.fault_kinds != ("hang",):
            return
        for worker in self._cluster.workers.values():
            since, job = worker.device.hung_since, worker.core.job
            if since is None or job is None or job.built is None or worker.name in self.named:
                continue
            seconds = self._cluster.loop.now - since
            require(seconds < NAMED_SECONDS, f"{worker.title} has hung for {seconds:.0f} s, and is not named")

    def take_over(self, former: SimulatedAggregator) -> None:
        """Start another aggregator while one is alive. Half of the time the old one is frozen, and continues late."""
        cluster, rng = self._cluster, self._cluster.rng
        if rng.random() < 0.5:
            self._freeze(former, rng.choice(FREEZE_SECONDS))
        self.disturb(60.0)
        cluster.start_aggregator()
        for link in cluster.links:
            if former in link.ends and cluster.optimizer not in link.ends:
                cluster.loop.after(rng.random() * 20, link.cut)
        cluster.loop.after(60.0, former.die)

    def disturb(self, seconds: float) -> None:
        """Note that a fault's effect lasts for this long."""
        self._disturbed_until = max(self._disturbed_until, self._cluster.loop.now + seconds)

    def _part(self, connection: RowConnection) -> None:
        """Break a link of a row, and let its ends not reach each other for some time."""
        cluster = self._cluster
        cluster.injected["workers parted"] += 1
        seconds = cluster.rng.choice((5.0, 40.0, 120.0))
        self.disturb(seconds)
        self.parted_until[connection.names] = cluster.loop.now + seconds
        connection.cut()

    def _part_all(self) -> None:
        """Let no worker reach another one for long."""
        cluster = self._cluster
        cluster.injected["all workers parted"] += 1
        self.parted_long = True
        self.disturb(
            LONG_PART_SECONDS + STANDARD_TIMEOUTS.unfit
        )  # the longest pause of a link that works again
        for pair in combinations(cluster.workers, 2):
            self.parted_until[frozenset(pair)] = cluster.loop.now + LONG_PART_SECONDS
        for link in cluster.links:
            if isinstance(link, RowConnection):
                link.cut()

    def are_parted(self, names: frozenset[str]) -> bool:
        """Return whether two workers can't reach each other now."""
        return self._cluster.loop.now < self.parted_until.get(names, 0.0)

    def _silence_seconds(self) -> float:
        """Draw how long a link is silent. The longest silence outlasts the run, so a peer has to detect it."""
        seconds = self._cluster.rng.choice((2.0, 10.0, 25.0, 60.0, 2 * MOST_SECONDS))
        self.disturb(min(seconds, 60.0))
        return seconds

    def _freeze(self, process: Process | None, seconds: float) -> None:
        """Freeze a process, as SIGSTOP does, and continue it later. Messages to it wait, and its clock goes on."""
        if process is None or not process.running:
            return
        cluster = self._cluster
        cluster.injected["process frozen"] += 1
        self.disturb(seconds)
        roles = (cluster.aggregator, cluster.optimizer)
        one_process = cluster.scenario.tiers == 2 and process in roles
        for each in roles if one_process else (process,):
            if each is not None and each.alive:
                each.freeze(seconds)
        for link in cluster.links:
            if process in link.ends:
                link.silent(cluster.loop.now + seconds)

    def _jump(self, process: Process | None) -> None:
        """Let a process's monotonic clock jump ahead, as after a suspend, or an aggregator's wall clock anywhere."""
        if process is not None:
            self._cluster.injected["clock jumps"] += 1
            process.clock_ahead_seconds += self._cluster.rng.choice((3.0, 20.0, 700.0, 100_000.0))
        if isinstance(process, SimulatedAggregator):
            process.wall_clock_seconds += self._cluster.rng.uniform(-1e6, 1e6)

    def _sicken(self, worker: SimulatedWorker, alive: int) -> None:
        """Let some of a worker's next leases fail, but never so many that the only worker is excluded."""
        worker.sick_leases = (
            self._cluster.rng.randint(1, 5) if alive > 1 else max(0, 2 - worker.failed_in_a_row)
        )

    def _doom(self, process: Process | None) -> None:
        """Kill a process now, or soon between two effects, unless a job would be set aside for it."""
        if process is None or not process.alive:
            return
        now = self._cluster.rng.random() < 0.5
        after = 0 if now else self._cluster.rng.randint(0, 30)
        if process is self._cluster.aggregator and self._is_blamed_next():
            return
        if now:
            process.die()
        else:
            process.doomed_after = after

    def _is_blamed_next(self) -> bool:
        """Return whether a job counts as the reason of one more death of an aggregator soon after its start."""
        saved = self._cluster.disk.jobs.values()
        return any(each.job.starts >= MOST_STARTS - 1 for each in saved)
