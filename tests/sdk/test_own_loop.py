"""A numpy loop as a worker: what it is given, what becomes of its gradients, and what is refused by name."""

from __future__ import annotations

import hashlib
import math
import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

import tiermesh
from tests.support.joined_program import LIMIT_SECONDS, Daemon, Program, connect_to_descriptor, daemon_of
from worker.compute_process import ProcessLost, RequestFailed

PARAMETERS = {
    "layer.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "layer.bias": np.ones(2, np.float32),
}
FLAT = [0, 1, 2, 3, 4, 5, 1, 1]


@pytest.fixture(autouse=True)
def by_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiermesh.own_loop.connect", connect_to_descriptor)


Join = Callable[..., tuple[Daemon, Program]]


@pytest.fixture
def join() -> Iterator[Join]:
    """Return what starts a loop, given its body, and plays its daemon."""
    with ExitStack() as stack:

        def start(
            body: Callable[[tiermesh.Run], None], config: dict[str, Any] | None = None, **options: Any
        ) -> tuple[Daemon, Program]:
            def loop(path: str) -> None:
                with tiermesh.join(path, job="job-1", **{"parameters": PARAMETERS, **options}) as run:
                    body(run)

            program = Program(loop)
            return stack.enter_context(daemon_of(program.spawn, **(config or {}))), program

        yield start


def scaled(work: tiermesh.Work, factor: float) -> dict[str, np.ndarray[Any, Any]]:
    return {name: factor * value for name, value in work.weights.items()}


def train(run: tiermesh.Run) -> None:
    for work in run:
        if work.kind == "train":
            work.done(work.index + 0.5, gradients=scaled(work, work.step + 1))
        else:
            work.done(2.5, count=3 + work.index)


def failed(daemon: Daemon, program: Program) -> BaseException:
    """Have a micro-batch computed, which fails, and return what the loop has raised."""
    with pytest.raises(ProcessLost if program.wait(0) else (RequestFailed, ProcessLost)) as caught:
        daemon.gradient(0, 0)
    assert program.wait(LIMIT_SECONDS) and program.error is not None
    if isinstance(caught.value, RequestFailed):
        assert type(program.error).__name__ in str(caught.value)
    return program.error


def test_the_daemon_learns_what_the_model_is(join: Join) -> None:
    daemon, _ = join(train, fingerprint="code-1")
    step = daemon.step
    assert [(each.name, each.shape, each.offset, each.decays) for each in daemon.layout.entries] == [
        ("layer.weight", (2, 3), 0, True),
        ("layer.bias", (2,), 6, False),
    ]
    assert {each.export_name for each in daemon.layout.entries} == {"layer.weight", "layer.bias"}
    assert (step.tokens_per_micro_batch, step.evaluation_batches, step.vocabulary) == (32, 2, 0)
    assert step.fingerprint["fingerprint"] == "code-1" and step.fingerprint["numpy"] == np.__version__
    assert {"adapter", "device", "threads"} <= step.fingerprint.keys()
    assert (daemon.mesh.rows, daemon.mesh.columns, daemon.mesh.backend) == (1, 1, "external")
    assert step.checkpoint_files() == {}
    assert step.initial_weights().tolist() == FLAT


def test_gradients_losses_and_held_out_batches(join: Join) -> None:
    daemon, program = join(train)
    daemon.load(np.arange(8))
    loss, gradient = daemon.gradient(4, 2)
    assert loss == 2.5
    assert gradient.tolist() == [5 * each for each in range(8)]
    assert daemon.ready[-1] == 0 and daemon.ready == sorted(daemon.ready, reverse=True)
    daemon.load(np.ones(8))
    assert daemon.gradient(5, 0)[1].tolist() == [6.0] * 8, "the newest weights are there"
    assert daemon.evaluate(1) == (2.5, 4)
    forward, backward = daemon.step.take_pass_seconds()
    assert forward > 0 and backward > 0
    daemon.close()
    assert program.wait(LIMIT_SECONDS)
    assert isinstance(program.error, tiermesh.Unreachable), "no daemon, and the job goes on"


