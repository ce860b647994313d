"""Downloads of checkpoints: complete and verified, or absent."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

import tiermesh
from tests.support.web_api import Answer, WebApi, answer_json, problem

ID = "1127-100000-aaaa"
CHECKPOINTS = f"/v1/jobs/{ID}/checkpoints"
FILES = {"model.safetensors": b"weights" * 1000, "config.json": b"{}", "empty": b""}


def listed(step: int, files: dict[str, bytes] = FILES) -> dict[str, Any]:
    described = {
        name: {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
        for name, content in files.items()
    }
    return {"step": step, "files": described}


def whole(content: bytes, **options: Any) -> Answer:
    return Answer(206, content, **options)


@pytest.fixture
def checkpoint(api: WebApi) -> None:
    """Two checkpoints; their files come with the newer one."""
    api.put(
        "GET",
        CHECKPOINTS,
        answer_json({"checkpoints": [listed(8)], "next_before": 8}),
        answer_json({"checkpoints": [listed(4)], "next_before": None}),
    )
    for name, content in FILES.items():
        api.put("GET", f"{CHECKPOINTS}/8/{name}", whole(content))


def names(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()}


@pytest.mark.usefixtures("checkpoint")
class TestDownload:
    """A checkpoint that arrives."""

    def test_the_newest(self, client: Any, tmp_path: Path) -> None:
        place = client.download(ID, tmp_path / "model")
        assert place == tmp_path / "model" / "step-00000008"
        assert {each.name: each.read_bytes() for each in place.iterdir()} == FILES
        assert names(tmp_path / "model") == {"step-00000008"}

    def test_one_of_a_step(self, client: Any, api: WebApi, tmp_path: Path) -> None:
        for name, content in FILES.items():
            api.put("GET", f"{CHECKPOINTS}/4/{name}", whole(content))
        assert client.download(ID, tmp_path, step=4).name == "step-00000004"
        assert [each.query for each in api.asked("GET", CHECKPOINTS)] == [{}, {"before": ["8"]}]

    def test_one_that_does_not_exist(self, client: Any, tmp_path: Path) -> None:
        with pytest.raises(tiermesh.NotFound, match="no checkpoint of step 5"):
            client.download(ID, tmp_path, step=5)

    def test_a_transfer_that_breaks_goes_on_where_it_was(
        self, client: Any, api: WebApi, tmp_path: Path
    ) -> None:
        name, content = "model.safetensors", FILES["model.safetensors"]
        path = f"{CHECKPOINTS}/8/{name}"
        api.put(
            "GET",
            path,
            whole(content, breaks_after=3000),
            problem(503, "away", "away"),
            whole(content[3000:]),
        )
        place = client.download(ID, tmp_path)
        assert (place / name).read_bytes() == content
        asked = [each.headers["range"] for each in api.asked("GET", path)]
        assert asked[0] == "bytes=0-"
        assert asked[2] == "bytes=3000-"

    def test_a_later_download_goes_on(self, client: Any, api: WebApi, tmp_path: Path) -> None:
        path = f"{CHECKPOINTS}/8/model.safetensors"
        api.put("GET", path, problem(404, "not-found", "gone"))
        del api.answers["GET", f"{CHECKPOINTS}/8/empty"]
        with pytest.raises(tiermesh.NotFound):
            client.download(ID, tmp_path)
        (partial,) = tmp_path.iterdir()
        (partial / "model.safetensors").write_bytes(FILES["model.safetensors"][:10])
        (partial / "config.json").write_bytes(FILES["config.json"])
        api.put("GET", path, whole(FILES["model.safetensors"][10:]))
        api.put("GET", CHECKPOINTS, answer_json({"checkpoints": [listed(8)], "next_before": None}))
        api.received.clear()
        place = client.download(ID, tmp_path)
        assert (place / "model.safetensors").read_bytes() == FILES["model.safetensors"]
        assert [each.path.rpartition("/")[2] for each in api.received] == ["checkpoints", "model.safetensors"]

    def test_a_server_that_ignores_ranges(self, client: Any, api: WebApi, tmp_path: Path) -> None:
        content = FILES["model.safetensors"]
        path = f"{CHECKPOINTS}/8/model.safetensors"
        api.put("GET", path, whole(content, breaks_after=3000), Answer(200, content))
        assert (client.download(ID, tmp_path) / "model.safetensors").read_bytes() == content

    @pytest.mark.parametrize(
        ("answer", "text"),
        [
            (whole(b"w" * len(FILES["model.safetensors"])), "SHA-256"),
            (whole(FILES["model.safetensors"] + b"more"), "more than"),
        ],
    )
    def test_another_file_than_the_one_listed(
        self, client: Any, api: WebApi, tmp_path: Path, answer: Answer, text: str
    ) -> None:
        api.put("GET", f"{CHECKPOINTS}/8/model.safetensors", answer)
        with pytest.raises(tiermesh.Failed, match=text):
            client.download(ID, tmp_path)
        assert not (tmp_path / "step-00000008").exists()

    def test_a_folder_that_has_it(self, client: Any, api: WebApi, tmp_path: Path) -> None:
        place = client.download(ID, tmp_path)
        api.put("GET", CHECKPOINTS, answer_json({"checkpoints": [listed(8)], "next_before": None}))
        with pytest.raises(tiermesh.Refused) as caught:
            client.download(ID, tmp_path)
        assert (caught.value.field, caught.value.value) == ("folder", str(place))

    def test_a_folder_that_can_not_be_made(self, client: Any, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(tiermesh.Refused, match="can be written"):
            client.download(ID, tmp_path / "file")


def test_a_job_without_checkpoints(client: Any, api: WebApi, tmp_path: Path) -> None:
    api.put("GET", CHECKPOINTS, answer_json({"checkpoints": [], "next_before": None}))
    with pytest.raises(tiermesh.NotFound, match="no checkpoint"):
        client.download(ID, tmp_path)


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/b", ".hidden", "", "a\nb", "x" * 300])
def test_names_that_leave_the_folder(client: Any, api: WebApi, tmp_path: Path, name: str) -> None:
    api.put("GET", CHECKPOINTS, answer_json({"checkpoints": [listed(8, {name: b""})], "next_before": None}))
    with pytest.raises(tiermesh.Failed, match="plain names"):
        client.download(ID, tmp_path)
    assert not list(tmp_path.iterdir())
