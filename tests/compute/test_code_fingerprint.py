"""The hash of the code that computes: what changes it, what doesn't, which files it covers."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from compute import code_fingerprint
from compute.code_fingerprint import COMPUTING, NOT_COMPUTING, ROOT, hash_code, shipped_files


def test_the_lists_name_what_is_there_and_all_that_trains_is_in() -> None:
    for part in (*COMPUTING, *NOT_COMPUTING):
        assert (ROOT / part).exists(), part
    names = {str(file.relative_to(ROOT)) for file in shipped_files()}
    for needed in (
        "training/step.py",
        "training/seeds.py",
        "training/ops/linear.py",
        "training/modules/attention.py",
        "training/models/gpt2.py",
        "training/data/tokens.py",
        "mesh/emulator/softmax.py",
        "mesh/transfer.py",
        "services/pipeline/schedule.py",
        "services/config/windows.py",
        "services/corpora/token_file.py",
    ):
        assert needed in names, needed
    assert not names & {"training/generation/generate.py", "mesh/fingerprint.py", "worker/service.py"}


def test_what_computes_imports_of_what_is_left_out_only_what_changes_no_bits() -> None:
    """These choose a file, word an error or state facts."""
    left_out = {each.removesuffix(".py").replace("/", ".") for each in NOT_COMPUTING}
    imported = {
        (module_of(file), part)
        for file in shipped_files()
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module
        for part in left_out
        if f"{node.module}.".startswith(f"{part}.")
    }
    assert imported == {
        ("mesh.backend", "mesh.descriptors"),
        ("mesh.device", "mesh.descriptors"),
        ("mesh.device", "mesh.ttnn_errors"),
        ("training.pipeline.activation_memory", "mesh.memory"),
        ("training.step", "mesh.fingerprint"),
    }


def test_of_what_gives_a_micro_batch_its_tokens_only_what_a_job_pins_is_left_out() -> None:
    """A job's config is in its spec; the description of a file of ids is in the file's identity."""
    names = {str(file.relative_to(ROOT)) for file in shipped_files()}
    used, seen = {each for each in names if each.startswith("training/data/")}, set[str]()
    while used - seen:
        seen |= used
        used = {each for name in used & names for each in imported_services(ROOT / name)}
    assert seen - names == {
        "services/config/job_parts.py",
        "services/config/models.py",
        "services/corpora/binary_format.py",
        "services/corpora/block_digest.py",
        "services/corpora/conversion.py",
        "services/corpora/description.py",
        "services/corpora/reading_progress.py",
        "services/corpora/sidecar.py",
        "services/corpora/verified.py",
        "services/errors.py",
        "services/input_files.py",
        "services/json_text.py",
        "services/printable.py",
    }


def imported_services(file: Path) -> set[str]:
    """Return the files of `services` that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("services."):
            folder = node.module.replace(".", "/")
            places = [f"{folder}/{each.name}.py" for each in node.names]
            found |= {each if (ROOT / each).exists() else f"{folder}.py" for each in places}
    return found


def module_of(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts)


def test_the_emulator_counts_only_where_it_computes() -> None:
    assert hash_code("emulator") != hash_code("ttnn")
    assert not any("emulator" in file.parts for file in shipped_files("ttnn"))


@pytest.mark.parametrize(
    "part", ["training/step.py", "mesh/emulator/softmax.py", "services/pipeline/schedule.py"]
)
def test_a_change_of_any_file_changes_the_hash(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    before = hash_code("emulator")
    read = Path.read_bytes
    changed = ROOT / part
    monkeypatch.setattr(
        Path, "read_bytes", lambda file: read(file) + (b"\nX = 1\n" if file == changed else b"")
    )
    code_fingerprint._hash_shipped_files.cache_clear()
    try:
        assert hash_code("emulator") != before
    finally:
        code_fingerprint._hash_shipped_files.cache_clear()


def test_the_number_of_the_arithmetic_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = hash_code("emulator")
    monkeypatch.setattr(code_fingerprint, "ARITHMETIC", code_fingerprint.ARITHMETIC + 1)
    assert hash_code("emulator") != before
