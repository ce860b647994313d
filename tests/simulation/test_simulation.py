"""Many whole clusters, each with its own faults.

A failing seed prints the command that replays it. Run more seeds with `python -m tests.simulation --seeds 10000`.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from aggregator.core.aggregator import AggregatorCore
from protos.cluster_pb2 import Printed
from protos.jobs_pb2 import FAILED, SUCCEEDED
from protos.tensors_pb2 import ChunkHeader, ChunkKind
from services.protocol.envelope import OptimizerBody, OptimizerOrder, WorkerBody, WorkerOrder
from tests.simulation import seeds
from tests.simulation.contended import contended
from tests.simulation.history import InvalidHistory
from tests.simulation.job_model import InjectedError
from tests.simulation.mutations import forgets_orphans
from tests.simulation.network import Pipe
from tests.simulation.scenario import Scenario
from tests.simulation.simulated_aggregator import SimulatedAggregator
from tests.simulation.simulated_cluster import SimulatedCluster
from tests.simulation.simulated_device import WAIT, LeaseState
from tests.simulation.simulated_optimizer import SimulatedOptimizer
from tests.simulation.simulated_worker import SimulatedWorker

ROOT = Path(__file__).resolve().parents[2]
QUICK_SEEDS, SEEDS = 6, 36
"""`make test` runs the first ones, `make test-all` the others."""
HOSTILE_SEEDS = 40


@pytest.mark.timeout(900)  # all seeds take more than a minute on two idle cores
@pytest.mark.parametrize(
    ("options", "first", "count"),
    [
        pytest.param([], 0, QUICK_SEEDS, id="usual"),
        pytest.param([], QUICK_SEEDS, SEEDS - QUICK_SEEDS, id="usual-others", marks=pytest.mark.long),
        pytest.param(["--hostile"], 0, HOSTILE_SEEDS, id="hostile", marks=pytest.mark.long),
    ],
)
def test_clusters_end_in_the_bits_of_an_undisturbed_run(options: list[str], first: int, count: int) -> None:
    seeds = ["--first", str(first), "--seeds", str(count)]
    run = subprocess.run(
        [sys.executable, "-m", "tests.simulation", *options, *seeds],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{count} seeds" in run.stdout and " 0 failed" in run.stdout


def test_progress_and_injected_faults_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(seeds, "PROGRESS_SECONDS", 0.0)
    assert seeds.run_seeds(0, 2, 2) == 0
    printed = capsys.readouterr()
    assert "1 of 2 seeds, 0 failed" in printed.err and "min left" in printed.err
    assert re.search(
        r"^2 seeds, \d+ steps, 0 failed, .* on 2 processes: .* seeds/s, \d+ steps/s$", printed.out, re.M
    )
    counted = {what: int(often) for often, what in re.findall(r"^ +(\d+)  (.*)$", printed.out, re.M)}
    runs = [seeds.run_seed(seed).injected for seed in range(2)]
    assert counted == sum(runs, Counter())
    assert counted["worker dies"] > 0


def test_a_failing_seed_prints_the_command_that_replays_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    forgets_orphans(monkeypatch)
    seed, _, problem, _ = next(result for result in map(seeds.run_seed, range(50)) if result[2])
    seeds.report_failure(seed, problem)
    assert f".venv/bin/python -m tests.simulation --seed {seed} --trace" in capsys.readouterr().out
    assert seeds.run_seed(seed)[2] == problem, "a seed does the same each time"


@pytest.mark.long
def test_leases_are_begun_and_dropped_before_all_weights_have_arrived(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited = []
    await_weights = SimulatedWorker.await_weights

    def watched(self: SimulatedWorker, state: LeaseState) -> Iterator[float]:
        waits = 0
        for seconds in await_weights(self, state):
            waits += seconds == WAIT
            yield seconds
        waited.append((waits > 0, state.dropped))

    monkeypatch.setattr(SimulatedWorker, "await_weights", watched)
    for seed in range(20):
        SimulatedCluster(seed, scenario=Scenario.hostile(seed)).run()
    assert {(False, False), (True, False), (True, True)} <= set(waited)


# ---- two aggregators on one state dir ----

TAKEOVERS = 8
TAKEOVER_SEEDS = 20


def run_takeovers(seed: int) -> None:
    """Run a hostile seed in 2 tiers in which another aggregator takes over again and again.

    Half of the replaced aggregators are frozen meanwhile, and continue late.
    """
    cluster = SimulatedCluster(seed, scenario=replace(Scenario.hostile(seed), tiers=2))

    def take_over() -> None:
        if cluster.aggregator is not None and cluster.aggregator.alive and cluster.disk.epoch < TAKEOVERS:
            cluster.faults.take_over(cluster.aggregator)
        cluster.loop.after(7.0, take_over)

    cluster.contention.expects_last_commits = SimulatedOptimizer.fenced
    cluster.loop.at(7.0, take_over)
    cluster.run()
    assert cluster.disk.epoch >= TAKEOVERS


def test_only_one_of_two_aggregators_acts() -> None:
    for seed in range(TAKEOVER_SEEDS):
        run_takeovers(seed)


@pytest.mark.long
def test_both_aggregators_act_without_the_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedOptimizer, "fenced", False)
    with pytest.raises(InvalidHistory, match="comes after"):
        for seed in range(2 * TAKEOVER_SEEDS):
            run_takeovers(seed)


@pytest.mark.long
def test_messages_of_every_kind_come_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: dict[int, tuple[Any, ...]] = {}  # A reference keeps each object alive, so that its id stays unique.
    twice: set[str] = set()
    put = Pipe._put

    def watched(self: Pipe, items: tuple[Any, ...]) -> None:
        if id(items) in sent:
            first, second = items
            twice.add(ChunkKind.Name(first.kind) if isinstance(first, ChunkHeader) else type(second).__name__)
        sent[id(items)] = items
        put(self, items)

    monkeypatch.setattr(Pipe, "_put", watched)
    for seed in range(20):
        SimulatedCluster(seed, scenario=replace(Scenario.hostile(seed), repeat_control=0.5)).run()
    SimulatedCluster(0, scenario=replace(Scenario.split(0), repeat_control=0.5)).run()
    SimulatedCluster(5, scenario=replace(Scenario.lying(5), tiers=3, repeat_control=0.5)).run()
    SimulatedCluster(3, scenario=replace(contended(3), tiers=3, shards=0, repeat_control=0.5)).run()
    bodies = {
        body for words in (WorkerBody, WorkerOrder, OptimizerBody, OptimizerOrder) for body in get_args(words)
    }
    bodies.remove(Printed)  # lines for people, which change nothing
    assert {body.__name__ for body in bodies} | {"GRADIENT", "WEIGHTS", "INITIAL_WEIGHTS"} <= twice


def test_liars_are_found() -> None:
    found = 0
    for seed in range(6):
        cluster = SimulatedCluster(seed, scenario=Scenario.lying(seed))
        cluster.run()
        found += sum(bool(saved.job.excluded) for saved in cluster.disk.jobs.values())
    assert found >= 3, "the others were over before the first lie"


# ---- a core that raises ----


def test_random_errors_of_the_core_change_no_bits() -> None:
    """Errors at random inputs, at least a step apart, never fail a job."""
    raised = 0
    for seed in range(6):
        cluster = SimulatedCluster(seed, scenario=replace(Scenario.hostile(seed), tiers=2 + seed % 2))
        rng = random.Random(seed)

        def fail(cluster: SimulatedCluster = cluster, rng: random.Random = rng) -> None:
            aggregator = cluster.aggregator
            if aggregator is not None and aggregator.alive and cluster.faults.active:
                break_next_input(aggregator)
            cluster.loop.after(5 + 40 * rng.random(), fail)

        cluster.loop.at(10.0, fail)
        cluster.run()
        raised += cluster.injected["core raises"]
    assert raised > 10


def break_next_input(aggregator: SimulatedAggregator) -> None:
    """Make an aggregator's core raise at its next input, if a job is running then."""
    handle = aggregator.core.handle

    def broken(*inputs: Any) -> Any:
        runs = list(aggregator.core.runs.values())
        may_fail = all(each.job.crash.count < 2 for each in aggregator.core.jobs.records.values())
        effects = handle(*inputs)
        if runs and may_fail and not any(run.ended for run in runs):  # else a step must come first
            raise InjectedError("at random")
        return effects

    aggregator.core.handle = broken  # type: ignore[method-assign]


