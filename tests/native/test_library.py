"""The library is built with the compiler's own words on failure, and refused in one line where it does not fit."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cli.main import main
from native import Unusable, build, library
from native.sources import LIBRARY


def test_a_missing_library_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match=r"libtiermesh.so: missing, .*make install"):
        library.load_library(tmp_path / "libtiermesh.so")


def test_a_library_of_other_sources_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = shutil.copy(LIBRARY, tmp_path)
    monkeypatch.setattr(library, "hash_sources", lambda: "0123456789abcdef")
    with pytest.raises(
        Unusable, match=r"built from sources [0-9a-f]{16}, expected 0123456789abcdef.*make install"
    ):
        library.load_library(Path(copy))


@pytest.mark.parametrize(
    "content", [b"", b"\x7fELF\x02\x01\x01" + bytes(57), LIBRARY.read_bytes()[:18] + b"\xf3\x00"]
)
def test_a_library_of_another_machine_is_refused_in_one_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "libtiermesh.so"
    path.write_bytes(content)
    with pytest.raises(
        Unusable, match=r"no library of Tiermesh for Linux on \w+ \(.+\); .*make install"
    ) as caught:
        library.load_library(path)
    assert "\n" not in str(caught.value)


def test_a_command_that_can_not_load_it_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise Unusable(
            "native/libtiermesh.so: missing, expected Tiermesh's C library; install Tiermesh again"
        )

    monkeypatch.setattr("cli.main.tiermesh.main", refuse)
    assert main(["jobs"]) == 2
    assert capsys.readouterr().err == (
        "tiermesh: native/libtiermesh.so: missing, expected Tiermesh's C library; install Tiermesh again\n"
    )


def test_a_missing_compiler_is_named_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -m64")
    with pytest.raises(
        Unusable, match=r"no-such-compiler can't be started \(No such file.*\); install a C compiler"
    ):
        build.compile_library(tmp_path / "library.so")


def test_what_a_failing_compiler_prints_is_shown_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(
        Unusable, match=r"(?s)no-such-header.h: No such file.*\n.* failed, see above; install a C comp"
    ):
        build.compile_library(tmp_path / "library.so", "-include", "no-such-header.h")
    assert list(tmp_path.iterdir()) == []
