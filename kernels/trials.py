"""One kernel on one mesh: compiled, with its arguments in place, and held against float64.

The one idea: a `Case` says in words what is run. From it come the program of the kernel and those
of what it is compared with, all of the same arguments, which lie on the mesh as the split asks for,
so that no time is spent on bringing them there.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.stages import Compiled

from jaxcomet._compat import enable_x64
from jaxcomet.kernels.description import Kernel, OptionValue, Value
from jaxcomet.kernels.errors import KernelError
from jaxcomet.kernels.partition import Axis, Dimensions, Partition, partition

REFERENCE_FLOP = 2e10
"""Most floating-point operations of a float64 reference: about a second on two cores."""

REFERENCE_ELEMENTS = 2**24
"""Most elements of its largest array: 128 MiB."""

AUTO, ONE_DEVICE, MATMUL, DOT_PRODUCT = "auto", "one-device", "matmul", "dot-product-attention"
_GRADIENT_WORK = 3  # a gradient takes twice the products of the value besides it


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is run.

    Attributes:
      kernel: which kernel.
      sizes: by name; those left out have their defaults.
      dtype: of the arguments.
      mesh: the devices, or None for one.
      axis: of the mesh for each dimension, as of the kernels.
      strategy: of the kernel, or None for its usual one.
      partitioner: ``shard_map`` or ``auto``.
      options: by name.
      gradient: whether the gradients of all arguments are computed too.
      seed: of the arguments.
    """

    kernel: Kernel
    sizes: Mapping[str, int] = field(default_factory=dict)
    dtype: str = "float32"
    mesh: Mesh | None = None
    axis: Axis = None
    strategy: str | None = None
    partitioner: str = "shard_map"
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    gradient: bool = False
    seed: int = 0

    @property
    def partition(self) -> Partition:
        """The split over the mesh, checked.

        Raises:
          KernelError: an unknown strategy, dimension or mesh axis.
        """
        split = self.kernel.split_of(self.strategy)
        return partition(
            self.kernel.name,
            self.mesh,
            self.axis,
            dimensions=split.dimensions,
            default=split.default,
        )

    def rows(self) -> np.ndarray:
        """The rows whose reference is computed: all, or as many as are quick, evenly spread."""
        sizes = self.kernel.filled(self.sizes)
        total = sizes[self.kernel.result_shape[self.kernel.row_axis]]
        work = self.kernel.row_flop(sizes) * (_GRADIENT_WORK if self.gradient else 1)
        allowed = min(REFERENCE_FLOP / work, REFERENCE_ELEMENTS / self.kernel.row_elements(sizes))
        count = max(1, min(total, int(allowed)))
        return np.unique(np.linspace(0, total - 1, count).round().astype(int))

    def cotangent(self) -> Array:
        """The weights of the sum whose gradient is taken: normal numbers on `rows`, 0 elsewhere."""
        sizes = self.kernel.filled(self.sizes)
        shape = tuple(sizes[name] for name in self.kernel.result_shape)
        weights = np.random.default_rng(self.seed + 1).standard_normal(shape, np.float32)
        along = [1] * len(shape)
        along[self.kernel.row_axis] = -1
        chosen = np.isin(np.arange(shape[self.kernel.row_axis]), self.rows()).reshape(along)
        return jnp.asarray(weights * chosen, self.dtype)


@dataclass(frozen=True, kw_only=True)
class Program:
    """A compiled program and the arguments that it is called with.

    Attributes:
      compiled: the program.
      arguments: on the devices.
      undivided: axes of arguments that lie whole on every device since their size does not divide,
        in words.
    """

    compiled: Compiled
    arguments: tuple[Any, ...]
    undivided: tuple[str, ...] = ()

    def __call__(self) -> tuple[Array, dict[str, Array]]:
        """The value and, where asked for, the gradients by argument."""
        return self.compiled(*self.arguments)


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """How far an array lies from its reference.

    Attributes:
      max_abs_error: of all elements; infinite where one is not finite and the other is.
      largest: the largest finite element of the reference, by size.
    """

    max_abs_error: float
    largest: float

    @property
    def relative(self) -> float:
        """The error relative to the largest element."""
        return self.max_abs_error / self.largest if self.largest else self.max_abs_error


