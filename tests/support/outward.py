"""Describe every outward contract as JSON values, which a golden test compares with what they were.

A move or a renaming inside the product changes the imports below, and nothing else here. Messages are therefore built
by field number. The golden files contain no name of a message class or of a field.

    python -m tests.support.outward            rewrite the golden files
    python -m tests.support.outward SECTION    print one section
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import hashlib
import io
import json
import pkgutil
import re
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import click
import grpc
import numpy as np
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

import protos
from aggregator.service import AggregatorService
from aggregator.shards.server.service import ShardService
from aggregator.standby import StandbyService
from cli import main as command_line
from cli.chaos.plan import draw_plan
from optimizer.schedules import learning_rate
from optimizer.service import OptimizerService
from optimizer.update_rules import build_rule, clip_coefficient
from services.checkpoints import CONSTANTS_FILE, write_checkpoint
from services.checkpoints.safetensors_file import pieces
from services.config import sections as config_sections
from services.config.job import JobConfig
from services.config.job_parts import OptimizerConfig, ScheduleConfig
from services.config.load import load_job
from services.instrumentation.failpoints import FAILPOINTS
from services.protocol import checksums, envelope
from services.protocol.versions import PROTOCOL_VERSION
from services.runtime.metrics import AggregatorMetrics, OptimizerMetrics, WorkerMetrics
from services.tensors import chunk_messages
from services.tensors.kernels import arithmetic
from services.tensors.layout import CHUNK_ELEMENTS, Layout
from services.tensors.reduction_tree import Node, children
from services.timeouts import TIMEOUTS_IN_HEARTBEATS
from services.transport.http2 import headers as http2
from services.transport.http2.messages import prefix
from services.transport.links import INCARNATION_KEY, SESSION_KEY
from services.transport.shared_memory_link import SHARED_MEMORY_KEY
from worker.service import WorkerService

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "outward"
JOBS = ROOT / "configs" / "training_configs"
NOT_PRODUCT = ("tests", "benchmarks")
CHECKSUM_FIELD = 15
TYPES = {value: name[5:].lower() for name, value in vars(FieldDescriptor).items() if name.startswith("TYPE_")}
RULES: dict[str, Any] = {
    "adamw": {"type": "adamw", "beta2": 0.95},
    "sgd": {"type": "sgd"},
    "sgd with momentum": {"type": "sgd", "momentum": 0.9, "dampening": 0.1},
    "sgd with nesterov": {"type": "sgd", "momentum": 0.9, "nesterov": True},
}
LAYOUT = Layout.build(
    [
        ("embedding", (96, 80), True, "model.embedding.weight", False),
        ("projection", (80, 1000), True, "model.projection.weight", True),
        ("bias", (1000,), False, "model.projection.bias", False),
    ]
)


def digest(data: bytes | memoryview | np.ndarray[Any, Any]) -> str:
    return hashlib.sha256(data.tobytes() if isinstance(data, np.ndarray) else data).hexdigest()


def mask_numbers(text: str) -> str:
    """Replace the numbers of a log line, which differ from run to run."""
    return re.sub(r"\d+(\.\d+)?(e[+-]?\d+)?", "<number>", text)


# ---- metrics, config, command ----


def describe_metrics() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind in (WorkerMetrics, AggregatorMetrics, OptimizerMetrics):
        metrics = kind()
        of_role = found[metrics.role] = {}
        collectors: list[Any] = list(metrics.registry._collector_to_names)
        for collector in collectors:
            if hasattr(collector, "_labelnames"):  # the others are prometheus_client's own
                family = collector.describe()[0]
                of_role[family.name] = {"type": family.type, "labels": list(collector._labelnames)}
                if family.type == "histogram":
                    of_role[family.name]["buckets"] = [str(each) for each in collector._upper_bounds]
    return found


def describe_config() -> dict[str, Any]:
    resolved = {}
    for name in ("linear_regression", "mlp"):  # the shipped jobs that need no corpus
        job, _ = load_job(JOBS / f"{name}.yaml", ["wire_dtype=bf16"])
        resolved[name] = json.loads(job.to_json())
    kinds: dict[str, Any] = {
        **config_sections.SECTIONS,
        "optimizer: AdamW": config_sections.AdamWSection,
        "optimizer: SGD": config_sections.SGDSection,
        "rope_scaling": config_sections.RopeScalingSection,
        "transformer_config: own model": config_sections.CustomSection,
        "job": JobConfig,
    }
    return {
        "resolved": resolved,
        "schemas": {name: _inline_schema(kind.model_json_schema()) for name, kind in kinds.items()},
        "settings": {
            name: {key: kind.model_config.get(key) for key in ("extra", "strict", "allow_inf_nan")}
            for name, kind in kinds.items()
        },
        "defaults": {  # a schema lacks those that a function makes
            name: json.loads(kind.model_construct().model_dump_json(by_alias=True, warnings=False))
            for name, kind in kinds.items()
        },
    }


def _inline_schema(schema: Any, definitions: Any = None, named: bool = False) -> Any:
    """Return a JSON schema without references, titles and descriptions.

    Args:
        schema: any part of it.
        definitions: targets of its references.
        named: whether the keys are those that users write, not words of JSON schema.
    """
    if isinstance(schema, list):
        return [_inline_schema(each, definitions) for each in schema]
    if not isinstance(schema, dict):
        return schema
    definitions = schema.get("$defs", {}) if definitions is None else definitions
    if "$ref" in schema:
        target = definitions[schema["$ref"].rpartition("/")[2]]
        schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
    dropped = () if named else ("$defs", "title", "description")
    return {
        key: value
        if key in ("default", "enum", "const")
        else _inline_schema(value, definitions, named=key == "properties" and not named)
        for key, value in schema.items()
        if key not in dropped
    }


def describe_command() -> dict[str, Any]:
    group = command_line.tiermesh
    return {
        name: {
            each.opts[0] if isinstance(each, click.Option) else f"argument {number}": _describe_parameter(
                each, click.Context(found, info_name=name)
            )
            for number, each in enumerate(found.params)
        }
        for name, found in {**group.commands, "tiermesh": group}.items()
    }


def _describe_parameter(parameter: click.Parameter, context: click.Context) -> dict[str, Any]:
    given = parameter.to_info_dict()
    kept = ("envvar", "is_flag", "multiple", "required", "nargs", "type", "count", "hidden")
    default = given["default"]
    plain = isinstance(default, bool | int | float | list | None)
    return {
        "flags": [*parameter.opts, *parameter.secondary_opts] if isinstance(parameter, click.Option) else [],
        "metavar": parameter.make_metavar(context),
        "default": default if plain else "<host>" if default == socket.gethostname() else str(default),
        **{key: given[key] for key in kept if key in given},
    }


# ---- messages, by number ----


def find_methods() -> dict[str, MethodDescriptor]:
    """Return every RPC by its path."""
    modules = [each.name for each in pkgutil.iter_modules(protos.__path__) if each.name.endswith("_pb2")]
    files = [import_module(f"{protos.__name__}.{name}").DESCRIPTOR for name in modules]
    services = [service for file in files for service in file.services_by_name.values()]
    return {f"/{each.full_name}/{method.name}": method for each in services for method in each.methods}


def describe_rpc() -> dict[str, Any]:
    return {
        path: {
            "request": _describe_message(method.input_type),
            "request stream": method.client_streaming,
            "response": _describe_message(method.output_type),
            "response stream": method.server_streaming,
        }
        for path, method in find_methods().items()
    }


def _describe_message(kind: Descriptor, within: tuple[Descriptor, ...] = ()) -> Any:
    """Return the fields of a message by number, with inner messages expanded in place."""
    if kind in within:
        return f"as {len(within) - within.index(kind)} above"
    return {str(field.number): _describe_field(field, (*within, kind)) for field in kind.fields}


def _describe_field(field: FieldDescriptor, within: tuple[Descriptor, ...]) -> Any:
    words = [TYPES[field.type]]
    members = field.containing_oneof.fields if field.containing_oneof else ()
    if _is_map(field):
        words = ["map"]
    elif field.is_repeated:
        words.insert(0, "repeated")
    if len(members) > 1:
        words.append(f"in the oneof of {min(each.number for each in members)}")
    elif members:
        words.insert(0, "optional")
    text = " ".join(words)
    if field.message_type:
        return {text: _describe_message(field.message_type, within)}
    if field.enum_type:  # the name of value 0 contains that of the enum
        return {text: {str(each.number): each.name if each.number else "" for each in field.enum_type.values}}
    return text


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _list_arms(kind: Descriptor) -> list[int]:
    """Return the field numbers of a message's oneof, or a 0 if it has none."""
    return [each.number for oneof in kind.oneofs if len(oneof.fields) > 1 for each in oneof.fields] or [0]


