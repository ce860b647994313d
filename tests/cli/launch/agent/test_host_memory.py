"""Memory of a host: the machine's, or the least limit of the control groups around the agent."""

from __future__ import annotations

from pathlib import Path

from cli.launch.agent.host_memory import read_host_memory


def _groups(folder: Path, own: str, limits: dict[str, str]) -> int:
    folder.mkdir()
    (folder / "own").write_text(f"1:memory:/ignored\n0::{own}\n")
    for group, text in limits.items():
        (folder / "groups" / group).mkdir(parents=True, exist_ok=True)
        (folder / "groups" / group / "memory.max").write_text(text)
    return read_host_memory(folder / "own", folder / "groups")


def test_the_least_limit_around_the_agent_counts(tmp_path: Path) -> None:
    machine = read_host_memory(tmp_path / "none", tmp_path)
    assert machine > 1 << 20
    limits = {"user": "5000\n", "user/session": "max\n", "other": "10\n"}
    assert _groups(tmp_path / "above", "/user/session", limits) == 5000
    assert _groups(tmp_path / "own", "/user/session", limits | {"user/session": "4000\n"}) == 4000
    assert _groups(tmp_path / "top", "/", {"": "3000\n"}) == 3000, (
        "a container sees its own group as the root"
    )
    assert _groups(tmp_path / "unlimited", "/user", {"user": "max\n"}) == machine
