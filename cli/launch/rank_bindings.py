"""tt-run's rank bindings: which mesh each rank has, and the environment that it gets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from cli.launch.hosts_file import MOST_RANKS
from cli.launch.variables import expand_variables, read_variables
from services.config.field_types import NonNegativeInt, PathText
from services.config.sections import Section, parse_section
from services.config.yaml_files import read_document
from services.errors import Refused
from services.printable import printable_path


class _BindingSection(Section):
    """One entry of `rank_bindings`. `rank` and `mesh_id` must be there; a misspelled key is named first."""

    rank: Annotated[int, Field(ge=0, lt=MOST_RANKS)] | None = None
    mesh_id: NonNegativeInt | None = None
    mesh_host_rank: NonNegativeInt | None = None
    env_overrides: dict[Any, Any] | None = None
    subcontext_id: NonNegativeInt | None = None
    subcontext_size: Annotated[int, Field(ge=1)] | None = None
    mesh_graph_desc_path: PathText | None = None


class _BindingsDocument(Section):
    """The whole file."""

    rank_bindings: list[_BindingSection] = Field(default_factory=list)
    global_env: dict[Any, Any] | None = None
    mesh_graph_desc_path: PathText | None = None
    mock_cluster_rank_binding: dict[int, PathText] | None = None
    factory_system_descriptor_path: PathText | None = None


@dataclass(frozen=True)
class RankBinding:
    """Binding of one rank. Paths and values have their variables expanded.

    Attributes:
        rank: number of the rank.
        mesh_id: id of its mesh in the descriptor.
        mesh_host_rank: number of its host among those of the mesh; None if it is not given.
        env_overrides: variables of this rank alone.
        descriptor: path of its descriptor as written; empty for that of the file.
        mock_cluster: path of the mocked cluster that it opens; empty for chips.
    """

    rank: int
    mesh_id: int
    mesh_host_rank: int | None
    env_overrides: Mapping[str, str]
    descriptor: str
    mock_cluster: str


@dataclass(frozen=True)
class RankBindings:
    """Content of a file of rank bindings.

    Attributes:
        source: name of the file, for errors.
        ranks: bindings in the order of their ranks, which are 0, 1, 2 and so on.
        global_env: variables of all ranks.
        descriptor: path of the mesh graph descriptor as written; empty if it is not given.
        factory_descriptor: path of a factory system descriptor on the hosts; empty if it is not given.
    """

    source: str
    ranks: tuple[RankBinding, ...]
    global_env: Mapping[str, str]
    descriptor: str
    factory_descriptor: str


def read_rank_bindings(path: Path, environment: Mapping[str, str]) -> RankBindings:
    """Return the rank bindings in a YAML file.

    Args:
        path: path of the file.
        environment: variables that `${NAME}` stands for.

    Raises:
        Refused: the file can't be read, has an unknown key or a bad value, or its ranks are not 0 to N-1, each once.
    """
    document = read_document(path, "rank bindings", example="the key rank_bindings")
    return parse_rank_bindings(document, printable_path(path), environment)


def parse_rank_bindings(
    document: Mapping[Any, Any], source: str, environment: Mapping[str, str]
) -> RankBindings:
    """Return the rank bindings in a document; see `read_rank_bindings`.

    Args:
        document: content of the YAML file.
        source: name of the file in errors.
        environment: variables that `${NAME}` stands for.
    """
    try:
        section = parse_section(document, "", _BindingsDocument)
        sections = section.rank_bindings
        if not 1 <= len(sections) <= MOST_RANKS:
            raise Refused(
                f"rank_bindings: {len(sections)} ranks, expected 1 to {MOST_RANKS}; write a list such as "
                "[{rank: 0, mesh_id: 0}]"
            )
        bindings = [_binding(each, number, section, environment) for number, each in enumerate(sections)]
        _check_ranks([binding.rank for binding in bindings])
        _check_mocks(section.mock_cluster_rank_binding or {}, len(bindings))
        return RankBindings(
            source=source,
            ranks=tuple(sorted(bindings, key=lambda binding: binding.rank)),
            global_env=read_variables(section.global_env, "global_env", environment),
            descriptor=_path(section.mesh_graph_desc_path, "mesh_graph_desc_path", environment),
            factory_descriptor=_path(
                section.factory_system_descriptor_path, "factory_system_descriptor_path", environment
            ),
        )
    except Refused as refused:
        raise Refused(f"{source}: {refused}") from None


def _binding(
    section: _BindingSection, number: int, document: _BindingsDocument, environment: Mapping[str, str]
) -> RankBinding:
    place = f"rank_bindings[{number}]"
    if section.rank is None or section.mesh_id is None:
        missing = "rank" if section.rank is None else "mesh_id"
        raise Refused(f"{place}.{missing}: missing, expected a number; add it")
    if section.subcontext_id:
        raise Refused(
            f"{place}.subcontext_id: {section.subcontext_id} given, expected 0 or none: a launch is one cluster; "
            "launch the ranks of each subcontext by a file of their own"
        )
    mock = (document.mock_cluster_rank_binding or {}).get(section.rank)
    return RankBinding(
        rank=section.rank,
        mesh_id=section.mesh_id,
        mesh_host_rank=section.mesh_host_rank,
        env_overrides=read_variables(section.env_overrides, f"{place}.env_overrides", environment),
        descriptor=_path(section.mesh_graph_desc_path, f"{place}.mesh_graph_desc_path", environment),
        mock_cluster=_path(mock, f"mock_cluster_rank_binding.{section.rank}", environment),
    )


def _path(text: str | None, place: str, environment: Mapping[str, str]) -> str:
    return expand_variables(text or "", place, environment)


def _check_mocks(ranks: Iterable[int], count: int) -> None:
    for rank in ranks:
        if not 0 <= rank < count:
            raise Refused(
                f"mock_cluster_rank_binding: rank {rank} given, expected 0 to {count - 1}; correct it or remove it"
            )


def _check_ranks(ranks: Sequence[int]) -> None:
    missing = sorted(set(range(len(ranks))) - set(ranks))
    instead = f"; write {missing[0]}, so that ranks are 0 to {len(ranks) - 1}" if missing else ""
    for number, rank in enumerate(ranks):
        first = ranks.index(rank)
        if first < number:
            raise Refused(
                f"rank_bindings[{number}].rank: {rank} is the rank of rank_bindings[{first}] too, expected each rank "
                f"once{instead}"
            )
    for number, rank in enumerate(ranks):
        if rank >= len(ranks):
            raise Refused(
                f"rank_bindings[{number}].rank: {rank} given, but rank {missing[0]} is missing{instead}"
            )
