"""Options that commands share. Each can also be given as `TIERMESH_<NAME>` or in the file of `--config`; flags win."""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.output import Output
from services.errors import Refused

if TYPE_CHECKING:
    from services.instrumentation.timeline import TimelineOptions
    from services.transport.security import Security

Command = Callable[..., Any]

AGGREGATOR_ADDRESS = "127.0.0.1:7070"
OPTIMIZER_ADDRESS = "127.0.0.1:7071"
ANY_PORT = "127.0.0.1:0"


@dataclass(frozen=True)
class AggregatorTarget:
    """The aggregator that a command talks to.

    Attributes:
        address: `HOST:PORT`, or several with commas between: of the aggregator and its standbys.
        security: certificates to show and to believe.
        timeout_seconds: longest wait for an answer.
    """

    address: str
    security: Security
    timeout_seconds: float


def option(name: str, *rest: Any, **settings: Any) -> Callable[[Command], Command]:
    """`click.option` with the environment variable that belongs to its name, shown in the help."""
    variable = "TIERMESH_" + name.removeprefix("--").replace("-", "_").upper()
    settings.setdefault("show_default", settings.get("default") is not None)
    return click.option(name, *rest, envvar=variable, **settings)


def path_option(name: str, *rest: Any, **settings: Any) -> Callable[[Command], Command]:
    """An option whose value is a path."""
    return option(name, *rest, type=click.Path(path_type=Path), **settings)


def output_options(command: Command) -> Command:
    """`--json` and `--config`; the command gets `output`."""

    @option(
        "--json",
        "as_json",
        is_flag=True,
        callback=_note_json,
        help="End with one JSON object on standard output.",
    )
    @config_option
    @functools.wraps(command)
    def with_output(*arguments: Any, as_json: bool, **rest: Any) -> Any:
        output = click.get_current_context().ensure_object(Output)
        return command(*arguments, output=output, **rest)

    return with_output


def client_options(command: Command) -> Command:
    """Where the aggregator is, and how to talk to it; the command gets `target` and `output`."""

    @option(
        "--aggregator",
        default=AGGREGATOR_ADDRESS,
        metavar="HOST:PORT,...",
        help="The cluster's aggregator, and its standbys if it has any.",
    )
    @option(
        "--timeout-seconds", type=click.FloatRange(min=0.1), default=20.0, help="Longest wait for an answer."
    )
    @_tls_options
    @output_options
    @functools.wraps(command)
    def with_target(
        *arguments: Any,
        aggregator: str,
        timeout_seconds: float,
        tls_cert: Path | None,
        tls_key: Path | None,
        tls_ca: Path | None,
        **rest: Any,
    ) -> Any:
        from services.transport.security import Security

        target = AggregatorTarget(aggregator, Security(tls_cert, tls_key, tls_ca), timeout_seconds)
        return command(*arguments, target=target, **rest)

    return with_target


def daemon_options(listen: str) -> Callable[[Command], Command]:
    """What every role daemon is told; the command gets them as one dict `daemon`, for `DaemonOptions`.

    Args:
        listen: the role's default address.
    """

    def decorate(command: Command) -> Command:
        @option(
            "--name", default=socket.gethostname, show_default="this host's name", help="Name of this daemon."
        )
        @option(
            "--listen", default=listen, metavar="HOST:PORT", help="Serve gRPC here; port 0: any free one."
        )
        @option("--metrics-listen", default=ANY_PORT, metavar="HOST:PORT", help="Serve /metrics here.")
        @_tls_options
        @option("--insecure", is_flag=True, help="Serve beyond loopback without TLS.")
        @option("--log-level", default="info", help="debug, info, warning or error.")
        @option("--log-format", default="text", help="text, or json: one object a line.")
        @path_option("--ready-file", help="Write ports and process id here, as JSON, once it serves.")
        @option("--exit-with-parent", is_flag=True, help="Stop when standard input ends.")
        @option("--no-shared-memory", is_flag=True, help="Send tensors over gRPC to roles on this host too.")
        @timeline_options
        @option(
            "--tensor-port",
            type=click.IntRange(0, 65535),
            default=0,
            help="Tensors have this port, on the host of --listen; 0: any free one. A worker needs none.",
        )
        @config_option
        @functools.wraps(command)
        def with_daemon(
            *arguments: Any,
            name: str,
            listen: str,
            metrics_listen: str,
            tls_cert: Path | None,
            tls_key: Path | None,
            tls_ca: Path | None,
            insecure: bool,
            log_level: str,
            log_format: str,
            ready_file: Path | None,
            exit_with_parent: bool,
            no_shared_memory: bool,
            timeline: TimelineOptions | None,
            tensor_port: int,
            **rest: Any,
        ) -> Any:
            from services.transport.security import Security

            daemon = {
                "name": name,
                "listen": listen,
                "metrics_listen": metrics_listen,
                "security": Security(tls_cert, tls_key, tls_ca, insecure),
                "log_level": log_level,
                "log_format": log_format,
                "ready_file": ready_file,
                "exit_with_parent": exit_with_parent,
                "shared_memory": not no_shared_memory,
                "timeline": timeline,
                "tensor_port": tensor_port,
            }
            return command(*arguments, daemon=daemon, **rest)

        return with_daemon

    return decorate


