"""Finds the architecture of this host's chips without ttnn, which reads its descriptor when it is imported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from mesh.descriptors.mesh_graph_pb2 import BLACKHOLE, WORMHOLE_B0, Architecture, MeshGraphDescriptor
from services.errors import Refused
from services.input_files import read_input_file
from services.printable import printable, printable_path
from services.yaml_text import parse_yaml

MOCK_VARIABLE = "TT_METAL_MOCK_CLUSTER_DESC_PATH"
"""Variable that names the description of a mocked cluster, which ttnn opens in place of chips."""
DRIVER_FOLDER = Path("/sys/class/tenstorrent")
"""Folder in which the driver lists its chips."""

_BY_PCI_DEVICE = {0x401E: WORMHOLE_B0, 0xB140: BLACKHOLE}
"""Architecture by PCI device id, as in tt-umd."""
_BY_NAME = {"wormhole_b0": WORMHOLE_B0, "blackhole": BLACKHOLE}
"""Architecture by its name in the description of a mocked cluster."""
_MAX_MOCK_BYTES = 256 << 10


def find_architectures(
    environment: Mapping[str, str], driver_folder: Path = DRIVER_FOLDER
) -> frozenset[Architecture]:
    """Return the architectures of this host's chips; empty if the driver lists none that is known.

    Args:
        environment: environment variables of this process.
        driver_folder: folder in which the driver lists its chips.

    Raises:
        Refused: the description of a mocked cluster can't be read.
    """
    mocked = environment.get(MOCK_VARIABLE)
    return frozenset(_read_mocked(Path(mocked)) if mocked else _read_driver(driver_folder))


def check_architecture(
    descriptor: MeshGraphDescriptor, path: Path, architectures: Iterable[Architecture]
) -> None:
    """Check a descriptor against the architectures of this host's chips; without any there is nothing to check.

    Raises:
        Refused: no mesh of the descriptor has chips like this host's.
    """
    found = {Architecture.Name(each) for each in architectures}
    described = {Architecture.Name(mesh.arch) for mesh in descriptor.mesh_descriptors}
    if found and not found & described:
        raise Refused(
            f"{printable(str(path), 80)}: arch {' and '.join(sorted(described))}, but the chips of this host are "
            f"{' and '.join(sorted(found))}; set TT_MESH_GRAPH_DESC_PATH to a descriptor of these, or unset it"
        )


def _read_driver(folder: Path) -> Iterable[Architecture]:
    for file in folder.glob("*/device/device"):
        with suppress(OSError, ValueError, KeyError):  # a chip that left meanwhile, or of an unknown kind
            yield _BY_PCI_DEVICE[int(file.read_text(), 16)]


def _read_mocked(path: Path) -> Iterable[Architecture]:
    source = printable_path(path)
    try:
        text = read_input_file(MOCK_VARIABLE, path, _MAX_MOCK_BYTES).decode()
    except UnicodeDecodeError:
        raise Refused(
            f"{source}: is not text, expected a cluster descriptor; correct {MOCK_VARIABLE}"
        ) from None
    described = parse_yaml(text, source)
    chips = described.get("arch") if isinstance(described, dict) else None
    names = map(str, chips.values()) if isinstance(chips, dict) else ()
    return [_BY_NAME[name] for name in names if name in _BY_NAME]
