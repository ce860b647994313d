"""A real Prometheus scrapes a real cluster as deploy/prometheus says, and has data for all dashboards."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from prometheus_client import CollectorRegistry, Gauge

from protos.jobs_pb2 import RUNNING
from services.runtime.metrics_server import start_metrics
from services.transport.security import Security
from tests.support.certificates import make_certificates
from tests.support.cluster.bits import deep_config, spec_of, split_config
from tests.support.cluster.daemon import eventually
from tests.support.cluster.harness import Cluster
from tests.support.dashboards import FILES, GRAFANA, fill_in, queries, read_dashboard, variables
from tests.support.ports import free_port
from tests.support.prometheus import WITHOUT, Prometheus, find_program, run_prometheus

PROGRAM = find_program("prometheus")
RULES = GRAFANA.parent / "prometheus"
SCRAPE_INTERVAL = "1s"
RATE_INTERVAL = "5s"
"""What Grafana makes of `$__rate_interval`: at least four intervals of scrapes."""


def config_of(files: Path, targets: Sequence[str]) -> dict[str, Any]:
    """Return the configuration that is delivered, with these certificates and targets."""
    config: dict[str, Any] = yaml.safe_load((RULES / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": SCRAPE_INTERVAL, "evaluation_interval": SCRAPE_INTERVAL}
    config["rule_files"] = [str(RULES / name) for name in config["rule_files"]]
    (scrape,) = config["scrape_configs"]
    scrape["static_configs"] = [{"targets": list(targets)}]
    names = {"ca_file": "authority.pem", "cert_file": "metrics.pem", "key_file": "metrics.key"}
    assert scrape["tls_config"].keys() == names.keys()
    scrape["tls_config"] = {option: str(files / name) for option, name in names.items()}
    return config


@contextmanager
def serve_mfu(job: str, security: Security) -> Iterator[str]:
    """Serve the MFU of a job, which there is only on hardware; return the address."""
    registry = CollectorRegistry()
    gauge = Gauge("tiermesh_mfu_ratio", "of the test", ("job", "role"), registry=registry)
    gauge.labels(job, "aggregator").set(0.4)
    server = start_metrics("127.0.0.1:0", registry, security)
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        server.stop()


def list_without_data(prometheus: Prometheus, began_seconds: float) -> list[str]:
    """Return the variables and queries of dashboards that no value came for since a time."""
    span = {"start": began_seconds, "end": time.time(), "step": 1}
    missing = []
    for file in FILES:
        dashboard = read_dashboard(file)
        values = {"__rate_interval": RATE_INTERVAL}
        for name, (selector, label) in variables(dashboard).items():
            found = prometheus.ask(f"label/{label}/values", **{"match[]": selector})
            values[name] = "|".join(re.escape(each).replace("\\", "\\\\") for each in found)
            missing += [] if found else [f"{file.stem}: ${name}"]
        for title, query in queries(dashboard):
            series = prometheus.ask("query_range", query=fill_in(query, values), **span)["result"]
            if not any(value != "NaN" for each in series for _, value in each["values"]):
                missing.append(f"{file.stem}: {title}: {query}")
    return missing


@pytest.mark.long
@pytest.mark.skipif(PROGRAM is None, reason=WITHOUT)
def test_every_query_of_every_dashboard_has_data_amid_deaths(tmp_path: Path, corpus: Path) -> None:
    """A worker of a pipeline is killed, and a spare takes its stage; the aggregator is killed, and starts again."""
    assert PROGRAM is not None
    files = make_certificates(tmp_path)
    identities = {
        name: Security(files / f"{name}.pem", files / f"{name}.key", files / "authority.pem")
        for name in ("person", "aggregator")
    }
    credentials = identities["person"].channel_credentials()
    assert credentials is not None
    config = deep_config(
        corpus, 2, project_name="seen", max_steps=100_000, eval_every=5, model_save_interval=5
    )
    at_one_port = ("--metrics-listen", f"127.0.0.1:{free_port()}")
    with (
        Cluster(
            tmp_path / "cluster",
            tiers=3,
            workers=3,
            certificates=files,
            heartbeat_seconds=1.0,
            aggregator_options=at_one_port,
        ) as cluster,
        grpc.secure_channel(cluster.to_aggregator.address, credentials) as channel,
    ):
        cluster.call_over(channel)
        cluster.wait_workers(3)
        job = cluster.submit(spec_of(tmp_path, split_config(config, (1, 1))))
        targets = [f"127.0.0.1:{each.metrics_port}" for each in cluster.daemons]
        with (
            serve_mfu(job, identities["aggregator"]) as mfu,
            run_prometheus(PROGRAM, tmp_path, config_of(files, [*targets, mfu])) as prometheus,
        ):
            began_seconds = time.time()
            cluster.wait_step(job, 5)
            killed = next(each.name for each in cluster.status().workers if each.row)
            next(each for each in cluster.workers if each.name == killed).kill()
            cluster.wait_step(job, cluster.job(job).step + 5)
            cluster.aggregator.kill()
            cluster.start_aggregator()
            cluster.wait_step(job, cluster.job(job).step + 5)
            missing: list[str] = []

            def look() -> bool:
                missing[:] = list_without_data(prometheus, began_seconds)
                return not missing

            try:
                eventually(look, "data")
            except AssertionError:
                raise AssertionError("no data for:\n" + "\n".join(missing)) from None
            assert cluster.job(job).state == RUNNING
