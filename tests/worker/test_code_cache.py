"""Copies of jobs' code in a worker's cache: made once, kept for the job, checked, bounded; and what is refused."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from services.config.job import JobConfig
from services.config.job_parts import CodeConfig
from services.config.load import load_job
from services.errors import Failed, Refused
from services.files.code_archive import hash_archive, pack_code
from services.protocol.bounds import BOUNDS
from worker import code_cache
from worker.code_cache import CodeCache, OwnCode, describe_own_code

FIRST, SECOND = b"VALUE = 1\n", b"VALUE = 2\n"


@pytest.fixture
def config(tmp_path: Path) -> JobConfig:
    (tmp_path / "text.txt").write_text("some text\n" * 100)
    path = tmp_path / "job.yaml"
    model = {"model_type": "own_model:Model", "max_sequence_length": 32}
    path.write_text(
        yaml.safe_dump({"training_config": {"data_path": "text.txt"}, "transformer_config": model})
    )
    return load_job(path, [])[0]


@pytest.fixture
def edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """Write the installed module."""
    (tmp_path / "path").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path / "path"))

    def write(content: bytes) -> None:
        (tmp_path / "path" / "own_model.py").write_bytes(content)

    return write


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., CodeCache]]:
    """Make caches in one folder, as the workers of a host."""
    made: list[CodeCache] = []

    def cache(folder: str = "cache", **settings: bool) -> CodeCache:
        made.append(CodeCache(tmp_path / folder, ["own_model"], **settings))
        return made[-1]

    yield cache
    for each in made:
        each.close()


def code_of(own: OwnCode | None) -> bytes:
    assert own is not None and own.folder is not None
    return (own.folder / "own_model.py").read_bytes()


def send(config: JobConfig, folder: Path, files: dict[str, bytes]) -> JobConfig:
    """Return the job with an archive of code, which is on this host."""
    archive = pack_code(files)
    (folder / "archive").write_bytes(archive)
    code = CodeConfig(path=str(folder / "archive"), sha256=hash_archive(archive))
    return config.model_copy(update={"code": code})


# ---- installed code ----


def test_a_job_keeps_the_code_of_its_first_build_and_another_gets_the_edited_one(
    config: JobConfig, edit: Callable[[bytes], None], make: Callable[..., CodeCache]
) -> None:
    edit(FIRST)
    cache = make()
    first = cache.prepare("job-1", config)
    assert code_of(first) == FIRST
    cache.begin()
    edit(SECOND)
    assert code_of(cache.prepare("job-2", config)) == SECOND
    assert cache.prepare("job-1", config) == first
    cache.close()
    assert make().prepare("job-1", config) == first, "after a restart"
    edit(b"")
    assert code_of(make("another").prepare("job-1", config)) == b"", "another host has its own"


def test_a_job_that_has_leased_nothing_gets_edited_code(
    config: JobConfig, edit: Callable[[bytes], None], make: Callable[..., CodeCache]
) -> None:
    """So files that were refused, as they differ from the job's, can be replaced."""
    edit(FIRST)
    cache = make()
    assert code_of(cache.prepare("job-1", config)) == FIRST
    edit(SECOND)
    assert code_of(cache.prepare("job-1", config)) == SECOND


def test_workers_of_one_host_share_a_copy_from_the_first_build_on(
    config: JobConfig, edit: Callable[[bytes], None], make: Callable[..., CodeCache]
) -> None:
    edit(FIRST)
    first, second = make(), make()
    copy = first.prepare("job-1", config)
    edit(SECOND)
    assert second.prepare("job-1", config) == copy


