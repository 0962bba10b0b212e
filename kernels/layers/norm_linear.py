"""LayerNorm or RMSNorm and the linear layer behind it, run as one.

The one idea: the layer holds the two modules that it replaces, with their parameters and dtypes,
and only runs them together; so what was trained before can be run, and what is trained now can be
taken out again. Folded, for inference, the normalization's scale and bias are part of the weights.
"""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn.dtypes import canonicalize_dtype, promote_dtype
from flax.typing import Initializer, PrecisionLike
from jax import Array, lax
from jax.sharding import Mesh
from jax.typing import DTypeLike

from jaxcomet.kernels.errors import KernelError
from jaxcomet.kernels.layernorm_linear import (
    FoldedLinear,
    fold_layernorm,
    fold_rmsnorm,
    layernorm_linear,
    normalized_linear,
    rmsnorm_linear,
)
from jaxcomet.kernels.layernorm_linear.sharded import STRATEGIES
from jaxcomet.kernels.layers.execution import Execution, execution
from jaxcomet.kernels.partition import Axis
from jaxcomet.kernels.product import DIMENSIONS

Layer = TypeVar("Layer", bound="_NormLinear")

_ONES, _ZEROS = nnx.initializers.ones_init(), nnx.initializers.zeros_init()
_LECUN = nnx.initializers.lecun_normal()
_NO_METADATA: Mapping[str, Any] = MappingProxyType({})


class _NormLinear(nnx.Module):
    """What `LayerNormLinear` and `RMSNormLinear` share; each sets `norm`, `linear`, `execution`."""

    norm: Any
    linear: nnx.Linear
    execution: Execution

    _norm_type: type
    _folded_strategy: str  # in the place of "serial"

    def __init__(self, in_features: int, out_features: int, **arguments: Any):
        raise NotImplementedError

    @classmethod
    def from_modules(
        cls: type[Layer],
        norm: nnx.LayerNorm | nnx.RMSNorm,
        linear: nnx.Linear,
        *,
        strategy: str = "deferred",
        mesh: Mesh | None = None,
        axis: Axis = None,
        partitioner: str = "shard_map",
        reduction: str = "combined",
        wire_dtype: DTypeLike | None = None,
    ) -> Layer:
        """A layer over two ordinary modules, whose parameters are shared with it, not copied.

        Args:
          norm: normalises the last axis.
          linear: comes behind it.
          strategy: as of the class.
          mesh: as of the class.
          axis: as of the class.
          partitioner: as of the class.
          reduction: as of the class.
          wire_dtype: as of the class.

        Raises:
          KernelError: modules or settings that the kernel does not have.
        """
        _check_settings(
            cls.__name__,
            "norm",
            norm,
            cls._norm_type,
            reduction_axes=(-1, (-1,)),
            feature_axes=(-1, (-1,)),
            axis_name=(None,),
            axis_index_groups=(None,),
            promote_dtype=(promote_dtype,),
        )
        _check_settings(
            cls.__name__,
            "linear",
            linear,
            nnx.Linear,
            dot_general=(lax.dot_general,),
            preferred_element_type=(None,),
            promote_dtype=(promote_dtype,),
        )
        if norm.num_features != linear.in_features:
            raise KernelError(
                f"{cls.__name__}: got norm of {norm.num_features} features and linear of "
                f"{linear.in_features}; expected equal numbers"
            )
        layer = nnx.eval_shape(  # its own parameters are never made
            lambda: cls(
                1,
                1,
                strategy=strategy,
                mesh=mesh,
                axis=axis,
                partitioner=partitioner,
                reduction=reduction,
                wire_dtype=wire_dtype,
                rngs=nnx.Rngs(0),
            )
        )
        layer.norm, layer.linear = norm, linear
        return layer

    def __call__(self, x: Array) -> Array:
        """norm(x) @ kernel + bias.

        Args:
          x: shape (..., in_features).

        Returns:
          Shape (..., out_features), in the dtype that the two modules would give.

        Raises:
          KernelError: another number of features.
        """
        scale, bias, kernel, linear_bias = self._parameters()
        x = x.astype(canonicalize_dtype(x, scale, bias, dtype=self.norm.dtype))
        dtype = canonicalize_dtype(x, kernel, linear_bias, dtype=self.linear.dtype)
        return self._run(x, kernel.astype(dtype)).astype(dtype)

    def fold(self, dtype: DTypeLike | None = None) -> "FoldedNormLinear":
        """The same layer for inference, with the normalization's parameters in the weights.

        Folding is in float32 whatever the parameters are; what is stored is rounded once, and the
        column sums are those of the rounded weights. It is run as this layer is, but always by
        ``shard_map``, and in place of ``serial`` by the strategy that is as exact: ``centred``, or
        ``deferred`` for RMSNorm.

        Args:
          dtype: of the stored weights; None for that in which the linear layer computes.

        Returns:
          A layer whose output is equal up to rounding.
        """
        parameters = [value for value in self._parameters() if value is not None]
        # The folded weights hold the scale, so rows cannot be normalized before the product.
        strategy = self.execution.strategy
        strategy = self._folded_strategy if strategy == "serial" else strategy
        return FoldedNormLinear(
            self._folded(self.linear.dtype if dtype is None else dtype),
            epsilon=self.norm.epsilon,
            precision=self.linear.precision,
            input_dtype=self.norm.dtype,
            dtype=self.linear.dtype,
            param_dtype=jnp.result_type(*parameters),
            execution=dataclasses.replace(self.execution, strategy=strategy),
        )

    def _parameters(self) -> tuple[Array | None, Array | None, Array, Array | None]:
        """Scale, bias, kernel and linear bias."""
        norm, linear = self.norm, self.linear
        bias = getattr(norm, "bias", None)  # RMSNorm has none
        return _value(norm.scale), _value(bias), linear.kernel[...], _value(linear.bias)

    def _run(self, x: Array, kernel: Array) -> Array:
        raise NotImplementedError

    def _folded(self, dtype: DTypeLike | None) -> FoldedLinear:
        raise NotImplementedError