def test_a_job_that_always_breaks_the_core_is_set_aside_and_the_next_one_ends() -> None:
    for seed in range(6):
        scenario = Scenario.hostile(seed)
        good = replace(scenario.jobs[0], number=1, submitted_seconds=1.0)
        poisoned = replace(scenario.jobs[0], number=0)
        scenario = replace(scenario, jobs=[poisoned, good], faults=0, tiers=2 + seed % 2)
        cluster = SimulatedCluster(seed, scenario=scenario, make_core=poisoned_core)
        cluster.checks.expects_failure(poisoned.id)
        cluster.run()
        ended = cluster.disk.jobs[poisoned.id].job
        assert ended.state == FAILED and "the aggregator failed 3 times" in ended.detail
        assert cluster.disk.jobs[good.id].job.state == SUCCEEDED


def poisoned_core(kind: Any, **arguments: Any) -> Any:
    """Return a core that raises whenever the first job comes to its tenth step."""
    core = kind(**arguments)
    if not isinstance(core, AggregatorCore):
        return core
    handle = core.handle

    def poisoned(*inputs: Any) -> Any:
        effects = handle(*inputs)
        run = core.runs.get("job-0")
        if run is not None and run.progress.version and run.progress.version.step == 10:
            raise InjectedError("at step 10")
        return effects

    core.handle = poisoned  # type: ignore[method-assign]
    return core
