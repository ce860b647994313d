"""The hash of the code that computes: what changes it, what doesn't, which files it covers."""

from __future__ import annotations

import ast
import importlib
import py_compile
import sys
import zipfile
from collections.abc import Callable, Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from services.errors import Refused
from worker import code_fingerprint
from worker.code_fingerprint import COMPUTING, NOT_COMPUTING, ROOT, hash_code, hash_source, shipped_files

BASE = b'''
"""A module."""
EPSILON = 1e-5
"""Added."""

def f(x: float) -> float:
    """Return it."""
    return x * 2  # twice
'''


@pytest.mark.parametrize(
    "source",
    [
        BASE.replace(b"# twice", b"# two times"),
        BASE.replace(b'"""A module."""', b""),
        BASE.replace(b'    """Return it."""\n', b""),
        BASE.replace(b'"""Added."""', b'"""Added to the variance."""'),
        BASE.replace(b"x * 2", b"(x  *  2)"),
        BASE.replace(b"\n", b"\r\n"),
        b"\n\n\n" + BASE,
        BASE.replace(b"1e-5", b"0.00001"),
    ],
)
def test_comments_docstrings_and_formatting_do_not_count(source: bytes) -> None:
    assert hash_source(source) == hash_source(BASE)


@pytest.mark.parametrize(
    "source",
    [
        BASE.replace(b"1e-5", b"1e-6"),
        BASE.replace(b"x * 2", b"2 * x"),
        BASE.replace(b"x * 2", b"x * 2.0"),
        BASE.replace(b"x * 2", b"x * True"),
        BASE.replace(b"return x", b"return -x"),
        BASE + b"\nimport math\n",
        b"no python (",
    ],
)
def test_what_computes_counts(source: bytes) -> None:
    assert hash_source(source) != hash_source(BASE)


def test_every_kind_of_statement_is_told_apart() -> None:
    """Each change of one constant or operator anywhere in the code that computes gives another hash."""
    source = (ROOT / "mesh/emulator/softmax.py").read_text()
    tree = ast.parse(source)
    numbers = [
        each for each in ast.walk(tree) if isinstance(each, ast.Constant) and type(each.value) in (int, float)
    ]
    assert numbers
    for each in numbers:
        value, each.value = each.value, each.value + 1
        assert hash_source(ast.unparse(tree).encode()) != hash_source(source.encode())
        each.value = value
    assert hash_source(ast.unparse(tree).encode()) == hash_source(source.encode())


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


# ---- a user's own model ----


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Write modules into a folder, import one and return the hash of its code."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write_and_hash(module: str, **sources: str) -> str:
        for name in set(sys.modules) - before:
            del sys.modules[name]
        for name, text in sources.items():
            file = tmp_path / f"{name.replace('__', '/')}.py"
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
        code_fingerprint._read_own.cache_clear()  # as in another process
        importlib.invalidate_caches()
        importlib.import_module(module)
        return hash_code("emulator", module)

    yield write_and_hash
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_an_own_model_counts_with_what_it_imports_beside_it(write: Callable[..., str]) -> None:
    own = "from own_layers import scale\nimport numpy\nfrom training.api import ops\n"
    first = write("own_model", own_model=own, own_layers="scale = 2\n", own_other="x = 1\n")
    assert first != hash_code("emulator")
    assert write("own_model", own_layers="scale = 2  # same\n", own_other="x = 2\n") == first
    assert write("own_model", own_layers="scale = 3\n") != first
    assert write("own_model", own_model=own + "y = 1\n", own_layers="scale = 2\n") != first


def test_modules_of_an_own_package_count(write: Callable[..., str]) -> None:
    model = "from . import parts\nfrom .parts import deep\n"
    first = write("own_package.model", own_package__model=model, own_package__parts="deep = 1\n")
    assert write("own_package.model", own_package__parts="deep = 2\n") != first


@pytest.mark.parametrize("suffix", ["pyc", "so"])
def test_compiled_modules_of_an_own_model_count_by_their_bytes(
    write: Callable[..., str], tmp_path: Path, suffix: str
) -> None:
    place = tmp_path / ("own_layers.pyc" if suffix == "pyc" else f"own_layers{EXTENSION_SUFFIXES[0]}")
    place.write_bytes(b"\0first")
    first = write("own_model", own_model="def later():\n    import own_layers\n")
    place.write_bytes(b"\0second")
    assert write("own_model") != first


def test_an_extension_counts_in_place_of_the_source_that_it_hides(
    write: Callable[..., str], tmp_path: Path
) -> None:
    source = write("own_model", own_model="def later():\n    import own_layers\n", own_layers="scale = 1\n")
    (tmp_path / f"own_layers{EXTENSION_SUFFIXES[0]}").write_bytes(b"\0compiled")
    assert write("own_model") != source


def test_a_model_without_its_source_counts_by_its_bytecode(write: Callable[..., str], tmp_path: Path) -> None:
    def compile_alone(text: str) -> str:
        source = tmp_path / "source.txt"
        source.write_text(text)
        py_compile.compile(str(source), cfile=str(tmp_path / "own_model.pyc"))
        return write("own_model")

    assert compile_alone("scale = 1\n") != compile_alone("scale = 2\n")


def test_a_model_in_an_archive_is_refused(
    write: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(tmp_path / "models.zip", "w") as archive:
        archive.writestr("own_model.py", "scale = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path / "models.zip"))
    with pytest.raises(Refused, match="own_model: its code is in no file of its own"):
        write("own_model")


def test_installed_packages_beside_an_own_model_do_not_count(
    tmp_path: Path, write: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "site-packages"
    installed.mkdir()
    monkeypatch.syspath_prepend(str(installed))
    (installed / "someones.py").write_text("x = 1\n")
    first = write("own_model", own_model="import someones\n")
    (installed / "someones.py").write_text("x = 2\n")
    assert write("own_model") == first


def test_a_running_process_keeps_the_hash_of_the_code_it_imported(
    tmp_path: Path, write: Callable[..., str]
) -> None:
    first = write("own_model", own_model="import own_layers\n", own_layers="scale = 2\n")
    (tmp_path / "own_layers.py").write_text("scale = 3\n")
    assert hash_code("emulator", "own_model") == first, "the module in memory is the old one"
    assert write("own_model") != first, "a new process imports the new one"


def test_what_is_imported_later_counts_from_the_start(write: Callable[..., str]) -> None:
    """Else two workers would differ by what they ran before."""
    own = "def build():\n    import own_layers\n"
    first = write("own_model", own_model=own, own_layers="scale = 2\n")
    assert write("own_model", own_layers="scale = 3\n") != first


def test_a_model_that_imports_too_much_is_refused(
    write: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_fingerprint, "MOST_OWN_FILES", 1)
    with pytest.raises(Refused, match="imports more than 1 files"):
        write("own_model", own_model="import own_layers\n", own_layers="x = 1\n")
