"""Certificates of one run: an authority in memory alone, and a pair for each daemon and for the launcher.

A run with the HTTP API has a token too, since programs show no certificates there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from cli.certs.authority import KeyPair, issue, make_authority
from cli.launch.command_line import AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE, TOKENS_FILE, Place
from cli.launch.plan import Rank
from services.transport.access.permissions import CallerKind
from services.transport.access.tokens import make_token

RUN_DAYS = 30.0
"""How long the certificates of a run are valid, which bounds how long it can go on."""
WEB_TOKEN_FILE = "web-token"
"""File of the launcher with the token for the HTTP API."""
_LAUNCHER = "launcher"
"""Person that the run's job belongs to."""


class RunCertificates:
    """Authority of a run. Its key is never written, so nobody can join the run later.

    Args:
        run: name of the run.
        web: whether it has the HTTP API.
    """

    def __init__(self, run: str, *, web: bool = False) -> None:
        self._web = web
        expires_seconds = time.time() + RUN_DAYS * 86400
        self._token, self._record = make_token(CallerKind.ADMIN, _LAUNCHER, expires_seconds)
        self._authority = make_authority(f"tiermesh launch {run}", RUN_DAYS + 1)

    def daemon_files(self, rank: Rank, place: Place) -> dict[str, str]:
        """Return the files of a daemon, by path on its host: its certificate and key, and the authority's certificate.

        Others dial the daemon by its host's address, and it can only have the rank's role and name. The HTTP API dials
        the aggregator on loopback.
        """
        has_people = self._web and rank.role == "aggregator"
        hosts = list(dict.fromkeys([place.address, *(["127.0.0.1"] if has_people else [])]))
        files = self._files(
            issue(self._authority, CallerKind(rank.role), rank.name, hosts, RUN_DAYS, [rank.name])
        )
        if has_people:
            files[TOKENS_FILE] = f"{self._record.to_line()}\n"
        return {place.path(name): text for name, text in files.items()}

    def launcher_files(self) -> Mapping[str, str]:
        """Return the files with which the launcher calls the aggregator, and programs the HTTP API, by name."""
        files = self._files(issue(self._authority, CallerKind.ADMIN, _LAUNCHER, [], RUN_DAYS))
        return {**files, **({WEB_TOKEN_FILE: f"{self._token}\n"} if self._web else {})}

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
