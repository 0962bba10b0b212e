"""How a kernel is described: its sizes, arguments, strategies, splits and options, as data.

The one idea: whoever is given a kernel in words (a command line, a benchmark) learns from its
description what there is and what each word means, and gets arguments and a reference for it. A
kernel's module is imported when its function is asked for.
"""

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from jaxcomet.kernels.errors import KernelError
from jaxcomet.kernels.partition import Dimensions

OptionValue = str | bool | float
Value = Callable[..., Array]
"""A kernel or its reference: arrays and options by name -> the result."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """A size of a kernel.

    Attributes:
      name: its name, as in the cost model where that has it.
      text: what it is.
      default: value where it is left out, or the name of the size that it then equals.
    """

    name: str
    text: str
    default: int | str


@dataclass(frozen=True, kw_only=True)
class Operand:
    """An array argument.

    Attributes:
      name: the parameter of the public function.
      shape: the size along each axis, by name.
      dimensions: what each axis is split over, as of `Partition.map_padded`.
      mean: of its elements.
      deviation: of its elements, normally distributed.
      fan_in: a size by whose square root the elements are divided, so that products with standard
        normal numbers are again of size 1; or None.
      below: integers instead, uniform below this size; they have no derivative.
    """

    name: str
    shape: tuple[str, ...]
    dimensions: Dimensions
    mean: float = 0.0
    deviation: float = 1.0
    fan_in: str | None = None
    below: str | None = None

    @property
    def differentiable(self) -> bool:
        """Whether a derivative with respect to it exists."""
        return self.below is None

    def draw(
        self, sizes: Mapping[str, int], dtype: DTypeLike, random: np.random.Generator
    ) -> Array:
        """Random elements, rounded to a dtype."""
        shape = tuple(sizes[name] for name in self.shape)
        if self.below is not None:
            return jnp.asarray(random.integers(0, sizes[self.below], shape, np.int32))
        elements = random.standard_normal(shape, np.float32)
        factor = self.deviation / (1 if self.fan_in is None else sizes[self.fan_in] ** 0.5)
        return jnp.asarray(self.mean + factor * elements, dtype)


@dataclass(frozen=True, kw_only=True)
class Option:
    """A choice that a kernel takes besides its strategy.

    Attributes:
      name: its name.
      parameter: that of the public function.
      text: what it chooses.
      default: where it is left out: a bool is a switch, a str one of `values`, a float a number.
      values: what may be chosen, of a str.
      meaning: whether it changes what is computed, not just how: the reference takes it too.
    """

    name: str
    parameter: str
    text: str
    default: OptionValue
    values: tuple[str, ...] = ()
    meaning: bool = True


@dataclass(frozen=True, kw_only=True)
class Split:
    """What a strategy may split over a mesh.

    Attributes:
      dimensions: names of dimensions.
      default: the one that is meant where only mesh axes are named.
    """

    dimensions: tuple[str, ...]
    default: str


@dataclass(frozen=True, kw_only=True)
class Rows:
    """What the plain form needs to compute some rows of a kernel's result.

    Attributes:
      arguments: arrays by name.
      constants: further parameters, without derivative.
    """

    arguments: dict[str, Array]
    constants: dict[str, Any]


def take_rows(
    kernel: "Kernel", arguments: dict[str, Array], options: dict[str, Any], rows: np.ndarray
) -> Rows:
    """The chosen rows of every given array that has the kernel's rows."""
    found = dict(arguments)
    for operand in (one for one in kernel.operands if one.name in arguments):
        for axis, names in enumerate(operand.dimensions):
            if kernel.rows in _several(names):
                found[operand.name] = jnp.take(found[operand.name], rows, axis=axis)
    return Rows(arguments=found, constants=options)


