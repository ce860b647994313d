"""The inputs of a job on a worker: found on the host, or read from the aggregator into the cache."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from services.config.job import JobConfig
from services.config.job_inputs import JobInput, input_hashes, inputs_of_job, relocate_inputs
from services.config.load import load_job
from services.config.models import GPT2Config
from services.config.pipeline import PipelineConfig
from services.corpora.conversion import converted
from services.corpora.token_file import TokenFile, TokenFileDamaged, describe_token_file
from services.corpora.writer import new_token_file
from services.errors import Failed, Refused
from services.files.service import FilesServicer
from services.files.store import FileStore
from services.pipeline.split import StageRun
from services.protocol.file_refs import make_ref
from services.transport.access.permissions import FILES_OF_AGGREGATOR
from services.transport.security import Security
from services.transport.server import start_server
from tests.support.cluster.bits import gpt_config, write_config, write_corpus
from training.data.tokenizer import build_character_tokenizer
from worker import job_inputs
from worker.core.events import DamagedInput
from worker.job_inputs import JobInputs

LIMIT_SECONDS = 60
Scenario = Callable[[FileStore, grpc.aio.Channel], Awaitable[None]]
IDS = list(range(50_000))


def with_aggregator(folder: Path, scenario: Scenario) -> None:
    async def run() -> None:
        store = FileStore(folder / "aggregator")
        handlers = FilesServicer(store, FILES_OF_AGGREGATOR).handlers()
        server = await start_server("127.0.0.1:0", Security(), [handlers], ["tiermesh.Files"])
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            await scenario(store, channel)
        await server.stop(0)

    asyncio.run(asyncio.wait_for(run(), LIMIT_SECONDS))


class Reports:
    """What the aggregator is told."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, int, int, str]] = []

    def __call__(self, field: str, here: int, size: int, problem: str) -> None:
        self.lines.append((field, here, size, problem))


@pytest.fixture
def client(tmp_path: Path) -> Path:
    """Return a folder of the host that the job is submitted from."""
    (tmp_path / "client").mkdir()
    return tmp_path / "client"


@pytest.fixture
def job(client: Path) -> JobConfig:
    """Return a job with a corpus and a tokenizer."""
    config = gpt_config(write_corpus(client), tokenizer_type="bpe", tokenizer_path=str(client / "t.json"))
    (client / "t.json").write_text(build_character_tokenizer("ab").to_json())
    return load_job(write_config(client, config), [])[0]


def spec(job: JobConfig) -> str:
    return job.to_json()


def test_the_inputs_of_a_job(job: JobConfig, client: Path) -> None:
    corpus, tokenizer = inputs_of_job(job)
    assert (corpus.field, corpus.path) == ("training_config.data_path", str(client / "corpus.txt"))
    assert (tokenizer.field, tokenizer.path) == ("training_config.tokenizer_path", str(client / "t.json"))
    hashes = {make_ref((client / name).read_bytes()).sha256 for name in ("corpus.txt", "t.json")}
    assert input_hashes(job) == hashes
    moved = inputs_of_job(relocate_inputs(job, {corpus.path: Path("/elsewhere/x.txt")}))
    assert [each.path for each in moved] == ["/elsewhere/x.txt", tokenizer.path]
    assert input_hashes(relocate_inputs(job, {corpus.path: Path("/elsewhere/x.txt")})) == hashes
    assert relocate_inputs(job, {}) == job


def test_a_built_in_text_and_a_job_without_data_have_no_inputs(client: Path) -> None:
    config = gpt_config(Path("builtin:python-reference"))
    assert inputs_of_job(load_job(write_config(client, config), [])[0]) == []


def test_stages_between_the_first_and_the_last_read_no_data(
    job: JobConfig, client: Path, tmp_path: Path
) -> None:
    assert isinstance(job.model, GPT2Config) and job.data is not None and job.vocabulary is not None
    blocks = job.model.model_copy(update={"num_blocks": 4})
    pipeline = PipelineConfig(blocks_per_stage=(1,) * 4)
    split = job.model_copy(update={"model": blocks, "pipeline": pipeline, "num_workers": 4})
    runs = [StageRun(0, 1), StageRun(1, 2), StageRun(2, 2), StageRun(0, 4)]
    assert [len(inputs_of_job(split, run)) for run in runs] == [2, 0, 2, 2]
    client.rename(tmp_path / "gone")
    inputs = JobInputs("w", None, tmp_path / "cache")
    assert [len(asyncio.run(inputs.find_missing(spec(split), run))) for run in runs] == [2, 0, 2, 2]
    data = job.data.model_copy(update={"vocab_size": None})
    unknown = split.model_copy(update={"data": data, "model": blocks.model_copy(update={"vocab_size": None})})
    assert len(inputs_of_job(unknown, StageRun(1, 2))) == 2, "the tokenizer tells the vocabulary"


