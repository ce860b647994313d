"""Parsers of bytes or text from outside, by name. Each takes any bytes and refuses bad ones in one line."""

from __future__ import annotations

from tests.fuzz.access import ACCESS_TARGETS
from tests.fuzz.connections import CONNECTION_TARGETS
from tests.fuzz.corpora import CORPORA_TARGETS
from tests.fuzz.launch import LAUNCH_TARGETS
from tests.fuzz.messages import MESSAGE_TARGETS
from tests.fuzz.rpcs import RPC_TARGETS
from tests.fuzz.target import Target

TARGETS: dict[str, Target] = {
    **CONNECTION_TARGETS,
    **ACCESS_TARGETS,
    **MESSAGE_TARGETS,
    **CORPORA_TARGETS,
    **LAUNCH_TARGETS,
    **RPC_TARGETS,
}
