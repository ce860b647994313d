"""`tiermesh certs`: make an authority, issue, renew and revoke certificates with roles."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.options import Command, FiniteRange, output_options, path_option
from cli.output import Output

if TYPE_CHECKING:
    from services.transport.access.permissions import CallerKind

KINDS = ("worker", "aggregator", "optimizer", "shard", "person", "admin", "metrics")
"""Names of `CallerKind`, here because importing it takes as long as the whole command line."""
DIALED_KINDS = ("worker", "aggregator", "optimizer", "shard")
AUTHORITY_DAYS, DAEMON_DAYS, PERSON_DAYS = 3650.0, 365.0, 90.0
VALID_DAYS = FiniteRange(min=0, min_open=True, max=AUTHORITY_DAYS)


def _folder_option(command: Command) -> Command:
    return path_option("--dir", "folder", default=Path("certs"), help="Folder of the authority.")(command)


def _subject(command: Command) -> Command:
    command = click.argument("name")(command)
    return click.argument("kind", type=click.Choice(KINDS))(command)


@click.group()
def certs() -> None:
    """Make certificates with roles for mutual TLS."""


@certs.command()
@click.option("--name", default="tiermesh", show_default=True, help="Name of the authority.")
@click.option(
    "--days", type=VALID_DAYS, default=AUTHORITY_DAYS, show_default=True, help="Days until it expires."
)
@_folder_option
@output_options
def init(*, name: str, days: float, folder: Path, output: Output) -> None:
    """Make an authority, which signs certificates."""
    from cli.certs.folder import CertificateFolder

    path = CertificateFolder(folder).init(name, days)
    output.say(f"made {path}: give it to all hosts; its key {path.with_suffix('.key')} stays here")
    output.result({"certificate": str(path), "key": str(path.with_suffix(".key"))})


@certs.command()
@_subject
@click.option(
    "--host",
    "hosts",
    multiple=True,
    help="DNS name or IP address that others dial; repeatable.  [default: NAME]",
)
@click.option("--days", type=VALID_DAYS, help="Days until it expires.  [default: 365; 90 for people]")
@_folder_option
@output_options
def issue(
    *, kind: str, name: str, hosts: tuple[str, ...], days: float | None, folder: Path, output: Output
) -> None:
    """Issue a certificate for a daemon (worker, aggregator, optimizer, shard), a person, an admin, or metrics."""
    from cli.certs.folder import CertificateFolder

    dialed = [*hosts] or ([name] if kind in DIALED_KINDS else [])
    paths = CertificateFolder(folder).issue(_kind(kind), name, dialed, days or _default_days(kind))
    _report("issued", paths, output)


@certs.command()
@_subject
@click.option("--days", type=VALID_DAYS, help="Days until it expires.  [default: 365; 90 for people]")
@_folder_option
@output_options
def renew(*, kind: str, name: str, days: float | None, folder: Path, output: Output) -> None:
    """Replace a certificate and its key by new ones with the same name, role and hosts."""
    from cli.certs.folder import CertificateFolder

    _report(
        "renewed", CertificateFolder(folder).renew(_kind(kind), name, days or _default_days(kind)), output
    )


@certs.command()
@_subject
@_folder_option
@output_options
def revoke(*, kind: str, name: str, folder: Path, output: Output) -> None:
    """Add all certificates of a daemon or person to the list of revoked ones."""
    from cli.certs.folder import CertificateFolder

    path, revoked = CertificateFolder(folder).revoke(_kind(kind), name)
    for each in revoked:
        output.say(f"revoked {each.serial:x}, {kind} {name}")
    output.say(f"copy {path} to all daemons (--revoked)")
    output.result({"list": str(path), "serials": [f"{each.serial:x}" for each in revoked]})


@certs.command()
@_folder_option
@output_options
def show(*, folder: Path, output: Output) -> None:
    """List the certificates that were issued."""
    from cli.certs.folder import CertificateFolder

    files = CertificateFolder(folder)
    revoked, now = files.revoked(), datetime.now(timezone.utc)
    rows: list[dict[str, Any]] = []
    for each in files.issued():
        state = "revoked" if each.serial in revoked else "expired" if each.expires <= now else "valid"
        output.say(
            f"{each.serial:040x}  {state:<8} until {each.expires:%Y-%m-%d}  {each.kind.value} {each.name}"
        )
        rows.append(
            {
                "serial": f"{each.serial:x}",
                "kind": each.kind.value,
                "name": each.name,
                "expires": each.expires.isoformat(),
                "state": state,
            }
        )
    output.result({"certificates": rows})


def _kind(name: str) -> CallerKind:
    from services.transport.access.permissions import CallerKind

    return CallerKind(name)


def _default_days(kind: str) -> float:
    return PERSON_DAYS if kind in ("person", "admin") else DAEMON_DAYS


def _report(done: str, paths: tuple[Path, Path], output: Output) -> None:
    output.say(f"{done} --tls-cert {paths[0]} --tls-key {paths[1]}")
    output.result({"certificate": str(paths[0]), "key": str(paths[1])})
