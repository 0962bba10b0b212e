"""LayerNorm and RMSNorm on one device's part of the rows.

The one idea: each device knows mean and deviation of its part, which are merged; mean and deviation
of the row normalise what the device holds.
"""

from dataclasses import dataclass

from jax import Array
from jax.typing import DTypeLike

from jaxcomet.kernels import statistics
from jaxcomet.kernels.layernorm.reference import affine
from jaxcomet.kernels.statistics import Columns


@dataclass(frozen=True, kw_only=True)
class Norm:
    """Which normalization, and how its statistics travel; static and hashable.

    Attributes:
      centred: LayerNorm; False is RMSNorm.
      refined: whether the mean is corrected, as of `statistics.moments`.
      epsilon: added to the variance or mean square.
      reduction: ``combined`` or ``separate``.
      wire_dtype: dtype of statistics that are sent, or None for the accumulator's.
    """

    centred: bool = True
    refined: bool = True
    epsilon: float = 1e-6
    reduction: str = "combined"
    wire_dtype: DTypeLike | None = None


def normalized(
    x: Array, columns: Columns, norm: Norm, scale: Array | None = None, bias: Array | None = None
) -> Array:
    """This device's part of the normalized rows.

    Args:
      x: shape (m_local, n_local), in the accumulator's dtype.
      columns: the split of n.
      norm: which normalization.
      scale: shape (n_local,), or None for 1.
      bias: shape (n_local,), or None for 0.

    Returns:
      The shape and dtype of `x`.
    """
    x, moments = statistics.deviations(
        x,
        columns,
        centred=norm.centred,
        refined=norm.refined,
        reduction=norm.reduction,
        wire_dtype=norm.wire_dtype,
    )
    return affine(x * moments.inverse_deviation(norm.epsilon)[:, None], scale, bias)
