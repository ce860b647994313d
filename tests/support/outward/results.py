"""JSON that commands print, and what a local run leaves behind."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import re
import sqlite3
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from cli import main as command_line
from cli.chaos.plan import draw_plan
from protos.cluster_pb2 import CheckpointFiles
from protos.files_pb2 import ReadFileRequest
from protos.jobs_pb2 import JobRequest
from services.files.pieces import make_piece
from services.protocol.activities import Activity
from services.protocol.file_refs import make_ref
from tests.support.outward.checkpoint import make_checkpoint
from tests.support.outward.common import (
    JOBS,
    ROOT,
    mask_numbers,
)
from tests.support.outward.messages import fill_message, find_methods


class _FakeJobService(grpc.GenericRpcHandler):
    """A job service that answers with filled messages. A download gives a real checkpoint."""

    def __init__(self, folder: Path) -> None:
        self._files = {path.name: path.read_bytes() for path in folder.iterdir()}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        method = find_methods().get(handler_call_details.method)
        if method is None:
            return None
        kinds = grpc.unary_stream_rpc_method_handler, grpc.unary_unary_rpc_method_handler

        def answer(request: bytes, context: grpc.ServicerContext) -> Any:
            kind = method.output_type
            filled = fill_message(kind)
            if method.name == "List":
                filled.ClearField("next_page_token")  # it would be the same on every page
            if method.name == "Get" and JobRequest.FromString(request).job == "job-1":
                filled.id = "job-1"  # that of the checkpoint
            if method.name == "Checkpoint":
                filled = CheckpointFiles(
                    step=12, files={name: make_ref(each) for name, each in self._files.items()}
                )
            if method.name == "Read":
                asked = ReadFileRequest.FromString(request).sha256
                found = next(each for each in self._files.values() if make_ref(each).sha256 == asked)
                filled = make_piece(found, make_ref(found), 0, 0)
            messages = [filled]
            content = [each.SerializeToString() for each in messages]
            return iter(content) if method.server_streaming else content[0]

        return kinds[not method.server_streaming](answer)


def describe_results() -> dict[str, Any]:
    """Return the JSON of commands. Its values tell which message fields they were read from."""
    job = str(JOBS / "linear_regression.yaml")
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as root, ThreadPoolExecutor(4) as threads:
        server = grpc.server(threads, handlers=[_FakeJobService(make_checkpoint(Path(root), "job-1"))])
        target = ["--aggregator", f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"]
        server.start()
        try:
            for line in ("jobs", "status", "status text", "logs text", "cancel text", f"submit {job}"):
                found[line.replace(job, "JOB.yaml")] = run_command([*line.split(), *target])
            found["submit --follow"] = run_command(["submit", job, "--follow", *target])
            found["download"] = run_command(["download", "job-1", f"{root}/there", *target], Path(root))
        finally:
            server.stop(1).wait()
    found["validate"] = run_command(["validate", job])
    settings = found["validate"]["result"]["settings"]
    found["validate"]["result"]["settings"] = keep_types(settings)  # config.json has their names
    checked = run_command(["check", "--mesh", "--mesh-shape", "1x2", "--backend", "emulator"])
    found["check --mesh"] = {**checked, "result": keep_types(checked["result"])}
    found["unknown flag"] = run_command(["jobs", "--no-such-flag"])["exit code"]
    nobody = ["--aggregator", "127.0.0.1:1", "--timeout-seconds", "2"]
    found["unreachable"] = run_command(["jobs", *nobody])["exit code"]
    faults = draw_plan(1, 6, steps=9, daemons=["worker-1"], links=["a>b"], heartbeat_seconds=1.0)
    found["faults of chaos"] = [dataclasses.asdict(each) for each in faults]
    return found


def run_command(arguments: list[str], *places: Path) -> Any:
    """Return the exit code of a command, and the JSON on its last line."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        code = command_line.main([*arguments, "--json"])
    text = printed.getvalue().splitlines()[-1]
    for place in places:
        text = text.replace(str(place), "<folder>")
    return {"exit code": code, "result": json.loads(text)}


def keep_types(value: Any) -> Any:
    """Replace each value by the name of its type."""
    if isinstance(value, dict):
        return {key: keep_types(each) for key, each in value.items()}
    if isinstance(value, list):
        return [keep_types(each) for each in value[:1]]
    return type(value).__name__


def describe_local_run() -> dict[str, Any]:
    """Run a small job on daemons of this machine, and describe what it prints and leaves behind."""
    short = ["max_steps=2", "eval_every=1", "model_save_interval=0", "data_path=builtin:python-reference"]
    settings = [text for each in short for text in ("--set", each)]
    with tempfile.TemporaryDirectory() as root:
        options = [*settings, "--workers", "1", "--state-dir", root, "--json"]
        done = _run_process("local", str(ROOT / "tests" / "golden" / "gpt2.yaml"), *options)
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout.splitlines()[-1])
        # Which activities so short a run shows depends on when events arrive.
        spent = {Activity(name): seconds for name, seconds in result["worker_seconds"].items()}
        result["worker_seconds"] = {"<activity>": spent[Activity.COMPUTING]}
        drawn = _run_process("generate", result["checkpoint"], "--max-new-tokens", "3", "--json")
        files = [each for each in Path(root).rglob("*") if each.is_file()]
        names = sorted(each.relative_to(root).as_posix().replace(result["job"], "<job>") for each in files)
        log = (Path(root) / "logs" / f"{result['job']}.jsonl").read_text().replace(result["job"], "<job>")
        lines = log.replace(root, "<folder>").splitlines()
        # The disk of this machine may be almost full.
        events = [json.loads(line) for line in lines if "'s disk is almost full" not in line]
        daemons = "".join(each.read_text() for each in files if each.suffix == ".log")
        served = re.findall(r"INFO +(.* serves on port .*)", daemons)
        with contextlib.closing(sqlite3.connect(Path(root) / "queue.sqlite")) as queue:
            tables = queue.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
        refusal = (
            "--listen",
            "127.0.0.1:0",
            "--log-format",
            "json",
            "--state-dir",
            root,
            "--data-dir",
            f"{root}/none",
        )
        refused = _run_process("aggregator", *refusal)
    return {
        "result": keep_types(result),
        "generate": keep_types(json.loads(drawn.stdout.splitlines()[-1])),
        "refused": refused.returncode,
        "JSON log": sorted(json.loads(refused.stderr.splitlines()[-1])),
        "files": names,
        # An evaluation says how far it is only if it takes long.
        "log": sorted(
            {f"{each['kind']}: {mask_numbers(each['text'])}" for each in events if each["kind"] != "progress"}
        ),
        "log keys": sorted({key for each in events for key in each}),
        "daemons": sorted(map(mask_numbers, served)),
        "queue": sorted(" ".join(text.split()) for (text,) in tables),
    }


def _run_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", command_line.__name__, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