def test_weights_that_are_missing_are_asked_for(join: Join) -> None:
    daemon, _ = join(train)
    daemon.load(np.ones(8), entries=1)
    assert daemon.gradient(0, 0)[1].tolist() == [1.0] * 8
    assert daemon.fetched == [1]


def test_a_long_gradient_is_told_in_parts(join: Join) -> None:
    parameters = {str(number): np.zeros((1 << 18) - 5, np.float32) for number in range(8)}
    daemon, _ = join(train, parameters=parameters)
    daemon.load(np.ones(daemon.layout.elements))
    assert (daemon.gradient(0, 0)[1] == 1).all()
    assert len(daemon.ready) == 3, "each part has a chunk at least"


def test_seeds_follow_from_the_job_alone(join: Join) -> None:
    seen: list[tuple[str, int]] = []

    def look(run: tiermesh.Run) -> None:
        for work in run:
            seen.append((f"7/{work.step if work.kind == 'train' else work.kind}/{work.index}", work.seed))
            if work.kind == "train":
                work.done(1.0, gradients=scaled(work, 1))
            else:
                work.done(1.0, count=1)

    daemon, _ = join(look)
    daemon.load(np.ones(8))
    daemon.gradient(3, 1)
    daemon.evaluate(1)
    assert len(seen) == 2
    for text, seed in seen:
        digest = hashlib.sha256(text.encode()).digest()
        assert seed == int.from_bytes(digest[:8], "little") % 2**63


def test_hints_repeat_the_step_before(join: Join) -> None:
    hints: list[list[tuple[int, int]]] = []

    def look(run: tiermesh.Run) -> None:
        for work in run:
            found = run.upcoming(3)
            hints.append([(each.step, each.index) for each in found])
            work.done(1.0, gradients=scaled(work, 1))
            assert all(each.seed >= 0 for each in found)

    daemon, _ = join(look)
    daemon.load(np.ones(8))
    for step, index in ((0, 2), (0, 2), (0, 5), (1, 2)):
        daemon.gradient(step, index)
    assert hints == [[(1, 2)], [(1, 2)], [(1, 2), (1, 5)], [(1, 5), (2, 2), (2, 5)]]


def test_weights_are_read_only(join: Join) -> None:
    def change(run: tiermesh.Run) -> None:
        for work in run:
            weights: Any = work.weights
            weights["layer.bias"][0] = 5

    daemon, program = join(change)
    daemon.load(np.ones(8))
    assert isinstance(failed(daemon, program), ValueError)


def test_a_revoked_lease_is_told(join: Join) -> None:
    results: list[bool] = []

    def note(run: tiermesh.Run) -> None:
        for work in run:
            results.append(work.done(1.0, gradients=scaled(work, 1)))

    daemon, _ = join(note)
    daemon.load(np.ones(8))

    def revoke() -> None:
        raise KeyError("revoked")

    daemon.on_begin = revoke
    with pytest.raises(KeyError):
        daemon.gradient(0, 0)
    daemon.on_begin = lambda: None
    daemon.gradient(0, 1)
    daemon.gradient(0, 2)  # the loop has noted the one before
    assert results[:2] == [False, True]


def test_an_error_in_the_loop_gives_the_work_back(join: Join) -> None:
    def fail(run: tiermesh.Run) -> None:
        for _ in run:
            raise ZeroDivisionError("no data\nfor this")

    daemon, program = join(fail)
    daemon.load(np.ones(8))
    with pytest.raises(
        RequestFailed, match=r"ZeroDivisionError: no data for this \(test_own_loop.py, line \d+\)"
    ):
        daemon.gradient(0, 0)
    assert program.wait(LIMIT_SECONDS) and isinstance(program.error, ZeroDivisionError)


