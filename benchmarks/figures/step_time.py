"""step_time: a step of paced workers on shaped links, over what `tiermesh validate --link` says of it."""

from __future__ import annotations

import itertools
import os
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness.daemons import Job
from benchmarks.harness.hosts import Hosts
from benchmarks.harness.job_settings import ROOT
from benchmarks.harness.logged_cluster import Event, LoggedCluster
from benchmarks.harness.report import median, milliseconds, report
from cli.validate.cluster import share_out
from services.config.job import JobConfig
from services.config.load import load_job_with_origins
from services.config.models import GPT2Config
from services.config.resolve.job import ResolvedJob
from services.sizing.flops import count_flops_per_token
from services.sizing.measured_split import BlockTimes
from services.sizing.step_time import StepTime, estimate_block_times, estimate_step_time

NAME = "step_time_error"
BOUND = 0.20
PACED_WORKER = Path(__file__).parents[1] / "peers" / "paced_step_worker.py"
CONFIG = ROOT / "configs" / "training_configs" / "demo.yaml"
SETTINGS = (
    "model_config=model_configs/nanogpt_char.yaml",
    "wire_dtype.gradients=bf16",
    "wire_dtype.weights=bf16",
)
"""A GPT of 10.7 M parameters."""
WARM_UP_STEPS, STEPS = 3, 8
LIMIT_SECONDS = 300.0


class Shape(NamedTuple):
    """A cluster and a job.

    Attributes:
        name: name for people.
        workers: number of workers, each on a host of its own.
        tiers: 2 or 3.
        link_bits: bits a second of each host's link.
        forward_seconds: time of a forward pass of a micro-batch; a backward pass takes twice as long.
        settings: overrides of the job.
        shards: number of shards, each on a host of its own.
    """

    name: str
    workers: int
    tiers: int
    link_bits: float
    forward_seconds: float
    settings: tuple[str, ...] = ()
    shards: int = 0

    @property
    def hosts(self) -> list[str]:
        """Names of the daemons, each of which has a host of its own."""
        names = ["aggregator", *(f"worker-{number}" for number in range(1, self.workers + 1))]
        names += [f"shard-{number}" for number in range(1, self.shards + 1)]
        return [*names, "optimizer"] if self.tiers == 3 else names


FLOAT32 = ("wire_dtype.gradients=float32", "wire_dtype.weights=float32")
SHAPES = (
    Shape("link-bound", 1, 2, 200e6, 0.02, FLOAT32),
    Shape("link-bound", 3, 2, 400e6, 0.02),
    Shape("link-bound", 3, 3, 400e6, 0.02),
    Shape("mixed", 1, 3, 200e6, 0.3),
    Shape("mixed", 3, 2, 400e6, 0.4),
    Shape("mixed", 3, 3, 400e6, 0.2, ("gradient_accumulation_steps=3",)),
    Shape("compute-bound", 1, 2, 1e9, 0.4, ("gradient_accumulation_steps=2",)),
    Shape("compute-bound", 3, 3, 1e9, 1.0),
    Shape("1 of 3 computes", 3, 2, 400e6, 0.3, ("multihost_config.num_workers=1",)),
)


class PacedStepCluster(LoggedCluster):
    """A cluster with a GPT of 10.7 M parameters whose workers pause in place of computing."""

    def __init__(self, shape: Shape, network: Hosts) -> None:
        environment = {"TIERMESH_BENCH_FORWARD_SECONDS": str(shape.forward_seconds)}
        job = Job(CONFIG, PACED_WORKER, (*SETTINGS, *shape.settings), environment)
        super().__init__(
            "step_time",
            job,
            workers=shape.workers,
            tiers=shape.tiers,
            hosts=network.by_name,
            shards=shape.shards,
        )

    def _open_gate(self, path: Path, stack: ExitStack) -> None:
        """Do nothing: these workers connect to no gate."""

    def job_events(self) -> list[Event]:
        """Return the log of the job, once it has ended."""
        self.until(
            lambda: any("succeeded" in event.text for event in self.events()) or None,
            "the end of the job",
            LIMIT_SECONDS,
        )
        return self.events()

    def step_seconds(self) -> list[float]:
        """Return the times from COMMIT to COMMIT after some steps."""
        self.until_committed(WARM_UP_STEPS + STEPS + 1, LIMIT_SECONDS)
        moments = [event.seconds for event in self.events() if event.committed > WARM_UP_STEPS]
        return [after - before for before, after in itertools.pairwise(moments)][:STEPS]


def run() -> bool:
    """Measure steps of each shape, and compare their median with the estimate."""
    errors, details = [], [f"load before: {os.getloadavg()[0]:.1f}"]
    for shape in SHAPES:
        with Hosts(shape.hosts, shape.link_bits) as network, PacedStepCluster(shape, network) as cluster:
            measured = cluster.step_seconds()
        said = estimate(shape)
        ratio = said.step_seconds / median(measured)
        errors.append(abs(ratio - 1))
        hidden = (
            said.weights_seconds - said.weights_exposed_seconds,
            said.gradients_seconds - said.gradients_exposed_seconds,
        )
        settings = "".join(f", {each}" for each in shape.settings)
        details += [
            f"{shape.name}, workers {shape.workers}, tiers {shape.tiers}, {shape.link_bits / 1e6:g} Mbit/s, forward "
            f"{shape.forward_seconds:g} s{settings}: said over measured {ratio:.3f}",
            f"    measured {milliseconds(measured)}; said {1e3 * said.step_seconds:.0f} ms: computing "
            f"{said.computing_seconds:.2f} s, weights {said.weights_exposed_seconds:.2f} s, gradients "
            f"{said.gradients_exposed_seconds:.2f} s, update {said.update_seconds:.2f} s; hidden {sum(hidden):.2f} s",
        ]
    return report(NAME, max(errors), BOUND, *details)


def load_shape(shape: Shape) -> tuple[ResolvedJob, BlockTimes]:
    """Return a shape's job, and the computing time that its workers have."""
    workers = f"multihost_config.num_workers={shape.workers}"
    job, _ = load_job_with_origins(CONFIG, (*SETTINGS, workers, *shape.settings))
    times = estimate_block_times(job.config, _flops_of_pass(job.config) / (3 * shape.forward_seconds))
    assert times is not None
    return job, times


def estimate(shape: Shape) -> StepTime:
    """Return what is said of a shape's step."""
    job, times = load_shape(shape)
    config = job.config
    return estimate_step_time(
        config,
        times,
        share_out(config, shape.workers),
        link_bits=shape.link_bits,
        workers=shape.workers,
        tiers=shape.tiers,
        shards=shape.shards,
    )


def _flops_of_pass(config: JobConfig) -> int:
    model = config.model
    assert isinstance(model, GPT2Config)
    flops = count_flops_per_token(model, config.vocabulary or 0)
    assert flops is not None
    return flops * config.batch_size * model.max_sequence_length
