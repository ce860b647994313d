"""The plan of a launch: roles by tt-train's rule, hosts by slot, one mesh a worker, and what doesn't fit refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.launch.configuration import Configuration, DescriptorFile, LaunchFiles, read_configuration
from cli.launch.hosts_file import Host
from cli.launch.placement import Placement
from cli.launch.plan import LaunchPlan, plan_launch
from cli.launch.rank_bindings import parse_rank_bindings
from mesh.descriptors.read import parse_textproto
from mesh.descriptors.shape_check import find_local_shape
from services.config.device import DeviceConfig
from services.config.paths import REPOSITORY_ROOT
from services.errors import Refused
from services.names import is_name
from tests.cli.launch.conftest import MakeFolder
from tests.support.descriptors import describe_meshes

_LOCAL = Placement()
_LOUDBOX = DeviceConfig(mesh_shape=(1, 8), enable_ddp=True)
_PIPELINES = [
    folder
    for above in REPOSITORY_ROOT.parents
    for folder in sorted(
        (above / "shared" / "upstream").glob("*/**/pipeline_parallel_training/configurations/*")
    )
]


def _configuration(
    ranks: list[dict[str, Any]],
    placement: Placement = _LOCAL,
    *,
    meshes: int | None = None,
    shape: tuple[int, int] = (1, 8),
    mesh_hosts: tuple[int, int] = (1, 1),
) -> Configuration:
    bindings = parse_rank_bindings({"rank_bindings": ranks}, "rank_bindings.yaml", {})
    descriptor = DescriptorFile(
        Path("mgd.textproto"), describe_meshes(meshes or len(ranks), shape, mesh_hosts)
    )
    return Configuration(bindings, (descriptor,) * len(ranks), placement)


def _ranks(count: int) -> list[dict[str, Any]]:
    return [{"rank": rank, "mesh_id": rank} for rank in range(count)]


def _hosts(*names: str) -> Placement:
    return Placement(tuple(Host(name, 1) for name in names), source="hosts.txt")


def _plan(
    configuration: Configuration,
    num_workers: int,
    device: DeviceConfig = _LOUDBOX,
    *,
    workers: int | None = None,
    stages: int = 1,
    web: bool = False,
    local_chips: bool = False,
    parent: dict[str, str] | None = None,
) -> LaunchPlan:
    return plan_launch(
        configuration,
        num_workers,
        device,
        parent or {},
        workers=workers,
        stages=stages,
        web=web,
        local_chips=local_chips,
    )


def test_ranks_that_are_all_stages_get_an_aggregator_beside_the_first() -> None:
    ranks = _ranks(4)
    ranks[0]["env_overrides"] = {"TT_VISIBLE_DEVICES": "0,1", "OWN": "of rank 0"}
    plan = _plan(_configuration(ranks, _hosts("a", "b", "c", "d")), 4, stages=4)
    assert (plan.tiers, plan.stages, len(plan.workers)) == (2, 4, 4)
    assert (plan.aggregator.number, plan.aggregator.name) == (4, "rank4-aggregator@a")
    assert dict(plan.aggregator.environment) == {"TT_RUN_RANK": "4"}


@pytest.mark.skipif(not _PIPELINES, reason="tt-train's configuration folders are not beside the repository")
def test_tt_trains_pipeline_folders_have_a_worker_for_each_rank() -> None:
    """Check the folders of both dates, on chips, with as many hosts as their comments say."""
    hosts = {"4galaxy_pp4": "a,b,c,d", "4galaxy_pp16": "a:4,b:4,c:4,d:4"}
    found = {}
    for folder in _PIPELINES:
        configuration = read_configuration(LaunchFiles(folder, hosts=hosts.get(folder.name)), {}, folder)
        stages = len(configuration.bindings.ranks)
        shape = (1, 32 if folder.name in ("5galaxies", "4galaxy_pp4") else 8)
        device = DeviceConfig(mesh_shape=shape, enable_tp=True, backend="ttnn")
        plan = _plan(configuration, stages, device, stages=stages, local_chips=True)
        found[folder.name] = len(plan.workers)
    assert found == {"5loudboxes": 5, "5galaxies": 5, "1galaxy_pp4": 4, "4galaxy_pp4": 4, "4galaxy_pp16": 16}


def test_a_pipelines_folder_may_have_ranks_for_the_other_roles() -> None:
    plan = _plan(_configuration(_ranks(6)), 4, stages=2)
    assert [rank.role for rank in plan.ranks] == ["worker"] * 4 + ["aggregator", "optimizer"]
    with pytest.raises(
        Refused, match=r"3 ranks, but the job's num_workers of 4 needs 4, 5 .* give a folder of 4"
    ):
        _plan(_configuration(_ranks(3)), 4, stages=2)


def test_five_loudboxes_are_three_workers_an_aggregator_and_an_optimizer() -> None:
    ranks = [{"rank": rank, "mesh_id": mesh} for rank, mesh in enumerate((1, 0, 2, 3, 4))]
    plan = _plan(_configuration(ranks, _hosts("a", "b", "c", "d", "e")), 3)
    assert plan.tiers == 3
    assert [rank.role for rank in plan.ranks] == ["worker"] * 3 + ["aggregator", "optimizer"]
    assert plan.hosts == ("a", "b", "c", "d", "e")
    assert [rank.name for rank in plan.ranks] == [
        "rank0-mesh1@a",
        "rank1-mesh0@b",
        "rank2-mesh2@c",
        "rank3-aggregator@d",
        "rank4-optimizer@e",
    ]
    assert plan.aggregator.host == "d"
    assert plan.optimizer is not None
    assert plan.optimizer.host == "e"


MEMORY = {"a": 512 << 30, "b": 512 << 30, "c": 768 << 30, "d": 768 << 30, "e": 256 << 30}


@pytest.mark.parametrize("num_workers", [1, 3, 5, 8])
def test_as_many_workers_as_hosts_take_aggregator_and_optimizer_beside_one(num_workers: int) -> None:
    """Check the first of the hosts with most memory, whatever the job's `num_workers`, which sizes its step."""
    ranks = _ranks(5)
    ranks[0]["env_overrides"] = {"TT_VISIBLE_DEVICES": "0,1", "OWN": "of rank 0"}
    plan = _plan(_configuration(ranks, _hosts(*"abcde")), num_workers, workers=5, local_chips=True)
    assert (plan.tiers, len(plan.workers)) == (3, 5)
    assert {rank.host for rank in plan.beside} == {"a"}, "until the memory of hosts is known"
    moved = plan.move_beside(MEMORY)
    assert moved.workers == plan.workers
    assert moved.hosts == tuple("abcde")
    assert [(rank.number, rank.role, rank.name) for rank in moved.beside] == [
        (5, "aggregator", "rank5-aggregator@c"),
        (6, "optimizer", "rank6-optimizer@c"),
    ]
    for rank in moved.beside:
        assert (rank.host, rank.descriptor_text) == ("c", "")
        assert dict(rank.environment) == {"TT_RUN_RANK": str(rank.number)}


