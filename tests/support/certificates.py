"""Certificates for tests, as `tiermesh certs` makes them but for a few days and for loopback addresses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cli.certs import authority as ca
from cli.certs.folder import write_private_file
from services.transport.access.permissions import CallerKind

LOOPBACK_HOSTS = 99
HOSTS = ["localhost", *(f"127.0.0.{1 + n}" for n in range(LOOPBACK_HOSTS))]
"""Names for all loopback addresses in use: each relay of tests/cluster has one of its own."""


def make_authority(folder: Path, name: str) -> Path:
    """Create a self-signed authority `name`.pem with its key; return the path of the certificate."""
    return _write(folder, name, ca.make_authority(name, 3))[0]


def make_certificate(
    folder: Path,
    name: str,
    authority: Path,
    kind: CallerKind | None = None,
    days: float = 2,
    bound_names: Sequence[str] = (),
    hosts: Sequence[str] = HOSTS,
) -> tuple[Path, Path]:
    """Create or replace a certificate `name`.pem, for loopback; return the paths of it and its key.

    Args:
        folder: folder of the files.
        name: name of the files, and of the daemon or person.
        authority: certificate of the authority, with its key beside it.
        kind: kind of caller; None for a certificate without a role.
        days: how long it is valid; negative for one that has expired.
        bound_names: names that the daemon that shows it may have; none for any.
        hosts: names and addresses of hosts that it is valid for.
    """
    signer = ca.load_pair(authority.read_bytes(), authority.with_suffix(".key").read_bytes())
    return _write(folder, name, ca.issue(signer, kind, name, list(hosts), days, bound_names))


def make_certificates(folder: Path) -> Path:
    """Create `authority.pem` and a certificate for each kind of caller, named after it; return the folder."""
    authority = make_authority(folder, "authority")
    for kind in CallerKind:
        make_certificate(folder, kind.value, authority, kind)
    return folder


def _write(folder: Path, name: str, pair: ca.KeyPair) -> tuple[Path, Path]:
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    write_private_file(key, pair.key_pem())
    write_private_file(cert, pair.certificate_pem())
    return cert, key
