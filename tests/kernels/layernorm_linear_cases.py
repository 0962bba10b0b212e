"""Arguments of LayerNorm-linear, rows at any distance from 0, and the right answers in float64."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tests.kernels import harness

ROWS, CONTRACTED, COLUMNS = 13, 27, 11  # none of 2, 4 and 8 divides any of them
MEAN = 4.0
NAMES = ("x", "scale", "bias", "weight", "linear_bias")
COTANGENT = harness.normal((ROWS, COLUMNS), seed=1)


@functools.cache
def arguments(dtype: str, mean: float = MEAN, shape: tuple[int, int, int] | None = None) -> Any:
    """The arguments by position; rows have means of either sign."""
    m, k, n = shape or (ROWS, CONTRACTED, COLUMNS)
    rng = np.random.default_rng(0)
    signs = np.where(np.arange(m) % 2, -1, 1)[:, None]
    values = (
        rng.normal(size=(m, k)) + mean * signs,
        1 + 0.3 * rng.normal(size=k),
        rng.normal(size=k),
        rng.normal(size=(k, n)) / np.sqrt(k),
        rng.normal(size=n),
    )
    return tuple(jnp.asarray(value, dtype) for value in values)


def named(values: Any) -> dict[str, Array]:
    return dict(zip(NAMES, values, strict=True))


def by_hand(
    values: dict[str, Any], cotangent: Any, centred: bool = True
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The result and the gradients of sum(result * cotangent), in float64, by their formulas."""
    wide = {name: np.asarray(value, np.float64) for name, value in values.items()}
    x, weight, cotangent = wide["x"], wide["weight"], np.asarray(cotangent, np.float64)
    scale, bias = wide.get("scale", 1), wide.get("bias", 0)
    deviations = x - x.mean(axis=1, keepdims=True) if centred else x
    factor = 1 / np.sqrt((deviations**2).mean(axis=1, keepdims=True) + 1e-6)
    rows = deviations * factor
    outer = cotangent @ weight.T
    inner = outer * scale
    dx = inner - rows * (inner * rows).mean(axis=1, keepdims=True)
    gradients = {
        "x": factor * (dx - inner.mean(axis=1, keepdims=True) if centred else dx),
        "scale": (outer * rows).sum(axis=0),
        "bias": outer.sum(axis=0),
        "weight": (rows * scale + bias).T @ cotangent,
        "linear_bias": cotangent.sum(axis=0),
    }
    result = (rows * scale + bias) @ weight + wide.get("linear_bias", 0)
    return result, {name: gradients[name] for name in values}


def normalized(x: np.ndarray, epsilon: float = 1e-6) -> np.ndarray:
    deviations = x - x.mean(axis=-1, keepdims=True)
    return deviations / np.sqrt((deviations**2).mean(axis=-1, keepdims=True) + epsilon)


@functools.cache
def expected(dtype: str) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    return by_hand(named(arguments(dtype)), COTANGENT)


def far_rows(k: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of mean / deviation 0, 1, 10, 100, 1000 that bfloat16 holds exactly, and these ratios.

    Around 1024, where bfloat16 has steps of 8: few elements are one step off.
    """
    rng = np.random.default_rng(2)
    blocks = [rng.normal(size=(rows, k)), rng.normal(size=(rows, k)) + 1]
    blocks += [64 * rng.normal(size=(rows, k)) + 640, 8 * rng.normal(size=(rows, k)).round() + 800]
    off = np.zeros((rows, k))
    for row in off:
        row[rng.choice(k, k // 64, replace=False)] = 8
    blocks.append(1024 + off)
    x = np.asarray(narrow(np.concatenate(blocks)), np.float64)
    ratios = np.abs(x.mean(axis=1)) / x.std(axis=1)
    return x, ratios.reshape(5, rows).mean(axis=1)


def narrow(values: np.ndarray) -> Array:
    return jnp.asarray(values, jnp.bfloat16)


def relative_rms(actual: Array, exact: np.ndarray, blocks: int = 5) -> np.ndarray:
    error = (np.asarray(actual, np.float64) - exact).reshape(blocks, -1)
    return np.sqrt((error**2).mean(axis=1) / (exact.reshape(blocks, -1) ** 2).mean(axis=1))


def unoptimized(function: Callable[..., Any]) -> Any:
    """Jitted as by the `unoptimized` of `harness.value_and_gradients`, for the same reason."""
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})
