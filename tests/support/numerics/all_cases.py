"""The list of all numerics cases."""

from __future__ import annotations

from tests.support.numerics import cases_elementwise, cases_gradient, cases_mesh, cases_movement, cases_rows

CASES = [
    *cases_elementwise.CASES,
    *cases_gradient.CASES,
    *cases_mesh.CASES,
    *cases_movement.CASES,
    *cases_rows.CASES,
]
