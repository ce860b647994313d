"""The client against a real cluster, which `tiermesh.local` starts by the installed command."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import tiermesh
from tests.support.cluster.bits import gpt_config, regression_config, write_corpus
from tests.support.cluster.own_code import noted_config, read_notes, write_model

pytestmark = pytest.mark.long

STEPS = 6
NOTEBOOK = Path(__file__).parents[2] / "sdk" / "examples" / "submit_follow_plot.ipynb"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tiermesh.LocalCluster]:
    folder = tmp_path_factory.mktemp("sdk")
    config = gpt_config(
        write_corpus(folder), model_config="model.yaml", data_path="corpus.txt", max_steps=STEPS
    )
    model = {"transformer_config": config.pop("transformer_config")}
    (folder / "model.yaml").write_text(yaml.safe_dump(model))
    (folder / "job.yaml").write_text(yaml.safe_dump(config))
    overrides = {"training_config.gradient_accumulation_steps": 2, "training_config.eval_every": 3}
    with tiermesh.local(folder / "job.yaml", overrides, workers=2, state_dir=folder / "state") as cluster:
        yield cluster


def test_a_job_from_its_submission_to_its_weights(cluster: tiermesh.LocalCluster, tmp_path: Path) -> None:
    client, job = cluster.client, cluster.job
    events = list(client.follow(job.id))
    assert events[0].kind == "state"
    last = events[-1].job
    assert last is not None and last.state == "succeeded" and last.step == STEPS
    ended = client.wait(job.id)
    assert ended.loss == last.loss and ended.validation_loss is not None
    assert ended.submitted is not None and ended.started is not None and ended.ended is not None
    assert ended.submitted <= ended.started <= ended.ended

    assert [each.id for each in client.jobs(state="succeeded")] == [job.id]
    assert any(f"Step: {STEPS}, Loss: " in line for line in client.log(job.id))
    cluster_now = client.status()
    assert (cluster_now.tiers, sorted(cluster_now.workers)) == (3, ["worker-1", "worker-2"])

    place = client.download(job.id, tmp_path)
    weights = (place / "model.safetensors").read_bytes()
    assert hashlib.sha256(weights).hexdigest() == ended.model_sha256
    assert client.download(job.id, tmp_path, step=0).name == "step-00000000"


def test_the_history_is_that_of_the_events(cluster: tiermesh.LocalCluster) -> None:
    ended = cluster.client.wait(cluster.job.id)
    curves = cluster.client.metrics(cluster.job.id, ["loss", "learning_rate"])
    np.testing.assert_array_equal(curves["step"][-STEPS:], np.arange(1, STEPS + 1))
    assert curves["loss"][-1] == pytest.approx(ended.loss)


def test_jobs_are_changed(cluster: tiermesh.LocalCluster) -> None:
    client = cluster.client
    job = client.submit(regression_config(max_steps=100_000), {"training_config.priority": -1}, name="long")
    assert client.pause(job.id).id == job.id
    assert client.set_priority(job.id, -5).fields["priority"] == -5
    assert client.resume(job.id).state != "paused"
    client.cancel(job.id, now=True)
    with pytest.raises(tiermesh.JobFailed) as caught:
        client.wait(job.id, timeout_seconds=60)
    assert (caught.value.job.state, caught.value.job.name) == ("cancelled", "long")


def test_a_job_goes_on(cluster: tiermesh.LocalCluster) -> None:
    cluster.client.wait(cluster.job.id)
    job = cluster.client.continue_(cluster.job.id, STEPS + 1)
    assert cluster.client.wait(job.id).step == STEPS + 1


def test_a_job_brings_the_code_of_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = write_model(tmp_path / "code", 7)
    config = noted_config(Path("corpus.txt"), tmp_path / "notes", max_steps=2)
    write_corpus(tmp_path)
    monkeypatch.chdir(tmp_path)
    with tiermesh.local(config, workers=1, tiers=2, code=code) as cluster:
        assert cluster.client.wait(cluster.job.id).step == 2
    assert read_notes(tmp_path / "notes") == [7]


def test_refusals_have_parts(cluster: tiermesh.LocalCluster) -> None:
    with pytest.raises(tiermesh.Refused) as caught:
        cluster.client.submit(regression_config(max_steps=-1))
    error = caught.value
    assert (error.field, error.value, error.status) == ("training_config.max_steps", "-1", 422)
    assert error.expected and error.fix
    with pytest.raises(tiermesh.NotFound):
        cluster.client.get("no-such-job")


def test_the_notebook(cluster: tiermesh.LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cells run in order, with a shorter job."""
    plots = pytest.importorskip("matplotlib.pyplot")
    plots.switch_backend("agg")
    monkeypatch.setattr(tiermesh, "Client", lambda: cluster.client)
    monkeypatch.chdir(NOTEBOOK.parent)
    names: dict[str, Any] = {}
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]).replace("steps = 100", "steps = 2"), names)
    assert names["loss"]["step"].tolist() == [1, 2]
    assert plots.gca().get_ylabel() == "loss"
    plots.close()


def test_without_an_event_loop_and_with_one(cluster: tiermesh.LocalCluster) -> None:
    server = cluster.client._calls
    cluster.client.wait(cluster.job.id)

    async def ask() -> tuple[list[str], list[str]]:
        token = (cluster.state_dir / "web-token").read_text().strip()
        async with tiermesh.AsyncClient(server._url, token=token) as client:
            jobs, events = [each.id async for each in client.jobs()], client.follow(cluster.job.id)
            return jobs, [each.kind async for each in events]

    jobs, kinds = asyncio.run(ask())
    assert jobs == [each.id for each in cluster.client.jobs()]
    assert kinds == ["state"]
