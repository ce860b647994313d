"""What the hosts of a launch need of memory, and what is said of a host that has less."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cli.launch.memory import LARGEST_ERROR, HostNeed, estimate_needs, find_shortage
from cli.launch.plan import LaunchPlan, Rank, Role
from services.config.job import JobConfig
from services.config.models import CustomConfig, GPT2Config, LinearRegressionConfig
from services.config.parameters import count_parameters
from services.printable import LINE_CHARACTERS

VOCABULARY = 50_257
LARGE = GPT2Config(num_blocks=80, num_heads=64, embedding_dim=8192, max_sequence_length=128, dropout_prob=0.0)
COPY_BYTES = 4 * (count_parameters(LARGE, VOCABULARY) or 0)


def pipeline_job(model: GPT2Config = LARGE, **settings: Any) -> JobConfig:
    """Return a job of four stages of 20 blocks each."""
    data = {"files": ({"path": "text.txt", "sha256": "0" * 64},), "vocab_size": VOCABULARY}
    pipeline = {"blocks_per_stage": (20,) * 4}
    return JobConfig.model_validate(
        {
            "model": model,
            "data": data,
            "num_workers": 4,
            "gradient_accumulation_steps": 8,
            "pipeline": pipeline,
        }
        | settings
    )


def plan_of(*ranks: tuple[Role, str], stages: int = 1) -> LaunchPlan:
    tiers = 3 if any(role == "optimizer" for role, _ in ranks) else 2
    return LaunchPlan(
        tuple(Rank(number, role, host, role, 0, {}, "") for number, (role, host) in enumerate(ranks)),
        tiers,
        stages,
    )


BESIDE = plan_of(*(("worker", host) for host in "abcd"), ("aggregator", "a"), stages=4)


def test_the_optimizer_beside_the_first_stage_is_counted_on_its_host() -> None:
    needs = {need.host: need for need in estimate_needs(BESIDE, pipeline_job())}
    assert list(needs) == list("abcd")
    optimizer_bytes = 4 * COPY_BYTES + COPY_BYTES + 3 * COPY_BYTES  # with the wire type and a checkpoint
    assert needs["a"].largest_bytes == pytest.approx(optimizer_bytes, rel=0.01)
    assert needs["a"].total_bytes > needs["a"].largest_bytes
    said = str(find_shortage(needs["a"], "a", 512 << 30))
    assert "its roles need 2.4 TB of memory (the aggregator with the optimizer 2.1 TB), but it has" in said
    assert "add two ranks, aggregator and optimizer, on hosts with enough" in said
    assert find_shortage(needs["b"], "b", 512 << 30) is None


def test_needs_of_three_roles_on_a_host_add_up() -> None:
    def needs_of(*others: tuple[Role, str]) -> dict[str | None, int]:
        plan = plan_of(*(("worker", host) for host in "abc"), *others)
        return {need.host: need.total_bytes for need in estimate_needs(plan, pipeline_job())}

    apart = needs_of(("aggregator", "d"), ("optimizer", "e"))
    shared = needs_of(("aggregator", "b"), ("optimizer", "b"))
    assert shared == {"a": apart["a"], "b": apart["b"] + apart["d"] + apart["e"], "c": apart["c"]}


def test_roles_beside_workers_get_hosts_of_their_own_with_fewer_workers() -> None:
    plan = plan_of(*(("worker", host) for host in "abc"), ("aggregator", "b"), ("optimizer", "b"))
    ranks = tuple(replace(rank, beside=rank.role != "worker") for rank in plan.ranks)
    need = estimate_needs(replace(plan, ranks=ranks), pipeline_job())[1]
    assert (need.largest, need.remedy.partition(",")[0]) == (
        "the optimizer",
        "give --workers 1 to leave it a host of its own",
    )


def test_each_worker_needs_memory_for_its_own_stage() -> None:
    on_one = plan_of(*[("worker", "a")] * 4, ("aggregator", "b"), stages=4)
    needs = estimate_needs(on_one, pipeline_job())
    alone = estimate_needs(
        plan_of(*(("worker", host) for host in "abcd"), ("aggregator", "e")), pipeline_job()
    )
    assert needs[0].total_bytes == sum(each.total_bytes for each in alone[:4])
    assert alone[1].total_bytes < alone[0].total_bytes, "the first stage has the embedding"


def test_fewer_workers_than_stages_share_them() -> None:
    four, two = (
        plan_of(*(("worker", host) for host in hosts), ("aggregator", "e"), stages=4)
        for hosts in ("abcd", "ab")
    )
    least, most = estimate_needs(four, pipeline_job())[1], estimate_needs(two, pipeline_job())[1]
    assert most.total_bytes > 1.9 * least.total_bytes


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (BESIDE, "add two ranks, aggregator and optimizer, on hosts"),
        (plan_of(*[("worker", "a")] * 4, ("aggregator", "b")), "add a rank for the optimizer on a host"),
        (
            plan_of(*[("worker", "a")] * 4, ("aggregator", "b"), ("optimizer", "c")),
            "use a host with more for rank 5, or divide the optimizer into shards",
        ),
        (plan_of(*[("worker", "a")] * 4, ("aggregator", "b"), ("optimizer", "c")), "wire_dtype.weights=bf16"),
        (plan_of(*[("worker", "a")] * 4, ("aggregator", "b")), "give fewer ranks to the host"),
        (plan_of(*(("worker", host) for host in "abcd"), ("aggregator", "e")), "divide the model over more"),
    ],
)
def test_the_remedy_is_that_of_the_largest_role(plan: LaunchPlan, said: str) -> None:
    lines = [
        shortage.line
        for need in estimate_needs(plan, pipeline_job())
        if (shortage := find_shortage(need, "a-host-with-a-long-name.of-a-long-domain.example.org", 1 << 30))
    ]
    assert any(said in line for line in lines), lines
    assert all(len(line) <= LINE_CHARACTERS for line in lines), lines


def test_a_host_is_refused_only_where_the_estimate_cannot_be_wrong() -> None:
    need = HostNeed("a", 3000, 3000, "the optimizer", "use another")
    assert find_shortage(need, "a", 3000) is None
    unsure, sure = find_shortage(need, "a", 2999), find_shortage(need, "a", int(3000 / LARGEST_ERROR) - 1)
    assert unsure is not None and not unsure.is_certain
    assert sure is not None and sure.is_certain
    assert sure.line == ("host a: the optimizer needs 3.0 kB of memory, but it has 2.0 kB; use another")


def test_nothing_is_said_of_a_model_whose_size_only_workers_know() -> None:
    uncounted = {"files": ({"path": "text.txt", "sha256": "0" * 64},)}
    own = {"model": CustomConfig(model_type="models:build"), "data": uncounted | {"vocab_size": 10}}
    assert estimate_needs(plan_of(("worker", "a"), ("aggregator", "a")), JobConfig.model_validate(own)) == []
    assert estimate_needs(BESIDE, pipeline_job(data=uncounted)) == []
    small = JobConfig.model_validate({"model": LinearRegressionConfig()})
    (need,) = estimate_needs(plan_of(("worker", "a"), ("aggregator", "a")), small)
    assert 0 < need.total_bytes < 1 << 20