def test_what_is_on_the_host_is_not_read_from_the_aggregator(
    job: JobConfig, client: Path, tmp_path: Path
) -> None:
    async def missing(**settings: Any) -> list[str]:
        inputs = JobInputs("w", settings.get("data_dir"), tmp_path / "cache")
        return [Path(each.path).name for each in await inputs.find_missing(spec(job))]

    assert asyncio.run(missing()) == []
    data = tmp_path / "data"
    client.rename(data)
    assert asyncio.run(missing()) == ["corpus.txt", "t.json"]
    assert asyncio.run(missing(data_dir=data)) == []
    (data / "t.json").unlink()
    assert asyncio.run(missing(data_dir=data)) == ["t.json"]
    assert asyncio.run(JobInputs("w", None, None).find_missing(spec(job))) == [], "without a cache"
    assert asyncio.run(JobInputs("w", None, tmp_path).find_missing("{")) == [], "who builds the job says why"


def test_inputs_arrive_under_their_own_names_and_stay_in_the_cache(
    job: JobConfig, client: Path, tmp_path: Path
) -> None:
    contents = [(client / name).read_bytes() for name in ("corpus.txt", "t.json")]
    client.rename(tmp_path / "gone")
    inputs = JobInputs("w/1", None, tmp_path / "cache")
    reports = Reports()

    async def scenario(aggregator: FileStore, channel: grpc.aio.Channel) -> None:
        for content in contents:
            aggregator.put(content)
        missing = await inputs.find_missing(spec(job))
        places = await inputs.fetch(missing, channel, "aggregator a", reports)
        assert [path.name for path in places.values()] == ["corpus.txt", "t.json"]
        assert [path.read_bytes() for path in places.values()] == contents
        assert reports.lines[0] == ("training_config.data_path", 0, len(contents[0]), "")
        other = FileStore(tmp_path / "cache", max_store_bytes=1)
        assert not any(other.remove_unkept(make_ref(each).sha256) for each in contents), "they are in use"
        told = len(reports.lines)
        again = await inputs.fetch(missing, channel, "aggregator a", reports)
        assert (again, len(reports.lines)) == (places, told), "nothing is read again"
        inputs.close()
        assert all(other.remove_unkept(make_ref(each).sha256) for each in contents)

    with_aggregator(tmp_path, scenario)