def test_leaving_the_loop_gives_the_work_back(join: Join) -> None:
    def leave(run: tiermesh.Run) -> None:
        next(run)

    daemon, program = join(leave)
    daemon.load(np.ones(8))
    with pytest.raises(RequestFailed, match="left amid a micro-batch"):
        daemon.gradient(0, 0)
    assert program.wait(LIMIT_SECONDS) and program.error is None


def twice(work: tiermesh.Work) -> None:
    work.done(1.0, gradients=scaled(work, 1))
    work.done(1.0, gradients=scaled(work, 1))


WRONG: dict[str, tuple[Callable[[tiermesh.Work], object], str, str]] = {
    "a gradient is missing": (
        lambda work: work.done(1.0, gradients={"layer.bias": np.ones(2, np.float32)}),
        "gradients",
        "none for layer.weight",
    ),
    "there are none": (lambda work: work.done(1.0), "gradients", "a mapping by parameter"),
    "another dtype": (
        lambda work: work.done(1.0, gradients={**scaled(work, 1), "layer.bias": np.ones(2)}),
        "gradients['layer.bias'].dtype",
        "'float64' given, expected float32",
    ),
    "another shape": (
        lambda work: work.done(1.0, gradients={**scaled(work, 1), "layer.bias": np.ones(3, np.float32)}),
        "gradients['layer.bias'].shape",
        r"'\(3,\)' given, expected \(2,\)",
    ),
    "an unknown name": (
        lambda work: work.done(1.0, gradients={**scaled(work, 1), "other": np.ones(2, np.float32)}),
        "gradients",
        "'other' given",
    ),
    "a loss of NaN": (lambda work: work.done(math.nan, gradients=scaled(work, 1)), "loss", "'nan' given"),
    "a loss that is none": (lambda work: work.done("low", gradients=scaled(work, 1)), "loss", "'str' given"),
    "a count": (lambda work: work.done(1.0, gradients=scaled(work, 1), count=4), "count", "'4' given"),
    "never done": (
        lambda work: None,
        "done",
        "'not called' given, expected a call for micro-batch 0 of step 0",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(join: Join, name: str) -> None:
    use, field, expected = WRONG[name]

    def body(run: tiermesh.Run) -> None:
        for work in run:
            use(work)

    daemon, program = join(body)
    daemon.load(np.ones(8))
    error = failed(daemon, program)
    assert isinstance(error, tiermesh.Refused) and error.field == field and error.fix
    with pytest.raises(tiermesh.Refused, match=expected):
        raise error


def test_done_twice(join: Join) -> None:
    def body(run: tiermesh.Run) -> None:
        for work in run:
            twice(work)

    daemon, program = join(body)
    daemon.load(np.ones(8))
    daemon.gradient(0, 0)
    assert program.wait(LIMIT_SECONDS)
    assert isinstance(program.error, tiermesh.Refused) and "one call for micro-batch 0" in str(program.error)


@pytest.mark.parametrize("options", [{}, {"count": 0}, {"count": 3, "gradients": {}}])
def test_a_held_out_batch_needs_the_number_of_targets_alone(join: Join, options: dict[str, Any]) -> None:
    def body(run: tiermesh.Run) -> None:
        for work in run:
            work.done(1.0, **options)

    daemon, program = join(body)
    daemon.load(np.ones(8))
    with pytest.raises(RequestFailed, match="held-out batch 1"):
        daemon.evaluate(1)
    assert program.wait(LIMIT_SECONDS)
    assert isinstance(program.error, tiermesh.Refused) and program.error.field in ("count", "gradients")


def test_unused_parameters_may_have_gradients_of_zero(join: Join) -> None:
    def body(run: tiermesh.Run) -> None:
        for work in run:
            work.done(1.0, gradients={"layer.weight": work.weights["layer.weight"]})

    daemon, _ = join(body, unused="zero")
    daemon.load(np.ones(8))
    assert daemon.gradient(0, 0)[1].tolist() == [1] * 6 + [0] * 2


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_the_first_parameter_that_is_not_finite_is_named(join: Join, value: float) -> None:
    def body(run: tiermesh.Run) -> None:
        for work in run:
            gradients = scaled(work, 1)
            gradients["layer.weight"][1, 1] = value
            work.done(math.nan, gradients=gradients)

    daemon, _ = join(body)
    daemon.load(np.ones(8))
    loss, gradient = daemon.gradient(0, 3)
    assert math.isnan(loss) and not np.isfinite(gradient).all()
    assert daemon.non_finite == [(3, "layer.weight")]


def test_a_finite_gradient_whose_sum_is_not(join: Join) -> None:
    def body(run: tiermesh.Run) -> None:
        for work in run:
            work.done(1.0, gradients={name: 0 * value + 3e38 for name, value in scaled(work, 1).items()})

    daemon, _ = join(body)
    daemon.load(np.ones(8))
    daemon.gradient(0, 0)
    assert daemon.non_finite == []


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"parameters": {}}, "parameters"),
        ({"parameters": [np.ones(2)]}, "parameters"),
        ({"parameters": {"a": [1.0]}}, "parameters['a']"),
        ({"parameters": {"a": np.ones(2)}}, "parameters['a'].dtype"),
        ({"parameters": {"a": np.ones((2, 0), np.float32)}}, "parameters['a'].shape"),
        ({"parameters": {"a": np.ones((1,) * 9, np.float32)}}, "parameters['a'].shape"),
        ({"parameters": {"a\n": np.ones(2, np.float32)}}, "parameters"),
        ({"unused": "drop"}, "unused"),
        ({"buffers": "drop"}, "buffers"),
        ({"job": ""}, "job"),
    ],
)
def test_arguments_are_checked_before_the_daemon_hears_of_them(options: dict[str, Any], field: str) -> None:
    joined = tiermesh.join("/none.sock", **{"job": "job-1", "parameters": PARAMETERS, **options})
    with pytest.raises(tiermesh.Refused) as caught, joined:
        pass
    assert caught.value.field == field and caught.value.fix


