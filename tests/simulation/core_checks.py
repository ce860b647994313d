"""Checks of a simulated aggregator's core: the payloads that it keeps, its leases, and what it knows of rows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping

from aggregator.core.aggregator import AggregatorCore
from aggregator.core.events import ToWorker
from aggregator.core.membership.members import MemberState
from aggregator.core.running_job import RunningJob
from protos import cluster_pb2 as pb
from services.protocol.plan import WINDOW_CHUNKS
from services.tensors.reduction_tree import Node
from tests.simulation.job_model import SimulatedJob, require
from tests.simulation.simulated_sums import SimulatedSums


class CoreChecks:
    """Checks of a core.

    Args:
        core: the core.
        jobs: all jobs.

    Attributes:
        windows: by job, the windows that may be full of kept sums: one, and one more for each lost optimizer link.
    """

    def __init__(self, core: AggregatorCore, jobs: Mapping[str, SimulatedJob]) -> None:
        self._core = core
        self._jobs = jobs
        self._sums: dict[str, SimulatedSums] = {}
        self.windows: defaultdict[str, int] = defaultdict(lambda: 1)
        self._able: Counter[str] = Counter()  # by job
        self._serving: dict[int, str] = {}  # by session, before the current input: its job
        self._moved: Counter[str] = Counter()  # by job: workers that it had amid the input

    def sums_of(self, job: str) -> SimulatedSums:
        """Return the payloads of a job that are kept in the aggregator's process."""
        return self._sums.setdefault(job, SimulatedSums())

    # ---- leases ----

    def begin(self) -> None:
        """Count the workers before an input."""
        self._able = self._count_able()
        self._serving = {session: each.job for session, each in self._core.members.items()}

    def end(self, orders: Iterable[ToWorker]) -> None:
        """Count the workers that an input has moved by these orders, and check the rows.

        They have left the job. Or others have joined it, and make a row with those that were spares amid the input.
        """
        bodies = [each.body for each in orders]
        self._moved = Counter(each.job for each in bodies if isinstance(each, pb.Leave))
        for job in {each.job for each in bodies if isinstance(each, pb.Join)}:
            self._moved[job] += sum(
                each.job == self._serving.get(session) == job and each.state is MemberState.BUILDING
                for session, each in self._core.members.items()
            )
        self._check_rows()

    def _count_able(self) -> Counter[str]:
        return Counter(member.job for member in self._core.members.values() if member.present)

    def check_lease(self, lease: pb.Lease) -> None:
        """Check that no lease is granted with too few workers, counted before the input and after its moves."""
        run = self._core.runs.get(lease.job)
        if lease.phase == pb.VERIFY and (run is None or run.stops is not None):
            return  # of the last step of a job that stops
        able = max(self._able[lease.job], self._count_able()[lease.job]) + self._moved[lease.job]
        wanted = self._jobs[lease.job].plan.min_workers
        require(able >= wanted, f"a lease is granted with {able} workers, the job wants {wanted}")

    def _check_rows(self) -> None:
        """Check that what the core knows of each row is what the row's workers can do."""
        for member in self._core.members.values():
            run = self._core.runs.get(member.job)
            row = run.rows.find(member) if run is not None else None
            require(
                (run is not None) == bool(member.job),
                f"{member.name} serves {member.job}, which does not run",
            )
            if row is None:
                continue
            known = row.able, row.hangs, row.loaded_version
            row.refresh()
            found = row.able, row.hangs, row.loaded_version
            require(known == found, f"the core knows {known} of {row.title}, its workers are {found}")

    # ---- payloads ----

    def check_pieces(self, job: str) -> None:
        """Check the number of a job's kept pieces, as `check_sums` that of sums."""
        run, pipeline = self._core.runs.get(job), self._jobs[job].pipeline
        if run is None:
            return
        leases = 1 if run.lease_book.step_sum is None else len(run.lease_book.step_sum.assignments)
        ranges = 1 if pipeline is None else pipeline.ranges
        bound = leases * min(WINDOW_CHUNKS, run.progress.chunks) * self.windows[job] * ranges
        pieces = len(self.sums_of(job).pieces)
        require(pieces <= bound, f"{pieces} pieces kept, expected at most {bound}")

    def check_sums(self, job: str) -> None:
        """Check the number of a job's kept sums: at most leases times window, for each of its windows."""
        run = self._core.runs[job]
        if run.lease_book.step_sum is not None:
            leases = len(run.lease_book.step_sum.assignments)
            bound = leases * min(WINDOW_CHUNKS, run.progress.chunks) * self.windows[job]
            kept = len(self.sums_of(job).kept)
            require(kept <= bound, f"{kept} sums kept, expected at most {bound}")

    def check_consistency(self, stored_in_shards: StoredInShards | None) -> None:
        """Check that the kept payloads are those that the core expects. Those in shards may be on their way.

        Args:
            stored_in_shards: returns sums and pieces of a job in shards, None while some are on their way; None
                without shards.
        """
        for job in self._sums.keys() | self._core.runs.keys():
            self._check_consistency(job, self._core.runs.get(job), stored_in_shards)

    def _check_consistency(
        self, job: str, run: RunningJob | None, stored_in_shards: StoredInShards | None
    ) -> None:
        sums = self.sums_of(job)
        kept: Collection[tuple[int, Node]] = sums.kept.keys()
        kept_pieces: Collection[tuple[int, int, int]] = sums.pieces.keys()
        if stored_in_shards is not None:
            stored = stored_in_shards(job)
            unknown = pb.OptimizerStatus.STATE_UNSPECIFIED  # until then the core has not dropped what is lost
            if stored is None or run is None or run.optimizer_state == unknown:
                return
            kept, kept_pieces = stored
        expected: set[tuple[int, Node]] = set()
        if run is not None and run.lease_book.step_sum is not None:
            expected = run.lease_book.step_sum.coverage.stored_nodes()
        require(set(kept) == expected, f"job {job}: kept {sorted(kept)}, the core expects {sorted(expected)}")
        pieces = set() if run is None else run.router.pieces.kept()
        require(
            set(kept_pieces) == pieces,
            f"job {job}: kept {sorted(kept_pieces)}, the core expects {sorted(pieces)}",
        )


StoredInShards = Callable[[str], "tuple[set[tuple[int, Node]], set[tuple[int, int, int]]] | None"]