def test_fewer_workers_leave_hosts_to_the_other_roles() -> None:
    configuration = _configuration(_ranks(5), _hosts(*"abcde"))
    assert _plan(configuration, 3, workers=3) == _plan(configuration, 3)
    assert _plan(configuration, 1, workers=4) == _plan(configuration, 4)
    assert _plan(configuration, 3).move_beside(MEMORY) == _plan(configuration, 3)


def test_the_http_api_is_where_the_aggregator_is() -> None:
    configuration = _configuration(_ranks(5), _hosts(*"abcde"))
    plan = _plan(configuration, 3, web=True).move_beside(MEMORY)
    assert plan.web is not None and (plan.web.name, plan.web.host) == ("rank5-web@d", "d")
    assert dict(plan.web.environment) == {"TT_RUN_RANK": "5"}
    assert plan.beside == ()
    moved = _plan(configuration, 5, workers=5, web=True).move_beside(MEMORY)
    assert [rank.name for rank in moved.beside] == ["rank5-aggregator@c", "rank6-optimizer@c", "rank7-web@c"]
    assert _plan(configuration, 3).web is None


def test_a_pipelines_aggregator_moves_to_the_host_with_most_memory() -> None:
    plan = _plan(_configuration(_ranks(4), _hosts(*"abcd")), 4, stages=4).move_beside(MEMORY)
    assert (plan.tiers, plan.aggregator.name) == (2, "rank4-aggregator@c")


def test_on_this_machine_there_is_no_host_to_choose() -> None:
    plan = _plan(_configuration(_ranks(1)), 1, workers=1)
    assert plan.move_beside({}) == plan
    assert [rank.name for rank in plan.ranks] == ["rank0-mesh0", "rank1-aggregator", "rank2-optimizer"]


