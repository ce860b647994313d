"""What a person can do about a worker that its neighbour in a pipeline can't reach."""

from __future__ import annotations

from services.printable import LINE_CHARACTERS, printable

CAUSE_CHARACTERS = 190
"""Longest cause before its remedy, which must not be cut off at the end of the line."""

_REMEDIES: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("certificate is not valid for",),
        "start worker {name} with --advertise and a host that its certificate names",
    ),
    (
        ("certificate has expired", "certificate is not yet valid"),
        "renew the certificate of worker {name}, or set the clocks",
    ),
    (
        ("its certificate is not trusted",),
        "give worker {name} a certificate of the authority in this worker's --tls-ca",
    ),
    (
        ("UNSUPPORTED_PROTOCOL", "PROTOCOL_VERSION"),
        "one of the two lacks TLS 1.2: upgrade OpenSSL there, or what intercepts TLS between them",
    ),
    (
        ("the connection was closed", "_ALERT_"),
        "give both workers valid certificates of one authority, or both --insecure; the log of worker {name} says more",
    ),
    (
        ("TLS:", "does not speak HTTP/2", "speaks TLS"),
        "give both workers TLS files, or both --insecure; and look at --tensor-port of worker {name}",
    ),
    (
        ("refused",),
        "let worker {name} --listen on an address that others reach, with --advertise and --tensor-port to match",
    ),
    (
        ("no HTTP/2 from the peer", "no route to host", "unreachable", "timed out"),
        "open that port in firewalls, or start worker {name} with --advertise or --tensor-port for one that is open",
    ),
    (
        ("Name or service not known", "name resolution", "nodename nor servname", "No address associated"),
        "give worker {name} an --advertise that this host can resolve",
    ),
    (
        ("not allowed for", "no certificate", "without a role"),
        "give this worker a certificate of role worker (tiermesh certs)",
    ),
    (
        ("certificate is for",),
        "give each of the two workers a certificate that names it (tiermesh certs)",
    ),
    (
        ("is not served on this port", "no link check"),
        "look at --tensor-port of worker {name}, and give both the same version of Tiermesh",
    ),
)
"""Remedies by words of the cause; the first one counts."""

_ANY_CAUSE = "look at --listen, --advertise, --tensor-port and certificate of worker {name}, and at firewalls"


def add_remedy(cause: str, name: str) -> str:
    """Return a cause with its remedy, as one line.

    Args:
        cause: why a neighbour can't be reached; it may be cut.
        name: the neighbour's name.
    """
    known = (remedy for words, remedy in _REMEDIES if any(each in cause for each in words))
    remedy = next(known, _ANY_CAUSE).format(name=printable(name, 60))
    return printable(f"{printable(cause, CAUSE_CHARACTERS)}; {remedy}", LINE_CHARACTERS)
