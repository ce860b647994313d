"""Gradients by central differences in float64, accurate to about 1e-10 and independent of any derived formula."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.support.numerics.numeric_case import Array

_STEP = 2.0**-10
"""Step size, a power of two, so that x plus a few steps is exact."""
_STENCIL = ((1, 8 / 12), (-1, -8 / 12), (2, -1 / 12), (-2, 1 / 12))


def derivative(function: Callable[[Array], Array], x: Array) -> Array:
    """Return the derivative at x of an element-wise function."""
    terms = [weight * function(x + factor * _STEP) for factor, weight in _STENCIL]
    total: Array = sum(terms[1:], terms[0])
    return total / _STEP


def row_gradient(function: Callable[[Array], Array], x: Array, dy: Array) -> Array:
    """Return the gradient of sum(function(x) * dy) at x, for a function of rows of the last dimension."""
    gradient = np.empty_like(x)
    for column in range(x.shape[-1]):
        direction = np.zeros(x.shape[-1])
        direction[column] = _STEP
        change = sum(weight * function(x + factor * direction) for factor, weight in _STENCIL)
        gradient[..., column] = (change * dy).sum(-1) / _STEP
    return gradient


def full_gradient(function: Callable[[Array], Array], x: Array, dy: Array) -> Array:
    """Return the gradient of sum(function(x) * dy) at x, for any function."""
    gradient = np.empty_like(x)
    for place in np.ndindex(*x.shape):
        direction = np.zeros_like(x)
        direction[place] = _STEP
        change = sum(weight * function(x + factor * direction) for factor, weight in _STENCIL)
        gradient[place] = (change * dy).sum() / _STEP
    return gradient