@pytest.mark.parametrize(
    ("workers", "facts"),
    [
        (6, ["--workers 6: more than the 5 ranks of rank_bindings.yaml", "give 5 at most"]),
        (2, ["--workers 2: 5 ranks in rank_bindings.yaml, so 1 would have no role", "give 3 to 5"]),
    ],
)
def test_a_number_of_workers_that_does_not_fit_the_ranks_is_refused(workers: int, facts: list[str]) -> None:
    with pytest.raises(Refused) as refused:
        _plan(_configuration(_ranks(5), _hosts(*"abcde")), 3, workers=workers)
    assert all(fact in str(refused.value) for fact in facts), refused.value


@given(st.integers(1, 12), st.integers(1, 14), st.integers(1, 5))
def test_any_number_of_workers_is_planned_or_refused(count: int, workers: int, num_workers: int) -> None:
    configuration = _configuration(_ranks(count), _hosts(*(f"host-{number}" for number in range(count))))
    try:
        plan = _plan(configuration, num_workers, workers=workers)
    except Refused as refused:
        assert workers not in range(max(count - 2, 1), count + 1)
        assert str(refused).startswith(f"--workers {workers}: ")
    else:
        assert len(plan.workers) == workers
        assert [rank.number for rank in plan.ranks] == [*range(len(plan.ranks))]
        assert len({rank.name for rank in plan.ranks}) == len(plan.ranks)


def test_one_rank_less_is_two_tiers() -> None:
    plan = _plan(_configuration(_ranks(5), _hosts(*"abcde")), 4)
    assert (plan.tiers, plan.aggregator.number, plan.optimizer) == (2, 4, None)
    assert len(plan.workers) == 4


@pytest.mark.parametrize(
    ("ranks", "num_workers", "facts"),
    [
        (5, 1, ["5 ranks", "num_workers of 1", "2 (2 tiers) or 3 (3 tiers)", "num_workers=3"]),
        (5, 5, ["5 ranks", "num_workers of 5", "6 (2 tiers) or 7 (3 tiers)", "num_workers=3"]),
        (5, 2, ["5 ranks", "num_workers of 2", "multihost_config.enabled=true"]),
        (2, 3, ["2 ranks", "num_workers=1"]),
        (1, 1, ["1 rank, ", "2 (2 tiers)", "add ranks", "--workers 1"]),
    ],
)
def test_another_number_of_ranks_is_refused_with_both_numbers(
    ranks: int, num_workers: int, facts: list[str]
) -> None:
    with pytest.raises(Refused) as refused:
        _plan(_configuration(_ranks(ranks)), num_workers)
    assert all(fact in str(refused.value) for fact in facts), refused.value


@settings(max_examples=30)
@given(st.integers(1, 40), st.sampled_from([2, 3]))
def test_the_advice_fits(num_workers: int, tiers: int) -> None:
    count = num_workers + tiers - 1
    with pytest.raises(Refused) as refused:
        _plan(_configuration(_ranks(count)), num_workers + 5)
    advised = int(str(refused.value).rpartition("num_workers=")[2])
    assert len(_plan(_configuration(_ranks(count)), advised).ranks) == count


def test_slots_put_several_ranks_on_a_host() -> None:
    placement = Placement((Host("a", 2), Host("b", 1), Host("c", 4)), source="hosts.txt")
    ranks = [{**rank, "env_overrides": {"TT_VISIBLE_DEVICES": str(rank["rank"])}} for rank in _ranks(5)]
    plan = _plan(_configuration(ranks, placement), 3)
    assert [rank.host for rank in plan.ranks] == ["a", "a", "b", "c", "c"]
    assert plan.hosts == ("a", "b", "c")


def test_more_ranks_than_slots_and_another_number_in_a_rankfile() -> None:
    with pytest.raises(Refused, match=r"hosts.txt: 2 slots on 2 hosts, expected one for each of 3 ranks"):
        _plan(_configuration(_ranks(3), _hosts("a", "b")), 1)
    with pytest.raises(Refused, match="hosts of 2 ranks, expected those of 3"):
        _plan(_configuration(_ranks(3), Placement(rank_hosts=("a", "b"), source="rankfile")), 1)


def test_each_worker_has_a_descriptor_of_its_one_mesh() -> None:
    plan = _plan(_configuration(_ranks(4), _hosts(*"abcd")), 2)
    for rank in plan.workers:
        cut = parse_textproto(rank.descriptor_text, "cut")
        assert not cut.graph_descriptors
        assert cut.top_level_instance.mesh.mesh_id == 0
        assert find_local_shape(cut, Path("cut"), {"TT_MESH_ID": rank.environment["TT_MESH_ID"]}) == [1, 8]
        assert rank.environment["TT_MESH_HOST_RANK"] == "0"
    for rank in plan.ranks[2:]:
        assert rank.descriptor_text == ""
        assert not any(name.startswith("TT_MESH") for name in rank.environment)


