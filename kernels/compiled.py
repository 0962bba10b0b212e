"""What a compiled program moves between devices and holds in memory, read from the program itself.

The one idea: kind, size and number of the collectives, and the bytes of the buffers, are exact and
the same in every run, where time is not; so they are what tests and reports compare.

Sizes are those of the compiled program, not of the source: XLA merges collectives, and on a CPU
bfloat16 travels as float32 in all of them (float16 and int8 as they are). What a program moves by
custom calls of a vendor's library is not seen.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from jax.stages import Compiled

from jaxcomet.kernels.errors import KernelError

KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "collective-permute",
    "all-to-all",
    "ragged-all-to-all",
    "collective-broadcast",
)


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One collective instruction of a compiled program.

    Attributes:
      kind: one of `KINDS`, in XLA's spelling.
      dtype: XLA's name of what moves, such as f32 or bf16; several are joined by a plus sign.
      elements: elements of the result on one device, of all arrays that it returns.
      bytes: their bytes: the whole of what an all-gather collects, the own block of a
        reduce-scatter, the own part included in an all-to-all.
      group_size: the devices that take part together.
      times: how often one run of the program executes it: the product of the trip counts of the
        loops around it; None in a loop of unknown length and in a branch of a conditional.
    """

    kind: str
    dtype: str
    elements: int
    bytes: int
    group_size: int
    times: int | None


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The bytes that a compiled program holds on one device.

    Attributes:
      argument_bytes: its arguments.
      output_bytes: its results.
      temporary_bytes: all that lives in between.
      alias_bytes: results that lie in the place of a donated argument; counted in both above.
    """

    argument_bytes: int
    output_bytes: int
    temporary_bytes: int
    alias_bytes: int

    @property
    def total_bytes(self) -> int:
        """All that is held at once; XLA's own peak leaves temporaries out on a CPU."""
        return self.argument_bytes + self.output_bytes + self.temporary_bytes - self.alias_bytes


def collectives(program: Compiled | str) -> tuple[Collective, ...]:
    """The collectives of a compiled program, in the order of its text, loops and branches included.

    An asynchronous pair of start and done is one collective, and so is one that returns several
    arrays. A computation that is called from several places counts at each.

    Args:
      program: `jax.jit(f).lower(...).compile()`, or its `as_text()`.

    Returns:
      The collectives; empty for a program without.

    Raises:
      KernelError: the text is not that of a compiled program.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> collectives(jax.jit(jnp.sin).lower(1.0).compile())
      ()
    """
    text = program if isinstance(program, str) else program.as_text()
    if text is None:
        raise KernelError("collectives: program: this backend shows no text of its programs")
    entry, computations = _computations(text)
    if entry is None:
        raise KernelError(
            "collectives: program: got text without an ENTRY computation; expected the text of a "
            "compiled program; pass jax.jit(f).lower(...).compile()"
        )
    return _Reader(computations, _num_devices(text)).read(entry)


def total_bytes(found: Iterable[Collective]) -> dict[str, int]:
    """The bytes of each kind of collective in one run: those of the results, times executions.

    Args:
      found: as from `collectives`.

    Returns:
      Bytes on one device by kind, for kinds that occur.

    Raises:
      KernelError: one of them is executed an unknown number of times.
    """
    totals: dict[str, int] = {}
    for collective in found:
        if collective.times is None:
            raise KernelError(
                f"total_bytes: {collective}: runs an unknown number of times, in a loop without a "
                "known length or in a branch; leave it out, or give its times by "
                "dataclasses.replace"
            )
        moved = collective.bytes * collective.times
        totals[collective.kind] = totals.get(collective.kind, 0) + moved
    return totals


def memory_bytes(compiled: Compiled) -> Memory:
    """The bytes of arguments, results and temporaries of a compiled program on one device.

    Raises:
      KernelError: the backend does not tell.
    """
    stats = compiled.memory_analysis()
    if stats is None:
        raise KernelError("memory_bytes: compiled: this backend has no memory analysis")
    return Memory(
        argument_bytes=stats.argument_size_in_bytes,
        output_bytes=stats.output_size_in_bytes,
        temporary_bytes=stats.temp_size_in_bytes,
        alias_bytes=stats.alias_size_in_bytes,
    )


@dataclass(frozen=True)
class _Instruction:
    """A line of a computation: ``%name = result operation(operands), attributes``."""

    name: str
    result: str
    operation: str
    rest: str


