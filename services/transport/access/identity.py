"""Owner of a certificate: the kind of caller and its name, from a URI among the subject's alternative names.

The URI is `tiermesh:role/KIND/NAME`, for example `tiermesh:role/worker/loudbox-3` or `tiermesh:role/person/alice`.
Further URIs, `tiermesh:name/NAME`, bind a daemon's certificate to these names: its Hello must say one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from services.errors import Refused
from services.names import check_name
from services.transport.access.permissions import CallerKind

if TYPE_CHECKING:
    from cryptography import x509

ROLE_PREFIX = "tiermesh:role/"
BOUND_NAME_PREFIX = "tiermesh:name/"
MAX_BOUND_NAMES = 100
"""Number of names that a certificate is bound to at most."""

_SHOWN_NAMES = 2


@dataclass(frozen=True)
class CertificateIdentity:
    """Owner of a certificate, as the certificate states it.

    Attributes:
        kind: kind of caller; None if the certificate has no role of Tiermesh.
        name: name of the caller; empty without a kind.
        serial: serial number.
        expires_seconds: Unix time from which on it is not valid.
        bound_names: names that its daemon may have; empty for any.
    """

    kind: CallerKind | None
    name: str
    serial: int
    expires_seconds: float
    bound_names: tuple[str, ...] = ()

    def allows_name(self, name: str) -> bool:
        """Return whether a daemon of this name may show the certificate."""
        return not self.bound_names or name in self.bound_names


def role_uri(kind: CallerKind, name: str) -> str:
    """Return the URI that makes a certificate one of this kind and name."""
    return f"{ROLE_PREFIX}{kind.value}/{name}"


def bound_name_uri(name: str) -> str:
    """Return the URI that binds a certificate to a daemon's name.

    Raises:
        Refused: a certificate can't have this name.
    """
    return f"{BOUND_NAME_PREFIX}{check_name('--name', name)}"


def show_names(names: Sequence[str]) -> str:
    """Return the first of several names for an error, and how many more there are."""
    shown = ", ".join(names[:_SHOWN_NAMES])
    return f"{shown} and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else shown


@lru_cache(maxsize=1024)
def identify(certificate: bytes) -> CertificateIdentity:
    """Return what a certificate says. The TLS library has checked its signature and dates.

    Args:
        certificate: one certificate, PEM or DER.

    Raises:
        Refused: it can't be read, has several roles or an unknown one, or is bound to wrong or too many names.
    """
    from cryptography import x509  # late: commands without TLS start sooner

    unreadable = (ValueError, x509.InvalidVersion, x509.DuplicateExtension, x509.UnsupportedGeneralNameType)
    try:
        pem = certificate.startswith(b"-----")
        found = (x509.load_pem_x509_certificate if pem else x509.load_der_x509_certificate)(certificate)
        uris = _uris(found)
        serial, expires = found.serial_number, found.not_valid_after_utc.timestamp()
    except unreadable as error:
        raise Refused(f"certificate: can't be read ({error!s:.100}); issue another") from None
    roles = [uri for uri in uris if uri.startswith(ROLE_PREFIX)]
    if not roles:
        return CertificateIdentity(None, "", serial, expires)
    if len(roles) > 1:
        raise Refused(
            f"certificate {serial:x}: has {len(roles)} roles, expected one; issue one for each role"
        )
    kind, _, name = roles[0].removeprefix(ROLE_PREFIX).partition("/")
    what = f"certificate {serial:x}: name"
    bound = [uri.removeprefix(BOUND_NAME_PREFIX) for uri in uris if uri.startswith(BOUND_NAME_PREFIX)]
    if len(bound) > MAX_BOUND_NAMES:
        raise Refused(
            f"certificate {serial:x}: is bound to {len(bound)} names, expected at most {MAX_BOUND_NAMES}; issue several"
        )
    names = tuple(check_name(what, each) for each in bound)
    try:
        return CertificateIdentity(CallerKind(kind), check_name(what, name), serial, expires, names)
    except ValueError:
        known = ", ".join(each.value for each in CallerKind)
        raise Refused(
            f"certificate {serial:x}: role {kind[:40]!r} is not known, expected one of {known}"
        ) from None


def hosts_of(certificate: bytes) -> frozenset[str]:
    """Return the names and addresses by which the host of a certificate, PEM, is dialed."""
    from cryptography import x509

    names = _alternative_names(x509.load_pem_x509_certificate(certificate))
    if names is None:
        return frozenset()
    addresses = map(str, names.get_values_for_type(x509.IPAddress))
    return frozenset({*names.get_values_for_type(x509.DNSName), *addresses})


def _uris(certificate: x509.Certificate) -> list[str]:
    from cryptography import x509

    names = _alternative_names(certificate)
    return [] if names is None else names.get_values_for_type(x509.UniformResourceIdentifier)


def _alternative_names(certificate: x509.Certificate) -> x509.SubjectAlternativeName | None:
    from cryptography import x509

    try:
        return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None
