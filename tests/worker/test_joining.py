"""The socket at which processes join: who may, and what they are told otherwise."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from protos import compute_pb2 as pb
from services.errors import Failed, Refused
from services.runtime.compute_channel import PROTOCOL_VERSION, Channel, ChannelEnded, ProcessChannel
from worker.joining import AllowedUsers, Credentials, JoinedProcess, JoinSocket

LIMIT_SECONDS = 30
Found = TypeVar("Found")
HELLO = pb.Hello(version=PROTOCOL_VERSION, job="a", name="train.py 7")


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tm-") as folder:
        yield Path(folder) / "s"


def run(work: Coroutine[Any, Any, Found]) -> Found:
    """Run a coroutine, within a time."""
    return asyncio.run(asyncio.wait_for(work, LIMIT_SECONDS))


def connect(path: Path, hello: pb.Hello | None = HELLO) -> ProcessChannel:
    """Connect as a process does."""
    end = socket.socket(socket.AF_UNIX)
    end.settimeout(LIMIT_SECONDS)
    end.connect(str(path))
    channel: ProcessChannel = Channel(end, pb.ToProcess)
    if hello is not None:
        channel.send(pb.FromProcess(call=0, hello=hello))
    return channel


async def receive(channel: ProcessChannel) -> pb.ToProcess:
    message, _ = await asyncio.to_thread(channel.receive)
    return message


def serve(path: Path, use: Callable[[JoinSocket], Coroutine[Any, Any, Found]], **settings: Any) -> Found:
    """Open a socket, and use it."""

    async def work() -> Found:
        joins = JoinSocket(path, settings.pop("allowed", AllowedUsers()), **settings)
        joins.open()
        try:
            return await use(joins)
        finally:
            joins.close()

    return run(work())


def test_a_process_joins_with_its_hello_and_has_a_name(path: Path) -> None:
    async def use(joins: JoinSocket) -> None:
        connect(path)
        joined = await joins.accept()
        assert joined.job == "a"
        assert str(joined) == f"process train.py 7 (pid {os.getpid()}, user {os.getuid()})"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    serve(path, use)
    assert not path.exists()


@pytest.mark.parametrize(
    ("hello", "field"),
    [
        (pb.Hello(version=99, job="a"), "version"),
        (pb.Hello(version=PROTOCOL_VERSION), "job"),
        (pb.Hello(version=PROTOCOL_VERSION, job="x" * 200), "job"),
    ],
)
def test_a_wrong_hello_is_refused_by_field(path: Path, hello: pb.Hello, field: str) -> None:
    async def use(joins: JoinSocket) -> pb.ToProcess:
        accepting = asyncio.ensure_future(joins.accept())
        answer = await receive(connect(path, hello))
        connect(path)
        assert (await accepting).job == "a", "the next one joins"
        return answer

    refused = serve(path, use).refused
    assert refused.field == field and refused.fix and refused.reason.startswith(f"{field} ")


def test_another_user_is_refused_before_a_byte_is_read(path: Path) -> None:
    """The kernel says who it is."""
    users = iter([4000, 4001])

    async def use(joins: JoinSocket) -> pb.ToProcess:
        accepting = asyncio.ensure_future(joins.accept())
        answer = await receive(connect(path, None))
        connect(path)
        await accepting
        return answer

    refused = serve(
        path,
        use,
        allowed=AllowedUsers(["4001"]),
        read_credentials=lambda _: Credentials(1, next(users), 4000),
    ).refused
    assert refused.field == "user" and refused.value == "4000"


def test_users_and_groups_are_told_by_name_or_number() -> None:
    assert AllowedUsers().permit(Credentials(1, os.getuid(), 4000))
    assert not AllowedUsers().permit(Credentials(1, os.getuid() + 1, 4000))
    root = AllowedUsers(["root"])
    assert root.permit(Credentials(1, 0, 0)) and not root.permit(Credentials(1, 4000, 4000))
    assert AllowedUsers(["@root"]).permit(Credentials(1, 0, 4000)), "by the user's groups"
    assert not AllowedUsers(["@root"]).permit(Credentials(1, 4000, 4000))
    for name in ("nobody-of-this-name", "@nobody-of-this-name", "99999999999"):
        with pytest.raises(Refused, match="--allow-user"):
            AllowedUsers([name])


def test_one_that_says_nothing_is_left_after_a_while(path: Path) -> None:
    async def use(joins: JoinSocket) -> None:
        silent = connect(path, None)
        accepting = asyncio.ensure_future(joins.accept())
        with pytest.raises(ChannelEnded):
            await receive(silent)
        connect(path)
        await accepting

    serve(path, use, greeting_seconds=0.05)


def test_bytes_that_are_no_message_end_the_connection(path: Path) -> None:
    async def use(joins: JoinSocket) -> None:
        accepting = asyncio.ensure_future(joins.accept())
        for garbage in (b"\xff" * 64, b"\x04\0\0\0\xff\xff\xff\xff"):
            channel = connect(path, None)
            channel._end.sendall(garbage)
            with pytest.raises(ChannelEnded):
                await receive(channel)
        connect(path)
        await accepting

    serve(path, use)


def test_what_is_at_the_path_is_replaced_only_if_nobody_listens(path: Path) -> None:
    async def use(joins: JoinSocket) -> None:
        with pytest.raises(Refused, match="another worker listens"):
            JoinSocket(path, AllowedUsers()).open()

    serve(path, use)
    with socket.socket(socket.AF_UNIX) as killed:  # it leaves its socket behind
        killed.bind(str(path))
    again = JoinSocket(path, AllowedUsers(["0"]))
    again.open()
    assert stat.S_IMODE(path.stat().st_mode) == 0o666
    again.close()
    path.write_text("a file")
    with pytest.raises(Refused, match="no socket"):
        JoinSocket(path, AllowedUsers()).open()
    with pytest.raises(Refused, match="107"):
        JoinSocket(Path("/tmp/" + "x" * 120), AllowedUsers()).open()
    with pytest.raises(Refused, match="can't be made"):
        JoinSocket(path.parent / "none" / "s", AllowedUsers()).open()


def joined_pair(path: Path) -> tuple[ProcessChannel, JoinedProcess]:
    async def use(joins: JoinSocket) -> tuple[ProcessChannel, JoinedProcess]:
        return connect(path), await joins.accept()

    return serve(path, use)


def test_no_process_follows_one_that_has_joined(path: Path) -> None:
    _, joined = joined_pair(path)
    joined.spawn(print)
    with pytest.raises(Failed, match="join again"):
        joined.spawn(print)


def test_the_end_has_a_reason_on_both_sides(path: Path) -> None:
    channel, joined = joined_pair(path)
    assert joined.stop(0, "its message is wrong") == "its message is wrong" and not joined.has_left
    message, _ = channel.receive()
    assert message.refused.reason == "its message is wrong"
    with pytest.raises(ChannelEnded):
        channel.receive()
    assert joined.stop(0, "later") == "its message is wrong"


def test_last_words_are_the_reason(path: Path) -> None:
    channel, joined = joined_pair(path)
    assert not joined.wait(0)
    channel.send(pb.FromProcess(call=0, failed=pb.Failed(reason="KeyError: 'x'")))
    channel.close()
    run(joined.wait_ended())
    joined.stop(0)
    assert joined.has_left and joined.describe_end().endswith("): KeyError: 'x'")
