"""OpenSSH's command line, and one line about each of its failures."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.launch.openssh import OpenSSH, explain_end, read_address
from services.errors import Failed, Refused
from services.printable import LINE_CHARACTERS


def test_a_remote_command_keeps_its_arguments_and_never_asks() -> None:
    command = OpenSSH(config=Path("cfg"), options=("Port=2",)).command(
        "box", ["/opt/my tools/tiermesh", "a'b", "$x"]
    )
    assert command[:5] == ["ssh", "-F", "cfg", "-o", "Port=2"]
    assert "BatchMode=yes" in command
    assert command[-3:] == ["--", "box", """exec '/opt/my tools/tiermesh' 'a'"'"'b' '$x'"""]


def test_options_of_the_user_come_first_because_the_first_value_wins() -> None:
    command = OpenSSH(options=("ConnectTimeout=99",)).command("box", ["x"])
    assert command.index("ConnectTimeout=99") < command.index("ConnectTimeout=10")


def test_the_address_is_the_host_name_of_the_configuration() -> None:
    assert read_address("user me\nhostname 10.0.0.7\nport 22\n", "box") == "10.0.0.7"
    assert read_address("", "box") == "box"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("ssh: connect to host box port 22: Connection refused", "start sshd there"),
        ("ssh: connect to host box port 22: Connection timed out", "see that it is on"),
        ("ssh: connect to host box port 22: No route to host", "see that it is on"),
        ("ssh: Could not resolve hostname box: Name or service not known", "a name that can't be resolved"),
        ("me@box: Permission denied (publickey).", "refuses the key; add it"),
        ("me@box: Permission denied (publickey,password).", "asks for a password"),
        ("Host key verification failed.", "compare it and accept it once with `ssh box`"),
        (
            "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.",
            "ssh-keygen -R box",
        ),
        (
            "command-line: line 0: Bad configuration option: prot",
            "correct ssh_config, --ssh-config or --ssh-option",
        ),
    ],
)
def test_each_failure_of_ssh_is_named_with_what_to_do(error: str, said: str) -> None:
    refused = explain_end("box", 255, error.splitlines(), ["tiermesh"])
    assert isinstance(refused, Refused)
    assert said in str(refused)
    assert str(refused).startswith("host box: ")


@pytest.mark.parametrize(
    ("code", "errors", "kind", "said"),
    [
        (127, ["bash: line 1: /opt/tiermesh: No such file"], Refused, "/opt/tiermesh can't be started there"),
        (2, ["tiermesh: No such command 'launch-agent'."], Refused, "has a Tiermesh without `launch`"),
        (
            1,
            ["tiermesh: /home/me/x: can't be written (No space left)"],
            Failed,
            "host box: /home/me/x: can't",
        ),
        (2, ["tiermesh: /home/me/x: can't be written (Read-only)"], Refused, "host box: /home/me/x: can't"),
        (-9, [], Failed, "signal 9, without a reason"),
        (
            -9,
            ["a warning"],
            Failed,
            "signal 9, without a reason; its last line, perhaps unrelated: a warning",
        ),
        (255, ["Timeout, server box not responding."], Failed, "ssh lost the connection"),
        (255, ["x" * 5000 + "\x1b[2J"], Failed, "ssh lost the connection"),
    ],
)
def test_other_ends_are_named_by_code_and_last_line(
    code: int, errors: list[str], kind: type[Exception], said: str
) -> None:
    error = explain_end("box", code, errors, ["/opt/tiermesh"])
    assert type(error) is kind
    assert said in str(error)
    assert str(error).isprintable()
    assert len(str(error)) <= LINE_CHARACTERS
