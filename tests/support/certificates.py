"""Certificates for tests, made with the openssl command."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

LOOPBACK_HOSTS = 60
EXTENSIONS = (
    "subjectAltName=DNS:localhost," + ",".join(f"IP:127.0.0.{1 + n}" for n in range(LOOPBACK_HOSTS)) + "\n"
)
"""Subject names for all loopback addresses in use: each relay of tests/cluster has one of its own."""


def make_authority(folder: Path, name: str) -> Path:
    """Create a self-signed authority `name`.pem with its key; return the path of the certificate."""
    _openssl(
        "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
        "-subj", f"/CN={name}", "-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.pem"),
    )  # fmt: skip
    return folder / f"{name}.pem"


def make_certificate(folder: Path, name: str, authority: Path) -> tuple[Path, Path]:
    """Create a certificate for loopback addresses, signed by `authority`; return the paths of it and its key."""
    cert, key, request = folder / f"{name}.pem", folder / f"{name}.key", folder / f"{name}.csr"
    extensions = folder / "extensions"
    extensions.write_text(EXTENSIONS)
    _openssl(
        "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
        "-subj", f"/CN={name}", "-keyout", str(key), "-out", str(request),
    )  # fmt: skip
    _openssl(
        "x509", "-req", "-in", str(request), "-CA", str(authority), "-CAkey", str(authority.with_suffix(".key")),
        "-CAcreateserial", "-days", "2", "-extfile", str(extensions), "-out", str(cert),
    )  # fmt: skip
    return cert, key


def _openssl(*arguments: str) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command to make certificates")
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)
