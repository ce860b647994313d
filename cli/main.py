"""The `tiermesh` command: its sub-commands, and the one place where errors become a line and an exit code."""

from __future__ import annotations

import copy
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

# Ctrl-C ends the process at once while the modules below are imported, without a traceback.
_on_interrupt = signal.getsignal(signal.SIGINT)
with suppress(ValueError):  # not in the main thread, so this is no command
    signal.signal(signal.SIGINT, signal.SIG_DFL)

# gRPC reads this when it is imported; without it, its own log lines would mix with ours on standard error.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import click

from cli.certs.commands import certs
from cli.certs.token_commands import tokens
from cli.cluster_commands import cluster
from cli.daemon_commands import aggregator, optimizer, worker
from cli.job_commands import (
    cancel,
    chaos,
    continue_,
    download,
    jobs,
    local,
    logs,
    prune,
    status,
    submit,
    trust,
)
from cli.launch.agent.command import launch_agent
from cli.launch.command import launch
from cli.model_commands import check, generate, measure, timeline, validate
from cli.output import Output
from cli.queue_commands import queue
from cli.tokenize.command import tokenize
from services.errors import ExitCode, Refused, TiermeshError, exit_code_of
from services.printable import FAILURE_CHARACTERS, LINE_CHARACTERS, printable
from services.version import tiermesh_version

with suppress(ValueError):
    signal.signal(signal.SIGINT, _on_interrupt)


class _InOrder(click.Group):
    """Group that lists its commands in the order in which they were added."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=_InOrder, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(tiermesh_version(), prog_name="tiermesh")
def tiermesh() -> None:
    """Train models on a cluster of Tenstorrent LoudBoxes.

    Options can also be given as environment variables TIERMESH_<NAME> or in a YAML file (--config); flags win.
    The exit code is 0 for done, 1 for failed, 2 for refused and 75 for not yet.
    """


for command in (
    local,
    launch,
    worker,
    aggregator,
    optimizer,
    submit,
    continue_,
    jobs,
    status,
    logs,
    cancel,
    trust,
    download,
    prune,
    tokenize,
    generate,
    validate,
    measure,
    check,
    chaos,
    timeline,
    certs,
    tokens,
    cluster,
    queue,
    launch_agent,
):
    tiermesh.add_command(command)


def main(arguments: Sequence[str] | None = None, worker_command: click.Command = worker) -> int:
    """Run the command. Errors are one line on standard error, and JSON with `--json`.

    Args:
        arguments: command line without the program's name; None for that of this process.
        worker_command: the sub-command `worker`, see `make_worker_command`.

    Returns:
        The exit code of the process.
    """
    _open_closed_streams()
    # Read before click parses the arguments, so that parse errors are printed as JSON too.
    output = Output(as_json="--json" in (sys.argv[1:] if arguments is None else arguments))
    try:
        _check_text(sys.argv[1:] if arguments is None else arguments)
        group = copy.copy(tiermesh)
        group.commands = {**tiermesh.commands, "worker": worker_command}
        code = group.main(
            args=None if arguments is None else list(arguments),
            prog_name="tiermesh",
            standalone_mode=False,
            obj=output,
        )
        sys.stdout.flush()
    except click.ClickException as error:
        hint = (
            f"; see {error.ctx.command_path} --help"
            if isinstance(error, click.UsageError) and error.ctx
            else ""
        )
        return _report(
            f"{' '.join(error.format_message().split()).removesuffix('.')}{hint}", ExitCode.REFUSED, output
        )
    except (click.Abort, KeyboardInterrupt):
        return _report("interrupted", ExitCode.FAILED, output)
    except BrokenPipeError:  # the reader of our output, such as `head`, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILED
    except TiermeshError as error:
        return _report(str(error), exit_code_of(error), output)
    except OSError as error:
        from services.system_errors import unexplained_system_error

        explained = unexplained_system_error(error)
        return _report(str(explained), exit_code_of(explained), output)
    except Exception as error:
        from services.errors import describe_internal_error

        return _report(describe_internal_error(error), ExitCode.FAILED, output)
    return code if isinstance(code, int) else ExitCode.DONE


def _open_closed_streams() -> None:
    """Open standard streams that the caller has closed, on /dev/null; else a file or socket would get their number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w", closefd=False))


def _check_text(arguments: Sequence[str]) -> None:
    """Check that the command line and the variables of options are text that can be sent to other hosts (Refused)."""
    given = {f"argument {number}": text for number, text in enumerate(arguments, 1)}
    given |= {name: value for name, value in os.environ.items() if name.startswith("TIERMESH_")}
    for place, text in given.items():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise Refused(f"{place}: {text[:100]!r} is not UTF-8; give text or a path that is") from None


def _report(text: str, code: int, output: Output) -> int:
    limit = FAILURE_CHARACTERS if code == ExitCode.FAILED else LINE_CHARACTERS
    with suppress(OSError):  # the exit code is told even if a stream is full
        print(printable(f"tiermesh: {text}", limit), file=sys.stderr, flush=True)
    with suppress(OSError):
        if not output.has_result:
            output.result({"error": text, "exit_code": code})
    return code


if __name__ == "__main__":
    sys.exit(main())