def fill_message(kind: Descriptor, arm: int = 0) -> Any:
    """Return a message whose values tell the numbers of their fields. Of a oneof it has the field `arm`."""
    message = GetMessageClass(kind)()
    for field in kind.fields:
        arms = field.containing_oneof.fields if field.containing_oneof else ()
        is_checksum = field.number == CHECKSUM_FIELD and field.type == FieldDescriptor.TYPE_FIXED32
        if is_checksum or (len(arms) > 1 and field.number != arm):
            continue
        inner = field.message_type
        values = [fill_message(inner, each) for each in _list_arms(inner)] if inner else [_fill_scalar(field)]
        if _is_map(field):
            getattr(message, field.name)[values[0].key] = values[0].value
        elif field.is_repeated:
            getattr(message, field.name).extend(values)
        elif inner:
            getattr(message, field.name).CopyFrom(values[0])
        else:
            setattr(message, field.name, values[0])
    return message


def _fill_scalar(field: FieldDescriptor) -> Any:
    by_type: dict[int, Any] = {
        FieldDescriptor.TYPE_ENUM: len(field.enum_type.values) // 2 if field.enum_type else 0,
        FieldDescriptor.TYPE_STRING: f"text {field.number}",
        FieldDescriptor.TYPE_BYTES: b"bytes %d" % field.number,
        FieldDescriptor.TYPE_BOOL: True,
        FieldDescriptor.TYPE_DOUBLE: field.number + 0.5,
    }
    return by_type.get(field.type, field.number + 100)


