"""Jobs whose files lie on the client alone, by real processes that are killed amid transfers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import yaml

from services.protocol.file_refs import MAX_PIECE_BYTES, make_ref
from services.transport.access.permissions import CallerKind
from tests.support.certificates import make_certificate, make_certificates
from tests.support.cluster.bits import Bits, bits, gpt_config, spec_of, write_config
from tests.support.cluster.daemon import LIMIT_SECONDS, tiermesh, tls_flags
from tests.support.cluster.harness import Cluster
from tests.support.cluster.rpc_proxy import Fault, ProxiedCluster
from training.data.tokenizer import build_character_tokenizer

PIECES = 6
"""Number of pieces of the tokenizer that jobs name."""


def large_config(corpus: Path) -> dict[str, object]:
    """Write a tokenizer of `PIECES` pieces beside the corpus; return a job with both."""
    content = json.loads(build_character_tokenizer(corpus.read_text()).to_json())
    words = content["model"]["vocab"]
    for number in range(PIECES):
        words[f"{number:0{MAX_PIECE_BYTES - 1000}d}"] = len(words)
    path = corpus.parent / "tokenizer.json"
    path.write_text(json.dumps(content))
    return gpt_config(
        corpus,
        max_steps=2,
        gradient_accumulation_steps=2,
        tokenizer_type="bpe",
        tokenizer_path=str(path),
    )


@pytest.fixture
def client(corpus: Path, tmp_path: Path) -> Path:
    """Return a folder of the client's host with a corpus, a tokenizer and a job, which the test may remove."""
    folder = tmp_path / "client"
    folder.mkdir()
    write_config(folder, large_config(Path(shutil.copy(corpus, folder / "corpus.txt"))))
    return folder


