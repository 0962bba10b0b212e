"""Conventions: every debatable rule of accounting, one option each, kept in this one place.

The default of each option is what a machine would physically do; the preset `comet-program` takes,
for each, what the authors' released program does (d-matrix-ai/comet 917af0d), including what is
plainly wrong there. A result states the set it was made with. Options are static: another set is
another compiled program.
"""

import dataclasses
import difflib
from dataclasses import dataclass
from typing import Literal, get_args, get_type_hints


class ConventionError(ValueError):
    """An unknown convention, option or preset; the message lists the known ones."""


@dataclass(frozen=True, kw_only=True)
class Conventions:
    """One value per rule; see `RULES` for what each means.

    Attributes are literal strings, so that the type lists what is allowed.
    """

    preset: str = "default"
    # -- time of one move
    staging: Literal["pipelined", "serial"] = "pipelined"
    mesh_volume: Literal["tiles", "hops"] = "tiles"
    mesh_queuing: Literal["per-hop", "per-word"] = "per-hop"
    engine_hops: Literal["counted", "ignored"] = "counted"
    # -- stalls
    overlap: Literal["double-buffered", "none"] = "double-buffered"
    fill_drain: Literal["counted", "ignored"] = "counted"
    read_stalls: Literal["every-step", "first-step"] = "every-step"
    compulsory: Literal["once", "twice-when-long"] = "once"
    windows: Literal["actual", "first-step"] = "actual"
    step_share: Literal["exact", "floor"] = "exact"
    shared_bus: Literal["as-built", "per-direction"] = "as-built"
    resident_ramp: Literal["difference", "all-or-nothing"] = "difference"
    # -- intermediates and partial results
    intermediate_drain: Literal["never", "every-step", "last-step"] = "never"
    partial_sums: Literal["read-and-written", "first-read-too", "written"] = "read-and-written"
    row_partials: Literal["combined", "free"] = "combined"
    partial_reductions: Literal["charged", "free"] = "charged"
    # -- engines
    weight_load: Literal["exposed", "hidden"] = "exposed"
    array_skew: Literal["counted", "ignored"] = "counted"
    weight_folds: Literal["reloaded", "kept"] = "reloaded"
    vector_pipeline: Literal["filled", "ignored"] = "filled"
    # -- collectives
    collective_staging: Literal["pipelined", "serial"] = "pipelined"
    all_reduce_memory: Literal["ring", "squared"] = "ring"
    all_reduce_arithmetic: Literal["ring", "hops"] = "ring"
    # -- buffers
    double_buffer: Literal["counted", "ignored"] = "counted"
    in_place: Literal["never", "elementwise"] = "never"
    live_ranges: Literal["whole", "step"] = "whole"
    intermediate_bits: Literal["as-moved", "one-byte"] = "as-moved"
    # -- energy
    refill_energy: Literal["per-move", "per-step"] = "per-move"
    receiver_energy: Literal["all", "one"] = "all"
    copy_energy: Literal["all", "one"] = "all"
    vector_units: Literal["all", "one-per-cluster"] = "all"
    lane_energy: Literal["per-element", "per-instruction", "per-step"] = "per-element"
    all_reduce_energy: Literal["once", "squared"] = "once"
    mesh_energy_root: Literal["counted", "ignored"] = "counted"
    mesh_energy_units: Literal["all", "one"] = "all"
    mesh_energy_drain: Literal["every-step", "last-step"] = "every-step"
    router_power: Literal["switched", "watt-cycle"] = "switched"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What an option means.

    Attributes:
      group: heading under which it is listed.
      text: the rule and its physical default; what the authors' program does instead.
    """

    group: str
    text: str


_TEXTS: dict[str, dict[str, str]] = {
    "time of one move": {
        "staging": (
            "A tile's way out of the memory and its way through the mesh overlap word by word "
            "(max of the two times); serial: the two times add."
        ),
        "mesh_volume": (
            "Each distinct tile crosses the first channel of the mesh once, a broadcast tile is "
            "copied on the way; hops: one tile times the number of hops, whatever is sent."
        ),
        "mesh_queuing": (
            "The queuing delay is paid at each hop, words follow one a cycle; per-word: each word "
            "pays it."
        ),
        "engine_hops": (
            "The first word of a transfer between buffer and engine pays the port's hop latency; "
            "ignored: no."
        ),
    },
    "stalls": {
        "overlap": (
            "The next tile moves while the present one is computed, where the memory is double-"
            "buffered; none: every move is exposed."
        ),
        "fill_drain": (
            "First fill and last drain of every loop are exposed; ignored: steady state only."
        ),
        "read_stalls": (
            "A fill that is longer than its window stalls at every step; first-step: only once "
            "per loop where the same memory also takes a result (the program lets the write hide "
            "the read)."
        ),
        "compulsory": (
            "A dependent transfer is charged once; twice-when-long: what exceeds the window is "
            "charged again."
        ),
        "windows": (
            "A window is as long as the child takes in that step; first-step: as long as its "
            "first, longest run."
        ),
        "step_share": (
            "A transfer spread over the steps that reuse the tile is divided exactly; floor: "
            "rounded down."
        ),
        "shared_bus": (
            "Reads and writes share a memory's bandwidth where the machine says so (DRAM); per-"
            "direction: never."
        ),
        "resident_ramp": (
            "A tile that is still there shortens the first fill by what it alone adds to it; all-"
            "or-nothing: by its whole time if it is the longest, else by nothing."
        ),
    },
    "intermediates and partial results": {
        "intermediate_drain": (
            "A result that its consumer reads where it was made is not written up; every-step: it "
            "is, at each step; last-step: it is, once."
        ),
        "partial_sums": (
            "Partial sums that leave the engine are read back to be continued; first-read-too: the "
            "first one reads its place, too, though nothing is there yet; written: never read back."
        ),
        "row_partials": (
            "Partial row results of a row's column tiles are read back and combined; free: no cost."
        ),
        "partial_reductions": (
            "Partial row results of a cluster's cores are reduced between them; free: no cost."
        ),
    },
    "engines": {
        "weight_load": (
            "An engine call waits for its weights to be loaded; hidden: they load behind the "
            "previous fold."
        ),
        "array_skew": (
            "A systolic array fills and drains along its diagonals; ignored: one row a cycle from "
            "the start."
        ),
        "weight_folds": (
            "An engine call of several folds leaves only the weights of the last one in the "
            "array, so the next call loads them all again; kept: it finds them all."
        ),
        "vector_pipeline": "Each run of a vector operation fills the pipeline once; ignored: no.",
    },
    "collectives": {
        "collective_staging": (
            "Words leave the memories and cross the mesh at the same time; serial: the two times "
            "add."
        ),
        "all_reduce_memory": (
            "Each participant reads 2(p-1)/p of its part and writes as much (a ring), one after "
            "the other; squared: p^2 parts."
        ),
        "all_reduce_arithmetic": (
            "Each participant combines (p-1)/p of its part; hops: p times the mesh's hops."
        ),
    },
    "buffers": {
        "double_buffer": "A tile that is prefetched needs two places; ignored: one.",
        "in_place": (
            "The result of an element-by-element operation has room of its own; elementwise: it "
            "takes the place of an operand that nobody reads later."
        ),
        "live_ranges": (
            "A value occupies its memory from where it is made to its last use; step: only one "
            "step's tile."
        ),
        "intermediate_bits": (
            "Intermediates occupy what is moved; one-byte: one byte an element above the cores."
        ),
    },
    "energy": {
        "refill_energy": (
            "A tile costs energy when it moves; per-step: at every step of a middle level."
        ),
        "receiver_energy": (
            "Every receiver of a broadcast writes, every sender of a result that the network "
            "combines reads; one: one does."
        ),
        "copy_energy": (
            "Equal tiles that the network neither copies nor combines cost energy for each child, "
            "at both ends; one: for one child."
        ),
        "vector_units": (
            "Every core that runs a vector operation costs energy; one-per-cluster: for "
            "intermediates one does."
        ),
        "lane_energy": (
            "Energy per element; per-instruction: all lanes of each instruction; per-step: one "
            "instruction a step."
        ),
        "all_reduce_energy": (
            "Each participant reads and writes its part once; squared: as often as there are "
            "participants."
        ),
        "mesh_energy_root": "The mesh below the outermost memory costs energy; ignored: no.",
        "mesh_energy_units": "The meshes of all clusters cost energy; one: that of one cluster.",
        "mesh_energy_drain": (
            "Drained intermediates cost mesh energy at each step; last-step: once for each run of "
            "their node."
        ),
        "router_power": (
            "Each word switches the parts of each router that it passes once; watt-cycle: all "
            "routers of a mesh work in all its cycles, and watt-cycles are read as pJ."
        ),
    },
}

RULES: dict[str, Rule] = {
    name: Rule(group=group, text=text)
    for group, entries in _TEXTS.items()
    for name, text in entries.items()
}
"""What every option means, in the order of `Conventions`."""

DEFAULT = Conventions()

COMET_PROGRAM = Conventions(
    preset="comet-program",
    staging="serial",
    mesh_volume="hops",
    mesh_queuing="per-word",
    engine_hops="ignored",
    read_stalls="first-step",
    compulsory="twice-when-long",
    windows="first-step",
    step_share="floor",
    shared_bus="per-direction",
    resident_ramp="all-or-nothing",
    intermediate_drain="last-step",
    partial_sums="written",
    row_partials="free",
    partial_reductions="free",
    weight_folds="kept",
    vector_pipeline="ignored",
    collective_staging="serial",
    all_reduce_memory="squared",
    all_reduce_arithmetic="hops",
    double_buffer="ignored",
    live_ranges="step",
    intermediate_bits="one-byte",
    refill_energy="per-step",
    receiver_energy="one",
    copy_energy="one",
    vector_units="one-per-cluster",
    lane_energy="per-step",
    all_reduce_energy="squared",
    mesh_energy_root="ignored",
    mesh_energy_units="one",
    mesh_energy_drain="last-step",
    router_power="watt-cycle",
)

ROOFLINE = Conventions(
    preset="roofline",
    fill_drain="ignored",
    engine_hops="ignored",
    weight_load="hidden",
    array_skew="ignored",
    vector_pipeline="ignored",
    double_buffer="ignored",
)

PRESETS: dict[str, Conventions] = {c.preset: c for c in (DEFAULT, COMET_PROGRAM, ROOFLINE)}


def conventions(preset: str = "default", **options: str) -> Conventions:
    """A set of conventions: a preset with single options changed.

    Args:
      preset: ``default``, ``comet-program`` or ``roofline``.
      **options: options by name.

    Returns:
      The set; its ``preset`` says what was changed.

    Raises:
      ConventionError: an unknown preset, option or value.

    Example:
      >>> conventions("comet-program", staging="pipelined").preset
      'comet-program+staging=pipelined'
    """
    if preset not in PRESETS:
        raise ConventionError(
            f"conventions: got preset {preset!r}; expected one of {', '.join(PRESETS)}"
        )
    base = PRESETS[preset]
    for name, value in options.items():
        if name not in RULES:
            near = difflib.get_close_matches(name, RULES, n=3) or list(RULES)
            raise ConventionError(
                f"conventions: got option {name!r}; did you mean {', '.join(near)}?"
            )
        if value not in allowed(name):
            raise ConventionError(
                f"conventions.{name}: got {value!r}; expected one of {', '.join(allowed(name))}"
            )
    changed = {n: v for n, v in options.items() if v != getattr(base, n)}
    label = "+".join([preset, *(f"{n}={v}" for n, v in sorted(changed.items()))])
    return dataclasses.replace(base, **changed, preset=label)  # pyright: ignore[reportArgumentType]


def allowed(option: str) -> tuple[str, ...]:
    """Values of an option, the default first."""
    return get_args(get_type_hints(Conventions)[option])
