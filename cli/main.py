"""The `tiermesh` command: its sub-commands, and the one place where errors become a line and an exit code."""

from __future__ import annotations

import os
import signal
import sys


def _end_at_once(*_: object) -> None:
    """End the process on Ctrl-C with one line, while modules are imported: an exception there could be swallowed."""
    if "--json" in sys.argv:
        os.write(1, b'{"error": "interrupted", "exit_code": 1}\n')
    os.write(2, b"\n" * os.isatty(2) + b"tiermesh: interrupted\n")
    os._exit(1)


_on_interrupt = signal.getsignal(signal.SIGINT)
try:  # noqa: SIM105  # contextlib is imported below
    signal.signal(signal.SIGINT, _end_at_once)
except ValueError:  # not in the main thread, so this is no command
    pass

# gRPC reads this when it is imported; without it, its own log lines would mix with ours on standard error.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import copy
from collections.abc import Sequence
from contextlib import suppress

import click

from cli.command_group import CommandGroup
from cli.commands import SECTIONS
from cli.output import Output
from native import Unusable
from services.errors import ExitCode, Refused, TiermeshError, exit_code_of
from services.printable import FAILURE_CHARACTERS, LINE_CHARACTERS, printable

with suppress(ValueError):
    signal.signal(signal.SIGINT, _on_interrupt)


def _print_version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        from services.version import tiermesh_version

        click.echo(f"tiermesh, version {tiermesh_version()}")
        context.exit()


@click.group(
    cls=CommandGroup,
    sections=SECTIONS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def tiermesh() -> None:
    """Train models on a cluster of Tenstorrent LoudBoxes.

    Options can also be given as environment variables TIERMESH_<NAME> or in a YAML file (--config); flags win.
    The exit code is 0 for done, 1 for failed, 2 for refused and 75 for not yet.
    """


def main(arguments: Sequence[str] | None = None, worker_command: click.Command | None = None) -> int:
    """Run the command. Errors are one line on standard error, and JSON with `--json`.

    Args:
        arguments: command line without the program's name; None for that of this process.
        worker_command: takes the place of the sub-command `worker`, see `make_worker_command`.

    Returns:
        The exit code of the process.
    """
    _open_closed_streams()
    # Read before click parses the arguments, so that parse errors are printed as JSON too.
    output = Output(as_json="--json" in (sys.argv[1:] if arguments is None else arguments))
    try:
        _check_text(sys.argv[1:] if arguments is None else arguments)
        group = copy.copy(tiermesh)
        if worker_command is not None:
            group.commands = {"worker": worker_command}
        code = group.main(
            args=None if arguments is None else list(arguments),
            prog_name="tiermesh",
            standalone_mode=False,
            obj=output,
        )
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        return ExitCode.REFUSED
    except click.ClickException as error:
        text = " ".join(error.format_message().split()).removesuffix(".")
        if isinstance(error, click.UsageError) and error.ctx:
            text += f"{' See' if text.endswith('?') else '; see'} {error.ctx.command_path} --help"
        return _report(text, ExitCode.REFUSED, output)
    except (click.Abort, KeyboardInterrupt):
        if sys.stderr.isatty():  # which shows ^C
            print(file=sys.stderr)
        return _report("interrupted", ExitCode.FAILED, output)
    except BrokenPipeError:  # the reader of our output, such as `head`, has closed it
        return ExitCode.FAILED
    except TiermeshError as error:
        return _report(str(error), exit_code_of(error), output, error.limit)
    except Unusable as error:
        return _report(str(error), ExitCode.REFUSED, output, FAILURE_CHARACTERS)
    except OSError as error:
        from services.system_errors import unexplained_system_error

        explained = unexplained_system_error(error)
        return _report(str(explained), exit_code_of(explained), output, explained.limit)
    except Exception as error:
        from services.errors import describe_internal_error

        return _report(describe_internal_error(error), ExitCode.FAILED, output, FAILURE_CHARACTERS)
    finally:
        _drop_unwritten()
    return code if isinstance(code, int) else ExitCode.DONE


def _drop_unwritten() -> None:
    """Drop what a closed or full stream has not taken; else Python would fail at the exit, with a code of its own."""
    for stream in (sys.stdout, sys.stderr):
        if stream.closed:
            continue
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


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


def _report(text: str, code: int, output: Output, limit: int = LINE_CHARACTERS) -> int:
    with suppress(OSError):  # the exit code is told even if a stream is full
        output.erase()
        print(printable(f"tiermesh: {text}", limit), file=sys.stderr, flush=True)
    with suppress(OSError):
        if not output.has_result:
            output.result({"error": text, "exit_code": code})
    return code


if __name__ == "__main__":
    sys.exit(main())
