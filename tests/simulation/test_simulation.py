"""Many whole clusters, each with its own faults; and the same with a core that is broken on purpose.

A failing seed prints the command that replays it. More seeds: `python -m tests.simulation --seeds 10000`.

What holds of every history was tried by mistakes in the cores, on hostile seeds from 0 on: a step that is committed
twice (`commits_twice`), a generation that does not rise (`keeps_the_generation`), a micro-batch that is counted
twice (`counts_duplicates`) and one that nobody computes, so that the job does not end (`forgets_orphans`) each took one
seed; of the others, which print theirs, the rarest (`leaves_leases_with_silent_workers`) took 136.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import Any, get_args

import pytest

from aggregator.core import AggregatorCore
from aggregator.coverage import Coverage
from aggregator.events import CloseWorker
from aggregator.exclusions import Exclusions
from aggregator.flow import WeightStore
from aggregator.members import Version
from aggregator.quorum import Quorum
from aggregator.report import Report
from aggregator.run import Run
from aggregator.step import StepSum
from aggregator.verification import Check
from optimizer.core import OptimizerCore
from optimizer.events import SaveGeneration, Snapshot
from protos import cluster_pb2 as pb
from protos.tensors_pb2 import ChunkHeader, ChunkKind
from services.envelope import OptimizerBody, OptimizerOrder, WorkerBody, WorkerOrder
from tests.simulation import seeds
from tests.simulation.history import HistoryWrong
from tests.simulation.network import Pipe
from tests.simulation.optimizer_shell import OptimizerShell
from tests.simulation.scenario import Scenario
from tests.simulation.truth import SimulationFailed
from tests.simulation.worker_shell import WAITS, HeldSum, WorkerShell
from tests.simulation.world import World
from worker.core import WorkerCore

ROOT = Path(__file__).resolve().parents[2]
SEEDS = 500
MISTAKE_SEEDS = 300
"""The rarest of the mistakes shows in one seed of a hundred."""


@pytest.mark.timeout(900)  # a minute on two cores of its own
@pytest.mark.parametrize(("options", "seeds"), [([], SEEDS), (["--hostile"], 200)], ids=["usual", "hostile"])
def test_clusters_end_in_the_bits_of_an_undisturbed_run(options: list[str], seeds: int) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.simulation", *options, "--seeds", str(seeds)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{seeds} seeds" in run.stdout and " 0 failed" in run.stdout


def test_progress_and_what_was_injected_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(seeds, "PROGRESS_SECONDS", 0.0)
    assert seeds.run_seeds(0, 6, 2, False) == 0
    said = capsys.readouterr()
    assert "1 of 6 seeds, 0 failed" in said.err and "min left" in said.err
    assert re.search(
        r"^6 seeds, \d+ steps, 0 failed, .* on 2 processes: .* seeds/s, \d+ steps/s$", said.out, re.M
    )
    counted = {what: int(often) for often, what in re.findall(r"^ +(\d+)  (.*)$", said.out, re.M)}
    runs = [seeds.run_seed(seed).injected for seed in range(6)]
    assert counted == sum(runs, Counter())
    assert counted["worker dies"] > 0


def test_a_failing_seed_prints_the_command_that_replays_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(StepSum, "abandon", lambda self, session, now: None)
    seed, _, problem, _ = next(result for result in map(seeds.run_seed, range(50)) if result[2])
    seeds.report_failure(seed, problem)
    assert f".venv/bin/python -m tests.simulation --seed {seed} --trace" in capsys.readouterr().out
    assert seeds.run_seed(seed)[2] == problem, "a seed does the same each time"


def test_leases_are_begun_and_dropped_before_all_their_weights_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited = []
    await_weights = WorkerShell._await_weights

    def watched(self: WorkerShell, held: HeldSum) -> Iterator[float]:
        waits = 0
        for seconds in await_weights(self, held):
            waits += seconds == WAITS
            yield seconds
        waited.append((waits > 0, held.dropped))

    monkeypatch.setattr(WorkerShell, "_await_weights", watched)
    for seed in range(20):
        World(seed, scenario=Scenario.hostile(seed)).run()
    assert {(False, False), (True, False), (True, True)} <= set(waited)


# ---- two aggregators on one state dir ----

USURPERS = 8
USURPED_SEEDS = 20


def run_usurped(seed: int) -> None:
    """A hostile run in 2 tiers, in which another aggregator takes over again and again; half of the former ones are
    frozen meanwhile, and wake up late."""
    world = World(seed, scenario=replace(Scenario.hostile(seed), tiers=2))

    def usurp() -> None:
        if world.aggregator is not None and world.aggregator.alive and world.disk.epoch < USURPERS:
            world.faults.usurp(world.aggregator)
        world.loop.after(7.0, usurp)

    world.loop.at(7.0, usurp)
    world.run()
    assert world.disk.epoch >= USURPERS


def test_of_two_aggregators_one_acts() -> None:
    for seed in range(USURPED_SEEDS):
        run_usurped(seed)


def test_without_the_fence_both_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OptimizerShell, "fenced", False)
    with pytest.raises(HistoryWrong, match="it comes after"):
        for seed in range(USURPED_SEEDS):
            run_usurped(seed)


def test_messages_of_every_kind_come_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: dict[int, tuple[Any, ...]] = {}  # kept, so that no other has the same id
    twice: set[str] = set()
    put = Pipe._put

    def watched(self: Pipe, items: tuple[Any, ...]) -> None:
        if id(items) in sent:
            first, second = items
            twice.add(ChunkKind.Name(first.kind) if isinstance(first, ChunkHeader) else type(second).__name__)
        sent[id(items)] = items
        put(self, items)

    monkeypatch.setattr(Pipe, "_put", watched)
    for seed in range(8):
        World(seed, scenario=replace(Scenario.hostile(seed), repeat_control=0.5)).run()
    bodies = {
        body for words in (WorkerBody, WorkerOrder, OptimizerBody, OptimizerOrder) for body in get_args(words)
    }
    assert {body.__name__ for body in bodies} | {"GRADIENT", "WEIGHTS", "INITIAL_WEIGHTS"} <= twice


# ---- it bites: known mistakes, some of them once made ----


def counts_duplicates(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Coverage, "covers", lambda self, node, chunk: False)


def forgets_orphans(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StepSum, "abandon", lambda self, session, now: None)


def takes_chunks_of_void_leases(patch: pytest.MonkeyPatch) -> None:
    def chunk_arrived(self: Run, member: Any, header: Any, now: float, *, in_place: bool) -> None:
        if self.sum is not None and self.sum.assignments:
            self.flow.gradient(self.sum, self.sum.assignments[0], header, self.elements)

    patch.setattr(Run, "chunk_arrived", chunk_arrived)


def ignores_what_the_optimizer_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StepSum, "reopen", lambda self, chunks: [])


def drops_a_commit_while_evaluating(patch: pytest.MonkeyPatch) -> None:
    advance = Run._advance
    patch.setattr(Run, "_advance", lambda self, now: advance(self, now) if self.sum is not None else None)
    # ... by an aggregator that does not know what its predecessor evaluated:
    evaluated = Report.evaluated

    def noted(self: Any, version: Version, loss: float) -> None:
        self.known = version.step
        evaluated(self, version, loss)

    patch.setattr(Report, "evaluated", noted)
    patch.setattr(Report, "evaluated_step", property(lambda self: getattr(self, "known", None)))


def sends_weights_before_they_are_there(patch: pytest.MonkeyPatch) -> None:
    def add(self: WeightStore, chunk: int) -> bool:
        self.prefix = max(self.prefix, chunk + 1 if chunk % 2 else 0)
        return True

    patch.setattr(WeightStore, "add", add)


def stages_stale_chunks(patch: pytest.MonkeyPatch) -> None:
    def why_stale(self: OptimizerCore, header: Any) -> str:
        return "" if self.open_job is not None and header.job == self.open_job.job else "of another job"

    patch.setattr(OptimizerCore, "why_stale", why_stale)


def commits_twice(patch: pytest.MonkeyPatch) -> None:
    commit = OptimizerCore._commit

    def twice(self: OptimizerCore, event: Any) -> None:
        commit(self, event)
        if self.open_job is not None and event.step % 50 == 49:
            self.open_job.step, self.open_job.deciding = event.step, True
            commit(self, event)

    patch.setattr(OptimizerCore, "_commit", twice)


def keeps_the_generation(patch: pytest.MonkeyPatch) -> None:
    handle = OptimizerCore.handle

    def kept(self: OptimizerCore, event: Any) -> list[Any]:
        effects = handle(self, event)
        for effect in effects:
            if isinstance(effect, SaveGeneration) and self.open_job is not None:
                self.open_job.generation = 1
        return [effect for effect in effects if not isinstance(effect, SaveGeneration)]

    patch.setattr(OptimizerCore, "handle", kept)


def tells_of_checkpoints_too_early(patch: pytest.MonkeyPatch) -> None:
    handle = OptimizerCore.handle

    def early(self: OptimizerCore, event: Any) -> list[Any]:
        effects = handle(self, event)
        for effect in list(effects):
            if isinstance(effect, Snapshot) and effect.step:
                written = pb.CheckpointWritten(job=effect.job, generation=effect.generation, step=effect.step)
                self._say(written)
        told, self._out = self._out, []
        return effects + told

    patch.setattr(OptimizerCore, "handle", early)


def streams_weights_to_whoever_connects(patch: pytest.MonkeyPatch) -> None:
    connect = OptimizerCore._connect

    def connected(self: OptimizerCore, hello: Any) -> None:
        connect(self, hello)
        self._to_send = self.open_job.chunks if self.open_job is not None else None

    def send_weights(self: OptimizerCore, order: pb.SendWeights) -> None:
        job = self.open_job
        if job is not None and (order.generation, order.step) == (job.generation, job.step):
            self._to_send = 0

    patch.setattr(OptimizerCore, "_connect", connected)
    patch.setattr(OptimizerCore, "_send_weights", send_weights)


def keeps_leases_when_weights_change(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WorkerCore, "_drop_leases_before", lambda self, version: None)


def takes_older_weights(patch: pytest.MonkeyPatch) -> None:
    weights = WorkerCore._weights

    def taken(self: WorkerCore, header: Any) -> None:
        if self.job is not None and (header.generation, header.step) < (self.job.receiving or (0, 0)):
            self.job.receiving = None
        weights(self, header)

    patch.setattr(WorkerCore, "_weights", taken)


def says_it_holds_what_it_is_loading(patch: pytest.MonkeyPatch) -> None:
    weights = WorkerCore._weights

    def early(self: WorkerCore, header: Any) -> None:
        weights(self, header)
        if self.job is not None and self.job.received and self.job.holds is None:
            self.job.holds = self.job.receiving
            self._say(pb.Holding(job=header.job, generation=header.generation, step=header.step))

    patch.setattr(WorkerCore, "_weights", early)


def begins_leases_before_their_weights(patch: pytest.MonkeyPatch) -> None:
    leased = WorkerCore._leased

    def begun(self: WorkerCore, lease: pb.Lease) -> None:
        leased(self, lease)
        held = self.leases.get(lease.lease)
        if held is not None and not held.begun:
            self._begin(held)

    patch.setattr(WorkerCore, "_leased", begun)


def forgets_leases_that_come_before_their_weights(patch: pytest.MonkeyPatch) -> None:
    leased = WorkerCore._leased

    def received(self: WorkerCore, lease: pb.Lease) -> None:
        if self.job is not None and self.job.receiving in (None, (lease.generation, lease.step)):
            leased(self, lease)

    patch.setattr(WorkerCore, "_leased", received)


def sends_before_it_is_computed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WorkerCore, "_may_go", lambda self, held, chunk: held.ready_from < self.job.chunks)


def never_notices_silence(patch: pytest.MonkeyPatch) -> None:
    ticked = AggregatorCore._ticked

    def deaf(self: AggregatorCore, now: float) -> None:
        for member in self.members.values():
            member.heard_seconds = now
        ticked(self, now)

    patch.setattr(AggregatorCore, "_ticked", deaf)


def leaves_leases_with_silent_workers(patch: pytest.MonkeyPatch) -> None:
    close = AggregatorCore._close

    def closed(self: AggregatorCore, member: Any, reason: str, now: float) -> None:
        if not reason.startswith("silent"):
            close(self, member, reason, now)
            return
        self._out.put(CloseWorker(member.session, reason))
        member.heard_seconds = 1e9

    patch.setattr(AggregatorCore, "_close", closed)


def tells_of_a_step_again(patch: pytest.MonkeyPatch) -> None:
    committed = Report.committed

    def told(self: Report, *arguments: Any) -> None:
        self._told = None
        committed(self, *arguments)

    patch.setattr(Report, "committed", told)


def forgets_whom_it_obeyed(patch: pytest.MonkeyPatch) -> None:
    made = OptimizerCore.__init__
    patch.setattr(OptimizerCore, "__init__", lambda self, *, name, epoch: made(self, name=name))


def grants_work_below_the_quorum(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Quorum, "enough", lambda self, now: True)


def keeps_leases_that_failed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Run, "failed", lambda self, member, unable, now: None)


def skips_a_step_that_is_to_stop_the_job(patch: pytest.MonkeyPatch) -> None:
    commit = OptimizerCore._commit

    def skipped(self: OptimizerCore, event: Any) -> None:
        if self.open_job is not None:
            self.open_job.plan = replace(self.open_job.plan, on_non_finite="skip")
        commit(self, event)

    patch.setattr(OptimizerCore, "_commit", skipped)


def does_not_say_whose_gradient_was_not_finite(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StepSum, "blame", lambda self, assignment, worker, found: None)


MISTAKES: list[Callable[[pytest.MonkeyPatch], None]] = [
    counts_duplicates,
    forgets_orphans,
    takes_chunks_of_void_leases,
    ignores_what_the_optimizer_lost,
    drops_a_commit_while_evaluating,
    sends_weights_before_they_are_there,
    stages_stale_chunks,
    commits_twice,
    keeps_the_generation,
    tells_of_checkpoints_too_early,
    streams_weights_to_whoever_connects,
    keeps_leases_when_weights_change,
    takes_older_weights,
    says_it_holds_what_it_is_loading,
    begins_leases_before_their_weights,
    forgets_leases_that_come_before_their_weights,
    sends_before_it_is_computed,
    never_notices_silence,
    leaves_leases_with_silent_workers,
    tells_of_a_step_again,
    forgets_whom_it_obeyed,
    grants_work_below_the_quorum,
    keeps_leases_that_failed,
    does_not_say_whose_gradient_was_not_finite,
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_mistake_in_a_core_fails_a_seed(
    mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    for seed in range(MISTAKE_SEEDS):
        try:
            World(seed, scenario=Scenario.hostile(seed)).run()
        except Exception as error:
            assert not isinstance(error, TypeError), "the mistake does not fit the core any more"
            print(f"seed {seed}: {type(error).__name__}: {error}")
            return
    pytest.fail(f"{mistake.__name__} passes {MISTAKE_SEEDS} seeds")


# ---- jobs that are to stop ----


def test_a_step_that_is_to_stop_a_job_is_not_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    skips_a_step_that_is_to_stop_the_job(monkeypatch)
    worlds = (
        world
        for world in map(World, count())
        if any(
            "on_non_finite" in job.why_it_fails and job.cancelled_seconds is None
            for job in world.scenario.jobs
        )
    )
    with pytest.raises(SimulationFailed, match="of a job that is to stop"):
        for world in islice(worlds, 10):
            world.run()


# ---- hardware that lies ----


def commits_before_all_is_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StepSum, "verified", property(lambda self: True))


def keeps_what_a_liar_summed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Exclusions, "void", lambda self, version: False)
    patch.setattr(Run, "_start_over", lambda self, version: self._next_phase(0.0))


def takes_two_lies_for_the_truth(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Check,
        "told",
        lambda self, opinion: self.opinions.append(self.opinions[0] if self.opinions else opinion),
    )


@pytest.mark.parametrize(
    "mistake",
    [
        commits_before_all_is_checked,
        keeps_what_a_liar_summed,
        takes_two_lies_for_the_truth,
    ],
    ids=lambda mistake: mistake.__name__,
)
def test_a_mistake_lets_a_lie_into_the_weights(
    mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    for seed in range(100):
        try:
            World(seed, scenario=Scenario.lying(seed)).run()
        except SimulationFailed as error:
            print(f"seed {seed}: {error}")
            return
    pytest.fail(f"{mistake.__name__} passes 100 seeds")


def test_liars_are_found() -> None:
    found = 0
    for seed in range(10):
        world = World(seed, scenario=Scenario.lying(seed))
        world.run()
        found += sum(bool(saved.job.excluded) for saved in world.disk.jobs.values())
    assert found >= 5, "the others were over before the first lie"
