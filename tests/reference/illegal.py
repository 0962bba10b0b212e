"""Trees that cover every dimension and yet compute something else, each beside a legal one.

One idea: a softmax of C = A B on one machine, its loops put where they must not be. The factors
cover all dimensions, the homes exist, and only the order of the work is wrong.
"""

from dataclasses import dataclass

from jaxcomet.hardware import Machine, load
from jaxcomet.mapping import Collective, Compute, Group, Loop, Mapping, Node, Spatial, Temporal
from jaxcomet.workload import CompoundOp, Operation, Tensor, build

HOMES = {"C": "ob", "D": "ob", "F": "ob", "G": "ob"}


@dataclass(frozen=True)
class Example:
    """A tree, and what is wrong with it.

    Attributes:
      name: what was done.
      fault: words of the one violation, (operation, tensor); None for a legal tree.
      tree: the tree; its homes are `HOMES`.
      factors: values of its factors.
    """

    name: str
    fault: tuple[str, str] | None
    tree: Node
    factors: dict[str, int]

    @property
    def workload(self) -> CompoundOp:
        """Three rows, eight columns, two contracted."""
        return softmax(3, 8, 2)

    @property
    def machine(self) -> Machine:
        """The edge machine: its meshes copy and do not combine."""
        return load("edge")

    def mapping(self) -> Mapping:
        """The mapping, past all that `Mapping.from_factors` may refuse."""
        factors = {n: float(f) for n, f in self.factors.items()}
        homes = tuple(sorted(HOMES.items()))
        return Mapping(strategy=self.name, tree=self.tree, homes=homes, factors=factors)


def softmax(M: int, N: int, K: int) -> CompoundOp:
    """C = A B, D = max C, F = exp(C - D), G = sum F, H = F / G, in five operations."""
    shapes = {"A": "MK", "B": "KN", "C": "MN", "D": "M", "F": "MN", "G": "M", "H": "MN"}
    return build(
        "softmax-of-product",
        operations=(
            Operation(
                name="gemm",
                kind="contract",
                function="mac",
                inputs=("A", "B"),
                output="C",
                bits=8,
            ),
            Operation(
                name="rowmax", kind="reduce", function="max", inputs=("C",), output="D", bits=16
            ),
            Operation(
                name="exp", kind="map", function="exp", inputs=("C", "D"), output="F", bits=16
            ),
            Operation(
                name="rowsum", kind="reduce", function="add", inputs=("F",), output="G", bits=16
            ),
            Operation(
                name="div", kind="map", function="div", inputs=("F", "G"), output="H", bits=16
            ),
        ),
        tensors=tuple(Tensor(name=n, dims=tuple(d), bits=8) for n, d in shapes.items()),
        sizes={"M": M, "N": N, "K": K},
    )


def _gemm(columns: tuple[str, ...]) -> Node:
    """The product on one core; the factors of N are those that the core steps through."""
    tile = (Loop("M", ("M_comp",)), Loop("K", ("K_comp",)), Loop("N", (*columns, "N_comp")))
    return Temporal("core", (), Compute("gemm", tile))


def _vector(operation: str, columns: tuple[str, ...]) -> Node:
    """A vector operation on one core: rows innermost, one piece of a row a call."""
    loops = (Loop("N", columns), Loop("M", ("M_comp",)))
    return Temporal("core", loops, Compute(operation, (Loop("N", ("N_comp",)),)))


def _under(*body: Node) -> Node:
    return Temporal("dram", (), Temporal("gb", (), Group(body)))


def _core(operation: str) -> Node:
    """All columns of an operation on one core."""
    return _vector(operation, ("N_gb_t", "N_core_t"))


def _columns_outside() -> Node:
    """A loop over the columns around the maximum and the exponential that needs all of it."""
    inside = (_vector("rowmax", ("N_core_t",)), _vector("exp", ("N_core_t",)))
    both = Temporal("gb", (Loop("N", ("N_gb_t",)),), Group(inside))
    return _under(_gemm(("N_gb_t", "N_core_t")), both, _core("rowsum"), _core("div"))


def _columns_outside_each() -> Node:
    """The same loop around each of the two alone: the maximum is there before it is used."""
    parts = [
        Temporal("gb", (Loop("N", ("N_gb_t",)),), _vector(name, ("N_core_t",)))
        for name in ("rowmax", "exp")
    ]
    return _under(_gemm(("N_gb_t", "N_core_t")), *parts, _core("rowsum"), _core("div"))


def _in_order(*operations: str) -> Node:
    return _under(_gemm(("N_gb_t", "N_core_t")), *(_core(o) for o in operations))


def _spread(*combined: str) -> Node:
    """Columns over cores; the row results named are combined between these."""

    def cores(body: Node) -> Node:
        return Spatial("core", (Loop("N", ("N_gb_sx",)),), (), body)

    def all_reduce(tensor: str, function: str) -> Node:
        part = (Loop("M", ("M_comp",)),)
        return Collective("all_reduce", tensor, "ob", ("N_gb_sx",), (), part, function)

    nodes: list[Node] = [cores(_gemm(("N_core_t",)))]
    for name in ("rowmax", "exp", "rowsum", "div"):
        nodes.append(cores(_vector(name, ("N_core_t",))))
        tensor, function = {"rowmax": ("D", "max"), "rowsum": ("G", "add")}.get(name, ("", ""))
        if tensor and tensor in combined:
            nodes.append(all_reduce(tensor, function))
    return _under(*nodes)


_STEPS = {"M_comp": 3, "K_comp": 2, "N_gb_t": 2, "N_core_t": 2, "N_comp": 2}
_UNITS = {"M_comp": 3, "K_comp": 2, "N_gb_sx": 2, "N_core_t": 2, "N_comp": 2}

ILLEGAL = (
    Example(
        "columns step outside maximum and exponential", ("exp", "D"), _columns_outside(), _STEPS
    ),
    Example("row sums of two cores are not combined", ("div", "G"), _spread("D"), _UNITS),
    Example(
        "exponential before its maximum",
        ("exp", "D"),
        _in_order("exp", "rowmax", "rowsum", "div"),
        _STEPS,
    ),
)
"""One fault each."""

LEGAL = (
    Example("columns step outside each alone", None, _columns_outside_each(), _STEPS),
    Example("row sums of two cores are combined", None, _spread("D", "G"), _UNITS),
    Example("maximum, then exponential", None, _in_order("rowmax", "exp", "rowsum", "div"), _STEPS),
)
"""The trees nearest to them that are right."""
