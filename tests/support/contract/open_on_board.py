"""Script for a process on a mocked board: open each mesh named as ROWSxCOLUMNS[@ID,ID,...][/PARTS].

It prints the outcome of each. PARTS is the number of submeshes that the mesh is divided into.
"""

from __future__ import annotations

import json
import os
import sys

from mesh.axes import Axes
from mesh.descriptors.choose import PATH_VARIABLE
from mesh.device import open_mesh
from mesh.fingerprint import find_board_type
from services.errors import TiermeshError


def main() -> None:
    """Print one JSON object per mesh: an error, or the device ids in the order of the mesh."""
    for argument in sys.argv[1:]:
        opened, _, parts = argument.partition("/")
        shape, _, ids = opened.partition("@")
        rows, columns = map(int, shape.split("x"))
        device_ids = [int(each) for each in ids.split(",") if each]
        try:
            with open_mesh((rows, columns), backend="ttnn", device_ids=device_ids) as mesh:
                submeshes = mesh.split(int(parts), Axes()) if parts else ()
                outcome = {
                    "devices": list(mesh.handle.get_device_ids()),
                    "submeshes": [
                        [list(each.shape), list(each.handle.get_device_ids())] for each in submeshes
                    ],
                    "board": find_board_type(mesh),
                    "arch": mesh.arch,
                    "cores": mesh.cores,
                }
        except TiermeshError as error:
            outcome = {"error": str(error)}
        print(json.dumps({**outcome, "descriptor": os.environ.get(PATH_VARIABLE)}), flush=True)


main()