def test_a_file_that_the_disk_has_damaged_is_read_again(
    job: JobConfig, client: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = (client / "corpus.txt").read_bytes()
    (client / "corpus.txt").unlink()
    inputs = JobInputs("w", None, tmp_path / "cache")

    async def scenario(aggregator: FileStore, channel: grpc.aio.Channel) -> None:
        aggregator.put(content)
        missing = await inputs.find_missing(spec(job))
        (place,) = (await inputs.fetch(missing, channel, "a", Reports())).values()
        place.resolve().write_bytes(content[:-1] + b"?")
        (place,) = (await inputs.fetch(missing, channel, "a", Reports())).values()
        assert place.read_bytes() == content

    with_aggregator(tmp_path, scenario)
    assert "was damaged, and is read again" in caplog.text


@pytest.mark.parametrize("damage", ["a block", "cut short", "its description"])
def test_a_file_of_token_ids_that_is_found_damaged_is_read_again(
    client: Path, tmp_path: Path, damage: str
) -> None:
    binary = client / "ids.u32.bin"
    with new_token_file(binary, "uint32", tokenizer_vocab_size=None) as writer:
        writer.write(np.array(IDS, np.uint32))
    sidecar = describe_token_file(binary, "data_path")
    wanted = JobInput("data_path", "/away/ids.u32.bin", {"": sidecar.sha256}, sidecar.identity)
    inputs = JobInputs("w", None, tmp_path / "cache")

    async def scenario(aggregator: FileStore, channel: grpc.aio.Channel) -> None:
        async def open_again() -> TokenFile:
            (place,) = (await inputs.fetch([wanted], channel, "a", Reports())).values()
            return TokenFile.open(place, "data_path", sidecar.identity)

        aggregator.put(binary.read_bytes())
        aggregator.put(sidecar.identity_body())
        (await open_again()).close()
        copy = tmp_path / "cache" / (sidecar.identity if damage == "its description" else sidecar.sha256)
        content = copy.read_bytes()
        copy.write_bytes(content[:-4] if damage == "cut short" else content[:-1] + b"?")
        if damage != "its description":
            with pytest.raises(TokenFileDamaged) as caught:
                (await open_again()).read(0, len(IDS))
            inputs.close()
            await inputs.remove(DamagedInput(str(caught.value.path), caught.value.inode + 1))
            assert copy.exists(), "another file has replaced it"
            await inputs.remove(DamagedInput(str(caught.value.path), caught.value.inode))
            assert not copy.exists()
        tokens = await open_again()
        assert tokens.read(0, len(IDS)).tolist() == IDS
        tokens.close()
        assert copy.read_bytes() == content

    with_aggregator(tmp_path, scenario)


def test_a_file_of_token_ids_is_verified_as_it_arrives_and_not_again(
    client: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary = client / "ids.u32.bin"
    with new_token_file(binary, "uint32", tokenizer_vocab_size=None) as writer:
        writer.write(np.array(IDS, np.uint32))
    sidecar = describe_token_file(binary, "data_path")
    wanted = JobInput("data_path", "/away/ids.u32.bin", {"": sidecar.sha256}, sidecar.identity)
    inputs = JobInputs("w", None, tmp_path / "cache")
    verified: list[Path] = []
    monkeypatch.setattr(TokenFile, "verify", lambda self: verified.append(self.path))

    async def scenario(aggregator: FileStore, channel: grpc.aio.Channel) -> None:
        aggregator.put(binary.read_bytes())
        aggregator.put(sidecar.identity_body())

        async def open_again() -> None:
            (place,) = (await inputs.fetch([wanted], channel, "a", Reports())).values()
            TokenFile.open(place, "data_path", sidecar.identity).close()

        for _ in range(2):
            await open_again()
        assert verified == []
        monkeypatch.setenv("TIERMESH_CACHE", str(tmp_path / "other"))  # nothing says that it was verified
        for _ in range(2):
            await open_again()
        assert len(verified) == 1

    with_aggregator(tmp_path, scenario)


def test_a_damaged_file_of_a_person_stays_and_a_damaged_conversion_goes(
    client: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIERMESH_CACHE", str(tmp_path / "converted"))
    (client / "ids.csv").write_text("3\n4\n5\n")
    inputs = JobInputs("w", None, tmp_path / "cache")
    binary = converted(client / "ids.csv", "data_path")
    binary.write_bytes(bytes(12))
    for path in (client / "ids.csv", binary):
        asyncio.run(inputs.remove(DamagedInput(str(path), path.stat().st_ino)))
    assert (client / "ids.csv").exists()
    assert converted(client / "ids.csv", "data_path").read_bytes()[::4] == b"\3\4\5"


def test_a_file_larger_than_the_cache_names_the_option(job: JobConfig, client: Path, tmp_path: Path) -> None:
    content = (client / "corpus.txt").read_bytes()
    (client / "corpus.txt").unlink()
    inputs = JobInputs("w", None, tmp_path / "cache", cache_bytes=100)

    async def scenario(aggregator: FileStore, channel: grpc.aio.Channel) -> None:
        aggregator.put(content)
        missing = await inputs.find_missing(spec(job))
        with pytest.raises(Refused, match="may have 100 bytes; raise --cache-gb, or give a smaller file"):
            await inputs.fetch(missing, channel, "a", Reports())

    with_aggregator(tmp_path, scenario)


def test_a_file_that_nobody_has_is_told_with_what_to_do(job: JobConfig, client: Path, tmp_path: Path) -> None:
    client.rename(tmp_path / "gone")
    inputs = JobInputs("w", tmp_path / "data", tmp_path / "cache")

    async def scenario(_: FileStore, channel: grpc.aio.Channel) -> None:
        missing = await inputs.find_missing(spec(job))
        with pytest.raises(Failed) as caught:
            await inputs.fetch(missing, channel, "aggregator a", Reports())
        line = str(caught.value)
        for text in ("training_config.data_path", "and in --data", "aggregator a does not have it"):
            assert text in line
        assert "--no-upload" in line and len(line.splitlines()) == 1

    with_aggregator(tmp_path, scenario)


@pytest.mark.parametrize(
    ("name", "has_identity"),
    [("ids.bin", True), ("ids.yaml", True), ("ids.u32.bin", False), ("ids.csv", False)],
)
def test_a_file_of_token_ids_opens_by_its_identity(
    client: Path, tmp_path: Path, name: str, has_identity: bool
) -> None:
    binary = client / "ids.u32.bin"
    with new_token_file(binary, "uint32", tokenizer_vocab_size=None) as writer:
        writer.write(np.array(IDS, np.uint32))
    sidecar = describe_token_file(binary, "data_path")
    wanted = JobInput("data_path", str(tmp_path / "away" / name), {"": sidecar.sha256}, sidecar.identity)
    inputs = JobInputs("w", None, tmp_path / "cache")

    async def scenario(aggregator: FileStore, channel: grpc.aio.Channel) -> None:
        aggregator.put(binary.read_bytes())
        if has_identity:
            assert aggregator.put(sidecar.identity_body()).sha256 == sidecar.identity
        (place,) = (await inputs.fetch([wanted], channel, "a", Reports())).values()
        assert place.with_name(f"{place.name}.sidecar.json").exists() == has_identity
        tokens = TokenFile.open(place, "data_path", sidecar.identity)
        assert tokens.read(0, len(IDS)).tolist() == IDS
        assert tokens.largest_id == IDS[-1]
        tokens.close()
        with pytest.raises(Refused, match="the job expects 0000"):
            TokenFile.open(place, "data_path", "0" * 64)

    with_aggregator(tmp_path, scenario)


BAD_PATHS = {
    "a NUL byte": "/data/a\0b.txt",
    "half a character": "/data/\ud800.txt",
    "a long name": f"/data/{'n' * 300}",
    "a name that leaves the folder": "/data/..",
}


@pytest.mark.parametrize("path", BAD_PATHS.values(), ids=BAD_PATHS)
def test_a_path_that_no_file_can_have_fails_by_one_line(path: str, client: Path, tmp_path: Path) -> None:
    async def scenario(store: FileStore, channel: grpc.aio.Channel) -> None:
        ref = make_ref(b"corpus")
        with store.begin(ref, 0) as upload:
            upload.write(b"corpus")
            upload.finish()
        inputs = JobInputs("w", tmp_path / "data", tmp_path / "cache")
        wanted = JobInput("training_config.data_path", path, {"": ref.sha256})
        assert inputs._find(wanted) is None
        with pytest.raises(Failed) as failed:
            await inputs.fetch([wanted], channel, "aggregator x", Reports())
        line = str(failed.value)
        assert line.startswith("training_config.data_path: ") and line.isprintable(), line

    with_aggregator(client, scenario)


def test_a_loop_of_links_is_no_file_on_this_host(job: JobConfig, client: Path, tmp_path: Path) -> None:
    (client / "corpus.txt").unlink()
    (client / "corpus.txt").symlink_to(client / "corpus.txt")
    missing = asyncio.run(JobInputs("w", None, tmp_path / "cache").find_missing(spec(job)))
    assert [Path(each.path).name for each in missing] == ["corpus.txt"]


@pytest.mark.parametrize(
    "content", [b'{"a":[' + b"[]," * 3_000_000 + b"[]]}", b"[" * 100_000, b"{}", b"\0" * 1000]
)
def test_a_file_that_is_no_description_of_token_ids_is_refused_by_one_line(
    content: bytes, client: Path, tmp_path: Path
) -> None:
    async def scenario(store: FileStore, channel: grpc.aio.Channel) -> None:
        ids, other = make_ref(b"ids!"), make_ref(content)
        for ref, data in ((ids, b"ids!"), (other, content)):
            with store.begin(ref, 0) as upload:
                upload.write(data)
                upload.finish()
        inputs = JobInputs("w", None, tmp_path / "cache")
        wanted = JobInput("training_config.data_path", "/gone/ids.bin", {"": ids.sha256}, other.sha256)
        tracemalloc.start()
        try:
            with pytest.raises(Refused, match=r"^training_config.data_path: .*is no sidecar of a token file"):
                await inputs.fetch([wanted], channel, "aggregator x", Reports())
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak_bytes < 5 * len(content) + (100 << 20)

    with_aggregator(client, scenario)


def test_a_file_too_large_for_a_description_is_not_read_whole(
    client: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_inputs, "IDENTITY_BYTES", 1000)

    async def scenario(store: FileStore, channel: grpc.aio.Channel) -> None:
        ref = make_ref(b"x" * 1001)
        with store.begin(ref, 0) as upload:
            upload.write(b"x" * 1001)
            upload.finish()
        wanted = JobInput("training_config.data_path", "/gone/ids.bin", {"": ref.sha256}, ref.sha256)
        with pytest.raises(Refused, match="has more than 1000 bytes"):
            await JobInputs("w", None, tmp_path / "cache").fetch([wanted], channel, "aggregator x", Reports())

    with_aggregator(client, scenario)