def program(case: Case) -> Program:
    """The kernel, compiled.

    Raises:
      KernelError: the kernel cannot run so.
    """
    split = case.partition
    parameters: dict[str, Any] = case.kernel.parameters(case.options, meaning=False)
    if case.kernel.strategies and case.strategy is not None:
        parameters["strategy"] = case.strategy
    axis = dict(split.axes) if case.mesh is not None else None
    parameters |= {"mesh": case.mesh, "axis": axis, "partitioner": case.partitioner}
    function = case.kernel.function
    return compile_on(case, lambda **arguments: function(**arguments, **parameters), split)


def plain(case: Case) -> Program:
    """The plain form on one device."""
    parameters = case.kernel.parameters(case.options, meaning=True)
    reference = case.kernel.reference
    whole = Partition(mesh=None)
    return compile_on(case, lambda **arguments: reference(**arguments, **parameters), whole)


def bare_product(case: Case) -> Program:
    """The matrix product alone, split in the same way: the floor of what a fused kernel takes.

    Raises:
      KernelError: the kernel has no product of two matrices.
    """
    from jaxcomet.kernels.product import split_product

    if case.kernel.product is None:
        raise KernelError(f"{case.kernel.name}: has no product of two of its matrices")
    first, second = case.kernel.product
    split = case.partition

    def product(**arguments: Array) -> Array:
        a, b = arguments[first], arguments[second]
        rounded = lambda part, columns: part.astype(jnp.result_type(a, b))  # noqa: E731
        return split_product(a, b, rounded, split)

    return compile_on(case, product, split)


def dot_product_attention(case: Case) -> Program:
    """`jax.nn.dot_product_attention` on one device.

    Raises:
      KernelError: the kernel is another one, or the two mean different things.
    """
    if case.kernel.name != "attention":
        raise KernelError(f"{case.kernel.name}: jax.nn.dot_product_attention is something else")
    parameters = case.kernel.parameters(case.options, meaning=True)
    sizes = case.kernel.filled(case.sizes)
    if parameters.get("is_causal") and sizes["q"] != sizes["kv"]:
        raise KernelError(
            f"attention: got {sizes['q']} queries and {sizes['kv']} keys; expected equal sizes: "
            "jax.nn.dot_product_attention aligns a causal mask with the first key"
        )
    attend = lambda **arguments: jax.nn.dot_product_attention(**arguments, **parameters)  # noqa: E731
    return compile_on(case, attend, Partition(mesh=None))


def variants(case: Case) -> dict[str, Callable[[], Program]]:
    """What a kernel is compared with: each strategy, XLA's partitioner and what it may be held to.

    The strategy and the partitioner of the case do not matter. ``auto`` is the unfused form
    where strategies differ under XLA's partitioner too.

    Returns:
      For each name what compiles it, and raises KernelError where the split is none for it.
    """
    kernel = case.kernel
    manual = {name or "shard_map": name for name in kernel.strategies or (None,)}
    found: dict[str, Callable[[], Program]] = {}
    for label, strategy in manual.items():
        one = dataclasses.replace(case, strategy=strategy, partitioner="shard_map")
        found[label] = lambda one=one: program(one)
    if case.mesh is not None:
        unfused = "unfused" if "unfused" in kernel.strategies else None
        automatic = dataclasses.replace(case, strategy=unfused, partitioner="auto")
        found[AUTO] = lambda: program(automatic)
    found[ONE_DEVICE] = lambda: plain(case)
    if kernel.product is not None:
        usual = dataclasses.replace(case, strategy=None)
        found[MATMUL] = lambda: bare_product(usual)
    if kernel.name == "attention":
        found[DOT_PRODUCT] = lambda: dot_product_attention(case)
    return found


