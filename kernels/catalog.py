"""The kernels by name, as data: sizes, strategies, splits, options, arguments.

The one idea: names are those of the public functions with dashes, and strategies have the names of
the cost model. What the words mean is in `jaxcomet.kernels.description`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcomet.kernels.description import Kernel, Operand, Option, Rows, Size, Split, take_rows
from jaxcomet.kernels.errors import KernelError


def _take_queries(
    kernel: Kernel, arguments: dict[str, Array], options: dict[str, Any], rows: np.ndarray
) -> Rows:
    """The chosen queries; what each sees by causality is a mask, for their places are gone."""
    chosen = take_rows(kernel, arguments, options, rows)
    if not options.get("is_causal", False):
        return chosen
    queries, keys = arguments["query"].shape[1], arguments["key"].shape[1]
    mask = jnp.asarray(np.arange(keys) <= rows[:, None] + (keys - queries))[None, None]
    constants = {k: v for k, v in options.items() if k != "is_causal"} | {"mask": mask}
    return dataclasses.replace(chosen, constants=constants)


def attention_output(*arguments: Array, **parameters: Any) -> Array:
    """The plain form of attention without its second result, the logarithms of the sums."""
    from jaxcomet.kernels.attention.reference import attention

    return attention(*arguments, **parameters)[0]


_WIRE = Option(
    name="wire_dtype",
    parameter="wire_dtype",
    text="Dtype of what is sent between devices.",
    default="accumulator",
    values=("accumulator", "float32", "bfloat16", "float16"),
    meaning=False,
)


_REDUCTION = Option(
    name="reduction",
    parameter="reduction",
    text="Statistics by one combined collective or by separate ones.",
    default="combined",
    values=("combined", "separate"),
    meaning=False,
)
_ROW_OPTIONS = (_REDUCTION, _WIRE)
_SMOOTHING = Option(
    name="smoothing",
    parameter="label_smoothing",
    text="Share of the target that is spread over all classes.",
    default=0.0,
)


def _matrix_sizes(m: int, n: int, k: int) -> tuple[Size, ...]:
    return (
        Size(name="m", text="Rows.", default=m),
        Size(name="n", text="Columns.", default=n),
        Size(name="k", text="Contracted extent.", default=k),
    )


def _scale(dimension: str) -> Operand:
    return Operand(
        name="scale", shape=(dimension,), dimensions=(dimension,), mean=1.0, deviation=0.1
    )


def _bias(dimension: str, name: str = "bias") -> Operand:
    return Operand(name=name, shape=(dimension,), dimensions=(dimension,), deviation=0.1)


def _strategies(
    names: tuple[str, ...], dimensions: tuple[str, ...], default: str
) -> dict[str, Split]:
    return {name: Split(dimensions=dimensions, default=default) for name in names}


def _gemm(
    name: str, summary: str, module: str, strategies: tuple[str, ...], *norm: Operand
) -> Kernel:
    """A kernel that does something to the rows of a product, split over n, m and k."""
    return Kernel(
        summary=summary,
        path=f"jaxcomet.kernels.{module}:{name}",
        reference_path=f"jaxcomet.kernels.{module}.reference:{name}",
        sizes=_matrix_sizes(512, 1024, 1024),
        operands=(
            Operand(name="a", shape=("m", "k"), dimensions=("m", "k")),
            Operand(name="b", shape=("k", "n"), dimensions=("k", "n"), fan_in="k"),
            *norm,
        ),
        result=(("m", "k"), "n"),
        result_shape=("m", "n"),
        rows="m",
        strategies=_strategies(strategies, ("m", "n", "k"), "n"),
        options=_ROW_OPTIONS,
        length="k",
        row_flop=lambda s: 2 * s["k"] * s["n"],
        row_elements=lambda s: s["n"],
        product=("a", "b"),
    )


def _rowwise(name: str, summary: str, module: str, *norm: Operand) -> Kernel:
    """A kernel on the rows of one array, split over n and m."""
    return Kernel(
        summary=summary,
        path=f"jaxcomet.kernels.{module}:{name}",
        reference_path=f"jaxcomet.kernels.{module}.reference:{name.removeprefix('distributed_')}",
        sizes=(
            Size(name="m", text="Rows.", default=1024),
            Size(name="n", text="Columns.", default=4096),
        ),
        operands=(
            Operand(name="x", shape=("m", "n"), dimensions=("m", "n"), mean=0.5, deviation=2.0),
            *norm,
        ),
        result=("m", "n"),
        result_shape=("m", "n"),
        rows="m",
        split=Split(dimensions=("m", "n"), default="n"),
        options=_ROW_OPTIONS,
        length="n",
        row_flop=lambda s: 8 * s["n"],
        row_elements=lambda s: s["n"],
    )


def _linear(
    name: str,
    summary: str,
    module: str,
    strategies: tuple[str, ...],
    matrix: str,
    *operands: Operand,
) -> Kernel:
    """A kernel that does something to the rows of x before their product with a matrix."""
    return Kernel(
        summary=summary,
        path=f"jaxcomet.kernels.{module}:{name}",
        reference_path=f"jaxcomet.kernels.{module}.reference:{name}",
        sizes=_matrix_sizes(512, 1024, 1024),
        operands=(
            Operand(name="x", shape=("m", "k"), dimensions=("m", "k"), mean=0.5, deviation=2.0),
            *operands,
        ),
        result=(("m", "k"), "n"),
        result_shape=("m", "n"),
        rows="m",
        strategies=_strategies(strategies, ("m", "n", "k"), "k"),
        options=_ROW_OPTIONS,
        length="k",
        row_flop=lambda s: 2 * s["k"] * s["n"],
        row_elements=lambda s: max(s["n"], s["k"]),
        product=("x", matrix),
    )


def _matrix(name: str, fan_in: str | None = None) -> Operand:
    return Operand(name=name, shape=("k", "n"), dimensions=("k", "n"), fan_in=fan_in)


_LABELS = Operand(name="labels", shape=("tokens",), dimensions=("m",), below="vocab")
_SEQUENCE_SPLITS = ("batch", "heads", "queries", "keys", "sequence")
_ATTENTION_STRATEGIES = {
    **_strategies(("flash", "unfused", "partial"), _SEQUENCE_SPLITS, "heads"),
    "ring": Split(dimensions=("batch", "heads", "sequence"), default="sequence"),
}


def _tokens(tokens: int, vocab: int) -> tuple[Size, ...]:
    return (
        Size(name="tokens", text="Rows: tokens that are classified.", default=tokens),
        Size(name="vocab", text="Classes.", default=vocab),
    )


_KERNELS = (
    _gemm(
        "gemm_softmax",
        "softmax(a @ b) over rows.",
        "gemm_softmax",
        ("fused-gemm-distsm", "fused-distsm", "fused-gemm-sm", "unfused"),
    ),
    _gemm(
        "gemm_layernorm",
        "LayerNorm of the rows of a @ b.",
        "gemm_layernorm",
        ("fused-gemm-distln", "fused-distln", "fused-gemm-ln", "unfused"),
        _scale("n"),
        _bias("n"),
    ),
    _gemm(
        "gemm_rmsnorm",
        "RMSNorm of the rows of a @ b.",
        "gemm_layernorm",
        ("fused-gemm-distln", "fused-distln", "fused-gemm-ln", "unfused"),
        _scale("n"),
    ),
    _rowwise("distributed_softmax", "softmax of rows.", "softmax"),
    _rowwise(
        "distributed_layernorm",
        "LayerNorm of rows.",
        "layernorm",
        _scale("n"),
        _bias("n"),
    ),
    _rowwise("distributed_rmsnorm", "RMSNorm of rows.", "layernorm", _scale("n")),
    Kernel(
        summary="softmax(q k^T / sqrt(head_dim)) v for each head.",
        path="jaxcomet.kernels.attention:attention",
        reference_path="jaxcomet.kernels.catalog:attention_output",
        sizes=(
            Size(name="batch", text="Sequences.", default=1),
            Size(name="heads", text="Heads of queries.", default=8),
            Size(name="kv_heads", text="Heads of keys and values.", default="heads"),
            Size(name="q", text="Queries in a sequence.", default=1024),
            Size(name="kv", text="Keys in a sequence.", default="q"),
            Size(name="head_dim", text="Width of a head.", default=64),
        ),
        operands=(
            Operand(
                name="query",
                shape=("batch", "q", "heads", "head_dim"),
                dimensions=("batch", ("queries", "sequence"), "heads", None),
            ),
            *(
                Operand(
                    name=name,
                    shape=("batch", "kv", "kv_heads", "head_dim"),
                    dimensions=("batch", ("keys", "sequence"), "heads", None),
                )
                for name in ("key", "value")
            ),
        ),
        result=("batch", ("queries", "sequence"), "heads", None),
        result_shape=("batch", "q", "heads", "head_dim"),
        rows="queries",
        strategies=_ATTENTION_STRATEGIES,
        options=(
            Option(
                name="causal",
                parameter="is_causal",
                text="Each query sees the keys up to its own place, the last one all of them.",
                default=False,
            ),
            _REDUCTION,
            _WIRE,
        ),
        length="kv",
        row_flop=lambda s: 4 * s["batch"] * s["heads"] * s["kv"] * s["head_dim"],
        row_elements=lambda s: s["batch"] * s["heads"] * s["kv"],
        rows_only=_take_queries,
    ),
    _linear(
        "layernorm_linear",
        "LayerNorm of the rows of x, times a matrix.",
        "layernorm_linear",
        ("deferred", "centred", "serial"),
        "weight",
        _scale("k"),
        _bias("k"),
        _matrix("weight", fan_in="k"),
        _bias("n", "linear_bias"),
    ),
    _linear(
        "rmsnorm_linear",
        "RMSNorm of the rows of x, times a matrix.",
        "layernorm_linear",
        ("deferred", "serial"),
        "weight",
        _scale("k"),
        _matrix("weight", fan_in="k"),
        _bias("n", "linear_bias"),
    ),
    _linear(
        "softmax_matmul",
        "softmax(x) @ v.",
        "softmax_matmul",
        ("deferred", "serial"),
        "v",
        _matrix("v"),
    ),
    Kernel(
        summary="Cross-entropy of logits and labels, one loss a token.",
        path="jaxcomet.kernels.cross_entropy:cross_entropy",
        reference_path="jaxcomet.kernels.cross_entropy.reference:cross_entropy",
        sizes=_tokens(512, 32_000),
        operands=(
            Operand(name="logits", shape=("tokens", "vocab"), dimensions=("m", "v"), deviation=3.0),
            _LABELS,
        ),
        result=("m",),
        result_shape=("tokens",),
        rows="m",
        split=Split(dimensions=("m", "v"), default="v"),
        options=(_SMOOTHING, *_ROW_OPTIONS),
        length="vocab",
        row_flop=lambda s: 8 * s["vocab"],
        row_elements=lambda s: s["vocab"],
    ),
    Kernel(
        summary="Cross-entropy of x @ weight and labels, logits never held whole.",
        path="jaxcomet.kernels.cross_entropy:linear_cross_entropy",
        reference_path="jaxcomet.kernels.cross_entropy.reference:linear_cross_entropy",
        sizes=(*_tokens(512, 8192), Size(name="k", text="Contracted extent.", default=512)),
        operands=(
            Operand(name="x", shape=("tokens", "k"), dimensions=("m", None)),
            Operand(name="weight", shape=("k", "vocab"), dimensions=(None, "v"), fan_in="k"),
            _LABELS,
        ),
        result=("m",),
        result_shape=("tokens",),
        rows="m",
        split=Split(dimensions=("m", "v"), default="v"),
        options=(_SMOOTHING, *_ROW_OPTIONS),
        length="vocab",
        row_flop=lambda s: 2 * s["k"] * s["vocab"],
        row_elements=lambda s: s["vocab"],
    ),
)

KERNELS: Mapping[str, Kernel] = {kernel.name: kernel for kernel in _KERNELS}
"""All kernels by name."""


def find(name: str) -> Kernel:
    """The kernel of this name; underscores may stand for dashes.

    Raises:
      KernelError: no such kernel.

    Example:
      >>> find("gemm_softmax").sizes[0].name
      'm'
    """
    found = KERNELS.get(name.replace("_", "-"))
    if found is None:
        raise KernelError(f"got kernel {name!r}; expected {', '.join(KERNELS)}")
    return found
