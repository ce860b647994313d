"""Certificates of one run: an authority in memory alone, and a pair for each daemon and for the launcher."""

from __future__ import annotations

from collections.abc import Mapping

from cli.certs.authority import KeyPair, issue, make_authority
from cli.launch.command_line import AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE, Place
from cli.launch.plan import Rank
from services.transport.access.permissions import CallerKind

RUN_DAYS = 30.0
"""How long the certificates of a run are valid, which bounds how long it can go on."""


class RunCertificates:
    """Authority of a run. Its key is never written, so nobody can join the run later.

    Args:
        run: name of the run.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._authority = make_authority(f"tiermesh launch {run}", RUN_DAYS + 1)

    def daemon_files(self, rank: Rank, place: Place) -> dict[str, str]:
        """Return the files of a daemon, by path on its host: its certificate and key, and the authority's certificate.

        Others dial the daemon by its host's address, and it can only have the rank's role and name.
        """
        pair = issue(
            self._authority, CallerKind(rank.role), rank.name, [place.address], RUN_DAYS, [rank.name]
        )
        return {place.path(name): text for name, text in self._files(pair).items()}

    def launcher_files(self) -> Mapping[str, str]:
        """Return the files with which the launcher calls the aggregator, by name."""
        return self._files(issue(self._authority, CallerKind.ADMIN, "launcher", [], RUN_DAYS))

    def agent_files(self, folder: str) -> dict[str, str]:
        """Return the files with which a detached agent asks for the job, by path on its host.

        Args:
            folder: absolute path of the run's folder there.
        """
        files = self._files(issue(self._authority, CallerKind.PERSON, "agent", [], RUN_DAYS))
        return {f"{folder}/{name}": text for name, text in files.items()}

    def _files(self, pair: KeyPair) -> dict[str, str]:
        return {
            CERTIFICATE_FILE: pair.certificate_pem().decode(),
            KEY_FILE: pair.key_pem().decode(),
            AUTHORITY_FILE: self._authority.certificate_pem().decode(),
        }
