"""Options that several commands share.

Each can also be given as `TIERMESH_<NAME>` or in the YAML file of `--config`; flags win.
"""

from __future__ import annotations

import functools
import math
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.output import Output
from services.errors import Refused
from services.jobs.target import AggregatorTarget
from services.transport.addresses import split_address, split_addresses

if TYPE_CHECKING:
    from services.instrumentation.timeline import TimelineOptions

Command = Callable[..., Any]

AGGREGATOR_ADDRESS = "127.0.0.1:7070"
OPTIMIZER_ADDRESS = "127.0.0.1:7071"
WEB_ADDRESS = "127.0.0.1:7080"
OWN_TOKEN_FILE = "~/.tiermesh/web-token"
"""Where `tiermesh web` keeps its own token, without TLS."""
ANY_PORT = "127.0.0.1:0"
LOG_LEVELS = ("debug", "info", "warning", "error")
DEFAULT_MFU = 0.2
"""Share of the chips' peak that a job is assumed to reach, unless it is measured or given."""

MOST_STEPS = 2**31 - 1
"""Largest number of a step: no job has more."""

_RATE_UNITS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_LINK_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*([kMGT]?)(?:bit/s|bit|bps)?", re.ASCII)


class WholeNumber(click.IntRange):
    """Range of whole numbers whose errors are in words."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return an option's value as a number of the range; fail otherwise."""
        try:
            return int(super().convert(value, param, ctx))
        except click.BadParameter:
            self.fail(f"{value!s} given, expected a whole number {_spell_range(self)}", param, ctx)


class FiniteRange(click.FloatRange):
    """Range of numbers whose errors are in words, without NaN and infinity, which click's own accepts."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return an option's value as a number of the range; fail otherwise."""
        try:
            number = float(super().convert(value, param, ctx))
        except click.BadParameter:
            number = math.nan
        if not math.isfinite(number):
            self.fail(f"{value!s} given, expected a number {_spell_range(self)}", param, ctx)
        return number


def _spell_range(numbers: click.IntRange | click.FloatRange) -> str:
    """Return a range in words, such as "from 1 to 64"."""
    least, most = numbers.min, numbers.max
    if least is not None and most is not None and not numbers.min_open and not numbers.max_open:
        return f"from {least:g} to {most:g}" if most < 1e6 else f"from {least} to {most}"
    parts = []
    if least is not None:
        parts.append(f"{'above' if numbers.min_open else 'of at least'} {least}")
    if most is not None:
        parts.append(f"{'below' if numbers.max_open else 'at most'} {most}")
    return " and ".join(parts) or "that is finite"


