"""How far a kernel's result may lie from the float64 reference: one table for all kernels.

The reference computes in float64 from the same (already rounded) inputs. A kernel rounds each
operand and result to `dtype` a few times, and accumulates `length` products or terms in the
accumulator's dtype. The first error is at most `ROUNDINGS` units of `dtype`; the second grows as
the square root of the length for rounding errors of either sign (Higham, Accuracy and Stability of
Numerical Algorithms), times a small constant for the steps behind it.
Both are relative to the largest element, since sums that cancel keep the error of their terms.

| dtype    | unit roundoff | accumulates in |
|----------|---------------|----------------|
| float64  | 2^-53         | float64        |
| float32  | 2^-24         | float32        |
| bfloat16 | 2^-8          | float32        |
| float16  | 2^-11         | float32        |
"""

import math

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

UNIT_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
ROUNDINGS = 4
"""Of an element to `dtype` between inputs and result: operands of products, and the result."""
STEPS = 8
"""Accumulations behind one another, and the elementary functions between them."""


def tolerance(dtype: DTypeLike, length: int) -> float:
    """The error that is allowed, relative to the largest element of the expected array."""
    narrow = UNIT_ROUNDOFF[jnp.dtype(dtype).name]
    wide = min(narrow, UNIT_ROUNDOFF["float32"])
    return ROUNDINGS * narrow + STEPS * wide * math.sqrt(length)


def assert_close(
    actual: ArrayLike, expected: ArrayLike, *, dtype: DTypeLike, length: int, amplified: float = 1
) -> None:
    """Asserts that every element is within the tolerance, and NaN and infinities where expected.

    Args:
      actual: what the kernel gave.
      expected: the float64 reference.
      dtype: of the kernel's inputs.
      length: the longest reduction in the computation.
      amplified: a condition number of the computation, where it has one; its reason stands beside
        the call.
    """
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert actual.shape == expected.shape
    finite = expected[np.isfinite(expected)]
    largest = np.abs(finite).max() if finite.size else 0.0
    allowed = amplified * tolerance(dtype, length) * largest
    np.testing.assert_allclose(actual, expected, rtol=0, atol=allowed)