class LayerNormLinear(_NormLinear):
    """`nnx.LayerNorm` and the `nnx.Linear` behind it in one kernel.

    The layer holds both as `norm` and `linear`, made from the same random keys in this order; so
    parameters, dtypes and initial values are theirs. The variance is that of the deviations
    (`use_fast_variance=False`), and the normalized rows are not rounded before the product.

    Args:
      in_features: of the input.
      out_features: of the result.
      epsilon: added to the variance, more than 0.
      use_scale: whether the normalization has a scale.
      use_bias: whether the normalization has a bias.
      use_linear_bias: whether the linear layer has a bias.
      dtype: in which both compute; None for the common one of input and parameters.
      param_dtype: of the parameters.
      precision: of the matrix product.
      scale_init: of the normalization's scale.
      bias_init: of the normalization's bias.
      kernel_init: of the linear layer's kernel.
      linear_bias_init: of the linear layer's bias.
      scale_metadata: of the parameter; ``{"out_sharding": (...)}`` places it.
      bias_metadata: of the parameter.
      kernel_metadata: of the parameter.
      linear_bias_metadata: of the parameter.
      strategy: ``deferred``, ``centred`` or ``serial``.
      mesh: the devices, or None for one.
      axis: the mesh axes of k, the features of the input; or a mapping from m (rows), n (features
        of the result) and k to mesh axes; None is all of the mesh for k.
      partitioner: ``shard_map``, or ``auto``, where XLA decides what moves.
      reduction: statistics by one ``combined`` collective, or by ``separate`` ones.
      wire_dtype: dtype of what is sent; None is the accumulator's.
      rngs: random keys of the parameters.

    Raises:
      KernelError: wrong names in the arguments of the kernel.

    Example:
      >>> layer = LayerNormLinear(8, 3, rngs=nnx.Rngs(0))
      >>> layer(jnp.ones((5, 8))).shape
      (5, 3)
      >>> ordinary = layer.linear(layer.norm(jnp.arange(8.0)))
      >>> bool(jnp.allclose(layer(jnp.arange(8.0)), ordinary, atol=1e-5))
      True
    """

    norm: nnx.LayerNorm
    _norm_type = nnx.LayerNorm
    _folded_strategy = "centred"

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        epsilon: float = 1e-6,
        use_scale: bool = True,
        use_bias: bool = True,
        use_linear_bias: bool = True,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        precision: PrecisionLike = None,
        scale_init: Initializer = _ONES,
        bias_init: Initializer = _ZEROS,
        kernel_init: Initializer = _LECUN,
        linear_bias_init: Initializer = _ZEROS,
        scale_metadata: Mapping[str, Any] = _NO_METADATA,
        bias_metadata: Mapping[str, Any] = _NO_METADATA,
        kernel_metadata: Mapping[str, Any] = _NO_METADATA,
        linear_bias_metadata: Mapping[str, Any] = _NO_METADATA,
        strategy: str = "deferred",
        mesh: Mesh | None = None,
        axis: Axis = None,
        partitioner: str = "shard_map",
        reduction: str = "combined",
        wire_dtype: DTypeLike | None = None,
        rngs: nnx.Rngs,
    ):
        self.norm = nnx.LayerNorm(
            in_features,
            epsilon=epsilon,
            dtype=dtype,
            param_dtype=param_dtype,
            use_bias=use_bias,
            use_scale=use_scale,
            bias_init=bias_init,
            scale_init=scale_init,
            rngs=rngs,
            bias_metadata=bias_metadata,
            scale_metadata=scale_metadata,
        )
        self.linear = nnx.Linear(
            in_features,
            out_features,
            use_bias=use_linear_bias,
            dtype=dtype,
            param_dtype=param_dtype,
            precision=precision,
            kernel_init=kernel_init,
            bias_init=linear_bias_init,
            rngs=rngs,
            kernel_metadata=kernel_metadata,
            bias_metadata=linear_bias_metadata,
        )
        self.execution = _execution(
            "LayerNormLinear",
            STRATEGIES,
            strategy,
            mesh,
            axis,
            partitioner,
            reduction,
            wire_dtype,
        )

    def _run(self, x: Array, kernel: Array) -> Array:
        scale, bias, _, linear_bias = self._parameters()
        return layernorm_linear(
            x,
            scale,
            bias,
            kernel,
            linear_bias,
            epsilon=self.norm.epsilon,
            precision=self.linear.precision,
            **self.execution.arguments(),
        )

    def _folded(self, dtype: DTypeLike | None) -> FoldedLinear:
        return fold_layernorm(*self._parameters(), dtype=dtype)


