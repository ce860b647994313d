"""`tiermesh certs`: make an authority, issue, renew and revoke certificates with roles."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.command_group import WholeLineGroup
from cli.options import Command, FiniteRange, output_options, path_option
from cli.output import Output
from services.errors import Refused

if TYPE_CHECKING:
    from services.transport.access.permissions import CallerKind

KINDS = ("worker", "aggregator", "optimizer", "shard", "person", "developer", "admin", "metrics", "web")
"""Names of `CallerKind`, here because importing it takes as long as the whole command line."""
DIALED_KINDS = ("worker", "aggregator", "optimizer", "shard", "web")
AUTHORITY_DAYS, DAEMON_DAYS, PERSON_DAYS = 3650.0, 365.0, 90.0
VALID_DAYS = FiniteRange(min=0, min_open=True, max=AUTHORITY_DAYS)


def _folder_option(command: Command) -> Command:
    return path_option("--dir", "folder", default=Path("certs"), help="Folder of the authority.")(command)


def _subject(command: Command) -> Command:
    command = click.argument("name")(command)
    return click.argument("kind", metavar="KIND", type=click.Choice(KINDS))(command)


@click.group(cls=WholeLineGroup)
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
@click.option(
    "--name",
    "bound_names",
    multiple=True,
    help="Name (--name) that the daemon must have; repeatable.  [default: any]",
)
@click.option("--days", type=VALID_DAYS, help="Days until it expires.  [default: 365; 90 for people]")
@_folder_option
@output_options
def issue(
    *,
    kind: str,
    name: str,
    hosts: tuple[str, ...],
    bound_names: tuple[str, ...],
    days: float | None,
    folder: Path,
    output: Output,
) -> None:
    """Issue a certificate for a daemon, a person, a developer, an admin, or metrics.

    KIND is one of worker, aggregator, optimizer, shard, person, developer, admin and metrics.
    """
    from cli.certs.folder import CertificateFolder

    if bound_names and kind not in DIALED_KINDS:
        raise Refused(
            f"--name {bound_names[0][:80]!r}: given for {kind} {name[:64]!r}, which is no daemon; remove it"
        )
    dialed = [*hosts] or ([name] if kind in DIALED_KINDS else [])
    caller = _kind(kind)
    paths = CertificateFolder(folder).issue(caller, name, dialed, days or _default_days(caller), bound_names)
    _report("issued", paths, output)


@certs.command()
@click.argument("kind", metavar="[KIND]", type=click.Choice(KINDS), required=False)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--all", "renew_all", is_flag=True, help="Renew all certificates, or all of KIND.")
@click.option(
    "--within", type=VALID_DAYS, help="Renew those that have expired, or expire within so many days."
)
@click.option("--days", type=VALID_DAYS, help="Days until they expire.  [default: 365; 90 for people]")
@_folder_option
@output_options
def renew(
    *,
    kind: str | None,
    names: tuple[str, ...],
    renew_all: bool,
    within: float | None,
    days: float | None,
    folder: Path,
    output: Output,
) -> None:
    """Replace certificates and their keys by new ones with the same names, roles and hosts.

    KIND is one of worker, aggregator, optimizer, shard, person, developer, admin and metrics.
    """
    from cli.certs.folder import CertificateFolder

    ways = {"NAME": bool(names), "--all": renew_all, "--within": within is not None}
    given = [way for way, is_used in ways.items() if is_used]
    if len(given) != 1:
        raise Refused(
            f"renew: {' and '.join(given) or 'nothing'} given, expected one of KIND NAME..., --all and --within DAYS"
        )
    files = CertificateFolder(folder)
    if kind is not None and names:
        subjects = [(_kind(kind), name) for name in dict.fromkeys(names)]
    else:
        end = datetime.max.replace(tzinfo=timezone.utc)
        if within is not None:
            end = datetime.now(timezone.utc) + timedelta(days=within)
        subjects = [each for each in files.list_renewable(end) if kind in (None, each[0].value)]
    renewed = files.renew(subjects, lambda each: days or _default_days(each))
    if len(names) == 1:
        _report("renewed", renewed[0], output)
        return
    for certificate, key in renewed:
        output.say(f"renewed --tls-cert {certificate} --tls-key {key}")
    if not renewed:
        output.say("nothing to renew")
    output.result({"renewed": [{"certificate": str(cert), "key": str(key)} for cert, key in renewed]})


@certs.command()
@_subject
@_folder_option
@output_options
def revoke(*, kind: str, name: str, folder: Path, output: Output) -> None:
    """Add all certificates of a daemon or person to the list of revoked ones.

    KIND is one of worker, aggregator, optimizer, shard, person, developer, admin and metrics.
    """
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


def _default_days(kind: CallerKind) -> float:
    return PERSON_DAYS if kind.value in ("person", "developer", "admin") else DAEMON_DAYS


def _report(done: str, paths: tuple[Path, Path], output: Output) -> None:
    output.say(f"{done} --tls-cert {paths[0]} --tls-key {paths[1]}")
    output.result({"certificate": str(paths[0]), "key": str(paths[1])})
