"""Gradients by central differences in float64, to 1e-10 or so: independent of any derivative that was worked out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.support.numerics.numeric_case import Array

_STEP = 2.0**-10
"""A power of two, so that x plus a few of them is exact however large x is."""
_STENCIL = ((1, 8 / 12), (-1, -8 / 12), (2, -1 / 12), (-2, 1 / 12))


def slope(function: Callable[[Array], Array], x: Array) -> Array:
    """The derivative of a function that works element by element, at x."""
    terms = [weight * function(x + factor * _STEP) for factor, weight in _STENCIL]
    total: Array = sum(terms[1:], terms[0])
    return total / _STEP


def of_rows(function: Callable[[Array], Array], x: Array, dy: Array) -> Array:
    """The gradient at x of the sum of `function(x) * dy`, for a function that works on rows of the last dimension."""
    gradient = np.empty_like(x)
    for column in range(x.shape[-1]):
        direction = np.zeros(x.shape[-1])
        direction[column] = _STEP
        change = sum(weight * function(x + factor * direction) for factor, weight in _STENCIL)
        gradient[..., column] = (change * dy).sum(-1) / _STEP
    return gradient


def of_each(function: Callable[[Array], Array], x: Array, dy: Array) -> Array:
    """The gradient at x of the sum of `function(x) * dy`, for any function."""
    gradient = np.empty_like(x)
    for place in np.ndindex(*x.shape):
        direction = np.zeros_like(x)
        direction[place] = _STEP
        change = sum(weight * function(x + factor * direction) for factor, weight in _STENCIL)
        gradient[place] = (change * dy).sum() / _STEP
    return gradient
