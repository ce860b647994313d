"""What goes wrong in a virtual cluster: it is drawn beforehand after how many steps, and when it is due, what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.aggregator_shell import AggregatorShell
from tests.simulation.process import Process
from tests.simulation.scenario import MOST_SECONDS
from tests.simulation.worker_shell import WorkerShell

if TYPE_CHECKING:
    from tests.simulation.world import World

FREEZE_SECONDS = (1.0, 10.0, 25.0, 60.0)
HANG_SECONDS = 1500.0
"""How long a hanging device hangs: longer than the aggregator waits for a lease."""


class Faults:
    """The faults of one run.

    Attributes:
        active: whether more may come.
        hung: the workers whose devices have hung.
    """

    def __init__(self, world: World) -> None:
        self.active = True
        self.hung: set[str] = set()
        self._world = world
        self._disturbed_until = 0.0
        steps = world.scenario.jobs[0].plan.steps
        self._at = sorted(world.rng.randint(0, steps * 9 // 10) for _ in range(world.scenario.faults))

    def advance(self, commits: int) -> None:
        """So many steps are committed: begin what is due."""
        while self._at and self._at[0] <= commits:
            self._at.pop(0)
            seconds = self._world.rng.random() * 2 * max(1.0, self._world.scenario.optimizer_seconds)
            self.disturb(seconds)
            self._world.loop.after(seconds, self._fault)

    @property
    def over(self) -> bool:
        """Whether all that was drawn has come, and gone."""
        return not self._at and self._world.loop.now > self._disturbed_until

    def end(self) -> None:
        """From here on nothing goes wrong: what was still to come of earlier faults does not."""
        self.active = False
        for process in (self._world.aggregator, self._world.optimizer, *self._world.workers.values()):
            if process is not None:
                process.doomed_after = None
        for worker in self._world.workers.values():
            worker.sick_leases = 0

    def _draw(self) -> str:
        """What kind of fault comes next."""
        scenario, rng = self._world.scenario, self._world.rng
        kinds = ["link", "link", "worker", "worker", "aggregator"]
        kinds += ["silence", "silence", "freeze", "clock", "sick"]
        if scenario.tiers == 3:
            kinds += ["optimizer", "optimizer link"]
        kinds += ["usurper"] if rng.random() < 0.2 else []
        kinds += ["everything"] if rng.random() < 0.3 else []
        kinds += ["hang"] if rng.random() < 0.1 else []
        return rng.choice(scenario.fault_kinds or kinds)

    def _fault(self) -> None:
        """One goes wrong now, if there is what it befalls."""
        world, rng = self._world, self._world.rng
        world.moved()
        kind = self._draw()
        world.trace("fault", "!!", kind)
        world.links = [link for link in world.links if link.up]
        alive = [each for each in world.workers.values() if each.alive]
        match kind:
            case "link" if world.links:
                world.injected["link cut"] += 1
                rng.choice(world.links).cut()
            case "optimizer link":
                world.injected["optimizer's link cut"] += 1
                for link in world.links:
                    if world.optimizer in link.ends:
                        link.cut()
            case "worker" if alive:
                self._doom(rng.choice(alive))
            case "aggregator":
                self._doom(world.aggregator)
            case "optimizer":
                self._doom(world.optimizer)
            case "everything":
                for process in [world.aggregator, world.optimizer, *alive]:
                    self._doom(process)
            case "silence" if distant := [link for link in world.links if not link.local]:
                seconds = self._silence_seconds()
                way = rng.choice(("up", "down", "both"))
                world.injected["link silent both ways" if way == "both" else "link silent one way"] += 1
                rng.choice(distant).hold(seconds, up=way != "down", down=way != "up")
            case "freeze":
                self._freeze(
                    rng.choice([world.aggregator, world.optimizer, *alive]), rng.choice(FREEZE_SECONDS)
                )
            case "clock":
                self._jump(rng.choice([world.aggregator, world.optimizer, *alive]))
            case "usurper" if world.aggregator is not None and world.aggregator.alive:
                world.injected["second aggregator"] += 1
                self.usurp(world.aggregator)
            case "sick" if alive:
                self._sicken(rng.choice(alive), len(alive))
            case "hang" if healthy := [each for each in alive if each.name not in self.hung]:
                world.injected["device hangs"] += 1
                worker = rng.choice(healthy)
                worker.hang_seconds = HANG_SECONDS
                # A second one would begin when the first is over, long after all faults.
                self.hung.add(worker.name)
                self.disturb(HANG_SECONDS)

    def usurp(self, former: AggregatorShell) -> None:
        """Another aggregator is started while one lives on, as far as it is let, or is frozen and comes back late."""
        world, rng = self._world, self._world.rng
        if rng.random() < 0.5:
            self._freeze(former, rng.choice(FREEZE_SECONDS))
        self.disturb(60.0)
        world.start_aggregator()
        for link in world.links:
            if former in link.ends and world.optimizer not in link.ends:
                world.loop.after(rng.random() * 20, link.cut)
        world.loop.after(60.0, former.die)

    def disturb(self, seconds: float) -> None:
        """What just went wrong goes on for so long."""
        self._disturbed_until = max(self._disturbed_until, self._world.loop.now + seconds)

    def _silence_seconds(self) -> float:
        """How long a link is silent; the longest silence is longer than any run, and somebody's to notice."""
        seconds = self._world.rng.choice((2.0, 10.0, 25.0, 60.0, 2 * MOST_SECONDS))
        self.disturb(min(seconds, 60.0))
        return seconds

    def _freeze(self, process: Process | None, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after so long: nobody is told, what is sent to it waits, its clock goes on."""
        if process is None or not process.running:
            return
        world = self._world
        world.injected["process frozen"] += 1
        self.disturb(seconds)
        roles = (world.aggregator, world.optimizer)
        one_process = world.scenario.tiers == 2 and process in roles
        for each in roles if one_process else (process,):
            if each is not None and each.alive:
                each.freeze(seconds)
        for link in world.links:
            if process in link.ends:
                link.silent(world.loop.now + seconds)

    def _jump(self, process: Process | None) -> None:
        """A process finds its monotonic clock far ahead (its host was suspended), and the time of day anywhere."""
        if process is not None:
            self._world.injected["clock jumps"] += 1
            process.clock_ahead_seconds += self._world.rng.choice((3.0, 20.0, 700.0, 100_000.0))
        if isinstance(process, AggregatorShell):
            process.wall_clock_seconds += self._world.rng.uniform(-1e6, 1e6)

    def _sicken(self, worker: WorkerShell, alive: int) -> None:
        """Some of its next leases fail; so many that it is refused only if there are others."""
        worker.sick_leases = (
            self._world.rng.randint(1, 5) if alive > 1 else max(0, 2 - worker.failed_in_a_row)
        )

    def _doom(self, process: Process | None) -> None:
        """A process dies now, or soon, between two effects."""
        if process is not None and process.alive:
            if self._world.rng.random() < 0.5:
                process.die()
            else:
                process.doomed_after = self._world.rng.randint(0, 30)
