"""The folder of an authority: its key, the certificates it issued, a record of them, and the list of revoked ones.

All files have mode 0600. The authority's key stays in this folder; hosts get their own pair, `authority.pem` and, if
there is one, `revoked.txt`.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from cli.certs import authority
from cli.certs.authority import KeyPair
from services.durable_files import PRIVATE_MODE, new_file
from services.errors import Refused
from services.input_files import NoSuchFile, read_input_file
from services.names import check_name
from services.printable import printable_path
from services.system_errors import system_error
from services.transport.access.permissions import CallerKind
from services.transport.access.revocations import read_revoked
from services.transport.access.watched_files import MAX_FILE_BYTES, read_small_file

AUTHORITY, RECORD, REVOKED = "authority", "issued.txt", "revoked.txt"


@dataclass(frozen=True)
class Issued:
    """One line of the record: a certificate that the authority has signed.

    Attributes:
        serial: serial number.
        kind: kind of caller.
        name: name of the daemon or person.
        expires: time from which on it is not valid.
    """

    serial: int
    kind: CallerKind
    name: str
    expires: datetime

    def to_line(self) -> str:
        """Return the line of the record, without a line end."""
        return f"{self.serial:x} {self.kind.value} {self.name} {self.expires.isoformat()}"


class CertificateFolder:
    """An authority on disk.

    Args:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def init(self, name: str, days: float) -> Path:
        """Make the folder and a new authority; return the path of the authority's certificate.

        Raises:
            Refused: there is an authority already.
            TiermeshError: the folder can't be written.
        """
        with explain_write_errors(self.path):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._refuse_overwriting(AUTHORITY)
        self._write_pair(AUTHORITY, authority.make_authority(name, days))
        return self.path / f"{AUTHORITY}.pem"

    def issue(
        self, kind: CallerKind, name: str, hosts: list[str], days: float, bound_names: Sequence[str] = ()
    ) -> tuple[Path, Path]:
        """Issue a certificate; return the paths of it and of its key.

        Args:
            kind: kind of caller.
            name: name of the daemon or person.
            hosts: DNS names and IP addresses that others dial it by.
            days: how long it is valid.
            bound_names: names that the daemon that shows it may have; none for any.

        Raises:
            Refused: there is one already, there is no authority, or a value is wrong.
            TiermeshError: a file can't be written.
        """
        check_name("name", name)
        signer = self._load(AUTHORITY, "make an authority with `tiermesh certs init`")
        self._refuse_overwriting(_stem(kind, name))
        return self._record(kind, name, authority.issue(signer, kind, name, hosts, days, bound_names))

    def renew(
        self, subjects: Sequence[tuple[CallerKind, str]], days_of: Callable[[CallerKind], float]
    ) -> list[tuple[Path, Path]]:
        """Replace certificates and their keys, with the same names, roles and hosts; return their paths.

        Args:
            subjects: kind and name of each.
            days_of: returns how long a certificate of a kind is valid.

        Raises:
            Refused: one is missing, there is no authority, or a value is wrong; then none is replaced.
            TiermeshError: a file can't be written; those before it are replaced.
        """
        signer = self._load(AUTHORITY, "make an authority with `tiermesh certs init`")
        renewed = []
        for kind, name in subjects:
            old = self._load(_stem(kind, check_name("name", name)), "issue one with `tiermesh certs issue`")
            renewed.append((kind, name, authority.renew(signer, old.certificate, days_of(kind))))
        return [self._record(*each) for each in renewed]

    def list_renewable(self, expire_before: datetime) -> list[tuple[CallerKind, str]]:
        """Return kind and name of what can be renewed: the newest certificate is not revoked, and its file is here.

        Args:
            expire_before: only those that expire before this time, or have expired.

        Raises:
            Refused: the record or the list of revoked certificates can't be read.
        """
        newest = {(each.kind, each.name): each for each in self.issued()}
        revoked = self.revoked()
        return [
            subject
            for subject, each in newest.items()
            if each.expires < expire_before
            and each.serial not in revoked
            and (self.path / f"{_stem(*subject)}.pem").exists()
        ]

    def revoke(self, kind: CallerKind, name: str) -> tuple[Path, list[Issued]]:
        """Add all valid certificates of a daemon or person to the list; return its path, and those added.

        Raises:
            Refused: none was issued that is still valid and not revoked.
            TiermeshError: a file can't be written.
        """
        revoked = self.revoked()
        now = datetime.now(timezone.utc)
        found = [
            each
            for each in self.issued()
            if (each.kind, each.name) == (kind, name) and each.serial not in revoked and each.expires > now
        ]
        if not found:
            raise Refused(
                f"{self.path}: no valid certificate of {kind.value} {name[:64]!r} that is not revoked; `tiermesh certs "
                "show` lists all"
            )
        path = self.path / REVOKED
        lines = (
            read_small_file("list", path) if path.exists() else "# serial numbers of revoked certificates\n"
        )
        added = "".join(f"{each.to_line()} revoked {now:%Y-%m-%dT%H:%M:%SZ}\n" for each in found)
        write_private_file(path, (lines + added).encode())
        return path, found

    def issued(self) -> list[Issued]:
        """Return all certificates of the record, oldest first.

        Raises:
            Refused: the folder has no authority, or the record can't be read.
        """
        if not (self.path / f"{AUTHORITY}.pem").exists():
            raise Refused(
                f"--dir {self.path}: no authority is there; give its folder, or make one with `tiermesh certs init`"
            )
        path = self.path / RECORD
        if not path.exists():
            return []
        lines = read_small_file("record", path).splitlines()
        return [_parse(f"{path}: line {number}", line) for number, line in enumerate(lines, 1)]

    def revoked(self) -> frozenset[int]:
        """Return the serial numbers of the certificates that were revoked."""
        path = self.path / REVOKED
        return read_revoked(path) if path.exists() else frozenset()

    def _record(self, kind: CallerKind, name: str, pair: KeyPair) -> tuple[Path, Path]:
        # Recorded first: what is not in the record can't be revoked by name.
        expires = pair.certificate.not_valid_after_utc
        line = Issued(pair.certificate.serial_number, kind, name, expires).to_line()
        path = self.path / RECORD
        before = read_small_file("record", path) if path.exists() else ""
        write_private_file(path, f"{before}{line}\n".encode())
        return self._write_pair(_stem(kind, name), pair)

    def _write_pair(self, stem: str, pair: KeyPair) -> tuple[Path, Path]:
        certificate, key = self.path / f"{stem}.pem", self.path / f"{stem}.key"
        write_private_file(key, pair.key_pem())
        write_private_file(certificate, pair.certificate_pem())
        return certificate, key

    def _refuse_overwriting(self, stem: str) -> None:
        for path in (self.path / f"{stem}.pem", self.path / f"{stem}.key"):
            if path.exists():
                raise Refused(
                    f"{path}: exists already, and is not overwritten; `tiermesh certs renew` replaces a certificate"
                )

    def _load(self, stem: str, hint: str) -> KeyPair:
        certificate, key = self.path / f"{stem}.pem", self.path / f"{stem}.key"
        try:
            contents = [read_input_file("", each, MAX_FILE_BYTES) for each in (certificate, key)]
        except NoSuchFile:
            raise Refused(f"{printable_path(certificate)}: can't be read with its key; {hint}") from None
        try:
            return authority.load_pair(*contents)
        except Refused as refused:
            raise Refused(f"{certificate}, {key}: {refused}") from None


def write_private_file(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, completely or not at all; it survives power loss.

    Raises:
        TiermeshError: it can't be written.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with explain_write_errors(path), new_file(path, temporary, PRIVATE_MODE) as file:
        file.write(content)


@contextlib.contextmanager
def explain_write_errors(path: Path) -> Iterator[None]:
    """Turn an error of the system into one line about the path that can't be written."""
    try:
        yield
    except OSError as error:
        text = f"{printable_path(path)}: can't be written ({error.strerror}); free space, or choose another folder"
        raise system_error(error, text) from None


def _stem(kind: CallerKind, name: str) -> str:
    return f"{kind.value}-{name}"


def _parse(where: str, line: str) -> Issued:
    try:
        serial, kind, name, text = line.split()
        expires = datetime.fromisoformat(text)
        if expires.tzinfo is None:
            expires = expires.replace(tzinfo=timezone.utc)
        return Issued(int(serial, 16), CallerKind(kind), name, expires)
    except ValueError:
        raise Refused(f"{where}: expected SERIAL KIND NAME EXPIRES; restore the file from a backup") from None