def set_field(message: Message, number: int, value: Any) -> None:
    setattr(message, message.DESCRIPTOR.fields_by_number[number].name, value)


# ---- bytes ----


def _message_type(kind: Descriptor, number: int) -> Descriptor:
    found = kind.fields_by_number[number].message_type
    assert found is not None, f"{kind.full_name}, field {number}: not a message"
    return found


def describe_wire() -> dict[str, Any]:
    found: dict[str, Any] = {"envelopes": {}, "chunks": {}, "http2": _encode_headers()}
    for path in ("/tiermesh.Cluster/Attend", "/tiermesh.Optimizer/Attend"):
        method = find_methods()[path]
        for way, kind in (("request", method.input_type), ("response", method.output_type)):
            message_class: Any = GetMessageClass(kind)
            for arm in _list_arms(kind):
                body = fill_message(_message_type(kind, arm))
                sealed = envelope.wrap(message_class, 7, body)
                found["envelopes"][f"{path} {way} {arm}"] = checksums.encode_with_checksum(sealed).hex()
    header = _message_type(find_methods()["/tiermesh.Cluster/Exchange"].input_type, 1)
    values = draw_numbers(40_000, 1)
    for dtype in (1, 2, 3):
        identity = fill_message(header)
        set_field(identity, 11, dtype)
        chunk = chunk_messages.pack_chunk(identity, 3, values)
        message = chunk_messages.serialize_chunk(chunk)
        found["chunks"][f"dtype {dtype}"] = {
            "before the payload": chunk_messages.serialize_in_parts(chunk)[0].hex(),
            "payload": digest(chunk.payload),
            "message": digest(message),
            "values": digest(chunk_messages.deserialize_chunk(message).values()),
        }
    return found


def _encode_headers() -> dict[str, str]:
    metadata = ((INCARNATION_KEY, "0123abcd"), (SESSION_KEY, "7"), ("some-bin", b"\x00\xff"))
    blocks = {
        "request": http2.request_headers("http", "127.0.0.1:7071", "/tiermesh.Cluster/Exchange", metadata),
        "response": http2.response_headers(metadata),
        "ended": http2.status_headers(grpc.StatusCode.OK, ""),
        "refused": http2.status_headers(grpc.StatusCode.INVALID_ARGUMENT, "größer als 100 %"),
    }
    found = {name: http2.HeaderCodec().encode(each).hex() for name, each in blocks.items()}
    return {**found, "prefix of a message": prefix(1_000_000).hex()}


def describe_checkpoint() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as root:
        folder = make_checkpoint(Path(root), "job-1")
        state = json.loads((folder / "state.json").read_bytes())
        return {
            "folder": folder.name,
            "files": {each.name: digest(each.read_bytes()) for each in sorted(folder.iterdir())},
            "state.json": state,
            "layout hash": LAYOUT.hash,
        }


