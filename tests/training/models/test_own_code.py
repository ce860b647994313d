"""The import of own models from a folder, in place of what is installed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.files.code_folder import write_code_folder
from training.models.own_code import import_own_code_from

PACKAGE, SPACE = "own_package", "own_space"


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Forget what a test has imported, as the end of its process would."""
    modules, finders = set(sys.modules), list(sys.meta_path)
    yield
    sys.meta_path[:] = finders
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def value_of(module: str) -> object:
    return importlib.import_module(module).VALUE


def test_a_job_gets_the_code_of_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    for name in ("installed", "copy"):
        parts = {"own_parts.py": f"VALUE = {name!r}\n".encode(), f"{PACKAGE}/__init__.py": b""}
        model = b"from own_parts import VALUE\n"
        write_code_folder(tmp_path / name, {"own_model.py": model, f"{PACKAGE}/deep.py": model, **parts})
    import_own_code_from(tmp_path / "copy")
    assert value_of("own_model") == value_of("own_package.deep") == "copy"
    assert Path(sys.modules["own_parts"].__file__ or "").parent == tmp_path / "copy"


def test_what_is_not_in_the_folder_is_imported_from_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a module of a namespace package, of which the folder has another one."""
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    model = b"from own_space.there import VALUE\nimport own_beside\n"
    write_code_folder(
        tmp_path / "installed",
        {
            f"{SPACE}/there.py": b"VALUE = 1\n",
            "own_beside.py": b"",
            f"{SPACE}/own_model.py": b"VALUE = 0\n",
        },
    )
    write_code_folder(tmp_path / "copy", {f"{SPACE}/own_model.py": model})
    import_own_code_from(tmp_path / "copy")
    assert value_of("own_space.own_model") == 1


def test_modules_of_python_and_tiermesh_can_not_be_replaced(tmp_path: Path) -> None:
    names = ("json", "training", "cli", "queue")
    write_code_folder(tmp_path / "copy", {f"{name}.py": b"VALUE = 1\n" for name in names})
    before = {name: sys.modules.get(name) for name in names}
    import_own_code_from(tmp_path / "copy")
    for name in names:
        assert not hasattr(importlib.import_module(name), "VALUE")
        assert before[name] in (None, sys.modules[name]), "it is not imported again"
