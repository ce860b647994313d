"""Transport security of a role: TLS as server and as client, and the rule for plain text.

Servers and later connections use renewed files without a restart (`watched_files.py`). Who may call what is decided
after the handshake (`access/enforcement.py`).
"""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from services.errors import Refused
from services.input_files import read_input_file
from services.printable import printable_path
from services.transport.access.identity import CertificateIdentity, hosts_of, identify
from services.transport.access.revocations import read_revoked
from services.transport.access.tokens import read_tokens
from services.transport.access.watched_files import WatchedFiles
from services.transport.addresses import is_loopback, split_address

if TYPE_CHECKING:
    import grpc

log = logging.getLogger(__name__)

_PEM_BYTES = 1 << 20


@dataclass(frozen=True)
class Security:
    """Certificates that a role shows, and callers that it trusts.

    Attributes:
        cert: PEM certificate chain that this process shows, as server and as client; needs `key`.
        key: PEM private key of `cert`, without a passphrase.
        ca: PEM certificates of the authority that must have signed peers' certificates. A server with it requires
            client certificates (mutual TLS). A client without it trusts the system's authorities.
        insecure: whether plain text is allowed beyond loopback.
        revoked: list of revoked certificates that a server refuses from callers, and a client from servers.
        tokens: tokens of people that a server accepts.

    Raises:
        Refused: the files contradict `insecure` or each other, or can't be read.
    """

    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    insecure: bool = False
    revoked: Path | None = None
    tokens: Path | None = None

    def __post_init__(self) -> None:
        """Check the files, so that bad ones are refused before a port is open."""
        if self.insecure and (self.cert or self.key or self.ca):
            raise Refused(
                "--insecure: given together with TLS files, expected one of them; remove the others"
            )
        if self.revoked and not self.ca:
            raise Refused(
                f"--revoked {self.revoked}: given without --tls-ca, so there are no certificates; give both"
            )
        if self.tokens and self.insecure:
            raise Refused(
                f"--tokens {self.tokens}: given with --insecure, where everybody could read tokens; use TLS"
            )
        for given, other, option, missing in (
            (self.cert, self.key, "--tls-cert", "--tls-key"),
            (self.key, self.cert, "--tls-key", "--tls-cert"),
        ):
            if given and not other:
                raise Refused(f"{option} {given}: given without {missing}; give both, as PEM files")
        for option, path in (("--tls-cert", self.cert), ("--tls-key", self.key), ("--tls-ca", self.ca)):
            if path:
                _read(option, path)
        self._check_pair()
        if self.revoked:
            read_revoked(self.revoked)
        if self.tokens:
            read_tokens(self.tokens)

    def _check_pair(self) -> None:
        """Check that certificate and key belong together, and that there is an authority in `ca`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if self.cert and self.key:
            try:
                context.load_cert_chain(self.cert, self.key, password=_no_passphrase)
            except (ssl.SSLError, ValueError) as error:
                raise Refused(
                    f"--tls-cert {self.cert}, --tls-key {self.key}: no PEM certificate and its private key "
                    f"without a passphrase ({_reason(error)}); make a matching pair"
                ) from None
            except OSError as error:
                raise Refused(
                    f"--tls-cert {self.cert}, --tls-key {self.key}: can't be read ({error.strerror}); "
                    "give readable files"
                ) from None
        if self.ca:
            try:
                context.load_verify_locations(self.ca)
            except ssl.SSLError as error:
                raise Refused(
                    f"--tls-ca {self.ca}: no PEM certificates ({_reason(error)}); give the "
                    "authority's certificate"
                ) from None
            except OSError as error:
                raise Refused(
                    f"--tls-ca {self.ca}: can't be read ({error.strerror}); give a readable file"
                ) from None

    @property
    def tls(self) -> bool:
        """Whether any TLS file is given."""
        return self.cert is not None or self.ca is not None

    @cached_property
    def revocations(self) -> WatchedFiles[frozenset[int]] | None:
        """Serial numbers of revoked certificates, read again when the list changes; None without a list."""
        path = self.revoked
        return WatchedFiles([path], lambda: read_revoked(path)) if path else None

    def check_server(self, certificate: bytes) -> None:
        """Check that the certificate of a server was not revoked, PEM or DER.

        Raises:
            Refused: it was, or it is none.
        """
        if self.revocations is None:
            return
        serial = identify(certificate).serial
        if serial in self.revocations.content():
            raise Refused(
                f"the server's certificate {serial:x} was revoked (--revoked {printable_path(self.revoked)}); give the "
                "server another one"
            )

    def own_identity(self) -> CertificateIdentity | None:
        """Return what the own certificate says; None if there is none.

        Raises:
            Refused: the file can't be read, or its role is wrong.
        """
        return None if self.cert is None else identify(_read("--tls-cert", self.cert))

    def own_hosts(self) -> frozenset[str]:
        """Return the names and addresses of hosts in the own certificate."""
        return frozenset() if self.cert is None else hosts_of(_read("--tls-cert", self.cert))

    def server_credentials(self, *, certificates: bool = True) -> grpc.ServerCredentials | None:
        """Return the credentials of one port of a gRPC server, which follow the files; None means plain text.

        Args:
            certificates: whether clients need a certificate if there is an authority to check it by. Without, they
                are asked for none.

        Raises:
            Refused: an authority is given, but no certificate of the server.
        """
        if not self.tls:
            return None
        import grpc  # late: wrong files are refused sooner

        files = WatchedFiles(self._server_files(), self._server_configuration)
        in_use = files.content()

        def renewed() -> grpc.ServerCertificateConfiguration | None:
            """Return the configuration if it is another one than gRPC uses.

            gRPC asks at each handshake, in a thread of its own. What it is given replaces and frees what it uses, also
            while a handshake in another thread does: giving it the same again crashes a server sooner or later
            (https://github.com/grpc/grpc/issues/36693).
            """
            nonlocal in_use
            newest = files.content()
            if newest is in_use:
                return None
            in_use = newest
            return newest

        return grpc.dynamic_ssl_server_credentials(
            in_use, renewed, require_client_authentication=certificates and self.ca is not None
        )

    def _server_files(self) -> list[Path]:
        if self.cert is None or self.key is None:
            raise Refused(
                f"--tls-ca {self.ca}: given without --tls-cert and --tls-key, which a server needs; give all three"
            )
        return [self.cert, self.key, *([self.ca] if self.ca else [])]

    def _server_configuration(self) -> grpc.ServerCertificateConfiguration:
        assert self.cert is not None
        assert self.key is not None
        import grpc

        self._check_pair()
        return grpc.ssl_server_certificate_configuration(
            [(_read("--tls-key", self.key), _read("--tls-cert", self.cert))],
            root_certificates=_read("--tls-ca", self.ca) if self.ca else None,
        )

    def channel_credentials(self) -> grpc.ChannelCredentials | None:
        """Return the credentials of a gRPC client; None means plain text."""
        if not self.tls:
            return None
        import grpc

        return grpc.ssl_channel_credentials(
            root_certificates=_read("--tls-ca", self.ca) if self.ca else None,
            private_key=_read("--tls-key", self.key) if self.key else None,
            certificate_chain=_read("--tls-cert", self.cert) if self.cert else None,
        )

    def server_context(self, *, protocol: str = "h2", certificates: bool = True) -> ssl.SSLContext | None:
        """Return the equivalent of `server_credentials` for Python's `ssl`; None means plain text.

        Args:
            protocol: protocol that is negotiated by ALPN.
            certificates: as of `server_credentials`.

        Raises:
            Refused: an authority is given, but no certificate of the server.
        """
        if not self.tls:
            return None
        files = WatchedFiles(self._server_files(), lambda: self._load_server_context(protocol, certificates))

        def use_newest(handshake: ssl.SSLObject | ssl.SSLSocket, _: str | None, __: ssl.SSLContext) -> None:
            handshake.context = files.content()

        context = self._load_server_context(protocol, certificates)
        context.sni_callback = use_newest  # called in every handshake, whether the client names a host or not
        return context

    def _load_server_context(self, protocol: str, certificates: bool) -> ssl.SSLContext:
        assert self.cert is not None
        self._check_pair()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert, self.key, password=_no_passphrase)
        if self.ca and certificates:
            context.load_verify_locations(self.ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return _with_protocol(context, protocol)

    def client_context(self) -> ssl.SSLContext | None:
        """Return the equivalent of `channel_credentials` for Python's `ssl`; None means plain text.

        The context verifies host names.
        """
        if not self.tls:
            return None
        context = ssl.create_default_context(cafile=self.ca)
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # default of newer Pythons, but not of gRPC
        if self.cert:
            context.load_cert_chain(self.cert, self.key, password=_no_passphrase)
        return _with_protocol(context, "h2")

    def check_listen(self, address: str) -> None:
        """Check that a listen address may be used: beyond loopback only with TLS, or with `insecure`, which is logged.

        Raises:
            Refused: the address is no `HOST:PORT`, or reaches beyond loopback with neither.
        """
        host, _ = split_address("listen address", address)
        if is_loopback(host):
            return
        if self.cert:
            if not self.ca:
                log.warning(
                    "listening on %s without --tls-ca: clients can't show certificates, and only people with a token "
                    "are let in",
                    address,
                )
            return
        self.refuse_exposed("listen address", address)
        log.warning(
            "INSECURE: listening on %s without TLS: every host that reaches it can submit jobs and change weights",
            address,
        )

    def refuse_exposed(self, name: str, address: str) -> None:
        """Refuse a listen address beyond loopback without TLS and without `insecure`.

        Args:
            name: the option, for the error.
            address: `HOST:PORT`.

        Raises:
            Refused: it is one, or no `HOST:PORT`.
        """
        host, _ = split_address(name, address)
        if not (self.cert or self.insecure or is_loopback(host)):
            raise Refused(
                f"{name} {address}: reachable from other hosts, but neither TLS nor --insecure is given; give "
                "--tls-cert, --tls-key and --tls-ca, add --insecure, or listen on 127.0.0.1"
            )

    def check_people_listen(self, address: str) -> None:
        """Check that people with tokens can be let in on an address of their own.

        Raises:
            Refused: there are no tokens, or no TLS to protect them on their way.
        """
        if self.tokens is None or self.cert is None:
            missing = "--tokens" if self.tokens is None else "--tls-cert and --tls-key"
            raise Refused(f"--people-listen {address}: given without {missing}; give them too, or remove it")


def _read(option: str, path: Path) -> bytes:
    return read_input_file(option, path, _PEM_BYTES)


def _with_protocol(context: ssl.SSLContext, protocol: str) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols([protocol])
    return context


def _no_passphrase() -> str:
    raise ValueError("the key has a passphrase")


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or str(error)
