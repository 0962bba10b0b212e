"""The arguments of a normalization and the linear layer behind it, checked before anything runs."""

from jax import Array

from jaxcomet.kernels import errors


def weight(function: str, weight: Array) -> None:
    """Refuses a weight that is no matrix of floating-point numbers.

    Raises:
      KernelError: it is not.
    """
    errors.rank(function, "weight", weight, 2, "[k, n]")
    errors.floating(function, weight=weight)


def vectors(function: str, dimension: str, size: int, **arrays: Array | None) -> None:
    """Refuses a parameter that is neither None nor a vector of `size` floating-point numbers.

    Args:
      function: the public function, for the message.
      dimension: the letter of the vector's only axis.
      size: of this dimension.
      **arrays: the parameters by name.

    Raises:
      KernelError: it is not.
    """
    for name, array in arrays.items():
        if array is not None:
            errors.rank(function, name, array, 1, f"[{dimension}]")
            errors.floating(function, **{name: array})
            errors.equal_sizes(
                function,
                (f"{name} axis 0 ({dimension})", array.shape[0]),
                (f"weight ({dimension})", size),
            )


def inputs(function: str, x: Array, weight_: Array, epsilon: float) -> None:
    """Refuses rows that do not fit the weight, and a negative epsilon.

    Raises:
      KernelError: another rank or size of k, no floating point, or an epsilon below 0.
    """
    weight(function, weight_)
    errors.rank(function, "x", x, range(1, 9), "[..., k]")
    errors.floating(function, x=x)
    errors.equal_sizes(
        function,
        (f"x axis {x.ndim - 1} (k)", x.shape[-1]),
        ("weight axis 0 (k)", weight_.shape[0]),
    )
    errors.not_negative(function, "epsilon", epsilon)
