"""Which installed files a job's first build copies."""

from __future__ import annotations

import py_compile
import sys
import zipfile
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from services.errors import Refused
from services.files import code_archive
from worker.own_modules import read_own_modules

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Write files into a folder of `sys.path`."""
    monkeypatch.syspath_prepend(str(tmp_path / "path"))

    def write(sources: dict[str, str]) -> None:
        for name, text in sources.items():
            file = tmp_path / "path" / f"{name}.py"
            file.parent.mkdir(exist_ok=True, parents=True)
            file.write_text(text)

    return write


def names(module: str) -> list[str]:
    """Return the names of an own model's files, those of sources without their suffix."""
    return sorted(name.removesuffix(".py") for name in read_own_modules(module))


def test_a_module_outside_of_packages_with_what_it_imports_beside_it(install: Install) -> None:
    own = "from own_layers import scale\nimport numpy\nfrom training.api import ops\n"
    install({"own_model": own, "own_layers": "scale = 2\n", "own_other": "x = 1\n"})
    assert read_own_modules("own_model") == {"own_model.py": own.encode(), "own_layers.py": b"scale = 2\n"}
    assert "own_model" not in sys.modules, "nothing is run"


def test_a_package_with_its_data_and_subpackages_but_not_its_neighbours(
    install: Install, tmp_path: Path
) -> None:
    install(
        {
            "own/models/model": "from own.util import x\n",
            "own/models/deep/parts": "",
            "own/util": "",
            "own/other": "",
        }
    )
    install({"own/util": "import own_beside\n", "own_beside": "", "own/__init__": ""})
    (tmp_path / "path/own/models/words.json").write_text("[]")
    assert names("own.models.model") == [
        "own/__init__",
        "own/models/deep/parts",
        "own/models/model",
        "own/models/words.json",
        "own/util",
        "own_beside",
    ]


def test_relative_imports_and_those_that_happen_later_count(install: Install) -> None:
    install(
        {
            "own/__init__": "",
            "own/models/__init__": "def later():\n    from .. import parts\n",
            "own/parts": "",
        }
    )
    assert names("own.models") == ["own/__init__", "own/models/__init__", "own/parts"]


def test_compiled_modules_count(install: Install, tmp_path: Path) -> None:
    """An extension hides the source beside it."""
    install({"own_model": "import own_layers, own_bytes\n", "own_layers": "", "source": "x = 1\n"})
    extension = f"own_layers{EXTENSION_SUFFIXES[0]}"
    (tmp_path / "path" / extension).write_bytes(b"\0compiled")
    py_compile.compile(str(tmp_path / "path" / "source.py"), cfile=str(tmp_path / "path/own_bytes.pyc"))
    assert names("own_model") == sorted([extension, "own_bytes.pyc", "own_model"])


def test_what_is_edited_is_read_again(install: Install) -> None:
    for text in ("x = 1\n", "x = 2\n"):
        install({"own_model": text})
        assert read_own_modules("own_model") == {"own_model.py": text.encode()}


def test_installed_packages_of_others_do_not_count(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "site-packages"
    (installed / "own").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(installed))
    (installed / "someones.py").touch()
    (installed / "own" / "model.py").write_text("import someones\n")
    install({"own_model": "import someones\n"})
    assert names("own_model") == ["own_model"]
    assert names("own.model") == ["own/model"]


@pytest.mark.parametrize("module", ["training.models.gpt2", "absent", "json", "sys", "own.absent"])
def test_a_module_of_tiermesh_or_of_nobody_is_no_own_one(install: Install, module: str) -> None:
    install({"own/model": ""})
    assert read_own_modules(module) == {}


def test_a_model_in_an_archive_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "models.zip", "w") as archive:
        archive.writestr("own_model.py", "scale = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path / "models.zip"))
    with pytest.raises(Refused, match="its code is in no file of its own"):
        read_own_modules("own_model")


def test_too_much_is_refused(install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_archive, "MOST_CODE_FILES", 1)
    install({"own_model": "import own_layers\n", "own_layers": ""})
    with pytest.raises(Refused, match="more than 1 files"):
        read_own_modules("own_model")
    with (tmp_path / "path" / "own_model.py").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(Refused, match=r"own_model\.py: with it the code has more than"):
        read_own_modules("own_model")