def make_checkpoint(root: Path, job: str) -> Path:
    first, second = (draw_numbers(LAYOUT.elements, seed) for seed in (3, 4))
    constants = b"".join(pieces({"model.position": draw_numbers(12, 5).reshape(3, 4)}))
    return write_checkpoint(
        root,
        job=job,
        generation=2,
        step=12,
        config_json=load_job(JOBS / "mlp.yaml", [])[0].to_json(),
        layout=LAYOUT,
        weights=draw_numbers(LAYOUT.elements, 2),
        optimizer_state={"exp_avg": first, "exp_avg_sq": second, "applied": np.array([12])},
        files={"config.json": b'{"model_type": "mlp"}', CONSTANTS_FILE: constants},
    ).path


def draw_numbers(count: int, seed: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return pseudo-random float32 of many magnitudes, made by exact arithmetic alone."""
    with np.errstate(over="ignore"):
        bits = (np.arange(count, dtype=np.uint64) + np.uint64(seed << 40)) * np.uint64(0x9E3779B97F4A7C15)
        bits = (bits ^ (bits >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    mantissa = ((bits >> np.uint64(40)).astype(np.int64) - (1 << 23)).astype(np.float32)
    return np.ldexp(mantissa, -23 - (bits & np.uint64(15)).astype(np.int32)).astype(np.float32)


def describe_arithmetic() -> dict[str, Any]:
    found: dict[str, Any] = {}
    left, right = draw_numbers(200_003, 11), draw_numbers(200_003, 12)
    total = left.copy()
    arithmetic.accumulate(total, right)
    found["accumulate"] = digest(total)
    arithmetic.add(left, right, total)
    found["add"] = digest(total)
    arithmetic.scale(left, 1 / 3, total)
    found["scale"] = digest(total)
    sums = arithmetic.norm_squared_blocks(left)
    found["norm"] = {"blocks": digest(sums), "norm": arithmetic.norm(sums).hex()}
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 65504, 65520, 3.4e38], np.float32)
    values = np.concatenate([left * np.float32(70_000), left * np.float32(1e-6), special])
    for dtype in ("fp32", "bf16", "fp16"):
        payload = arithmetic.to_wire(values, dtype)
        total = right.copy()
        arithmetic.accumulate_wire(total, arithmetic.to_wire(left, dtype).tobytes(), dtype)
        found[dtype] = {"to wire": digest(payload), "accumulate wire": digest(total)}
        if dtype != "fp32":
            every = np.arange(1 << 16, dtype="<u2").tobytes()
            found[dtype]["from wire"] = digest(arithmetic.from_wire(every, dtype))
    for (name, rule), decay in product(RULES.items(), (0.0, 0.1)):
        found[f"{name}, decay {decay}"] = _run_updates(OptimizerConfig(weight_decay=decay, **rule))
    schedule = ScheduleConfig(type="warmup_linear", total_steps=10, warmup_steps=3)
    found["warmup_linear"] = [learning_rate(schedule, 1e-3, step).hex() for step in range(11)]
    found["tree"] = {str(count): children(Node(0, count))[0].count for count in (2, 3, 5, 8, 9, 24)}
    return found


def _run_updates(config: OptimizerConfig) -> dict[str, str]:
    """Make three updates with clipping, each in two ranges."""
    weights, rule = draw_numbers(LAYOUT.elements, 21), build_rule(config, LAYOUT)
    for step in range(3):
        gradient = draw_numbers(LAYOUT.elements, 22 + step)
        norm = arithmetic.norm(arithmetic.norm_squared_blocks(gradient))
        rule.begin(0.01 / (step + 1), clip_coefficient(norm, 1.0))
        rule.update(weights, gradient, 0, 50_001)
        rule.update(weights, gradient, 50_001, LAYOUT.elements)
    return {"weights": digest(weights), **{name: digest(each) for name, each in sorted(rule.state.items())}}


# ---- names ----


def describe_names() -> dict[str, Any]:
    nodes = [node for path in _find_sources() for node in ast.walk(ast.parse(path.read_text()))]
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    services: tuple[Any, ...] = (
        AggregatorService,
        StandbyService,
        OptimizerService,
        ShardService,
        WorkerService,
    )
    roles = ("aggregator", "standby", "optimizer", "shard", "worker")
    return {
        "failpoints": sorted(FAILPOINTS),
        "timeouts in heartbeats": TIMEOUTS_IN_HEARTBEATS,
        "environment": sorted(text for text in texts if re.fullmatch(r"TIERMESH_[A-Z_]*[A-Z]", text)),
        "loggers": sorted(text for text in texts if re.fullmatch(r"tiermesh(\.[a-z]+)?", text)),
        "health": {role: list(kind.service_names) for role, kind in zip(roles, services, strict=True)},
        "metadata": [INCARNATION_KEY, SESSION_KEY, SHARED_MEMORY_KEY],
        "protocol version": PROTOCOL_VERSION,
        "elements": {"chunk": CHUNK_ELEMENTS, "block of the norm": arithmetic.BLOCK_ELEMENTS},
    }


def _find_sources() -> Iterator[Path]:
    for package in sorted(ROOT.glob("*/__init__.py")):
        if package.parent.name not in NOT_PRODUCT:
            yield from sorted(each for each in package.parent.rglob("*.py") if "_pb2" not in each.name)


# ---- what commands print ----


class _FakeJobService(grpc.GenericRpcHandler):
    """A job service that answers with filled messages. A download gives a real checkpoint."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        method = find_methods().get(handler_call_details.method)
        if method is None:
            return None
        kinds = grpc.unary_stream_rpc_method_handler, grpc.unary_unary_rpc_method_handler

        def answer(request: bytes, context: grpc.ServicerContext) -> Any:
            kind = method.output_type
            messages = self._read_parts(kind) if method.name == "Download" else [fill_message(kind)]
            content = [each.SerializeToString() for each in messages]
            return iter(content) if method.server_streaming else content[0]

        return kinds[not method.server_streaming](answer)

    def _read_parts(self, kind: Descriptor) -> Iterator[Message]:
        for path in sorted(self._folder.iterdir()):
            part = fill_message(kind)
            for number, value in enumerate((path.name, path.read_bytes(), path.stat().st_size, 12), 1):
                set_field(part, number, value)
            yield part


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
        told = _run_process("local", str(ROOT / "tests" / "golden" / "gpt2.yaml"), *options)
        assert told.returncode == 0, told.stderr
        result = json.loads(told.stdout.splitlines()[-1])
        drawn = _run_process("generate", result["checkpoint"], "--max-new-tokens", "3", "--json")
        refused = _run_process("aggregator", "--listen", "nonsense", "--log-format", "json")
        files = [each for each in Path(root).rglob("*") if each.is_file()]
        names = sorted(each.relative_to(root).as_posix().replace(result["job"], "<job>") for each in files)
        log = (Path(root) / "logs" / f"{result['job']}.jsonl").read_text().replace(result["job"], "<job>")
        events = [json.loads(line) for line in log.replace(root, "<folder>").splitlines()]
        daemons = "".join(each.read_text() for each in files if each.suffix == ".log")
        served = re.findall(r"INFO +(.* serves on port .*)", daemons)
        with contextlib.closing(sqlite3.connect(Path(root) / "queue.sqlite")) as queue:
            tables = queue.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    return {
        "result": keep_types(result),
        "generate": keep_types(json.loads(drawn.stdout.splitlines()[-1])),
        "refused": refused.returncode,
        "JSON log": sorted(json.loads(refused.stderr.splitlines()[-1])),
        "files": names,
        "log": sorted({f"{each['kind']}: {mask_numbers(each['text'])}" for each in events}),
        "log keys": sorted({key for each in events for key in each}),
        "daemons": sorted(map(mask_numbers, served)),
        "queue": sorted(" ".join(text.split()) for (text,) in tables),
    }


def _run_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", command_line.__name__, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


SECTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "metrics": describe_metrics,
    "config": describe_config,
    "command": describe_command,
    "rpc": describe_rpc,
    "wire": describe_wire,
    "checkpoint": describe_checkpoint,
    "arithmetic": describe_arithmetic,
    "names": describe_names,
    "results": describe_results,
    "local_run": describe_local_run,
}


def dump(section: str) -> str:
    return json.dumps(SECTIONS[section](), sort_keys=True, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    if sys.argv[1:]:
        print(dump(sys.argv[1]), end="")
    else:
        GOLDEN.mkdir(exist_ok=True)
        for section in SECTIONS:
            (GOLDEN / f"{section}.json").write_text(dump(section))
