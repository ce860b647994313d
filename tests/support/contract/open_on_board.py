"""Run in a process of its own on a mocked board: open each mesh given as ROWSxCOLUMNS, and print how that went."""

from __future__ import annotations

import json
import os
import sys

from mesh.descriptors.choose import VARIABLE
from mesh.device import open_mesh
from mesh.fingerprint import board
from services.errors import TiermeshError


def main() -> None:
    """One JSON object per mesh: error, or devices in the order of the mesh."""
    for given in sys.argv[1:]:
        rows, columns = map(int, given.split("x"))
        try:
            with open_mesh((rows, columns), backend="ttnn") as mesh:
                told = {"devices": list(mesh.handle.get_device_ids()), "board": board(mesh)}
        except TiermeshError as error:
            told = {"error": str(error)}
        print(json.dumps({**told, "descriptor": os.environ.get(VARIABLE)}), flush=True)


main()
