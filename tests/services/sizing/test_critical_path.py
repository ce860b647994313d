"""The critical path of small steps that can be computed by hand. Each chunk takes a second on the link."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.sizing.critical_path import CriticalPath, Parts, critical_path
from services.tensors.layout import CHUNK_ELEMENTS

CHUNK = CHUNK_ELEMENTS
PARTS = Parts(
    elements=3 * CHUNK,
    pass_seconds=6.0,
    uses=((CHUNK, 0.0), (2 * CHUNK, 1.0), (3 * CHUNK, 1.5)),
    ready=((2 * CHUNK, 3.0), (CHUNK, 4.5), (0, 6.0)),
    down_seconds=1 / CHUNK,
    up_seconds=1 / CHUNK,
)


def test_a_pass_is_delayed_by_its_latest_parameter() -> None:
    # Weights arrive after 1, 2 and 3 s and are used 0, 1 and 1.5 s into the pass. The third delays it by 1.5 s.
    # Its gradients have left after 1.5 + 6 + 1 s: the last chunk waits only for the pass.
    assert critical_path(PARTS) == CriticalPath(
        weights_end=3.0, pass_delay=1.5, pass_end=7.5, step_seconds=8.5
    )


def test_gradients_wait_for_the_link() -> None:
    at_once = replace(PARTS, ready=((0, 4.0),))
    assert critical_path(at_once).step_seconds == 1.5 + 4.0 + 3


def test_gradients_that_are_ready_late_wait_for_the_pass() -> None:
    last_first = replace(PARTS, ready=((2 * CHUNK, 1.0), (CHUNK, 1.1), (0, 1.2)))
    assert critical_path(last_first).step_seconds == max(1.5 + 6.0, 1.5 + 1.0 + 3)


def test_a_step_without_transfers_takes_as_long_as_its_pass() -> None:
    free = critical_path(replace(PARTS, down_seconds=0.0, up_seconds=0.0))
    assert free == CriticalPath(weights_end=0.0, pass_delay=0.0, pass_end=6.0, step_seconds=6.0)


def test_a_step_without_a_pass_takes_as_long_as_its_transfers() -> None:
    idle = replace(
        PARTS, pass_seconds=0.0, uses=tuple((stop, 0.0) for stop, _ in PARTS.uses), ready=((0, 0.0),)
    )
    assert critical_path(idle).step_seconds == 6.0 == idle.transfer_seconds


def test_updates_go_on_while_the_link_is_busy() -> None:
    # The first chunk waits for its update, the others only if updates are slower than the link.
    quick = replace(PARTS, update_seconds=0.25 / CHUNK, sum_seconds=0.125 / CHUNK)
    assert critical_path(quick).weights_end == pytest.approx(3.25)
    assert critical_path(quick).step_seconds == pytest.approx(8.5 + 0.25 + 0.125)
    slow = replace(PARTS, update_seconds=2 / CHUNK)
    assert critical_path(slow).weights_end == pytest.approx(7.0)


def test_a_parameter_across_chunks_waits_for_the_last_of_them() -> None:
    across = replace(PARTS, uses=((CHUNK + 1, 0.0),))
    assert critical_path(across).pass_delay == 2.0


def test_the_last_chunk_may_be_shorter() -> None:
    short = replace(PARTS, elements=2 * CHUNK + CHUNK // 2, uses=(), ready=((0, 6.0),))
    assert critical_path(short).weights_end == 2.5
    assert critical_path(short).step_seconds == 8.5


def test_further_micro_batches_need_no_weights_and_send_nothing() -> None:
    # The first pass is as late as before. The last one starts 12 s after it, and its gradients leave as before.
    path = critical_path(replace(PARTS, before_seconds=12.0))
    assert path == CriticalPath(weights_end=3.0, pass_delay=1.5, pass_end=19.5, step_seconds=20.5)


def test_directions_have_times_of_their_own() -> None:
    assert critical_path(replace(PARTS, up_seconds=3 / CHUNK)).step_seconds == 1.5 + 3.0 + 9
    assert critical_path(replace(PARTS, down_seconds=3 / CHUNK)).pass_delay == 9 - 1.5


def test_a_large_model_is_timed_in_a_bounded_number_of_pieces() -> None:
    many = 100_000 * CHUNK
    large = replace(PARTS, elements=many, uses=((many, 0.0),), ready=((0, 6.0),))
    assert critical_path(large).step_seconds == pytest.approx(100_000 + 6.0 + 100_000)