RowsOnly = Callable[["Kernel", dict[str, Array], dict[str, Any], np.ndarray], Rows]
"""(kernel, arguments, parameters of the reference, places of rows) -> those rows alone."""


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A kernel that can be named.

    Attributes:
      summary: what it computes, in a line.
      path: "module:function" of the public function.
      reference_path: the same for the plain form, which gives the same result.
      sizes: its sizes.
      operands: its array arguments.
      result: the dimensions of the result's axes.
      result_shape: the size along each of them, by name.
      rows: the dimension whose elements are computed independently of one another.
      strategies: by name, the usual one first; empty for a kernel that has just one form.
      split: of a kernel without strategies.
      options: its options.
      length: the size along which the longest sum runs, by name.
      row_flop: floating-point operations of one row, from all sizes.
      row_elements: elements of the largest array of the plain form, per row.
      product: names of the two operands whose bare matrix product is the floor of its time, or
        None.
      rows_only: gives (arguments, options) of the plain form for some rows alone.
    """

    summary: str
    path: str
    reference_path: str
    sizes: tuple[Size, ...]
    operands: tuple[Operand, ...]
    result: Dimensions
    result_shape: tuple[str, ...]
    rows: str
    strategies: Mapping[str, Split] = dataclasses.field(default_factory=dict)
    split: Split | None = None
    options: tuple[Option, ...] = ()
    length: str
    row_flop: Callable[[Mapping[str, int]], float]
    row_elements: Callable[[Mapping[str, int]], float]
    product: tuple[str, str] | None = None
    rows_only: RowsOnly = take_rows

    @property
    def name(self) -> str:
        """Its name: that of the public function, with dashes."""
        return self.path.partition(":")[2].replace("_", "-")

    @property
    def function(self) -> Value:
        """The public function."""
        return _load(self.path)

    @property
    def reference(self) -> Value:
        """The plain form, which is the specification; its first result where it has several."""
        return _load(self.reference_path)

    @property
    def row_axis(self) -> int:
        """The axis of the result that counts the independent rows."""
        return next(i for i, names in enumerate(self.result) if self.rows in _several(names))

    def split_of(self, strategy: str | None) -> Split:
        """What may be split by a strategy; None is the usual one.

        Raises:
          KernelError: no such strategy.
        """
        if not self.strategies and strategy is None:
            assert self.split is not None
            return self.split
        known = list(self.strategies)
        if strategy is not None and strategy not in known:
            raise KernelError(
                f"{self.name}: strategy: got {strategy!r}; expected "
                f"{' or '.join(known) or 'none, it has just one form'}"
            )
        return self.strategies[strategy or known[0]]

    def filled(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """All sizes, defaults filled in.

        Raises:
          KernelError: a size that this kernel does not take, or below 1.
        """
        names = [size.name for size in self.sizes]
        for name, value in sizes.items():
            if name not in names:
                raise KernelError(f"{self.name}: got size {name!r}; expected {', '.join(names)}")
            if value < 1:
                raise KernelError(f"{self.name}: {name}: got {value}; expected at least 1")
        found: dict[str, int] = {}
        for size in self.sizes:
            default = size.default
            found[size.name] = sizes.get(
                size.name, found[default] if isinstance(default, str) else default
            )
        return found

    def arguments(
        self, sizes: Mapping[str, int], dtype: DTypeLike, seed: int = 0
    ) -> dict[str, Array]:
        """Random arrays of realistic size, by name.

        Args:
          sizes: by name; those left out have their defaults.
          dtype: of the arrays that hold floating-point numbers.
          seed: of the random numbers.

        Raises:
          KernelError: a size that cannot be.

        Example:
          >>> from jaxcomet.kernels.catalog import KERNELS
          >>> KERNELS["distributed-softmax"].arguments({"m": 2, "n": 4}, "bfloat16")["x"].shape
          (2, 4)
        """
        sizes, random = self.filled(sizes), np.random.default_rng(seed)
        return {one.name: one.draw(sizes, dtype, random) for one in self.operands}

    def parameters(self, options: Mapping[str, OptionValue], *, meaning: bool) -> dict[str, Any]:
        """Options as parameters of the public function; of the reference, if `meaning`.

        Those at their defaults are left out.

        Raises:
          KernelError: an option that this kernel does not have.
        """
        by_name = {option.name: option for option in self.options}
        for name in options:
            if name not in by_name:
                known = ", ".join(by_name) or "none"
                raise KernelError(f"{self.name}: got option {name!r}; its options are {known}")
        return {
            by_name[name].parameter: value
            for name, value in options.items()
            if value != by_name[name].default and (by_name[name].meaning or not meaning)
        }


def _load(path: str) -> Value:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def _several(names: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names or ()
