"""A job with a pipeline over any number of workers ends in the bits of the same job without a pipeline."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from tests.support.certificates import make_certificates
from tests.support.cluster.bits import Bits, bits, deep_config, spec_of, split_config, write_config
from tests.support.cluster.daemon import tiermesh, tls_flags
from tests.support.cluster.harness import Cluster

STEPS = 4
MICRO_BATCHES = 6
INTERLEAVED = {"schedule": "interleaved_1f1b", "ranges_per_rank": 2}

Result = tuple[Bits, float]
RunWithout = Callable[..., Result]


def result_of(cluster: Cluster, job: str) -> Result:
    ended = cluster.finish(job)
    return bits(ended), ended.loss


def config_of(corpus: Path, blocks: int, *, tied: bool = False, **training: Any) -> dict[str, Any]:
    """Return a small GPT-2 with dropout, clipping, evaluations and checkpoints."""
    settings = {"max_steps": STEPS, "gradient_accumulation_steps": MICRO_BATCHES, "eval_every": 2, **training}
    return deep_config(corpus, blocks, tied=tied, **settings)


@pytest.fixture(scope="module")
def run_without(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> RunWithout:
    """Return a function that runs the job without a pipeline, with the micro-batches of `pipelines` pipelines."""

    @cache
    def run(blocks: int, pipelines: int = 1, tied: bool = False, steps: int = STEPS) -> Result:
        config = split_config(config_of(corpus, blocks, tied=tied, max_steps=steps), (), pipelines=pipelines)
        folder = tmp_path_factory.mktemp("without")
        with Cluster(folder, workers=1) as cluster:
            return result_of(cluster, cluster.submit(spec_of(folder, config)))

    return run


def rows_in(cluster: Cluster) -> list[str]:
    """Return the rows that were formed, as the aggregator's log describes them."""
    return re.findall(r"row \d+ is ready: (.*)", cluster.aggregator.log_text())


def test_two_workers_in_a_row(tmp_path: Path, corpus: Path, run_without: RunWithout) -> None:
    spec = spec_of(tmp_path, split_config(config_of(corpus, 2), (1, 1)))
    with Cluster(tmp_path, tiers=3, workers=2) as cluster:
        cluster.wait_workers(2)
        assert result_of(cluster, cluster.submit(spec)) == run_without(2)
        (row,) = rows_in(cluster)
        assert "stage 0 on worker-" in row and "stage 1 on worker-" in row


@pytest.mark.long
@pytest.mark.parametrize(
    ("blocks_per_stage", "workers", "pipelines", "tiers", "shards", "settings", "tied"),
    [
        pytest.param((1, 1), 1, 1, 2, 0, {}, False, id="2 stages on 1"),
        pytest.param((1, 1), 2, 2, 2, 0, {"schedule": "gpipe"}, False, id="2 pipelines on 2"),
        pytest.param((1, 2), 3, 1, 3, 0, {}, True, id="2 uneven tied stages on 3"),
        pytest.param((1, 1), 4, 2, 3, 0, {}, True, id="2 tied pipelines on 4"),
        pytest.param((2, 2), 2, 1, 2, 2, INTERLEAVED, True, id="2 interleaved tied stages on 2"),
        pytest.param((1, 1, 1), 1, 1, 3, 0, {}, True, id="3 tied stages on 1"),
        pytest.param((1, 1, 1), 2, 1, 2, 0, {}, True, id="3 tied stages on 2"),
        pytest.param((1, 1, 1), 3, 2, 2, 2, {}, False, id="3 stages on 3 with shards"),
        pytest.param((2, 2, 2), 4, 1, 2, 0, INTERLEAVED, False, id="3 interleaved stages on 4"),
    ],
)
def test_any_number_of_workers(
    tmp_path: Path,
    corpus: Path,
    run_without: RunWithout,
    blocks_per_stage: tuple[int, ...],
    workers: int,
    pipelines: int,
    tiers: int,
    shards: int,
    settings: dict[str, Any],
    tied: bool,
) -> None:
    blocks = sum(blocks_per_stage)
    config = split_config(
        config_of(corpus, blocks, tied=tied), blocks_per_stage, pipelines=pipelines, **settings
    )
    with Cluster(tmp_path, tiers=tiers, workers=workers, shards=shards, heartbeat_seconds=1.0) as cluster:
        cluster.wait_workers(workers)
        found = result_of(cluster, cluster.submit(spec_of(tmp_path, config)))
        seats = [row.count(" on ") for row in rows_in(cluster)]
    assert found == run_without(blocks, pipelines, tied)
    assert max(seats) == min(workers, len(blocks_per_stage))


@pytest.mark.long
def test_tls_between_the_workers_of_a_row(tmp_path: Path, corpus: Path, run_without: RunWithout) -> None:
    config = write_config(tmp_path, split_config(config_of(corpus, 2), (1, 1)))
    over_the_network = ("--no-shared-memory",)
    files = make_certificates(tmp_path)
    with Cluster(tmp_path, tiers=3, workers=2, certificates=files, options=over_the_network) as cluster:
        address = ("--aggregator", cluster.aggregator.address)
        done = tiermesh("submit", config, "--follow", "--json", *address, *tls_flags(files, "person"))
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout.splitlines()[-1])
        assert rows_in(cluster)[-1].count(" on ") == 2
    assert result["model_sha256"] == run_without(2)[0].model_sha256


@pytest.mark.long
@pytest.mark.parametrize("later", [(), (2, 1), (1, 1, 1)], ids=["none", "2", "3"])
def test_a_job_goes_on_in_another_split(
    tmp_path: Path, corpus: Path, run_without: RunWithout, later: tuple[int, ...]
) -> None:
    first = split_config(config_of(corpus, 3, max_steps=STEPS // 2), (1, 2))
    with Cluster(tmp_path, tiers=3, workers=3) as cluster:
        cluster.wait_workers(3)
        earlier = cluster.finish(cluster.submit(spec_of(tmp_path, first))).id
        start = {"job": earlier, "step_counter": "continue", "change_split": True}
        second = split_config(config_of(corpus, 3, start_from=start), later)
        folder = tmp_path / "later"
        folder.mkdir()
        assert result_of(cluster, cluster.submit(spec_of(folder, second))) == run_without(3)


@pytest.mark.long
def test_the_checkpoint_is_that_of_the_whole_model(tmp_path: Path, corpus: Path) -> None:
    """Compare the files of two jobs, and read the pipeline's by the command that reads any."""
    with Cluster(tmp_path, tiers=3, workers=2) as cluster:
        cluster.wait_workers(2)
        folders = []
        for blocks_per_stage in ((1, 1), ()):
            config = split_config(config_of(corpus, 2, tied=True), blocks_per_stage)
            ended = cluster.finish(cluster.submit(spec_of(tmp_path, config)))
            folders.append(Path(ended.checkpoint))
        names = [sorted(each.name for each in folder.iterdir()) for folder in folders]
        assert names[0] == names[1]
        piped, whole = (load_file(folder / "model.safetensors") for folder in folders)
        assert piped.keys() == whole.keys()
        for name in names[0]:
            if name.endswith((".safetensors", "config.json", "tokenizer.json")):
                assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes(), name
        text = tiermesh("generate", folders[0], "--prompt", "The", "--max-new-tokens", 8)
        assert text.returncode == 0, text.stderr