@pytest.mark.parametrize(
    ("ranks", "others", "facts"),
    [
        ([{"rank": 0, "mesh_id": 7}, *_ranks(3)[1:]], {}, ["no mesh has id 7", "0, 1, 2"]),
        ([{"rank": 0, "mesh_id": 1}, *_ranks(3)[1:]], {}, ["workers 0 and 1 both have mesh_id 1"]),
        (
            [{"rank": 0, "mesh_id": 0, "mesh_host_rank": 1}, *_ranks(3)[1:]],
            {},
            ["rank_bindings.yaml: rank 0 has mesh_host_rank 1"],
        ),
        (_ranks(3), {"mesh_hosts": (1, 2)}, ["mesh 0 has host_topology [1, 2]", "a mesh of its own"]),
        (
            _ranks(3),
            {"shape": (2, 4)},
            ["mesh_shape: [1, 8]", "device_topology [2, 4]", "device_config.mesh_shape=[2,4]"],
        ),
    ],
)
def test_meshes_that_no_worker_can_drive(ranks: list[dict[str, Any]], others: Any, facts: list[str]) -> None:
    with pytest.raises(Refused) as refused:
        _plan(_configuration(ranks, _hosts(*"abc"), **others), 2)
    assert all(fact in str(refused.value) for fact in facts), refused.value


def test_the_emulator_has_no_chips_to_fit() -> None:
    device = DeviceConfig(mesh_shape=(1, 8), enable_ddp=True, backend="emulator")
    assert len(_plan(_configuration(_ranks(3), shape=(2, 4)), 2, device, local_chips=True).workers) == 2


def _sharing(*visible: str | None) -> list[dict[str, Any]]:
    ranks = _ranks(len(visible) + 1)
    for rank, chips in zip(ranks, visible, strict=False):
        rank["env_overrides"] = {} if chips is None else {"TT_VISIBLE_DEVICES": chips}
    return ranks


@pytest.mark.parametrize(
    ("visible", "fact"),
    [
        (("0,1,2", "3, 2"), "workers 0 and 1 both open chip 2 of a"),
        ((None, "0"), "workers 0 and 1 both open all chips of a"),
        (("0", None), "workers 0 and 1 both open all chips of a"),
        (("0", "1", "1"), "workers 1 and 2 both open chip 1 of a"),
        ((None, None), "both open all chips of a; give each its own by TT_VISIBLE_DEVICES"),
    ],
)
def test_workers_of_a_host_need_chips_of_their_own(visible: tuple[str | None, ...], fact: str) -> None:
    placement = Placement((Host("a", 9),), source="hosts.txt")
    with pytest.raises(Refused, match=fact):
        _plan(_configuration(_sharing(*visible), placement), len(visible))


def test_chips_may_be_shared_where_nobody_opens_them() -> None:
    visible = ("0", "0")
    assert _plan(_configuration(_sharing(*visible), _hosts(*"abc")), 2).hosts == ("a", "b", "c")
    local = _configuration(_sharing(*visible))
    assert _plan(local, 2, local_chips=False).is_local
    with pytest.raises(Refused, match="chip 0 of this machine"):
        _plan(local, 2, local_chips=True)
    mocked = parse_rank_bindings(
        {"rank_bindings": _ranks(3), "mock_cluster_rank_binding": {0: "/m", 1: "/m"}}, "file", {}
    )
    configuration = Configuration(mocked, local.descriptors, Placement())
    workers = _plan(configuration, 2, local_chips=True).workers
    assert {rank.environment["TT_METAL_MOCK_CLUSTER_DESC_PATH"] for rank in workers} == {"/m"}


@settings(max_examples=40)
@given(st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,100}[a-z]", fullmatch=True) | st.ip_addresses().map(str))
def test_names_of_daemons_have_the_right_form(host: str) -> None:
    plan = _plan(_configuration(_ranks(3), Placement(rank_hosts=(host,) * 3, source="file")), 1)
    names = [rank.name for rank in plan.ranks]
    assert all(map(is_name, names))
    assert len(set(names)) == 3


def test_a_folder_of_meshes_and_hosts_alone(make_folder: MakeFolder) -> None:
    folder = make_folder(hosts="a slots=1\nb slots=1\nc slots=1\n", meshes=3)
    plan = _plan(read_configuration(LaunchFiles(folder), {}, folder), 1)
    assert [(rank.role, rank.host) for rank in plan.ranks] == [
        ("worker", "a"),
        ("aggregator", "b"),
        ("optimizer", "c"),
    ]
