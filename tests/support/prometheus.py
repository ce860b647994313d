"""A real Prometheus on loopback: the programs of Debian's package `prometheus`, installed or unpacked."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.support.cluster.daemon import eventually
from tests.support.ports import free_port

UNPACKED = Path(__file__).resolve().parents[2] / "build" / "prometheus" / "usr" / "bin"
"""Where scripts/unpack_program.sh leaves them."""
WITHOUT = "no Prometheus: install Debian's package prometheus, or unpack it as .ci/run does"
"""Reason why a test is skipped."""


def find_program(name: str) -> str | None:
    """Return the path of `prometheus` or `promtool`; None if this host has none."""
    return shutil.which(name) or shutil.which(name, path=str(UNPACKED))


class Prometheus:
    """A server that runs.

    Args:
        port: its port.
    """

    def __init__(self, port: int) -> None:
        self._address = f"http://127.0.0.1:{port}"

    def is_ready(self) -> bool:
        """Return whether it answers."""
        try:
            with urllib.request.urlopen(f"{self._address}/-/ready", timeout=10):
                return True
        except (urllib.error.URLError, ConnectionError):
            return False

    def ask(self, path: str, **parameters: object) -> Any:
        """Return the data of an answer of its HTTP API (urllib.error.HTTPError for a query that is wrong)."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self._address}/api/v1/{path}?{query}", timeout=30) as reply:
            return json.load(reply)["data"]


@contextmanager
def run_prometheus(program: str, folder: Path, config: Mapping[str, Any]) -> Iterator[Prometheus]:
    """Run a server with a configuration in a folder, until the block ends."""
    file, port = folder / "prometheus.yml", free_port()
    file.write_text(yaml.safe_dump(dict(config)))
    command = [
        program,
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    log = folder / "prometheus.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        server = Prometheus(port)
        eventually(lambda: process.poll() is not None or server.is_ready(), "Prometheus to be ready")
        assert process.poll() is None, log.read_text(errors="replace")
        yield server
    finally:
        process.kill()
        process.wait()