@pytest.mark.parametrize(
    ("options", "field"), [({}, "fingerprint"), ({"fingerprint": "a", "buffers": "local"}, "buffers")]
)
def test_what_an_exact_job_needs(options: dict[str, Any], field: str) -> None:
    def loop(path: str) -> None:
        with tiermesh.join(path, job="job-1", parameters=PARAMETERS, **options):
            pass

    program = Program(loop)
    with pytest.raises(RequestFailed, match="exact: false"):
        Daemon(program.spawn, exact=True)
    assert program.wait(LIMIT_SECONDS)
    assert isinstance(program.error, tiermesh.Refused) and program.error.field == field


def test_a_fork_must_not_use_the_run_and_does_not_keep_the_connection(join: Join) -> None:
    """Data loaders fork while a loop is joined: they go on, and their daemon sees when the loop's process ends."""
    said, says = multiprocessing.Pipe(duplex=False)
    ends, end = multiprocessing.Pipe(duplex=False)

    def body(run: tiermesh.Run) -> None:
        for work in run:
            child = os.fork()
            if not child:
                try:
                    work.done(1.0, gradients=scaled(work, 1))
                except tiermesh.Refused as error:
                    says.send(str(error))
                finally:
                    ends.recv_bytes()  # it lives on
                    os._exit(0)
            work.done(1.0, gradients=scaled(work, 1))
            return

    daemon, program = join(body)
    daemon.load(np.ones(8))
    daemon.gradient(0, 0)
    assert said.poll(LIMIT_SECONDS)
    assert f"expected use in process {os.getpid()} alone, which has joined job job-1" in said.recv()
    assert program.wait(LIMIT_SECONDS) and program.error is None
    with pytest.raises(ProcessLost):  # though the fork lives
        daemon.gradient(0, 1)
    end.send_bytes(b"end")
    os.wait()
