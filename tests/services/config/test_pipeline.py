"""Pipelines in a config: what their sections mean, and each mistake refused in one line with its remedy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from services.config.job import JobConfig
from services.errors import Refused
from services.protocol.plan import JobPlan
from tests.services.config.conftest import Load, Refuse
from tests.support.facts import has_facts

SECTION = "multihost_config.pipeline_parallel_config"


def hosts(num_workers: int = 2, **pipeline: Any) -> dict[str, Any]:
    """Return sections of a GPT-2 of 6 blocks in a pipeline."""
    return {
        "multihost_config": {
            "enabled": True, "num_workers": num_workers, "pipeline_parallel_config": pipeline,
        },
        "transformer_config": {"num_blocks": 6},
    }  # fmt: skip


def stages_of(job: JobConfig) -> tuple[int, ...]:
    assert job.pipeline is not None
    return job.pipeline.blocks_per_stage


@pytest.mark.parametrize(
    "given",
    [{0: 1, 1: 3, 2: 2}, {2: 2, 0: 1, 1: 3}, {"0": "1", "1": "3", "2": "2"}],
    ids=["", "order", "texts"],
)
def test_blocks_are_read_by_rank(load: Load, given: dict[Any, Any]) -> None:
    job, notices = load(**hosts(3, num_blocks=6, blocks_per_rank=given))
    assert stages_of(job) == (1, 3, 2) and job.pipeline is not None
    assert (job.pipeline.schedule, job.pipeline.ranges_per_stage, job.num_workers) == ("1f1b", 1, 3)
    assert JobConfig.from_json(job.to_json()) == job
    assert not notices


@pytest.mark.parametrize("enable_pp", [True, False])
def test_enable_pp_adds_nothing_to_the_blocks(load: Load, enable_pp: bool) -> None:
    sections = hosts(blocks_per_rank={0: 3, 1: 3})
    assert load(**sections, device_config={"enable_pp": enable_pp})[0] == load(**sections)[0]


def test_a_step_counts_pipelines_and_is_that_of_a_job_without_one(load: Load) -> None:
    training = {"gradient_accumulation_steps": 3, "num_epochs": 1, "epochs": "strict", "max_steps": 10**6}
    piped, _ = load(training_config=training, **hosts(4, blocks_per_rank={0: 3, 1: 3}))
    plain_hosts = {"multihost_config": {"enabled": True, "num_workers": 2}}
    plain, _ = load(training_config=training, **(hosts() | plain_hosts))
    assert (piped.micro_batches, piped.stages, plain.stages) == (6, 2, 1)
    assert isinstance(piped.plan(), JobPlan)
    assert piped.plan() == replace(plain.plan(), stages=2, max_workers=12)
    assert piped.model_copy(update={"pipeline": None, "num_workers": 2}) == plain


def test_a_change_of_the_split_is_part_of_the_record(load: Load) -> None:
    given, _ = load(training_config={"start_from": {"job": "a", "change_split": True}})
    assert JobConfig.from_json(given.to_json()) == given


@pytest.mark.parametrize(("mesh_dtype", "keeps"), [("bfloat16", True), ("float32", False), (None, False)])
def test_activations_may_be_rounded_unless_results_are_verified(
    load: Load, refused: Refuse, mesh_dtype: str | None, keeps: bool
) -> None:
    sections = hosts(blocks_per_rank={0: 3, 1: 3}) | {"device_config": {"dtype": mesh_dtype}}
    plain, _ = load(**sections)
    assert plain.wire_dtype.activations is None
    wire = {"wire_dtype": {"activations": "bf16"}}
    job, _ = load(training_config=wire, **sections)
    assert job.wire_dtype.activations == "bfloat16" and JobConfig.from_json(job.to_json()) == job
    verified = wire | {"verify_fraction": 0.1}
    if keeps:
        load(training_config=verified, **sections)
    else:
        line = refused(training_config=verified, **sections)
        assert has_facts(
            line, "training_config.wire_dtype.activations: bfloat16 given with verify_fraction 0.1"
        )


def test_interleaving_has_several_ranges_of_each_stage(load: Load) -> None:
    job, _ = load(
        training_config={"gradient_accumulation_steps": 4},
        **hosts(2, blocks_per_rank={0: 3, 1: 3}, schedule="interleaved_1f1b", ranges_per_rank=2),
    )
    assert job.pipeline is not None
    assert [len(each) for each in job.pipeline.split.ranges] == [2, 2, 1, 1]


def test_an_own_model_declares_its_blocks(load: Load, refused: Refuse) -> None:
    own = {"model_type": "shop.mixers:Mixer", "max_sequence_length": 32}
    sections = hosts(blocks_per_rank="auto")
    line = refused(**(sections | {"transformer_config": own}))
    assert has_facts(
        line, f'{SECTION}: given with model_type "shop.mixers:Mixer" ... transformer_config.num_blocks'
    )
    job, _ = load(**(sections | {"transformer_config": own | {"num_blocks": 5}}))
    assert stages_of(job) == (3, 2)


def test_workers_hide_transfers_unless_the_job_says_otherwise(load: Load) -> None:
    for given, expected in (({}, True), ({"hide_transfers": False}, False)):
        job, _ = load(**hosts(3, blocks_per_rank="auto", **given))
        assert job.pipeline is not None
        schedules = [job.pipeline.make_schedule(4, worker_stages=count) for count in (1, 2, 3)]
        # A worker with all stages has no transfers; others agree, however many stages each has.
        assert [each.hides_transfers for each in schedules] == [expected, expected, False]
        assert JobConfig.from_json(job.to_json()) == job


def test_a_pipeline_is_not_traced(refused: Refuse) -> None:
    sections = hosts(blocks_per_rank="auto")
    sections["transformer_config"]["dropout_prob"] = 0.0
    assert has_facts(
        refused(**sections, device_config={"trace": True}), "device_config.trace: true ... trace: false"
    )


@pytest.mark.parametrize(
    ("num_workers", "pipeline", "facts"),
    [
        (2, {"num_blocks": 6}, "blocks_per_rank: missing ... blocks_per_rank: auto"),
        (2, {"blocks_per_rank": {}}, "blocks_per_rank: empty"),
        (2, {"blocks_per_rank": {0: 3, 1: 2}}, "blocks_per_rank: 5 blocks in all ... the model's 6 ... auto"),
        (2, {"num_blocks": 5, "blocks_per_rank": {0: 3, 1: 2}}, "num_blocks: 5 given, expected the model's 6"),
        (2, {"num_blocks": 0, "blocks_per_rank": {0: 3, 1: 3}}, "num_blocks: 0 given, expected the model's 6"),
        (2, {"blocks_per_rank": {0: 6, 1: 0}}, "blocks_per_rank: 0 given for rank 1 ... leave out the rank"),
        (2, {"blocks_per_rank": {0: 7, 1: -1}}, "blocks_per_rank: -1 given for rank 1"),
        (2, {"blocks_per_rank": {0: 3, 1: "x"}}, 'blocks_per_rank: "x" given for rank 1'),
        (2, {"blocks_per_rank": {0: 3, 1: 3.0}}, "blocks_per_rank: 3.0 given for rank 1"),
        (2, {"blocks_per_rank": {0: 3, 1: True}}, "blocks_per_rank: true given for rank 1"),
        (2, {"blocks_per_rank": {0: 3, 1: "9" * 4000}}, "given for rank 1"),
        (2, {"blocks_per_rank": {0: 3, 2: 3}}, "blocks_per_rank: rank 1 is missing ... ranks 0 to 1"),
        (2, {"blocks_per_rank": {1: 3, 2: 3}}, "blocks_per_rank: rank 0 is missing ... from 0"),
        (2, {"blocks_per_rank": {-1: 3, 0: 3}}, "blocks_per_rank: rank -1 given ... from 0"),
        (2, {"blocks_per_rank": {"one": 3, 0: 3}}, 'blocks_per_rank: rank "one" given'),
        (2, {"blocks_per_rank": {0: 3, "0": 3}}, "blocks_per_rank: rank 0 given twice"),
        (2, {"blocks_per_rank": dict.fromkeys(range(2000), 1)}, "blocks_per_rank: 2000 ranks given ... at most 1024"),
        (2, {"blocks_per_rank": [3, 3]}, "blocks_per_rank: [3, 3] given"),
        (2, {"blocks_per_rank": "even"}, 'blocks_per_rank: "even" given'),
        (7, {"blocks_per_rank": "auto"}, "num_workers: 7 ... at most the model's 6 blocks ... num_stages: 6"),
        (8, {"blocks_per_rank": "auto", "num_stages": 8}, "num_stages: 8 given ... at most the model's 6 blocks"),
        (2, {"blocks_per_rank": {0: 3, 1: 3}, "num_stages": 3}, "num_stages: 3 given with 2 ranks ... remove"),
        (3, {"blocks_per_rank": {0: 3, 1: 3}}, "num_workers: 3 given with 2 stages ... multiple of 2 ... 2 or 4"),
        (1, {"blocks_per_rank": {0: 3, 1: 3}}, "num_workers: 1 given with 2 stages ... write 2"),
        (2, {"blocks_per_rank": {0: 3, 1: 3}, "ranges_per_rank": 2}, "ranges_per_rank: 2 given with schedule 1f1b"),
        (2, {"blocks_per_rank": {0: 3, 1: 3}, "schedule": "interleaved_1f1b"}, "ranges_per_rank: 1 ... at least 2"),
        (2, {"blocks_per_rank": {0: 5, 1: 1}, "schedule": "interleaved_1f1b", "ranges_per_rank": 2},
         "blocks_per_rank: 1 block given for rank 1 with ranges_per_rank 2"),
        (2, {"blocks_per_rank": {0: 3, 1: 3}, "schedule": "interleaved_1f1b", "ranges_per_rank": 2},
         "gradient_accumulation_steps: 3 micro-batches ... multiple of 2 ... 2 or 4"),
        (2, {"blocks_per_rank": {0: 3, 1: 3}, "schedule": "interleaved"}, "schedule: ... did you mean"),
        (2, {"blocks_per_rank": {0: 3, 1: 3}, "shedule": "gpipe"}, "shedule: unknown key ... did you mean schedule"),
        (2, {"blocks_per_rank": {0: 3, 1: 3}, "hide_transfers": "no way"}, 'hide_transfers: "no way" given'),
    ],
)  # fmt: skip
def test_a_mistake_is_refused_with_its_remedy(
    refused: Refuse, num_workers: int, pipeline: dict[str, Any], facts: str
) -> None:
    line = refused(training_config={"gradient_accumulation_steps": 3}, **hosts(num_workers, **pipeline))
    assert has_facts(line, facts) and len(line) <= 300


@pytest.mark.parametrize("model", ["mlp", "linear_regression"])
def test_a_model_without_blocks_has_no_pipeline(refused: Refuse, model: str) -> None:
    sections = {"multihost_config": hosts(blocks_per_rank="auto")["multihost_config"]}
    line = refused(training_config={"model_type": model}, **sections)
    assert has_facts(
        line, f'{SECTION}: given with model_type "{model}", which has no blocks ... remove the pipeline'
    )


def test_enable_pp_needs_a_pipeline(refused: Refuse) -> None:
    device = {"device_config": {"enable_pp": True}}
    assert has_facts(
        refused(**device), "device_config.enable_pp: true given without ... blocks_per_rank: auto"
    )
    off = hosts(blocks_per_rank={0: 3, 1: 3})
    off["multihost_config"]["enabled"] = False
    assert has_facts(refused(**device, **off), "device_config.enable_pp: true ... enabled: false")


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        ({"blocks_per_stage": [3, 2]}, "blocks_per_rank: 5 blocks in all"),
        ({"blocks_per_stage": [6, 0]}, "pipeline.blocks_per_stage[1]: 0 given"),
        ({"blocks_per_stage": []}, "pipeline.blocks_per_stage"),
        ({"schedule": "zero_bubble"}, 'pipeline.schedule: "zero_bubble" given'),
        ({"ranges_per_stage": 2}, "ranges_per_rank: 2 given"),
    ],
)
def test_a_job_that_comes_as_json_is_checked_too(load: Load, change: dict[str, Any], facts: str) -> None:
    job, _ = load(**hosts(blocks_per_rank={0: 3, 1: 3}))
    record = job.model_dump(mode="json")
    record["pipeline"] |= change
    with pytest.raises(Refused) as caught:
        JobConfig.from_json(JobConfig.model_construct(**record).model_dump_json(warnings=False))
    assert has_facts(str(caught.value), facts)