def timeline_options(command: Command) -> Command:
    """`--timeline` and `--timeline-steps`; the command gets `timeline`."""

    @path_option("--timeline", help="Folder to record in what happens when in some steps, for trace viewers.")
    @option("--timeline-steps", default="10-12", metavar="FIRST-LAST", help="Steps that --timeline records.")
    @functools.wraps(command)
    def with_timeline(*arguments: Any, timeline: Path | None, timeline_steps: str, **rest: Any) -> Any:
        from services.instrumentation.timeline import TimelineOptions

        options = None if timeline is None else TimelineOptions.parse(timeline, timeline_steps)
        return command(*arguments, timeline=options, **rest)

    return with_timeline


def _tls_options(command: Command) -> Command:
    for decorate in (
        path_option("--tls-ca", help="PEM certificates of the authority that peers must be signed by."),
        path_option("--tls-key", help="PEM private key of --tls-cert."),
        path_option("--tls-cert", help="PEM certificate to show to peers."),
    ):
        command = decorate(command)
    return command


def allow_models_option(command: Command) -> Command:
    """`--allow-models`, repeatable; the command gets `allowed_models`."""
    return option(
        "--allow-models",
        "allowed_models",
        multiple=True,
        metavar="MODULE[:FACTORY]",
        help="A Python module whose model a job may name as transformer_config.model_type; repeatable.",
    )(command)


def config_option(command: Command) -> Command:
    """`--config FILE`: a YAML mapping of option names to values."""
    return option(
        "--config",
        type=click.Path(path_type=Path),
        is_eager=True,
        expose_value=False,
        callback=_read_config,
        help="YAML file of options; flags and environment win over it.",
    )(command)


def _read_config(context: click.Context, parameter: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    from services.config.refusals import format_value, unknown_key_error
    from services.config.yaml_files import read_document

    by_flag: dict[str, str] = {
        flag.removeprefix("--"): each.name
        for each in context.command.params
        if isinstance(each, click.Option) and each is not parameter and each.name
        for flag in each.opts
        if flag.startswith("--")
    }
    defaults: dict[str, Any] = {}
    for key, value in read_document(path, "--config").items():
        name = by_flag.get(str(key).replace("_", "-"))
        if name is None:
            raise unknown_key_error(f"--config {path}", key, value, by_flag)
        if isinstance(value, dict) or value is None:
            raise Refused(
                f"--config {path}: {key}: {format_value(value)} given, expected a plain value; correct it"
            )
        # As text, as from the command line, so that the option's own type judges it.
        try:
            defaults[name] = [str(each) for each in value] if isinstance(value, list) else str(value)
        except (ValueError, RecursionError):  # a number too long to write down, a list that holds itself
            raise Refused(
                f"--config {path}: {key}: {format_value(value)} given, expected a plain value; correct it"
            ) from None
    context.default_map = {**(context.default_map or {}), **defaults}


def _note_json(context: click.Context, _: click.Parameter, as_json: bool) -> bool:
    context.ensure_object(Output).as_json = as_json
    return as_json