_HEADER = re.compile(r"^(ENTRY\s+)?%?([\w.\-]+)\s+\(.*\)\s*->.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT\s+)?%?([\w.\-]+)\s+=\s+(.+?)\s([a-z][\w\-]*)\((.*)$")
_ARRAY = re.compile(r"\b([a-z]+\d*[a-z0-9]*)\[([\d,<=]*)\]")
_CALLED = re.compile(
    r"\b(?:calls|to_apply|called_computations)=(?:\{([^}]*)\}|%?([\w.\-]+))",
)
_BRANCHES = re.compile(
    r"\b(?:branch_computations|true_computation|false_computation)=(?:\{([^}]*)\}|%?([\w.\-]+))"
)
_WHILE = re.compile(r"\b(condition|body)=%?([\w.\-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')


def _computations(text: str) -> tuple[str | None, dict[str, list[_Instruction]]]:
    """The name of the entry, and the instructions of each computation by its name."""
    entry, computations, current = None, {}, []
    for line in text.splitlines():
        if header := _HEADER.match(line):
            current = computations.setdefault(header[2], [])
            entry = header[2] if header[1] else entry
        elif instruction := _INSTRUCTION.match(line):
            current.append(_Instruction(*instruction.groups()))
    return entry, computations


class _Reader:
    """Collects collectives through the calls of a program, each computation read once."""

    def __init__(self, computations: Mapping[str, list[_Instruction]], num_devices: int) -> None:
        self._computations = computations
        self._num_devices = num_devices
        self.read = functools.cache(self._read)

    def _read(self, name: str) -> tuple[Collective, ...]:
        """The collectives of one call of a computation."""
        instructions = self._computations[name]
        by_name = {instruction.name: instruction for instruction in instructions}
        found: list[Collective] = []
        for instruction in instructions:
            if instruction.operation == "while":
                found += self._loop(instruction)
            for called in _names(_CALLED, instruction.rest):
                found += self.read(called)
            for branch in _names(_BRANCHES, instruction.rest):
                found += _repeated(self.read(branch), None)
            kind = instruction.operation.removesuffix("-done")
            if kind not in KINDS:
                continue
            origin = instruction
            if (
                kind != instruction.operation
            ):  # a done returns just the result; its start has groups
                operands = re.findall(r"[\w.\-]+", instruction.rest)
                origin = next(by_name[operand] for operand in operands if operand in by_name)
            found.append(_collective(kind, instruction.result, origin.rest, self._num_devices))
        return tuple(found)

    def _loop(self, instruction: _Instruction) -> list[Collective]:
        """Those of a loop: the body as often as it turns, the condition once more."""
        known = _TRIPS.search(instruction.rest)
        trips = int(known[1]) if known else None
        found = []
        for role, name in _WHILE.findall(instruction.rest):
            extra = 1 if role == "condition" else 0
            found += _repeated(self.read(name), None if trips is None else trips + extra)
        return found


def _repeated(found: tuple[Collective, ...], times: int | None) -> list[Collective]:
    """The same, executed so often; None spreads."""
    return [
        dataclasses.replace(
            one, times=None if times is None or one.times is None else one.times * times
        )
        for one in found
    ]


def _names(pattern: re.Pattern[str], rest: str) -> list[str]:
    """The computations that an attribute names, alone or in braces."""
    return [
        name.strip().removeprefix("%")
        for braces, single in pattern.findall(rest)
        for name in (braces.split(",") if braces else [single])
    ]


def _collective(kind: str, result: str, attributes: str, num_devices: int) -> Collective:
    """A collective by the type of its result and its attributes."""
    arrays = [
        (dtype, math.prod(int(size.removeprefix("<=")) for size in sizes.split(",") if size))
        for dtype, sizes in _ARRAY.findall(result)
    ]
    return Collective(
        kind=kind,
        dtype="+".join(dict.fromkeys(dtype for dtype, _ in arrays)),
        elements=sum(elements for _, elements in arrays),
        bytes=sum(-(-elements * _bits(dtype) // 8) for dtype, elements in arrays),
        group_size=_group_size(attributes, num_devices),
        times=1,
    )


def _bits(dtype: str) -> int:
    """The bits of an element: the first number in XLA's name of a dtype; pred is a byte."""
    digits = re.search(r"\d+", dtype)
    return int(digits[0]) if digits else 8


def _num_devices(text: str) -> int:
    """The devices of a program: its partitions, times the copies of it."""
    header = text.partition("\n")[0]
    counts = re.findall(r"\b(?:num_partitions|replica_count)=(\d+)", header)
    return math.prod(int(count) for count in counts)


def _group_size(attributes: str, num_devices: int) -> int:
    """The devices of a group: the largest, where they differ.

    XLA prints groups as lists of devices, as a reshaped iota ([groups, size]<=[devices]), or as
    axes of a mesh, of which an axis may be a part, 'x':(1)2, of size 2; and pairs for a permute.
    """
    if pairs := re.search(r"source_target_pairs=\{([\d,{} ]*)\}", attributes):
        return _largest_ring(re.findall(r"\{(\d+),\s*(\d+)\}", pairs[1]))
    if mesh := re.search(r"replica_groups=mesh\[([^\]]*)\].*?\{([^}]*)\}", attributes):
        sizes = dict(re.findall(r"'([^']+)'=(\d+)", mesh[1]))
        axes = re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", mesh[2])
        return math.prod(int(part or sizes[axis]) for axis, part in axes)
    if iota := re.search(r"replica_groups=\[\d+,(\d+)\]<=", attributes):
        return int(iota[1])
    listed = re.search(r"replica_groups=\{([\d,{} ]*)\}", attributes)
    groups = re.findall(r"\{([\d, ]+)\}", listed[1]) if listed else []
    return max((len(group.split(",")) for group in groups), default=num_devices)


def _largest_ring(pairs: list[tuple[str, str]]) -> int:
    """The devices of the largest set that pairs of source and target connect."""
    ring_of: dict[str, set[str]] = {}
    for source, target in pairs:
        joined = ring_of.get(source, {source}) | ring_of.get(target, {target})
        ring_of.update(dict.fromkeys(joined, joined))
    return max((len(ring) for ring in ring_of.values()), default=0)