@pytest.fixture(scope="module")
def expected(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Bits:
    """Return the result of a worker that has the files."""
    folder = tmp_path_factory.mktemp("expected")
    with Cluster(folder, workers=1) as cluster:
        own = Path(shutil.copy(corpus, folder / "corpus.txt"))
        return bits(cluster.finish(cluster.submit(spec_of(folder, large_config(own)))))


def submit(cluster: Cluster, client: Path, *options: object) -> subprocess.CompletedProcess[str]:
    return tiermesh("submit", client / "exact.yaml", "--aggregator", cluster.to_aggregator.address, *options)


def submit_and_remove(cluster: Cluster, client: Path, *, uploads: bool = True) -> str:
    """Submit a job by the command, and remove its files from this host; return the job's id.

    Args:
        cluster: the cluster.
        client: folder of the job and its files.
        uploads: whether the aggregator lacks files.
    """
    done = submit(cluster, client)
    assert done.returncode == 0, done.stderr
    assert ("uploaded" in done.stderr) == uploads
    shutil.rmtree(client)
    return done.stdout.strip()


def start_worker_with_empty_disk(cluster: Cluster, name: str) -> None:
    cluster.start_worker("--cache-dir", cluster.folder / f"cache-{name}", name=name, wait=False)


def test_workers_with_empty_disks_join_a_job_whose_files_the_client_has(
    tmp_path: Path, client: Path, expected: Bits
) -> None:
    with Cluster(tmp_path) as cluster:
        job = submit_and_remove(cluster, client)
        for name in ("a", "b"):
            start_worker_with_empty_disk(cluster, name)
        assert bits(cluster.finish(job)) == expected


@pytest.mark.long
def test_a_worker_killed_amid_its_download_goes_on_where_it_was(
    tmp_path: Path, client: Path, expected: Bits
) -> None:
    started: list[str] = []

    def failpoints(role: str) -> str:
        started.append(role)
        return "files.mid-write=kill@4" if role == "worker" and started.count("worker") == 1 else ""

    with Cluster(tmp_path, failpoints=failpoints) as cluster:
        job = submit_and_remove(cluster, client)
        start_worker_with_empty_disk(cluster, "a")
        assert cluster.workers[0].ended() < 0, "it was to be killed at the failpoint"
        before = (tmp_path / "failpoints.log").read_text().count("files.mid-write")
        start_worker_with_empty_disk(cluster, "a")
        assert bits(cluster.finish(job)) == expected
        writes = (tmp_path / "failpoints.log").read_text().count("files.mid-write")
        uploaded_by_worker = PIECES + 4  # its tokenizer, layout and config go to the aggregator
        assert writes - before <= PIECES - 2 + uploaded_by_worker, "it did not start over"


@pytest.mark.long
def test_an_aggregator_killed_amid_an_upload_goes_on_where_it_was(
    tmp_path: Path, client: Path, expected: Bits
) -> None:
    started: list[str] = []

    def failpoints(role: str) -> str:
        started.append(role)
        return "files.mid-write=kill@4" if role == "aggregator" and len(started) == 1 else ""

    with Cluster(tmp_path, failpoints=failpoints) as cluster, ThreadPoolExecutor() as threads:
        submitting = threads.submit(submit, cluster, client)
        assert cluster.aggregator.ended() < 0, "it was to be killed at the failpoint"
        cluster.start_aggregator()
        done = submitting.result(LIMIT_SECONDS)
        assert done.returncode == 0, done.stderr
        writes = (tmp_path / "failpoints.log").read_text().count("files.mid-write")
        assert writes <= 4 + PIECES, "it did not start over"
        shutil.rmtree(client)
        start_worker_with_empty_disk(cluster, "a")
        assert bits(cluster.finish(done.stdout.strip())) == expected


@pytest.mark.long
def test_a_worker_reads_from_the_data_dir_and_waits_until_it_is_there(
    tmp_path: Path, client: Path, expected: Bits
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with Cluster(tmp_path, aggregator_options=("--data-dir", data)) as cluster:
        done = submit(cluster, client, "--no-upload")
        assert done.returncode == 0 and "uploaded" not in done.stderr
        client.rename(tmp_path / "elsewhere")
        start_worker_with_empty_disk(cluster, "a")
        cluster.wait_workers(1, "unfit")
        (worker,) = cluster.status().workers
        assert "no such file on this host" in worker.detail and "does not have it" in worker.detail
        for path in (tmp_path / "elsewhere").iterdir():
            path.rename(data / path.name)
            os.utime(data / path.name, (1, 1))
        cluster.aggregator.kill()  # the next one scans at once
        cluster.start_aggregator()
        assert bits(cluster.finish(done.stdout.strip())) == expected


@pytest.mark.long
def test_files_of_token_ids_arrive_with_what_their_identity_stands_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIERMESH_CACHE", str(tmp_path / "client-cache"))  # of the converted YAML file
    client = tmp_path / "client"
    client.mkdir()
    ids = np.random.default_rng(1).integers(0, 60, 5000)
    ids.astype("<u4").tofile(client / "ids.u32.bin")
    tokens = {"tokenizer_vocab_size": 60, "data_length": ids.size, "tokens": ids.tolist()}
    (client / "ids.yaml").write_text(yaml.safe_dump(tokens))
    config = gpt_config(
        Path(), data_path=[str(client / "ids.u32.bin"), str(client / "ids.yaml")], max_steps=2
    )
    del config["training_config"]["tokenizer_type"]
    config["transformer_config"]["vocab_size"] = 60
    write_config(client, config)
    with Cluster(tmp_path) as cluster:
        job = submit(cluster, client).stdout.strip()
        worker = cluster.start_worker()
        expected = bits(cluster.finish(job))
        worker.kill()
        job = submit_and_remove(cluster, client, uploads=False)
        shutil.rmtree(tmp_path / "client-cache")
        start_worker_with_empty_disk(cluster, "a")
        assert bits(cluster.finish(job)) == expected
        assert len([*(tmp_path / "cache-a" / "jobs" / "worker-a").glob("*/*.sidecar.json")]) == 2


@pytest.mark.long
@pytest.mark.parametrize(("tiers", "shards"), [(2, 0), (3, 0), (2, 2)])
@pytest.mark.parametrize("keep_time", [True, False])
def test_a_cached_file_that_the_disk_damages_is_read_again(
    tmp_path: Path, tiers: int, shards: int, keep_time: bool
) -> None:
    """Before the first step, or, if the file's time says nothing, amid the job."""
    client = tmp_path / "client"
    client.mkdir()
    np.random.default_rng(1).integers(0, 60, 5000).astype("<u4").tofile(client / "ids.u32.bin")
    config = gpt_config(Path(), data_path=str(client / "ids.u32.bin"), max_steps=8)
    del config["training_config"]["tokenizer_type"]
    config["transformer_config"]["vocab_size"] = 60
    write_config(client, config)
    spec = spec_of(client, config)
    with Cluster(tmp_path, tiers=tiers, shards=shards) as cluster:
        first = submit_and_remove(cluster, client)
        start_worker_with_empty_disk(cluster, "a")
        expected = bits(cluster.finish(first))
        (cached,) = (
            each
            for each in (tmp_path / "cache-a").glob("*")
            if each.is_file() and each.stat().st_size == 20_000
        )
        content, time_ns = cached.read_bytes(), cached.stat().st_mtime_ns
        cached.write_bytes(content[:-1] + b"?")
        if keep_time:
            os.utime(cached, ns=(time_ns, time_ns))
        second = cluster.submit(spec)
        assert bits(cluster.finish(second)) == expected
        assert cached.read_bytes() == content
        logs = tiermesh("logs", second, "--aggregator", cluster.to_aggregator.address)
        assert "worker a is unfit and tries again: training_config.data_path" in logs.stdout
        assert "block 0 (ids 0 to 4999) has sha256" in logs.stdout
        before_the_steps = logs.stdout.index("is unfit") < logs.stdout.index("Step: 1,")
        assert before_the_steps or keep_time


MESSAGES = [
    *(
        (("Read", "down", 1, kind))
        for kind in ("midway", "truncated", "bit-flipped", "duplicated", "stalled")
    ),
    *((("Write", "up", 1, kind)) for kind in ("midway", "truncated", "bit-flipped", "reordered")),
    *((("Missing", "down", 0, kind)) for kind in ("truncated", "after")),
]
"""Method, direction, number of large messages that pass before the fault, and the fault."""
QUICK = {("Read", "down", 1, "bit-flipped")}


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxiedCluster]:
    """Start a cluster for jobs one after the other, each with its fault."""
    with ProxiedCluster(tmp_path_factory.mktemp("faults")) as running:
        yield running


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "direction", "passing", "kind"),
    [
        pytest.param(*each, marks=() if each in QUICK else pytest.mark.long, id="-".join(map(str, each)))
        for each in MESSAGES
    ],
)
def test_a_fault_of_a_transfer_changes_no_bits(
    proxied: ProxiedCluster,
    client: Path,
    tmp_path: Path,
    expected: Bits,
    method: str,
    direction: str,
    passing: int,
    kind: str,
) -> None:
    proxy = proxied.proxy_of("Cluster")
    least_bytes = 100_000 if method in ("Read", "Write") else 0
    shutil.rmtree(proxied.folder / "aggregator-state" / "files", ignore_errors=True)
    if method != "Read":
        proxy.strike(Fault(f"/tiermesh.Files/{method}", direction, kind, passing, least_bytes))
    job = submit_and_remove(proxied, client)
    if method == "Read":
        proxy.strike(Fault(f"/tiermesh.Files/{method}", direction, kind, passing, least_bytes))
    worker = proxied.start_worker("--cache-dir", tmp_path / "cache", wait=False)
    try:
        if kind == "stalled":
            assert proxy.struck.wait(LIMIT_SECONDS)
            worker.kill()
            worker = proxied.start_worker("--cache-dir", tmp_path / "cache", name=worker.name, wait=False)
        assert bits(proxied.finish(job)) == expected
        assert proxy.struck.is_set(), "the fault never happened"
        assert not list((tmp_path / "cache").glob(".*")), "no temporary file stays"
    finally:
        worker.kill()


def test_a_person_uploads_within_the_caps_and_reads_nothing(tmp_path: Path, client: Path) -> None:
    files = make_certificates(tmp_path)
    make_certificate(tmp_path, "alice", files / "authority.pem", CallerKind.PERSON)
    caps = ("--max-uploads-per-person", 1)
    with Cluster(tmp_path, certificates=files, aggregator_options=caps) as cluster:
        address = ("--aggregator", cluster.aggregator.address)
        done = tiermesh("submit", client / "exact.yaml", *address, *tls_flags(files, "alice"))
        assert done.returncode == 75
        assert done.stderr.splitlines()[-1].endswith(
            "person alice: 2 more files and 0 that jobs need, expected at most 1 in all (--max-uploads-per-person of "
            "the aggregator); submit again when jobs have ended, or copy the data to the hosts and give --no-upload"
        )
        name = make_ref((client / "corpus.txt").read_bytes()).sha256
        assert not (tmp_path / "aggregator-state" / "files" / name).exists(), "nothing was sent in vain"