def test_a_worker_that_never_ends_its_copy_holds_up_no_other_for_ever(
    config: JobConfig,
    edit: Callable[[bytes], None],
    make: Callable[..., CodeCache],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    edit(FIRST)
    cache = make()
    copy = cache.prepare("job-1", config)
    assert copy is not None and copy.folder is not None
    cache.close()
    monkeypatch.setattr(code_cache, "COPY_SECONDS", 0.1)
    lock = os.open(copy.folder.parent, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(Failed, match="has not copied the job's code"):
            cache.prepare("job-1", config)
    finally:
        os.close(lock)
    assert cache.prepare("job-1", config) == copy


def test_a_damaged_copy_is_made_again_unless_another_worker_uses_it(
    config: JobConfig, edit: Callable[[bytes], None], make: Callable[..., CodeCache]
) -> None:
    edit(FIRST)
    first, second = make(), make()
    copy = first.prepare("job-1", config)
    assert copy is not None and copy.folder is not None
    first.begin()
    (copy.folder / "own_model.py").write_bytes(SECOND)
    with pytest.raises(Failed, match="is damaged, and another worker uses it"):
        second.prepare("job-1", config)
    first.close()
    assert second.prepare("job-1", config) == copy and code_of(copy) == FIRST


def test_bytecode_and_unfinished_copies_are_no_damage(
    config: JobConfig, edit: Callable[[bytes], None], make: Callable[..., CodeCache]
) -> None:
    edit(FIRST)
    cache = make()
    copy = cache.prepare("job-1", config)
    assert copy is not None and copy.folder is not None
    cache.begin()
    (copy.folder / "__pycache__").mkdir()
    (copy.folder / "__pycache__/own_model.pyc").write_bytes(b"x")
    (copy.folder.parent / f"{'0' * 64}.new").mkdir()
    edit(SECOND)
    assert cache.prepare("job-1", config) == copy and code_of(copy) == FIRST


def test_the_facts_name_the_file_that_differs(
    config: JobConfig, edit: Callable[[bytes], None], make: Callable[..., CodeCache]
) -> None:
    facts = []
    for content in (FIRST, SECOND, SECOND + b"# a comment\n"):
        edit(content)
        own = make().prepare(f"job-{len(facts)}", config)
        assert own is not None
        facts.append(own.facts)
    assert list(facts[0]) == ["own code own_model.py"] and facts[0] != facts[1] == facts[2]


def test_the_number_of_copies_is_bounded_and_none_goes_that_is_used(
    config: JobConfig,
    edit: Callable[[bytes], None],
    make: Callable[..., CodeCache],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(code_cache, "MOST_JOBS", 2)
    edit(FIRST)
    user, cache = make(), make()
    user.prepare("used", config)
    os.utime(tmp_path / "cache/code/used", (1, 1))
    for number in range(4):
        cache.prepare(f"job-{number}", config)
        os.utime(tmp_path / f"cache/code/job-{number}", (2 + number, 2 + number))
    assert sorted(each.name for each in (tmp_path / "cache/code").iterdir()) == ["job-2", "job-3", "used"]


def test_without_a_folder_for_the_cache_a_temporary_one_is_used(
    config: JobConfig, edit: Callable[[bytes], None]
) -> None:
    edit(FIRST)
    cache = CodeCache(None, ["own_model:Model"])
    own = cache.prepare("job-1", config)
    assert code_of(own) == FIRST and own is not None and own.folder is not None
    cache.close()
    assert not own.folder.exists()


def test_a_disk_that_can_not_be_written_is_a_failure_that_may_pass(
    config: JobConfig, edit: Callable[[bytes], None], make: Callable[..., CodeCache], tmp_path: Path
) -> None:
    edit(FIRST)
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(Failed, match=r"the job's code can't be copied to .*cache/code \(Not a directory\)"):
        make().prepare("job-1", config)


# ---- refusals ----


def test_a_module_that_is_not_allowed_is_not_copied(config: JobConfig, edit: Callable[[bytes], None]) -> None:
    edit(FIRST)
    with pytest.raises(
        Refused, match=r"own_model:Model: not allowed on this worker.*--allow-models own_model"
    ):
        CodeCache(None, ["other"]).prepare("job-1", config)


def test_a_model_that_is_not_installed_is_left_to_its_import(
    config: JobConfig, make: Callable[..., CodeCache]
) -> None:
    assert make().prepare("job-1", config) == OwnCode(None, {})


def test_code_that_is_too_much_is_refused_by_the_models_name(
    config: JobConfig, edit: Callable[[bytes], None], make: Callable[..., CodeCache]
) -> None:
    edit(b"#" * (16 << 20) + b"#")
    with pytest.raises(
        Refused, match=r"^transformer_config\.model_type: own_model: .*own_model\.py: with it"
    ):
        make().prepare("job-1", config)


# ---- code that is sent ----


def test_code_that_is_sent_is_unpacked_where_it_is_accepted(
    config: JobConfig, edit: Callable[[bytes], None], make: Callable[..., CodeCache], tmp_path: Path
) -> None:
    """Whatever is installed or allowed."""
    edit(FIRST)
    sent = send(config, tmp_path, {"own_model.py": SECOND, "deep/words.txt": b""})
    own = make(accepts_code=True).prepare("job-1", sent)
    assert code_of(own) == SECOND and own is not None and own.folder is not None
    assert (own.folder / "deep/words.txt").exists()
    (tmp_path / "archive").unlink()
    assert make(accepts_code=True).prepare("job-1", sent) == own, "later builds need no archive"


def test_a_worker_that_accepts_no_code_refuses_it_in_one_line(
    config: JobConfig, edit: Callable[[bytes], None], make: Callable[..., CodeCache], tmp_path: Path
) -> None:
    edit(FIRST)
    sent = send(config, tmp_path, {"own_model.py": SECOND})
    with pytest.raises(
        Refused, match=r"^--code: this worker imports no code .* --accept-code, or install own_model"
    ):
        make().prepare("job-1", sent)
    assert not (tmp_path / "cache").exists()


def test_an_archive_that_lies_is_refused(
    config: JobConfig, make: Callable[..., CodeCache], tmp_path: Path
) -> None:
    cache = make(accepts_code=True)
    sent = send(config, tmp_path, {"own_model.py": SECOND})
    (tmp_path / "archive").write_bytes(pack_code({"own_model.py": FIRST}))
    with pytest.raises(Refused, match=r"^--code: the archive has another SHA-256 than"):
        cache.prepare("job-1", sent)
    for content, reason in (
        (b"garbage", "the archive of code has no line with its files"),
        (b'{"code":1,"files":[["../../own_model.py",0]]}\n', "expected a name below the folder"),
        (b'{"code":1,"files":[["/tmp/own_model.py",0]]}\n', "expected a name below the folder"),
    ):
        (tmp_path / "archive").write_bytes(content)
        code = CodeConfig(path=str(tmp_path / "archive"), sha256=hash_archive(content))
        with pytest.raises(Refused, match=f"^--code: .*{reason}"):
            cache.prepare("job-1", config.model_copy(update={"code": code}))
    assert not list((tmp_path / "cache/code/job-1").iterdir()), "nothing was written"


def test_a_path_that_the_job_names_is_not_taken_for_the_code(
    config: JobConfig, make: Callable[..., CodeCache], tmp_path: Path
) -> None:
    """Without the archive, there is nothing to import, whatever lies at the submitter's path."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "own_model.py").write_bytes(SECOND)
    code = CodeConfig(path=str(tmp_path / "folder"), sha256="0" * 64)
    with pytest.raises(Refused, match=r"^--code: .*is a folder, expected a regular file"):
        make(accepts_code=True).prepare("job-1", config.model_copy(update={"code": code}))


# ---- the fingerprint ----

OWN = "/".join(("models", "own.py"))


def test_an_own_models_files_are_named_its_module_first() -> None:
    files = {f"{name}.py": b"x = 1\n" for name in "abcdefghijk"} | {
        OWN: b"y = 1\n",
        "words.json": b"[]",
    }
    facts = describe_own_code("models.own", files)
    assert list(facts)[:2] == [f"own code {OWN}", "own code a.py"] and len(facts) == 9
    assert facts["own code"].endswith("(5 more files)")
    for name, content in ((OWN, b"y = 2\n"), ("k.py", b"x = 2\n"), ("words.json", b"[ ]")):
        changed = describe_own_code("models.own", {**files, name: content})
        assert [key for key in facts if facts[key] != changed[key]] == [
            f"own code {name}" if name == OWN else "own code"
        ]
    assert describe_own_code("models.own", {**files, "k.py": b"x = 1  # same\n"}) == facts


def test_the_facts_of_an_own_model_fit_a_message() -> None:
    long = "é" * 200
    facts = describe_own_code(
        "own", {f"{long[:length]}.py": b"" for length in range(1, 196)} | {"own.py": b""}
    )
    bound = BOUNDS["fingerprint"]
    assert len(facts) + 20 <= bound.count
    assert all(len(each.encode()) <= bound.bytes for item in facts.items() for each in item)