def deviations(case: Case, result: tuple[Array, dict[str, Array]]) -> dict[str, Deviation]:
    """How far value and gradients are from the float64 reference, on the rows of the case.

    Gradients are those of the sum over these rows, weighted with the cotangent; of an argument
    that has the rows too, they are compared there.

    Args:
      case: what was run.
      result: what its program returned.

    Returns:
      By array: ``result``, and the differentiated arguments by name.
    """
    kernel, rows = case.kernel, case.rows()
    value, gradients = jax.tree.map(jnp.asarray, jax.device_get(result))
    drawn = kernel.arguments(case.sizes, case.dtype, case.seed)
    with enable_x64(True):
        wide = {
            name: jnp.asarray(a, jnp.float64) if jnp.issubdtype(a.dtype, jnp.floating) else a
            for name, a in drawn.items()
        }
        options = kernel.parameters(case.options, meaning=True)
        chosen = kernel.rows_only(kernel, wide, options, rows)
        given: tuple[Any, ...] = (chosen.arguments,)
        if case.gradient:
            cotangent = np.take(np.asarray(case.cotangent()), rows, axis=kernel.row_axis)
            given += (jnp.asarray(cotangent, jnp.float64),)
        reference = functools.partial(kernel.reference, **chosen.constants)
        expected, expected_gradients = jax.jit(functools.partial(_run, kernel, reference))(*given)
    found = {"result": _deviation(jnp.take(value, rows, axis=kernel.row_axis), expected)}
    taken = kernel.rows_only(kernel, gradients, options, rows).arguments if gradients else {}
    for name in (one.name for one in kernel.operands if one.name in taken):
        found[name] = _deviation(taken[name], expected_gradients[name])
    return found


def _deviation(actual: Any, expected: Any) -> Deviation:
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    finite = np.isfinite(expected)
    largest = float(np.abs(expected[finite]).max(initial=0.0))
    same = (np.isfinite(actual) & finite) | (actual == expected)
    same |= np.isnan(actual) & np.isnan(expected)
    if not same.all():
        return Deviation(max_abs_error=math.inf, largest=largest)
    error = np.abs(actual[finite] - expected[finite]).max(initial=0.0)
    return Deviation(max_abs_error=float(error), largest=largest)


def _run(
    kernel: Kernel,
    function: Value,
    arguments: Mapping[str, Array],
    cotangent: Array | None = None,
) -> tuple[Array, dict[str, Array]]:
    """The value, and with a cotangent the gradients of all arguments that have them."""
    if cotangent is None:
        return function(**arguments), {}
    names = {one.name for one in kernel.operands if one.differentiable}
    moving = {name: value for name, value in arguments.items() if name in names}
    fixed = {name: value for name, value in arguments.items() if name not in names}
    value, pull = jax.vjp(lambda moving: function(**moving, **fixed), moving)
    return value, pull(cotangent.astype(value.dtype))[0]


def compile_on(case: Case, function: Value, split: Partition) -> Program:
    """A function of the kernel's arguments, compiled for arguments that lie as a split asks.

    Args:
      case: sizes, dtype and seed of the arguments, and whether gradients are wanted.
      function: takes the kernel's arguments by name.
      split: where they lie; without a mesh on the first device.
    """
    kernel = case.kernel
    undivided: list[str] = []

    def placed(name: str, array: Array, dimensions: Dimensions) -> Array:
        if split.mesh is None:
            return array
        divided = []
        for axis, dimension in enumerate(dimensions):
            names = (dimension,) if isinstance(dimension, str) else dimension or ()
            shards = split.shards(*names)
            divides = array.shape[axis] % shards == 0
            if not divides:
                undivided.append(f"{name} axis {axis} of {array.shape[axis]} over {shards}")
            divided.append(names if divides else None)
        return jax.device_put(array, NamedSharding(split.mesh, split.spec(*divided)))

    drawn = kernel.arguments(case.sizes, case.dtype, case.seed)
    arguments = {
        one.name: placed(one.name, drawn[one.name], one.dimensions) for one in kernel.operands
    }
    given = (arguments,)
    if case.gradient:
        given = (arguments, placed("cotangent", case.cotangent(), kernel.result))
    compiled = jax.jit(functools.partial(_run, kernel, function)).lower(*given).compile()
    return Program(compiled=compiled, arguments=given, undivided=tuple(undivided))
