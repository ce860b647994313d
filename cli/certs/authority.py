"""Certificates with roles: what the authority signs, in memory. `folder.py` keeps them in files."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from services.errors import Refused
from services.transport.access.identity import MAX_BOUND_NAMES, bound_name_uri, identify, role_uri
from services.transport.access.permissions import CallerKind

MAX_HOSTS = 100
"""Number of host names and addresses that a certificate has at most."""
_CLOCK_SKEW = timedelta(minutes=5)
"""Certificates are valid from a little before now, since clocks of hosts differ."""

PrivateKey = ec.EllipticCurvePrivateKey


@dataclass(frozen=True)
class KeyPair:
    """A certificate and its private key.

    Attributes:
        certificate: the certificate.
        key: private key, ECDSA on P-256.
    """

    certificate: x509.Certificate
    key: PrivateKey

    def certificate_pem(self) -> bytes:
        """Return the certificate as PEM."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def key_pem(self) -> bytes:
        """Return the private key as PEM, without a passphrase, as daemons need it."""
        return self.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )


def make_authority(name: str, days: float) -> KeyPair:
    """Return a new authority, which signs certificates of hosts and people but no further authorities."""
    key = _new_key()
    subject = _subject(name)
    builder = (
        _builder(subject, subject, key, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
    )
    return KeyPair(builder.sign(key, hashes.SHA256()), key)


def issue(
    authority: KeyPair,
    kind: CallerKind | None,
    name: str,
    hosts: Sequence[str],
    days: float,
    bound_names: Sequence[str] = (),
) -> KeyPair:
    """Return a new certificate with a role, signed by the authority.

    Args:
        authority: signs it.
        kind: kind of caller; None for a certificate without a role, as other tools make them.
        name: name of the daemon or person.
        hosts: DNS names and IP addresses that others dial it by; none for people, who only call.
        days: how long it is valid; never longer than the authority.
        bound_names: names that the daemon that shows it may have; none for any.

    Raises:
        Refused: a host is neither a DNS name nor an IP address, a name is wrong, or the authority expires first.
    """
    if len(bound_names) > MAX_BOUND_NAMES:
        raise Refused(
            f"--name: {len(bound_names)} given, expected at most {MAX_BOUND_NAMES}; issue several certificates"
        )
    if len(hosts) > MAX_HOSTS:
        raise Refused(f"--host: {len(hosts)} given, expected at most {MAX_HOSTS}; issue several certificates")
    names: list[x509.GeneralName] = [_host_name(host) for host in hosts]
    if kind is not None:
        names.append(x509.UniformResourceIdentifier(role_uri(kind, name)))
    names += [x509.UniformResourceIdentifier(bound_name_uri(each)) for each in bound_names]
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
    key = _new_key()
    issuer = authority.certificate
    builder = _builder(_subject(name), issuer.subject, key, days)
    if _end(days) > issuer.not_valid_after_utc:
        raise Refused(
            f"--days {days:g}: longer than the authority is valid, until {issuer.not_valid_after_utc:%Y-%m-%d}; give "
            "fewer days, or make a new authority"
        )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    authority_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = (
        builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(authority_key, critical=False)
    )
    return KeyPair(builder.sign(authority.key, hashes.SHA256()), key)


def renew(authority: KeyPair, old: x509.Certificate, days: float) -> KeyPair:
    """Return a new certificate with a new key, and with name, role, hosts and bound names of an old one.

    Raises:
        Refused: the authority expires first, or the role of the old one is wrong.
    """
    found = identify(old.public_bytes(serialization.Encoding.DER))
    return issue(authority, found.kind, found.name or _common_name(old), _hosts(old), days, found.bound_names)


def _common_name(certificate: x509.Certificate) -> str:
    found = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else ""


def _hosts(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]


def load_pair(certificate: bytes, key: bytes) -> KeyPair:
    """Return the pair of two PEM files.

    Raises:
        Refused: one is no PEM file, or they don't belong together.
    """
    try:
        loaded = x509.load_pem_x509_certificate(certificate)
        private = serialization.load_pem_private_key(key, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise Refused(f"no PEM certificate and private key without a passphrase ({error!s:.100})") from None
    if not isinstance(private, PrivateKey) or private.public_key() != loaded.public_key():
        raise Refused("certificate and key don't belong together; give a pair that `tiermesh certs` made")
    return KeyPair(loaded, private)


def _builder(subject: x509.Name, issuer: x509.Name, key: PrivateKey, days: float) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(_end(0), _end(days)) - _CLOCK_SKEW)
        .not_valid_after(_end(days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _end(days: float) -> datetime:
    return datetime.now(timezone.utc) + timedelta(days=days)


def _new_key() -> PrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    labels = host.rstrip(".").removeprefix("*.").split(".")
    if len(host) > 253 or not all(
        0 < len(label) < 64 and label.isascii() and label.replace("-", "a").replace("_", "a").isalnum()
        for label in labels
    ):
        raise Refused(
            f"--host {host[:80]!r}: neither a DNS name nor an IP address; give what others dial, without a port"
        )
    return x509.DNSName(host)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
