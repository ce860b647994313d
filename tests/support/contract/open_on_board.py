"""Run in a process of its own on a mocked board: open each mesh given as ROWSxCOLUMNS, and print how that went."""

from __future__ import annotations

import json
import os
import sys

from mesh.descriptors.choose import PATH_VARIABLE
from mesh.device import open_mesh
from mesh.fingerprint import board_type
from services.errors import TiermeshError


def main() -> None:
    """One JSON object per mesh: error, or devices in the order of the mesh."""
    for given in sys.argv[1:]:
        rows, columns = map(int, given.split("x"))
        try:
            with open_mesh((rows, columns), backend="ttnn") as mesh:
                told = {"devices": list(mesh.handle.get_device_ids()), "board": board_type(mesh)}
        except TiermeshError as error:
            told = {"error": str(error)}
        print(json.dumps({**told, "descriptor": os.environ.get(PATH_VARIABLE)}), flush=True)


main()
