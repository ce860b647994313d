"""What workers say of themselves, in any way, never makes a row's order that its other workers refuse."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.core import events as ev
from aggregator.worker_control import find_pipeline_address
from protos import cluster_pb2 as pb
from services.errors import Refusal
from services.pipeline.split import StageRun
from tests.support.dialogues.rows import RowDialogue
from tests.support.facts import has_facts
from worker.pipeline.seats import RowPlaces

HOSTS = st.sampled_from(
    ["", "box", "10.0.0.7", "fd00::8", "[fd00::8]", "127.0.0.1", "a b", "a:b", "é", "box:1", "x" * 255]
)
PORTS = st.sampled_from([0, 1, 7072, 65535, 65536, 1 << 31])
HELLOS = st.lists(
    st.tuples(HOSTS, PORTS, st.sampled_from(["w1", "w2", "w3", "w4"]), st.integers(1, 4)), max_size=6
)


class Orders(RowDialogue):
    """A core whose workers read the orders of their rows.

    Attributes:
        read: the rows that were read, by session.
    """

    def __init__(self) -> None:
        super().__init__()
        self.incarnations: dict[int, str] = {}
        self.read: dict[int, RowPlaces] = {}

    def line(self, effect: ev.Effect) -> str:
        """Return an effect as one line; read a row's order as its worker does."""
        if isinstance(effect, ev.ToWorker) and isinstance(effect.body, pb.Row):
            places = RowPlaces.read(effect.body, self.core.epoch, self.incarnations[effect.session])
            self.read[effect.session] = places
        return super().line(effect)

    def greets(self, session: int, host: str, port: int, name: str, process: int) -> None:
        """Connect a worker by its Hello, as the aggregator's service does."""
        words: dict[str, Any] = {
            "name": name,
            "incarnation": f"i{process}",
            "pipeline_host": host,
            "pipeline_port": port,
        }
        address = find_pipeline_address(pb.Hello(**words), "10.0.0.1:5000")
        if isinstance(address, Refusal):
            return
        self.incarnations[session] = words["incarnation"]
        self.hello(session, pipeline_address=address, **words)
        self.give(ev.DataStreamOpened(session))


@settings(max_examples=100, deadline=None)
@given(HELLOS)
def test_workers_read_every_row_that_is_made_of_what_others_said(
    hellos: list[tuple[str, int, str, int]],
) -> None:
    dialogue = Orders()
    dialogue.submit(stages=2)
    for session, hello in enumerate(hellos, 1):
        dialogue.greets(session, *hello)
        for each in dialogue.told.keys() & dialogue.core.members.keys():
            dialogue.builds(each)
    assert all(places.stages == 2 for places in dialogue.read.values())


def test_a_worker_that_gives_itself_out_as_the_process_of_another_is_sent_away_alone() -> None:
    dialogue = Orders()
    dialogue.submit(stages=2)
    dialogue.greets(1, "box", 7072, "w1", 1)
    dialogue.greets(2, "box", 7072, "w2", 1)
    assert list(dialogue.core.members) == [1]
    dialogue.greets(3, "box", 7072, "w3", 3)
    assert dialogue.told == {1: StageRun(0, 1), 3: StageRun(1, 1)}
    for session in (1, 3):
        dialogue.builds(session)
    assert dialogue.read.keys() == {1, 3}


def test_a_worker_that_no_other_can_reach_reads_the_row_that_it_makes_alone() -> None:
    dialogue = Orders()
    dialogue.submit(stages=2)
    dialogue.greets(1, "127.0.0.1", 7072, "w1", 1)
    dialogue.builds(1)
    assert dialogue.read[1].neighbours == () and dialogue.read[1].stages == 2


def test_the_refusal_names_both_workers() -> None:
    dialogue = RowDialogue()
    dialogue.hello(1)
    (closed,) = dialogue.hello(2, incarnation="i1")
    assert has_facts(closed, "2 closed: worker w2 ... process i1 ... is worker w1")