class RMSNormLinear(_NormLinear):
    """`nnx.RMSNorm` and the `nnx.Linear` behind it in one kernel.

    Arguments and errors as of `LayerNormLinear`; the normalization has no bias, and the strategies
    are ``deferred`` and ``serial``.

    Example:
      >>> layer = RMSNormLinear(8, 3, use_linear_bias=False, rngs=nnx.Rngs(0))
      >>> [path[-1] for path, _ in nnx.to_flat_state(nnx.state(layer))]
      ['kernel', 'scale']
    """

    norm: nnx.RMSNorm
    _norm_type = nnx.RMSNorm
    _folded_strategy = "deferred"

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        epsilon: float = 1e-6,
        use_scale: bool = True,
        use_linear_bias: bool = True,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        precision: PrecisionLike = None,
        scale_init: Initializer = _ONES,
        kernel_init: Initializer = _LECUN,
        linear_bias_init: Initializer = _ZEROS,
        scale_metadata: Mapping[str, Any] = _NO_METADATA,
        kernel_metadata: Mapping[str, Any] = _NO_METADATA,
        linear_bias_metadata: Mapping[str, Any] = _NO_METADATA,
        strategy: str = "deferred",
        mesh: Mesh | None = None,
        axis: Axis = None,
        partitioner: str = "shard_map",
        reduction: str = "combined",
        wire_dtype: DTypeLike | None = None,
        rngs: nnx.Rngs,
    ):
        self.norm = nnx.RMSNorm(
            in_features,
            epsilon=epsilon,
            dtype=dtype,
            param_dtype=param_dtype,
            use_scale=use_scale,
            scale_init=scale_init,
            rngs=rngs,
            scale_metadata=scale_metadata,
        )
        self.linear = nnx.Linear(
            in_features,
            out_features,
            use_bias=use_linear_bias,
            dtype=dtype,
            param_dtype=param_dtype,
            precision=precision,
            kernel_init=kernel_init,
            bias_init=linear_bias_init,
            rngs=rngs,
            kernel_metadata=kernel_metadata,
            bias_metadata=linear_bias_metadata,
        )
        self.execution = _execution(
            "RMSNormLinear",
            ("deferred", "serial"),
            strategy,
            mesh,
            axis,
            partitioner,
            reduction,
            wire_dtype,
        )

    def _run(self, x: Array, kernel: Array) -> Array:
        scale, _, _, linear_bias = self._parameters()
        return rmsnorm_linear(
            x,
            scale,
            kernel,
            linear_bias,
            epsilon=self.norm.epsilon,
            precision=self.linear.precision,
            **self.execution.arguments(),
        )

    def _folded(self, dtype: DTypeLike | None) -> FoldedLinear:
        scale, _, kernel, linear_bias = self._parameters()
        return fold_rmsnorm(scale, kernel, linear_bias, dtype=dtype)


