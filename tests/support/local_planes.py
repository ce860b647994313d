"""A plane in the test's own process, as optimizers have it."""

from __future__ import annotations

from plane.group import PlaneGroup
from plane.link import LocalPlane
from plane.plane import Plane, PlaneOwner
from services.tensors.stripes import Stripe


def make_local_planes() -> PlaneGroup:
    """Return a group of one plane in this process; an order that it can't carry out fails the test."""
    return PlaneGroup([LocalPlane(_make_plane, _fail)])


def _make_plane(owner: PlaneOwner) -> Plane:
    return Plane(
        owner,
        epoch=1,
        stripe=Stripe(0, 1),
        incarnation="i",
        metrics=None,
        update_metrics=None,
        shared_memory=False,
    )


def _fail(error: Exception) -> None:
    raise AssertionError("the plane failed") from error
