"""A simulated cluster with an insider: a worker, a neighbour in a row, a standby or a person that lies.

The insider is the simulated worker that others are, and its messages are changed on their way. What arrives passes the
same checks as at a real port. The honest workers must finish the job in the bits of an undisturbed run.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from aggregator.core.cluster_status import make_status
from aggregator.core.events import Note
from services.config.job import MOST_SPEC_BYTES
from services.protocol.file_refs import make_ref
from services.timeouts import STANDARD_TIMEOUTS
from tests.insider.held import count_held
from tests.insider.lies import Liar, Trick
from tests.insider.neighbours import LyingWorker, Neighbour
from tests.insider.person import LyingPerson
from tests.insider.ports import InsiderAggregator, InsiderOptimizer, Role
from tests.insider.standby import LyingStandby
from tests.simulation.job_model import SimulatedJob, require
from tests.simulation.links import Link
from tests.simulation.scenario import LIAR, Scenario
from tests.simulation.simulated_cluster import SimulatedCluster
from tests.simulation.simulated_worker import SimulatedWorker

HELD_BYTES = (1 << 16) + MOST_SPEC_BYTES
"""Largest size of what a role's core keeps, one spec included. Undisturbed runs of these jobs keep far less."""
MOST_SECONDS = 5 * STANDARD_TIMEOUTS.stall
"""Longest run. An insider may have a few leases be late, one after the other."""
UNEXPLAINED_SECONDS = 60.0
"""Longest time without progress that `status` does not explain."""

_CONFIG = make_ref(b"{}")


class InsiderCluster(SimulatedCluster):
    """One run of a seed with an insider.

    Args:
        seed: source of all decisions.
        role: role of the insider; None draws it.
        tricks: lies that it may tell.
        kind: kind of message that it lies about; empty draws it.
        field: name of the field that it lies about; empty draws it.
        rows: whether jobs may have a pipeline.
        tracing: whether to print inputs and effects.

    Attributes:
        role: role of the insider.
        liar: what it lies about.
    """

    distrusted = LIAR
    counts_are_true = False
    aggregator_type = InsiderAggregator
    optimizer_type = InsiderOptimizer
    aggregator: InsiderAggregator | None

    def __init__(
        self,
        seed: int,
        *,
        role: Role | None = None,
        tricks: Sequence[Trick] = tuple(Trick),
        kind: str = "",
        field: str = "",
        rows: bool = True,
        tracing: bool = False,
    ) -> None:
        super().__init__(seed, scenario=Scenario.with_insider(seed, rows=rows), tracing=tracing)
        draw = random.Random(f"role of {seed}")
        self.role = role or draw.choice(self._possible_roles())
        spared = frozenset({"lease"}) if self.role is Role.STANDBY else frozenset()
        self.liar = Liar(seed, tricks=tricks, spared=spared, kind=kind, field=field)
        self.liar.files = {job.layout_ref.sha256: job.layout.dumps().encode() for job in self.scenario.jobs}
        self.liar.files[_CONFIG.sha256] = b"{}"
        self.most_held_bytes = 0
        self._start_seconds = draw.choice((0.0, 20.0)) * draw.random()  # half of the time it is the first
        self._gone = False

    @property
    def _has_rows(self) -> bool:
        return any(job.pipeline is not None for job in self.scenario.jobs)

    def _possible_roles(self) -> list[Role]:
        roles = [Role.WORKER] * 3
        roles += [Role.NEIGHBOUR] * 2 * self._has_rows
        return [*roles, Role.PERSON] + [Role.STANDBY] * (self.scenario.tiers == 3)

    def run(self) -> None:
        """Run until every job has ended, and check that the insider changed nothing of the result."""
        if self.role is Role.STANDBY:
            LyingStandby(self)
            self.contention.expects_last_commits = False
        elif self.role is Role.PERSON:
            LyingPerson(self)
        else:
            self.loop.at(self._start_seconds, self._start_worker, LIAR)
            self.loop.at(10.0, self._decide)
        super().run()

    def add_job(self, job: SimulatedJob) -> None:
        """Take a job of the insider into the checks."""
        self.jobs[job.id], self.disk.plans[job.id] = job, job.plan
        self.liar.files[job.layout_ref.sha256] = job.layout.dumps().encode()
        self.checks.planned(job)

    def worker_type(self, name: str) -> type[SimulatedWorker]:
        """Return the type of a worker of this name."""
        return LyingWorker if name == LIAR else Neighbour

    def lies(self, link: Link, role: Role) -> bool:
        """Return whether what comes over a link is the insider's, and it lies in this role."""
        return self.role is role and getattr(link.ends[1], "name", "") == LIAR

    def has_files(self, refs: Any) -> bool:
        """Return whether workers have uploaded these files."""
        files = self.liar.files
        return all(ref.sha256 in files and len(files[ref.sha256]) == ref.size for ref in refs)

    def leave(self) -> None:
        """Let the insider leave for good."""
        self._gone = True
        worker = self.workers.get(LIAR)
        if worker is not None and worker.alive:
            worker.alive = False
            self._cut_links_of(worker)

    def _start_worker(self, name: str, fingerprint: str = "same") -> None:
        if name != LIAR or not self._gone:
            super()._start_worker(name, fingerprint)

    def noted(self, note: Note) -> None:
        """Check a report of the aggregator. The insider may be named for a hang that it has only told."""
        if not note.text.startswith(f"worker {LIAR}: "):
            super().noted(note)

    def obeyed(self, peer: str, leader: Any) -> None:
        """Check that an epoch which a worker or optimizer obeys is one aggregator's alone, but for a lying standby."""
        if not isinstance(leader, LyingStandby):
            super().obeyed(peer, leader)

    def _watch(self) -> None:
        """Check that the cluster makes progress, explains its waits, and keeps no more than its bound."""
        for process in (self.aggregator, self.optimizer, *self.workers.values()):
            if process is not None and process.alive and not isinstance(process, LyingWorker):
                held = count_held(process.core)
                self.most_held_bytes = max(held, self.most_held_bytes)
                require(
                    held <= HELD_BYTES, f"{process.title} keeps {held} bytes, expected at most {HELD_BYTES}"
                )
        most_seconds = MOST_SECONDS * (10 if self._has_rows else 1)
        require(
            self.loop.now < most_seconds,
            f"the insider holds the job up for {self.loop.now:.0f} virtual seconds",
        )
        idle = self.loop.now - self._progress_seconds
        leader = self.aggregator
        if idle > UNEXPLAINED_SECONDS and leader is not None and leader.alive and leader.core.runs:
            status = make_status(leader.core, leader.now)
            details = any(each.detail for each in status.workers)
            require(
                status.waiting or status.waits or details,
                f"no progress for {idle:.0f} virtual seconds, and status does not say why",
            )
        super()._watch()

    def patience_seconds(self) -> float:
        """Return how long there may be no progress: a lease that is late is given to others, twice."""
        return super().patience_seconds() + (6 if self._has_rows else 2) * STANDARD_TIMEOUTS.stall

    def _end_faults(self) -> None:
        """End all faults. The insider goes on, so the rest of the run has another bound."""
        self.faults.end()
