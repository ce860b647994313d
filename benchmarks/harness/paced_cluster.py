"""A cluster of real daemons with a pipeline whose passes take a given time for each block; readers of its passes."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.daemons import Job
from benchmarks.harness.job_settings import BUILD, ROOT
from benchmarks.harness.logged_cluster import LoggedCluster
from services.pipeline.schedule import ScheduleKind

BLOCKS = 8
HEARTBEAT_SECONDS = 1.0
CONFIG = ROOT / "configs" / "training_configs" / "demo.yaml"
PACED_WORKER = Path(__file__).parents[1] / "peers" / "paced_worker.py"


@dataclass(frozen=True)
class RunPass:
    """A pass that a worker has run. Steps count from 0, and seconds are Unix time."""

    step: int
    is_backward: bool
    start: float
    stop: float


class PacedCluster(LoggedCluster):
    """A cluster with a GPT of 8 blocks in one pipeline.

    Args:
        name: name of its folder under build/.
        stages: number of stages, which divides the blocks.
        micro_batches: micro-batches of a step.
        pause_seconds: time of a forward pass through a block; a backward pass takes twice as long.
        spares: number of workers beyond the stages.
        schedule: name of the schedule.
        ranges_per_stage: number of ranges of each stage.
        settings: further overrides of the job, in the form of `--set`.
    """

    def __init__(
        self,
        name: str,
        *,
        stages: int,
        micro_batches: int,
        pause_seconds: float,
        spares: int = 0,
        schedule: ScheduleKind = "1f1b",
        ranges_per_stage: int = 1,
        settings: tuple[str, ...] = (),
    ) -> None:
        self._stages = stages
        self._records = BUILD / name / "records"
        self._micro_batches = micro_batches
        self._pause_seconds = pause_seconds
        environment = {
            "TIERMESH_BENCH_RECORDS": str(self._records),
            "TIERMESH_BENCH_PAUSE_SECONDS": str(pause_seconds),
        }
        pipeline = "multihost_config.pipeline_parallel_config"
        blocks = ", ".join(f"{stage}: {BLOCKS // stages}" for stage in range(stages))
        given = (
            f"multihost_config.num_workers={stages}",
            f"{pipeline}.blocks_per_rank={{{blocks}}}",
            f"{pipeline}.schedule={schedule}",
            f"{pipeline}.ranges_per_rank={ranges_per_stage}",
            f"transformer_config.num_blocks={BLOCKS}",
            f"training_config.gradient_accumulation_steps={micro_batches}",
            "batch_size=2",
            *settings,
        )
        heartbeat = ("--heartbeat-seconds", str(HEARTBEAT_SECONDS))
        super().__init__(
            name,
            Job(CONFIG, PACED_WORKER, given, environment),
            workers=stages + spares,
            aggregator_options=heartbeat,
        )

    def _open_gate(self, path: Path, stack: ExitStack) -> None:
        """Create the folder of the workers' records. These workers connect to no gate."""
        self._records.mkdir()

    @property
    def busy_seconds(self) -> float:
        """Time in which all stages together run the passes of a step."""
        return 3 * self._pause_seconds * BLOCKS * self._micro_batches

    def passes(self, step: int) -> list[RunPass]:
        """Return the passes of a step that have been run, by all processes."""
        return read_passes(self._records, step)

    def bubble(self, step: int) -> float:
        """Return the share of all stages' time, from the first forward to the last backward pass, without a pass.

        A pass counts with the time that it should take, so that what it takes longer counts as idle.
        """
        passes = self.passes(step)
        span = max(each.stop for each in passes) - min(each.start for each in passes)
        return 1 - self.busy_seconds / (self._stages * span)

    def activation_bytes(self) -> list[float]:
        """Return the peak memory of each worker's chip that passes in flight kept in the newest lease, sorted."""
        metric = "tiermesh_activation_memory_bytes"
        return sorted(self.metric(name, metric) for name in self.processes if name.startswith("worker"))

    def host_bytes(self) -> list[int]:
        """Return the peak memory of each worker's process so far, in the order of their names."""
        peaks = []
        for name in sorted(name for name in self.processes if name.startswith("worker")):
            status = Path(f"/proc/{self.processes[name].pid}/status").read_text()
            line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
            peaks.append(1024 * int(line.split()[1]))
        return peaks

    def computing(self, step: int) -> list[str]:
        """Return the workers whose current processes have run passes of a step."""
        return [
            name
            for name, process in self.processes.items()
            if (path := self._records / f"{name}-{process.pid}").exists()
            and any(line.startswith(f"{step} ") for line in path.read_text().splitlines())
        ]


def read_passes(records: Path, step: int) -> list[RunPass]:
    """Return the passes of a step that paced workers have run, from the folder of their records."""
    words = [
        line.split()
        for path in records.iterdir()
        for line in path.read_text().splitlines(keepends=True)
        if line.endswith("\n")  # An incomplete line is still being written.
    ]
    return [
        RunPass(int(at), bool(int(is_backward)), float(start), float(stop))
        for at, _, is_backward, _, start, stop in words
        if int(at) == step
    ]
