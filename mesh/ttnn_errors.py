"""What ttnn says when it can't do something, as one line that says why that is likely and what to run."""

from __future__ import annotations

import re

LONGEST = 240
"""Characters of ttnn's own words that are shown; the rest is a backtrace of its library."""

_RESET = "`tt-smi -r` resets the chips (on a Galaxy `tt-smi -glx_reset`)"
_TOPOLOGY = "`tt-topology -l mesh` sets up the links between boards (again after a change of boards)"
_OTHER_PROCESS = "another process has the chips (`fuser -v /dev/tenstorrent/*` shows it): stop it"

LIKELY_CAUSES = (
    f"likeliest first: {_OTHER_PROCESS}; a run that was killed left the links up: {_RESET}; the topology is not set "
    f"up: {_TOPOLOGY}; mesh_shape or TT_MESH_GRAPH_DESC_PATH describe other hardware: correct them"
)
"""Why a mesh can't be opened, where ttnn's words don't say."""

_KNOWN = (
    (
        r"[Pp]hysical chip id (\d+) not found",
        r"chip \1 is not in the mesh that the descriptor describes; likeliest first: the topology is not set up: "
        rf"{_TOPOLOGY}; a run that was killed left the links up: {_RESET}; the descriptor is of other hardware: set "
        r"TT_MESH_GRAPH_DESC_PATH to that of this board",
    ),
    (
        r"could not fit in the discovered physical topology|has no grouping in the provided|"
        r"no PGD grouping could be placed",
        rf"the descriptor asks for devices or links that were not found; likeliest first: the descriptor is of other "
        rf"hardware: set TT_MESH_GRAPH_DESC_PATH to that of this board; the topology is not set up: {_TOPOLOGY}; a "
        rf"link is down: {_RESET}",
    ),
    (
        r"requires (\d+) devices, but only (\d+) devices are available in the system mesh MeshShape\(([^)]*)\)",
        r"it needs \1 devices, but only \2 are here, as \3: set mesh_shape to that, or if there should be more, "
        rf"{_TOPOLOGY}, then {_RESET}",
    ),
    (
        r"too big and is not rotatable: .* and SystemMesh MeshShape\(([^)]*)\)",
        r"the devices are arranged as \1: set mesh_shape to that, or TT_MESH_GRAPH_DESC_PATH to a descriptor of this "
        r"mesh_shape",
    ),
    (
        r"[Mm]esh graph descriptor file not found: (\S+)",
        r"there is no mesh graph descriptor \1: set TT_MESH_GRAPH_DESC_PATH to one that is there, or unset it",
    ),
    (
        r"Device (\d+) is not active",
        r"links run over all devices of a host, but device \1 is not in the mesh: set mesh_shape to all of them, or "
        r"hide the others with TT_VISIBLE_DEVICES",
    ),
    (
        r"un-initialized fabric context",
        r"the links between devices were not set up before the mesh was opened: open it with mesh.device.open_mesh",
    ),
    (
        r"tried to set num initialized routers again|not allowed while devices are still open",
        r"devices are open already in this process, and ttnn has one mesh at a time: close it first; if an opening "
        r"that failed left them so, restart this process",
    ),
    (
        r"SubDeviceManagerTracker is not initialized|cq_id \d+ is out of range",
        r"the mesh is closed: open one with mesh.device.open_mesh before using its tensors",
    ),
    (
        r"Fabric Router Sync: Timeout .* on Device (\d+)",
        r"device \1 does not answer over its links; likeliest first: a run that was killed left them in disorder: "
        rf"{_RESET}; a cable is loose or the topology changed: {_TOPOLOGY}",
    ),
    (
        r"No chips detected",
        r"no chip was found; likeliest first: the driver (tt-kmd) is not loaded or /dev/tenstorrent is not readable "
        rf"for this user; the chips hang: {_RESET}; TT_VISIBLE_DEVICES hides them",
    ),
    (
        r"Invalid (TT_MESH_\w+): .* (\d+) not found in mesh graph descriptor",
        r"\1 is \2, which is not in the mesh graph descriptor: correct one of the two",
    ),
    (
        r"Invalid chip ID in TT_VISIBLE_DEVICES: (\S+)",
        r"TT_VISIBLE_DEVICES names chip \1, which is not here: correct it",
    ),
    (
        r"Out of Memory: (Not enough space to allocate [^;:]*? across \d+ banks)",
        r"the devices' memory is full (\1): set a smaller batch_size with more gradient_accumulation_steps, or "
        r"runner_type: memory_efficient",
    ),
)


def own_words(error: BaseException) -> str:
    """What ttnn says, without its backtrace, on one line."""
    text = " ".join(str(error).split("backtrace:")[0].split())
    where, _, what = text.rpartition("info: ")
    text = what or where
    return text if len(text) <= LONGEST else text[:LONGEST].rstrip() + " ..."


def explained(error: BaseException) -> str | None:
    """A known error of ttnn as what it means and what to do, with ttnn's own words; None if it isn't known."""
    text = " ".join(str(error).split("backtrace:")[0].split())
    for pattern, meaning in _KNOWN:
        found = re.search(pattern, text)
        if found:
            return f"{found.expand(meaning)} (ttnn: {own_words(error)})"
    return None


def why_not_opened(error: BaseException) -> str:
    """Why a mesh could not be opened and what to do, known or not."""
    return explained(error) or f"{own_words(error)}; {LIKELY_CAUSES}"
