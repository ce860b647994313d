"""A daemon's own certificate: its role, the metric of its end, and the warning before."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from services.errors import Refused
from services.runtime.certificate_watch import CertificateWatch, check_own_certificate
from services.transport.access.permissions import CallerKind
from services.transport.security import Security
from tests.support.certificates import make_authority, make_certificate

DAY = 86400.0
METRIC = "tiermesh_certificate_expiry_timestamp_seconds"


def security(
    folder: Path, kind: CallerKind | None, days: float = 2, bound_names: tuple[str, ...] = ()
) -> Security:
    authority = make_authority(folder, "authority")
    return Security(*make_certificate(folder, "own", authority, kind, days, bound_names), authority)


def test_the_log_warns_once_a_day_before_the_end_until_the_file_is_renewed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    registry = CollectorRegistry()
    settings = security(tmp_path, CallerKind.WORKER)
    own = settings.own_identity()
    assert own is not None
    now = own.expires_seconds - 30 * DAY
    watch = CertificateWatch(settings, registry, "worker", clock=lambda: now)
    assert registry.get_sample_value(METRIC, {"role": "worker"}) == own.expires_seconds
    counts = []
    for days in (15, 13.9, 13.5, 12.8, -1):
        now = own.expires_seconds - days * DAY
        with caplog.at_level(logging.WARNING):
            watch.warn()
        counts.append(caplog.text.count("renew it"))
    assert counts == [0, 1, 1, 2, 3]
    (tmp_path / "own.pem").write_text("half a file")
    assert registry.get_sample_value(METRIC, {"role": "worker"}) == own.expires_seconds
    make_certificate(tmp_path, "own", tmp_path / "authority.pem", CallerKind.WORKER, days=1)
    renewed = registry.get_sample_value(METRIC, {"role": "worker"})
    assert renewed is not None
    assert renewed < own.expires_seconds


def test_without_a_certificate_there_is_no_metric() -> None:
    registry = CollectorRegistry()
    CertificateWatch(Security(), registry, "worker").warn()
    assert registry.get_sample_value(METRIC, {"role": "worker"}) is None


def test_a_daemon_needs_a_name_that_its_certificate_is_bound_to(tmp_path: Path) -> None:
    settings = security(tmp_path, CallerKind.WORKER, bound_names=("w1", "w2", "w3"))
    for name in ("w1", "w2", "w3"):
        check_own_certificate("worker", name, settings)
    with pytest.raises(Refused) as refused:
        check_own_certificate("worker", "x" * 500, settings)
    assert "is bound to w1, w2 and 1 more, but this daemon's --name is xxx" in str(refused.value)
    assert str(refused.value).isprintable()
    assert len(str(refused.value).replace(str(tmp_path), "")) <= 300


@pytest.mark.parametrize(
    ("kind", "role"),
    [
        (CallerKind.WORKER, "worker"),
        (CallerKind.AGGREGATOR, "aggregator"),
        (CallerKind.SHARD, "aggregator"),
        (CallerKind.OPTIMIZER, "optimizer"),
        (None, "optimizer"),
    ],
)
def test_a_daemon_needs_the_certificate_of_its_role(
    tmp_path: Path, kind: CallerKind | None, role: str
) -> None:
    settings = security(tmp_path, kind)
    check_own_certificate(role, "own", settings)
    for other in {"worker", "aggregator", "optimizer"} - {role}:
        if kind is None:
            check_own_certificate(other, "own", settings)
        else:
            with pytest.raises(
                Refused, match=rf"is for {kind.value} own, but this is the daemon of role {other}"
            ):
                check_own_certificate(other, "own", settings)
