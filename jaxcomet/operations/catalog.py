"""The compound operations by name: the sizes and options that each takes, and how it is built.

The one idea: whoever is given a workload in words (a command line, a file) learns here what there
is, what each word means and what is filled in where one is left out.
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jaxcomet.operations.attention import attention
from jaxcomet.operations.gemm import gemm
from jaxcomet.operations.gemm_layernorm import gemm_layernorm
from jaxcomet.operations.gemm_softmax import gemm_softmax
from jaxcomet.workload import CompoundOp, WorkloadError

OptionValue = str | bool


@dataclass(frozen=True, kw_only=True)
class Size:
    """A size of a workload.

    Attributes:
      name: its name, a parameter of the workload's builder.
      text: what it is.
      default: value where it is left out, a number or the name of another size; None: required.
    """

    name: str
    text: str
    default: float | str | None = None


@dataclass(frozen=True, kw_only=True)
class Option:
    """A choice between variants of a workload.

    Attributes:
      name: its name, a parameter of the workload's builder.
      text: what it chooses.
      values: what may be chosen, the default first; none: a switch, off by default.
    """

    name: str
    text: str
    values: tuple[str, ...] = ()

    @property
    def default(self) -> OptionValue:
        """Value where it is left out."""
        return self.values[0] if self.values else False

    def allows(self, value: object) -> bool:
        """Whether a value may be chosen."""
        return value in self.values if self.values else isinstance(value, bool)

    @property
    def allowed(self) -> str:
        """What may be chosen, for messages."""
        return " or ".join(self.values) if self.values else "true or false"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A compound operation that can be named.

    Attributes:
      name: its name.
      summary: what it computes, in a line.
      sizes: its sizes.
      options: its options.
      form: how a shape is written, in pieces between which a line may break.
      builder: makes it from sizes and options by name.
    """

    name: str
    summary: str
    sizes: tuple[Size, ...]
    options: tuple[Option, ...] = ()
    form: tuple[str, ...]
    builder: Callable[..., CompoundOp]

    @property
    def required(self) -> tuple[str, ...]:
        """Names of the sizes that have no default."""
        return tuple(s.name for s in self.sizes if s.default is None)

    def filled(self, sizes: Mapping[str, object]) -> dict[str, object]:
        """All sizes, defaults filled in.

        Raises:
          WorkloadError: a size that is missing, or one that this workload does not take.
        """
        names = [s.name for s in self.sizes]
        for name in sizes:
            if name not in names:
                raise WorkloadError(
                    f"{self.name}: got size {name!r}; its sizes are {', '.join(names)}"
                )
        missing = [n for n in self.required if n not in sizes]
        if missing:
            raise WorkloadError(
                f"{self.name}: got no {', '.join(missing)}; expected {', '.join(self.required)}"
            )
        found: dict[str, object] = {}
        for size in self.sizes:
            if size.name in sizes:
                found[size.name] = sizes[size.name]
            elif isinstance(size.default, str):
                found[size.name] = sizes[size.default]
            else:
                found[size.name] = size.default
        return found

    def chosen(self, options: Mapping[str, OptionValue]) -> dict[str, OptionValue]:
        """All options, defaults filled in.

        Raises:
          WorkloadError: an option that this workload does not have, or a value that is not allowed.
        """
        by_name = {o.name: o for o in self.options}
        for name, value in options.items():
            if name not in by_name:
                known = ", ".join(by_name) or "none"
                raise WorkloadError(f"{self.name}: got option {name!r}; its options are {known}")
            if not by_name[name].allows(value):
                raise WorkloadError(
                    f"{self.name}, option {name}: got {value!r}; expected {by_name[name].allowed}"
                )
        return {o.name: options.get(o.name, o.default) for o in self.options}

    def build(
        self, sizes: Mapping[str, object], options: Mapping[str, OptionValue] | None = None
    ) -> CompoundOp:
        """The compound operation.

        Args:
          sizes: whole numbers >= 1 by name, or arrays of them.
          options: choices by name.

        Raises:
          WorkloadError: sizes or options that are unknown, missing or cannot be.

        Example:
          >>> find("attention").build({"heads": 12, "q": 256, "head_dim": 64}).sizes["N"]
          256.0
        """
        return self.builder(**self.filled(sizes), **self.chosen(options or {}))

    def changed(self, options: Mapping[str, OptionValue]) -> list[str]:
        """Options that differ from their defaults, in words.

        Example:
          >>> find("gemm-layernorm").changed({"norm": "rms", "affine": True})
          ['norm=rms', 'affine']
        """
        values = self.chosen(options)
        return [
            f"{o.name}={values[o.name]}" if o.values else o.name
            for o in self.options
            if values[o.name] != o.default
        ]


_GEMM_SIZES = (
    Size(name="M", text="Rows."),
    Size(name="N", text="Columns."),
    Size(name="K", text="Contracted extent."),
)
_GEMM_FORM = ("{M}x{N}", "x{K}")

_ENTRIES = (
    Entry(
        name="gemm",
        summary="A matrix product, M x K by K x N.",
        sizes=_GEMM_SIZES,
        form=_GEMM_FORM,
        builder=gemm,
    ),
    Entry(
        name="gemm-softmax",
        summary="A matrix product and the softmax of its rows.",
        sizes=_GEMM_SIZES,
        form=_GEMM_FORM,
        builder=gemm_softmax,
    ),
    Entry(
        name="gemm-layernorm",
        summary="A matrix product and the LayerNorm or RMSNorm of its rows.",
        sizes=_GEMM_SIZES,
        options=(
            Option(name="norm", text="Which normalization.", values=("layer", "rms")),
            Option(name="affine", text="Multiply by a learned gamma and add a learned beta."),
        ),
        form=_GEMM_FORM,
        builder=gemm_layernorm,
    ),
    Entry(
        name="attention",
        summary="Scaled dot-product attention over all heads of a batch.",
        sizes=(
            Size(name="batch", text="Sequences.", default=1.0),
            Size(name="heads", text="Query heads."),
            Size(name="kv_heads", text="Heads of keys and values.", default="heads"),
            Size(name="q", text="Queries of a sequence; 1 in decode."),
            Size(name="kv", text="Keys of a sequence, the cached ones included.", default="q"),
            Size(name="head_dim", text="Width of a query and a key."),
            Size(name="value_dim", text="Width of a value.", default="head_dim"),
        ),
        options=(Option(name="causal", text="A query sees only the keys up to its own."),),
        form=("{batch}x{heads}/{kv_heads} ", "{q}x{kv}", "x{head_dim}"),
        builder=attention,
    ),
)

CATALOG: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}
"""The compound operations by name."""


def find(name: str) -> Entry:
    """One compound operation.

    Raises:
      WorkloadError: an unknown name; the known ones are listed.
    """
    if name not in CATALOG:
        near = difflib.get_close_matches(name, CATALOG, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise WorkloadError(f"workload: got {name!r}; {hint}known: {', '.join(CATALOG)}")
    return CATALOG[name]
