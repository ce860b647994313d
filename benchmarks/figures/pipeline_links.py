"""pipeline_links: CPU time of activations between two stages' workers over loopback, over plain gRPC's; also MB/s.

Both are processes of their own and carry the same pieces, in turns, without and with TLS (peers/array_link.py). The
workers' link checks each piece, and waits for credits. The gRPC stream does neither.

The speeds have no bound, because other programs slow the two by different factors: a worker's link has one thread at
each end, grpcio has several.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.harness.report import median, report
from benchmarks.peers.array_link import BYTES
from cli.certs.authority import issue, make_authority
from cli.certs.folder import write_private_file
from services.errors import Failed
from services.transport.access.permissions import CallerKind

MOST_CPU = 1.0
ROUNDS = 7
LIMIT_SECONDS = 60.0
KINDS = ("tiermesh", "grpc")


class Ends:
    """Two processes that exchange arrays over loopback.

    Args:
        kind: `tiermesh` or `grpc`.
        folder: folder of certificates; empty for plain text.
        stack: stack that ends them.
    """

    def __init__(self, kind: str, folder: str, stack: ExitStack) -> None:
        self._processes = []
        for stage in (0, 1):
            command = [sys.executable, "-m", "benchmarks.peers.array_link", kind, str(stage), folder]
            process = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            stack.callback(process.kill)
            self._processes.append(process)
        ports = [int(self._read_line(process)) for process in self._processes]
        self._write_line(json.dumps([f"127.0.0.1:{port}" for port in ports]))

    def measure(self) -> tuple[float, float]:
        """Run a round; return its MB/s, and the CPU seconds of both ends for a GB."""
        self._write_line("")
        (started, _, sending), (_, stopped, receiving) = (
            json.loads(self._read_line(process)) for process in self._processes
        )
        return BYTES / 1e6 / (stopped - started), (sending + receiving) / (BYTES / 1e9)

    def _write_line(self, line: str) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(line + "\n")
            process.stdin.flush()

    def _read_line(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], LIMIT_SECONDS)[0]:
            raise Failed(
                f"an end of a link said nothing for {LIMIT_SECONDS:g} s; run it again on a machine less busy"
            )
        line = process.stdout.readline()
        if not line:
            raise Failed(f"an end of a link ended with exit code {process.wait(LIMIT_SECONDS)}")
        return line


def run() -> bool:
    """Measure links without and with TLS."""
    kept = True
    with TemporaryDirectory() as certificates:
        _write_certificates(Path(certificates))
        for name, folder in (("pipeline_links", ""), ("pipeline_links_tls", certificates)):
            with ExitStack() as stack:
                ends = {kind: Ends(kind, folder, stack) for kind in KINDS}
                for each in ends.values():
                    each.measure()  # it opens the connection
                rounds = [{kind: ends[kind].measure() for kind in KINDS} for _ in range(ROUNDS)]
            speeds = {kind: median([each[kind][0] for each in rounds]) for kind in KINDS}
            cpu = {kind: median([each[kind][1] for each in rounds]) for kind in KINDS}
            details = [
                f"{kind}: {speeds[kind]:.0f} MB/s [{min(each[kind][0] for each in rounds):.0f} - "
                f"{max(each[kind][0] for each in rounds):.0f}], "
                f"{cpu[kind]:.2f} CPU seconds a GB at both ends, n = {ROUNDS}"
                for kind in KINDS
            ]
            details.append(f"speed over grpc's: {speeds['tiermesh'] / speeds['grpc']:.2f}")
            kept &= report(name, cpu["tiermesh"] / cpu["grpc"], MOST_CPU, *details, decimals=2)
    return kept


def _write_certificates(folder: Path) -> None:
    authority = make_authority("benchmark", 2)
    (folder / "authority.pem").write_bytes(authority.certificate_pem())
    pair = issue(authority, CallerKind.WORKER, "worker", ["127.0.0.1"], 1)
    write_private_file(folder / "worker.key", pair.key_pem())
    (folder / "worker.pem").write_bytes(pair.certificate_pem())
