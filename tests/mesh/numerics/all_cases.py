"""Every case there is."""

from __future__ import annotations

import cases_elementwise
import cases_gradient
import cases_mesh
import cases_movement
import cases_rows

CASES = [
    *cases_elementwise.CASES,
    *cases_gradient.CASES,
    *cases_mesh.CASES,
    *cases_movement.CASES,
    *cases_rows.CASES,
]
