"""The command line of the compute process, and its signals."""

from __future__ import annotations

import argparse
import os
import signal
import socket
from contextlib import suppress
from importlib import import_module
from typing import cast

from compute.code_fingerprint import remember_shipped_code
from compute.python_warnings import log_python_warnings
from compute.server import Server, Stopped
from compute.step_interface import StepFactory
from protos.compute_pb2 import ToProcess
from services.errors import Refused
from services.instrumentation import failpoints
from services.runtime import logs
from services.runtime.compute_channel import MEMORIES, Channel, ProcessChannel


def main() -> None:
    """Serve the daemon at the other end of a socket, until it closes its end."""
    parser = argparse.ArgumentParser(prog="compute", description="The compute process of a worker.")
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--step", default="training.step:TrainingStep")
    options, _ = parser.parse_known_args()
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches the daemon too, which ends this process in order
    logs.configure("info", "text")
    log_python_warnings()
    failpoints.arm(os.environ)
    remember_shipped_code()
    channel: ProcessChannel = Channel(socket.socket(fileno=options.socket), ToProcess, MEMORIES)
    server = Server(channel, import_step(options.step))
    with suppress(Stopped):
        signal.signal(signal.SIGTERM, _stop)
        server.serve()


def import_step(name: str) -> StepFactory:
    """Return a step's factory by `module:name` (Refused)."""
    module, _, factory = name.partition(":")
    try:
        return cast(StepFactory, getattr(import_module(module), factory))
    except (ImportError, AttributeError, ValueError) as error:
        raise Refused(f"--step {name}: can't be imported ({error}); give MODULE:FACTORY") from error


def _stop(*_: object) -> None:
    """End the process as the daemon asks: its mesh is closed on the way out. A second signal must not disturb that."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Stopped
