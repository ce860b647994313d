"""`tiermesh tokens`: the aggregator's file of people's tokens."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.certs.commands import PERSON_DAYS, VALID_DAYS
from cli.command_group import WholeLineGroup
from cli.options import Command, output_options, path_option
from cli.output import Output
from services.errors import Refused

if TYPE_CHECKING:
    from services.transport.access.tokens import TokenRecord


def _file_option(command: Command) -> Command:
    return path_option(
        "--tokens", "path", default=Path("certs/tokens.txt"), help="The aggregator's file of tokens."
    )(command)


@click.group(cls=WholeLineGroup)
def tokens() -> None:
    """Issue tokens to people, who then need no certificate."""


@tokens.command()
@click.argument("name")
@click.option(
    "--developer", is_flag=True, help="Let the person send code with jobs too (`tiermesh submit --code`)."
)
@click.option("--admin", is_flag=True, help="Let the person do that, and cancel other people's jobs.")
@click.option(
    "--days",
    type=VALID_DAYS,
    default=PERSON_DAYS,
    show_default=True,
    help="Days until it expires.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), help="New file for the token.  [default: standard output]"
)
@_file_option
@output_options
def issue(
    *,
    name: str,
    developer: bool,
    admin: bool,
    days: float,
    out: Path | None,
    path: Path,
    output: Output,
) -> None:
    """Issue a token, and add its hash to the file."""
    from cli.certs.folder import write_private_file
    from services.transport.access.permissions import CallerKind
    from services.transport.access.tokens import make_token, read_tokens

    if out is not None and out.exists():
        raise Refused(f"--out {out}: exists already, and is not overwritten; choose another")
    kind = CallerKind.ADMIN if admin else CallerKind.DEVELOPER if developer else CallerKind.PERSON
    token, record = make_token(kind, name, time.time() + days * 86400)
    known = read_tokens(path) if path.exists() else {}
    _write(path, [*known.values(), record])
    if out is not None:
        write_private_file(out, f"{token}\n".encode())
        output.say(f"issued token {record.id} of {kind.value} {name}, written to {out}")
        output.result({"id": record.id, "file": str(out)})
    else:
        output.say(token)
        output.result({"id": record.id, "token": token})


@tokens.command()
@_file_option
@output_options
def show(*, path: Path, output: Output) -> None:
    """List the tokens of the file; the tokens themselves are not in it."""
    from services.transport.access.tokens import read_tokens

    records = read_tokens(path).values()
    for each in records:
        output.say(each.to_line().rpartition(" ")[0])
    output.result(
        {"tokens": [{"id": each.id, "kind": each.kind.value, "name": each.name} for each in records]}
    )


@tokens.command()
@click.argument("token_id", metavar="ID")
@_file_option
@output_options
def revoke(*, token_id: str, path: Path, output: Output) -> None:
    """Remove a token from the file; the aggregator then refuses it."""
    from services.transport.access.tokens import read_tokens

    known = dict(read_tokens(path))
    record = known.pop(token_id, None)
    if record is None:
        raise Refused(f"--tokens {path}: no token {token_id[:40]!r}; `tiermesh tokens show` lists all")
    _write(path, list(known.values()))
    output.say(f"revoked token {token_id} of {record.kind.value} {record.name}")
    output.result({"id": token_id})


def _write(path: Path, records: list[TokenRecord]) -> None:
    from cli.certs.folder import write_private_file

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private_file(path, "".join(f"{each.to_line()}\n" for each in records).encode())
