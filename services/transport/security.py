"""Transport security of a role: TLS for what it serves and whom it calls, and the rule for going without."""

from __future__ import annotations

import ipaddress
import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from services.errors import Refused

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Security:
    """What a role shows others and whom it believes.

    Attributes:
        cert: PEM certificate chain that this process shows, as server and as client; its key must be given
            too.
        key: PEM private key of `cert`, without a passphrase.
        ca: PEM certificates of the authority that peers must be signed by. As server, with it, clients must
            show a certificate (mutual TLS); as client, without it, the system's authorities count.
        insecure: plain text is wanted, beyond loopback too.

    Raises:
        Refused: the files contradict `insecure` or each other, or can't be read as what they should be.
    """

    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        """Read the files once, so that a bad one is refused before any port is open."""
        if self.insecure and (self.cert or self.key or self.ca):
            raise Refused("--insecure: given together with TLS files; leave out one or the other")
        for given, other, option, missing in (
            (self.cert, self.key, "--tls-cert", "--tls-key"),
            (self.key, self.cert, "--tls-key", "--tls-cert"),
        ):
            if given and not other:
                raise Refused(f"{option} {given}: given without {missing}; give both, as PEM files")
        for option, path in (("--tls-cert", self.cert), ("--tls-key", self.key), ("--tls-ca", self.ca)):
            if path:
                _read(option, path)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if self.cert and self.key:
            try:
                context.load_cert_chain(self.cert, self.key, password=_no_passphrase)
            except (ssl.SSLError, ValueError) as error:
                raise Refused(
                    f"--tls-cert {self.cert}, --tls-key {self.key}: no PEM certificate and its private key "
                    f"without a passphrase ({_reason(error)}); make a matching pair"
                ) from None
        if self.ca:
            try:
                context.load_verify_locations(self.ca)
            except ssl.SSLError as error:
                raise Refused(
                    f"--tls-ca {self.ca}: no PEM certificates ({_reason(error)}); give the "
                    "authority's certificate"
                ) from None

    @property
    def tls(self) -> bool:
        """Whether any TLS file is given."""
        return self.cert is not None or self.ca is not None

    def server_credentials(self) -> grpc.ServerCredentials | None:
        """Credentials to serve with; None means plain text.

        Raises:
            Refused: an authority is given but no certificate to serve with.
        """
        if not self.tls:
            return None
        if self.cert is None or self.key is None:
            raise Refused(
                f"--tls-ca {self.ca}: a server needs --tls-cert and --tls-key beside it; give all three"
            )
        return grpc.ssl_server_credentials(
            [(_read("--tls-key", self.key), _read("--tls-cert", self.cert))],
            root_certificates=_read("--tls-ca", self.ca) if self.ca else None,
            require_client_auth=self.ca is not None,
        )

    def channel_credentials(self) -> grpc.ChannelCredentials | None:
        """Credentials to call others with; None means plain text."""
        if not self.tls:
            return None
        return grpc.ssl_channel_credentials(
            root_certificates=_read("--tls-ca", self.ca) if self.ca else None,
            private_key=_read("--tls-key", self.key) if self.key else None,
            certificate_chain=_read("--tls-cert", self.cert) if self.cert else None,
        )

    def server_context(self) -> ssl.SSLContext | None:
        """What `server_credentials` means, for Python's own TLS; None means plain text.

        Raises:
            Refused: an authority is given but no certificate to serve with.
        """
        if self.server_credentials() is None:
            return None
        assert self.cert is not None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert, self.key, password=_no_passphrase)
        if self.ca:
            context.load_verify_locations(self.ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return _for_http2(context)

    def client_context(self) -> ssl.SSLContext | None:
        """What `channel_credentials` means, for Python's own TLS, names of hosts verified; None means plain text."""
        if not self.tls:
            return None
        context = ssl.create_default_context(cafile=self.ca)
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # newer Pythons' default, which gRPC hasn't
        if self.cert:
            context.load_cert_chain(self.cert, self.key, password=_no_passphrase)
        return _for_http2(context)

    def check_listen(self, address: str) -> None:
        """Hold a listen address `HOST:PORT` to the rule: beyond loopback with TLS, or `insecure` and loudly.

        Raises:
            Refused: the address is no `HOST:PORT`, or reaches beyond loopback with neither.
        """
        host, _ = split_address("listen address", address)
        if is_loopback(host):
            return
        if self.cert:
            if not self.ca:
                log.warning("listening on %s without --tls-ca: clients aren't asked who they are", address)
            return
        if not self.insecure:
            raise Refused(
                f"listen address {address}: reachable from other hosts, but neither TLS nor --insecure is "
                "given; give --tls-cert, --tls-key and --tls-ca, say --insecure, or listen on 127.0.0.1"
            )
        log.warning(
            "INSECURE: listening on %s without TLS: whoever reaches it can submit jobs and change weights",
            address,
        )


def split_address(what: str, address: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT` or `[IPV6]:PORT`.

    Raises:
        Refused: it is neither; `what` names it in the message.
    """
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port[:6]) > 65535:
        raise Refused(
            f"{what} {address[:300]!r}: not HOST:PORT with a port from 0 to 65535; for example 127.0.0.1:7070"
        )
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """`HOST:PORT`, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether a host name or IP address can only be reached from this host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _read(option: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Refused(
            f"{option} {path}: can't be read ({error.strerror}); give a readable PEM file"
        ) from None


def _for_http2(context: ssl.SSLContext) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    return context


def _no_passphrase() -> str:
    raise ValueError("the key has a passphrase")


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or str(error)
