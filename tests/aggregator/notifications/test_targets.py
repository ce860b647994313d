"""The operator's file: what it may have, who may read it, and that its secrets are quoted nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from aggregator.notifications.targets import MOST_TARGETS, Target, TargetFile, read_targets
from services.errors import Refused

SECRET = "s3cr3t"


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_targets_are_read_and_read_again_after_a_change(tmp_path: Path) -> None:
    path = write(
        tmp_path / "targets",
        f"# of the team\n\nops slack https://hooks.example/services/{SECRET}\nci  json  http://[::1]:8080/{SECRET}?a=b\n",
    )
    file = TargetFile(path)
    assert file.content() == {
        "ops": Target("ops", "slack", f"https://hooks.example/services/{SECRET}"),
        "ci": Target("ci", "json", f"http://[::1]:8080/{SECRET}?a=b"),
    }
    assert SECRET not in repr(file.content())
    file.check("ops")
    with pytest.raises(Refused, match=r"training_config.notify: opz given, expected ci, ops; correct it"):
        file.check("opz")
    write(path, "other json https://hooks.example/a/longer/one")
    assert set(file.content()) == {"other"}
    write(path, "a line that is wrong")
    assert set(file.content()) == {"other"}, "what could be used stays in use"


def test_without_a_file_there_are_no_targets() -> None:
    file = TargetFile(None)
    assert file.content() == {}
    with pytest.raises(
        Refused, match=r"notify: ops given, but this aggregator has no targets;.*--notify-targets"
    ):
        file.check("ops")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = write(tmp_path / "targets", f"ops json https://a/{SECRET}", mode)
    with pytest.raises(Refused, match=rf"has mode {mode:04o}.*chmod 600"):
        read_targets(path)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ops json", "line 1: has 2 words, expected NAME FORM URL"),
        (f"ops json https://a/{SECRET} more", "line 1: has 4 words"),
        (f"ops teams https://a/{SECRET}", "line 1: the form is none of json, slack"),
        (f"ops {SECRET} json", "line 1: the form is none of json, slack"),
        (f"-o json https://a/{SECRET}", "line 1: the first word is no name"),
        (f"https://a/{SECRET} json ops", "line 1: the first word is no name"),
        (f"ops json ftp://a/{SECRET}", "line 1: the third word is no URL of a webhook"),
        (f"ops json https:///{SECRET}", "line 1: the third word is no URL"),
        (f"ops json https://a:{SECRET}/", "line 1: the third word is no URL"),
        (f"ops json https://me:{SECRET}@a/", "line 1: the third word is no URL"),
        (f"ops json https://[::1/{SECRET}", "line 1: the third word is no URL"),
        (f"ops json https://a/{SECRET}\nops json https://b/{SECRET}", "line 2: ops is there twice"),
        (
            "\n".join(f"t{number} json https://a/{SECRET}" for number in range(MOST_TARGETS + 1)),
            f"has {MOST_TARGETS + 1} targets, expected at most {MOST_TARGETS}",
        ),
    ],
)
def test_wrong_lines_are_refused_without_their_secret(tmp_path: Path, line: str, expected: str) -> None:
    path = write(tmp_path / "targets", line)
    with pytest.raises(Refused) as caught:
        read_targets(path)
    assert expected in str(caught.value) and SECRET not in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"--notify-targets.*no such file"):
        TargetFile(tmp_path / "missing")
