"""Wrong command lines, drawn from a seed: each ends with one line, an exit code, and no traceback."""

from __future__ import annotations

import random
import shlex
from pathlib import Path

import click
import pytest

from cli.commands import SECTIONS
from cli.main import main, tiermesh
from tests.cli.conftest import JOB

DRAWN = 500
VALUES = (
    *(
        "",
        " ",
        "0",
        "-1",
        "1.5",
        "nan",
        "inf",
        "1e999",
        "9" * 30,
        "2",
        "8x",
        "1x8",
        "30d",
        "stall=1e9",
        "logs.keep=1",
    ),
    *("x", "é", "a\nb", "\x1b[31m", "--", "-", "..", "/", "~nobody", "x" * 5000, "{}", "null", "latest"),
    *("missing.yaml", "job.yaml", "folder", "pipe.bin", "broken.yaml"),
    *("127.0.0.1:1", "127.0.0.1:99999", ":1", "a:1,a:1", "[::1]"),
    *("key=value", "max_steps=", "=1", "max_steps=[", "training_config.max_steps=-3"),
)
ENDLESS = ("worker", "aggregator", "optimizer", "local", "chaos", "launch", "launch-agent")
"""Commands that might go on with values that are right; they are drawn with one that is wrong in any case."""


def draw(chance: random.Random, commands: dict[str, click.Command]) -> list[str]:
    """Return a command line that some flag or argument makes wrong, or that has nothing to talk to."""
    name = chance.choice([*commands])
    command, words = commands[name], [name]
    if isinstance(command, click.Group) and chance.random() < 0.9:
        words.append(chance.choice([*command.commands]))
        command = command.commands[words[-1]]
    options = [each for each in command.params if isinstance(each, click.Option)]
    arguments = [each for each in command.params if isinstance(each, click.Argument)]
    for _ in arguments if chance.random() < 0.8 else range(chance.randrange(4)):
        words.append(chance.choice(VALUES))
    for option in chance.sample(options, min(len(options), chance.randrange(4))):
        words.append(option.opts[0])
        if not option.is_flag:
            words.append(chance.choice(VALUES))
    if any("--aggregator" in option.opts for option in options) and name not in ENDLESS:
        words += ["--aggregator", "127.0.0.1:1", "--timeout-seconds", "1"]
    if name in ENDLESS:
        words.insert(
            chance.randrange(1, len(words) + 1), chance.choice(["--nonsense", "--config=broken.yaml"])
        )
    return words


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Working directory with files to name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "broken.yaml").write_text("a: [")
    (tmp_path / "folder").mkdir()
    (tmp_path / "pipe.bin").write_bytes(bytes(100))
    return tmp_path


def test_wrong_inputs_are_one_line(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    chance, commands = random.Random(25), tiermesh.load_all()
    refused = 0
    for number in range(DRAWN):
        words = draw(chance, commands)
        line = f"{number}: tiermesh {shlex.join(words)[:300]}"
        try:
            code = main(words)
        except BaseException as error:
            pytest.fail(f"{line}: {error!r}")
        err = capfd.readouterr().err
        assert "Traceback" not in err and "internal error" not in err, f"{line}\n{err}"
        assert code in (0, 1, 2, 75), line
        if code:  # a group alone answers with its help
            refused += 1
            last = err.splitlines()[-1]
            assert last.startswith("tiermesh: ") or isinstance(commands[words[0]], click.Group), (
                f"{line}\n{err}"
            )
            assert last.isprintable() and len(last) <= 1010, line
    assert refused > DRAWN * 0.9
    assert {name for entries in SECTIONS.values() for name in entries} == {*commands}
