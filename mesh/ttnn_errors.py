"""Translates errors of ttnn into one line: the likely cause, and what to run."""

from __future__ import annotations

import re

MAX_MESSAGE_CHARACTERS = 240
"""Characters of ttnn's own message that are shown; the rest is a backtrace of its library."""

_RESET = "`tt-smi -r` resets the chips (on a Galaxy `tt-smi -glx_reset`)"
_TOPOLOGY = (
    "`tt-topology -l mesh` sets up the links between boards, and has to be run again after a change of boards"
)
_OTHER_PROCESS = "another process uses the chips: stop the one that `fuser -v /dev/tenstorrent/*` shows"

LIKELY_CAUSES = (
    f"most likely first: {_OTHER_PROCESS}; a killed run left the links up: {_RESET}; the topology is not set "
    f"up: {_TOPOLOGY}; mesh_shape or TT_MESH_GRAPH_DESC_PATH describes other hardware: correct it"
)
"""Likely causes of a failed open, for errors of ttnn that are not known."""

_MEMORY_FULL = r"Out of Memory: (Not enough space to allocate [^;:]*? across \d+ banks)"

_KNOWN = (
    (
        r"[Pp]hysical chip id (\d+) not found",
        r"chip \1 is not in the mesh that the descriptor describes; most likely first: the topology is not set up: "
        rf"{_TOPOLOGY}; a killed run left the links up: {_RESET}; the descriptor is for other hardware: set "
        r"TT_MESH_GRAPH_DESC_PATH to that of this board",
    ),
    (
        r"could not fit in the discovered physical topology|has no grouping in the provided|"
        r"no PGD grouping could be placed",
        rf"the descriptor asks for devices or links that were not found; most likely first: the descriptor is for "
        rf"other hardware: set TT_MESH_GRAPH_DESC_PATH to that of this board; the topology is not set up: {_TOPOLOGY}; "
        rf"a link is down: {_RESET}",
    ),
    (
        r"requires (\d+) devices, but only (\d+) devices are available in the system mesh MeshShape\(([^)]*)\)",
        r"it needs \1 devices, but this host has \2, as \3: set mesh_shape to \3, or if there should be more, "
        rf"{_TOPOLOGY}, then {_RESET}",
    ),
    (
        r"too big and is not rotatable: .* and SystemMesh MeshShape\(([^)]*)\)",
        r"the devices are arranged as \1: set mesh_shape to that, or TT_MESH_GRAPH_DESC_PATH to a descriptor of this "
        r"mesh_shape",
    ),
    (
        r"[Mm]esh graph descriptor file not found: (\S+)",
        r"there is no mesh graph descriptor \1: set TT_MESH_GRAPH_DESC_PATH to an existing file, or unset it",
    ),
    (
        r"Device (\d+) is not active",
        r"links run over all devices of a host, but device \1 is not in the mesh: set mesh_shape to all of them, or "
        r"hide the others with TT_VISIBLE_DEVICES",
    ),
    (
        r"Device index (\d+) out of range\. There are (\d+) devices",
        r"device_config.device_ids names chip \1, but this host has \2, counted from 0: write ids that "
        r"`tiermesh check --mesh` draws",
    ),
    (
        r"Could not find any forwarding direction|Multiple ethernet cores in the same direction",
        r"two chips that are neighbours in the mesh have no link; most likely first: device_config.device_ids has "
        r"another order than `tiermesh check --mesh` draws: correct it, or write [] for that order; the topology is "
        rf"not set up: {_TOPOLOGY}",
    ),
    (
        r"un-initialized fabric context",
        r"the links between devices were not set up before the mesh was opened: open it with mesh.device.open_mesh",
    ),
    (
        r"tried to set num initialized routers again|not allowed while devices are still open",
        r"this process has devices open, and ttnn allows one open mesh: close it first; if a failed open left them "
        r"open, restart this process",
    ),
    (
        r"SubDeviceManagerTracker is not initialized|cq_id \d+ is out of range",
        r"the mesh is closed: open one with mesh.device.open_mesh before using its tensors",
    ),
    (
        r"Fabric Router Sync: Timeout .* on Device (\d+)",
        r"device \1 does not answer over its links; most likely first: a killed run left them in a bad state: "
        rf"{_RESET}; a cable is loose or the topology changed: {_TOPOLOGY}",
    ),
    (
        r"No chips detected",
        r"no chip was found; most likely first: the driver (tt-kmd) is not loaded or /dev/tenstorrent is not readable "
        rf"for this user; the chips hang: {_RESET}; TT_VISIBLE_DEVICES hides them",
    ),
    (
        r"Invalid (TT_MESH_\w+): .* (\d+) not found in mesh graph descriptor",
        r"\1 is \2, which is not in the mesh graph descriptor: correct one of the two",
    ),
    (
        r"Invalid chip ID in TT_VISIBLE_DEVICES: (\S+)",
        r"TT_VISIBLE_DEVICES names chip \1, which this host does not have: correct it",
    ),
    (
        _MEMORY_FULL,
        r"the devices' memory is full (\1): set a smaller batch_size with more gradient_accumulation_steps, or "
        r"runner_type: memory_efficient",
    ),
)


def extract_ttnn_message(error: BaseException) -> str:
    """Return ttnn's own message on one line, without its backtrace."""
    text = " ".join(str(error).split("backtrace:")[0].split())
    before, _, info = text.rpartition("info: ")
    text = info or before
    if len(text) <= MAX_MESSAGE_CHARACTERS:
        return text
    return text[:MAX_MESSAGE_CHARACTERS].rstrip() + " ..."


def explain_known_error(error: BaseException) -> str | None:
    """Return the cause of a known ttnn error and what to do, with ttnn's message; None for unknown errors."""
    text = " ".join(str(error).split("backtrace:")[0].split())
    for pattern, meaning in _KNOWN:
        found = re.search(pattern, text)
        if found:
            return f"{found.expand(meaning)} (ttnn: {extract_ttnn_message(error)})"
    return None


def is_memory_full(error: BaseException) -> bool:
    """Return whether ttnn could not allocate a tensor."""
    return isinstance(error, RuntimeError) and re.search(_MEMORY_FULL, str(error)) is not None


def explain_open_failure(error: BaseException) -> str:
    """Return why a mesh could not be opened and what to do, for known and unknown errors."""
    return explain_known_error(error) or f"{extract_ttnn_message(error)}; {LIKELY_CAUSES}"