class FoldedNormLinear(nnx.Module):
    """A normalization and a linear layer with one set of weights, for inference.

    Made by `LayerNormLinear.fold` and `RMSNormLinear.fold`. Its variables are no `nnx.Param`, so
    that no optimizer moves the weights away from their column sums.

    Args:
      folded: the parameters.
      epsilon: added to the variance or mean square.
      precision: of the matrix product.
      input_dtype: to which inputs are cast first, or None.
      dtype: of the result; None for the common one of input and unfolded parameters.
      param_dtype: the common dtype of the unfolded parameters.
      execution: how the kernel is run.
    """

    def __init__(
        self,
        folded: FoldedLinear,
        *,
        epsilon: float,
        precision: PrecisionLike,
        input_dtype: DTypeLike | None,
        dtype: DTypeLike | None,
        param_dtype: DTypeLike,
        execution: Execution,
    ):
        self.kernel = nnx.Variable(folded.weight)
        self.column_sum = _variable(folded.column_sum)
        self.bias = _variable(folded.bias)
        self.epsilon = epsilon
        self.precision = precision
        self.input_dtype = input_dtype
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.execution = execution

    def __call__(self, x: Array) -> Array:
        """norm(x) @ kernel + bias; arguments, result and errors as of the layer it comes from."""
        x = x.astype(canonicalize_dtype(x, dtype=self.input_dtype))
        dtype = self.dtype or jnp.result_type(x, self.param_dtype)
        folded = FoldedLinear(
            weight=self.kernel[...],
            column_sum=_value(self.column_sum),
            bias=_value(self.bias),
        )
        arguments = self.execution.arguments()
        del arguments["partitioner"]  # there is no other than shard_map
        result = normalized_linear(
            x, folded, epsilon=self.epsilon, precision=self.precision, **arguments
        )
        return result.astype(dtype)


def _execution(
    layer: str,
    strategies: tuple[str, ...],
    strategy: str,
    mesh: Mesh | None,
    axis: Axis,
    partitioner: str,
    reduction: str,
    wire_dtype: DTypeLike | None,
) -> Execution:
    return execution(
        layer,
        strategy=strategy,
        strategies=strategies,
        mesh=mesh,
        axis=axis,
        dimensions=DIMENSIONS,
        default="k",
        partitioner=partitioner,
        reduction=reduction,
        wire_dtype=wire_dtype,
    )


def _value(variable: nnx.Variable[Array] | None) -> Array | None:
    return None if variable is None else variable[...]


def _variable(value: Array | None) -> Any:
    """A variable; where there is none, a None that counts as one (nnx asks for that to be said)."""
    return nnx.data(None) if value is None else nnx.Variable(value)


def _check_settings(
    layer: str, argument: str, module: nnx.Module, kind: type, **allowed: tuple[object, ...]
) -> None:
    """Refuses a module of another class, or with a setting that is not among the allowed ones."""
    if type(module) is not kind:
        raise KernelError(
            f"{layer}: {argument}: got {type(module).__name__}; expected nnx.{kind.__name__} "
            "itself, not a subclass, which may compute something else"
        )
    for setting, values in allowed.items():
        got = getattr(module, setting)
        if not any(got is value or got == value for value in values):
            listed = " or ".join(repr(value) for value in values)
            raise KernelError(
                f"{layer}: {argument}.{setting}: got {got!r}; expected {listed}; keep the ordinary "
                "modules for anything else"
            )