class LinkRate(FiniteRange):
    """Rate of a link in bits a second, such as 10G, 2.5Gbit/s or 940M."""

    name = "rate"

    def __init__(self) -> None:
        super().__init__(min=0, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return an option's value in bits a second; fail if it is no rate."""
        found = _LINK_RATE.fullmatch(str(value).strip())
        if not found:
            self.fail(f"{value!r} given, expected bits a second such as 10G or 940M", param, ctx)
        return super().convert(float(found[1]) * _RATE_UNITS[found[2]], param, ctx)


def option(name: str, *rest: Any, **settings: Any) -> Callable[[Command], Command]:
    """Return `click.option` with the environment variable that belongs to the option's name."""
    variable = "TIERMESH_" + name.removeprefix("--").replace("-", "_").upper()
    settings.setdefault("show_default", settings.get("default") is not None)
    return click.option(name, *rest, envvar=variable, **settings)


def path_option(name: str, *rest: Any, **settings: Any) -> Callable[[Command], Command]:
    """Return an option whose value is a path."""
    return option(name, *rest, type=click.Path(path_type=Path), **settings)


def output_options(command: Command) -> Command:
    """Add `--json` and `--config`; the command gets `output`."""
    return json_option(config_option(command))


def json_option(command: Command) -> Command:
    """Add `--json`; the command gets `output`."""

    @option(
        "--json",
        "as_json",
        is_flag=True,
        callback=_remember_json,
        help="Print one JSON object as the last line of standard output.",
    )
    @functools.wraps(command)
    def with_output(*arguments: Any, as_json: bool, **rest: Any) -> Any:
        context = click.get_current_context()
        output = context.ensure_object(Output)
        output.announce(context.command_path)
        return command(*arguments, output=output, **rest)

    return with_output


def address_option(name: str, *, several: bool = False, **settings: Any) -> Callable[[Command], Command]:
    """Return an option whose value is an address, or several with commas between; malformed ones are refused."""

    def check(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
        if text:
            (split_addresses if several else split_address)(name, text)
        return text

    metavar = "HOST:PORT,..." if several else "HOST:PORT"
    return option(name, callback=check, metavar=metavar, **settings)


aggregator_option = address_option(
    "--aggregator",
    several=True,
    default=AGGREGATOR_ADDRESS,
    help="Address of the aggregator, and of its standbys if there are any.",
)


def client_options(command: Command) -> Command:
    """Add the options that find the aggregator; the command gets `target` and `output`."""

    @aggregator_option
    @option(
        "--timeout-seconds",
        type=FiniteRange(min=0.1),
        default=20.0,
        help="Longest wait for an answer of the aggregator.",
    )
    @_tls_options
    @path_option("--token-file", help="File with a token to show in place of a certificate.")
    @output_options
    @functools.wraps(command)
    def with_target(
        *arguments: Any,
        aggregator: str,
        timeout_seconds: float,
        tls_cert: Path | None,
        tls_key: Path | None,
        tls_ca: Path | None,
        token_file: Path | None,
        **rest: Any,
    ) -> Any:
        from services.transport.access.tokens import read_token_file
        from services.transport.security import Security

        rest["output"].announce(f"asking aggregator {aggregator}")
        token = read_token_file(token_file) if token_file else ""
        target = AggregatorTarget(aggregator, Security(tls_cert, tls_key, tls_ca), timeout_seconds, token)
        return command(*arguments, target=target, **rest)

    return with_target


def daemon_options(listen: str, *, tensors: bool = True) -> Callable[[Command], Command]:
    """Return a decorator that adds the options of every daemon, as the dict `daemon` for `DaemonOptions`.

    Args:
        listen: default of `--listen`.
        tensors: whether the daemon exchanges tensors, and has the options about them.
    """

    def tensor_options(command: Command) -> Command:
        if not tensors:
            return command
        for add in (
            option(
                "--tensor-port",
                type=WholeNumber(0, 65535),
                default=0,
                help="Port for tensor streams, on the host of --listen; 0 takes any free one.",
            ),
            timeline_options,
            option(
                "--no-shared-memory",
                is_flag=True,
                help="Send tensors over the network even between processes of one host.",
            ),
        ):
            command = add(command)
        return command

    def decorate(command: Command) -> Command:
        @option(
            "--name",
            default=os.uname().nodename,
            show_default="this host's name",
            help="Name of this daemon in logs and in `tiermesh status`.",
        )
        @address_option(
            "--listen",
            default=listen,
            help=f"Address to serve {'gRPC' if tensors else 'HTTP'} on; port 0 takes any free one.",
        )
        @address_option("--metrics-listen", default=ANY_PORT, help="Address to serve /metrics on.")
        @_tls_options
        @path_option("--revoked", help="List of revoked certificates, as `tiermesh certs revoke` writes it.")
        @option("--insecure", is_flag=True, help="Allow connections from other hosts without TLS.")
        @option("--log-level", type=click.Choice(LOG_LEVELS), default="info", help="Lowest level to log.")
        @option(
            "--log-format",
            type=click.Choice(["text", "json"]),
            default="text",
            help="Format of log lines; json has one object per line.",
        )
        @path_option(
            "--ready-file", help="File to write ports and process id to, as JSON, once the daemon serves."
        )
        @option("--exit-with-parent", is_flag=True, help="Stop when standard input is closed.")
        @tensor_options
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
            revoked: Path | None,
            insecure: bool,
            log_level: str,
            log_format: str,
            ready_file: Path | None,
            exit_with_parent: bool,
            no_shared_memory: bool = False,
            timeline: TimelineOptions | None = None,
            tensor_port: int = 0,
            **rest: Any,
        ) -> Any:
            if sys.stderr.isatty():
                print(
                    f"starting {click.get_current_context().info_name} {name} ...",
                    file=sys.stderr,
                    flush=True,
                )
            from services.transport.security import Security

            daemon = {
                "name": name,
                "listen": listen,
                "metrics_listen": metrics_listen,
                "security": Security(
                    tls_cert,
                    tls_key,
                    tls_ca,
                    insecure,
                    revoked,
                    rest.pop("tokens", None),
                ),
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
    """Add `--timeline` and `--timeline-steps`; the command gets `timeline`."""

    @path_option("--timeline", help="Folder to record a timeline of some steps in; see `tiermesh timeline`.")
    @option(
        "--timeline-steps",
        default="10-12",
        metavar="FIRST-LAST",
        help="First and last step that --timeline records.",
    )
    @functools.wraps(command)
    def with_timeline(*arguments: Any, timeline: Path | None, timeline_steps: str, **rest: Any) -> Any:
        from services.instrumentation.timeline import TimelineOptions

        options = None if timeline is None else TimelineOptions.parse(timeline, timeline_steps)
        return command(*arguments, timeline=options, **rest)

    return with_timeline


def _tls_options(command: Command) -> Command:
    for decorate in (
        path_option(
            "--tls-ca", help="PEM certificate of the authority that must have signed the peers' certificates."
        ),
        path_option("--tls-key", help="PEM private key that belongs to --tls-cert."),
        path_option("--tls-cert", help="PEM certificate that this process shows to its peers."),
    ):
        command = decorate(command)
    return command


def step_range_options(command: Command) -> Command:
    """Add `--from` and `--to`, which choose steps of a history; the command gets `first_step` and `last_step`."""

    @option(
        "--from",
        "first_step",
        type=WholeNumber(0, MOST_STEPS),
        metavar="STEP",
        help="First step.  [default: the first]",
    )
    @option(
        "--to",
        "last_step",
        type=WholeNumber(1, MOST_STEPS),
        metavar="STEP",
        help="Last step.  [default: the newest]",
    )
    @functools.wraps(command)
    def with_range(*arguments: Any, first_step: int | None, last_step: int | None, **rest: Any) -> Any:
        return command(*arguments, first_step=first_step or 0, last_step=last_step or 0, **rest)

    return with_range


def allow_models_option(command: Command) -> Command:
    """Add `--allow-models`, repeatable; the command gets `allowed_models`."""
    return option(
        "--allow-models",
        "allowed_models",
        multiple=True,
        metavar="MODULE[:FACTORY]",
        help="Python module that workers may import when a job names it as its model_type; repeatable.",
    )(command)


def code_option(command: Command) -> Command:
    """Add `--code`; the command gets `code`."""
    return path_option(
        "--code",
        metavar="FOLDER",
        help="Folder with the module of the job's own model, at most 16 MiB, which is sent with the job.",
    )(command)


def config_option(command: Command) -> Command:
    """Add `--config FILE`, a YAML mapping of option names to values."""
    return option(
        "--config",
        type=click.Path(path_type=Path),
        is_eager=True,
        expose_value=False,
        callback=_read_config,
        help="YAML file with values of options; flags and environment variables win over it.",
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
    for key, value in read_document(path, "--config", example="options such as state-dir").items():
        name = by_flag.get(str(key).replace("_", "-"))
        if name is None:
            raise Refused(f"--config {path}: {unknown_key_error('', key, value, by_flag)}")
        no_text = Refused(
            f"--config {path}: {key}: {format_value(value)} given, expected a plain value or a list of them; correct it"
        )
        if isinstance(value, dict) or value is None:
            raise no_text
        # Text, as on the command line, so that the option's own type checks it.
        try:
            defaults[name] = [str(each) for each in value] if isinstance(value, list) else str(value)
        except ValueError:  # a number with too many digits
            raise no_text from None
    context.default_map = {**(context.default_map or {}), **defaults}


def _remember_json(context: click.Context, _: click.Parameter, as_json: bool) -> bool:
    context.ensure_object(Output).as_json = as_json
    return as_json
