"""What each rule of accounting is worth: one rule at a time made right, on four known mappings.

The one idea: the preset ``comet-program`` reproduces the authors' program; switching a single rule
to its default and pricing again gives the effect of that rule alone. Nothing here is typed in.
"""

from dataclasses import dataclass
from typing import NamedTuple

from jaxcomet import hardware, strategies
from jaxcomet.cost import evaluate
from jaxcomet.cost.conventions import DEFAULT, PRESETS, RULES, Conventions, conventions
from jaxcomet.operations import gemm_softmax

BASE = "comet-program"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A mapping that the authors' program was run on.

    Attributes:
      machine: name of the machine.
      sizes: M, N, K.
      factors: factors that are not 1.

    Example:
      >>> ROWS[0].label
      'edge 1x1024x128'
    """

    machine: str
    sizes: tuple[int, int, int]
    factors: dict[str, int]

    @property
    def label(self) -> str:
        """Machine and shape."""
        return f"{self.machine} {'x'.join(str(s) for s in self.sizes)}"


def _row(
    machine: str, edge: int, sizes: tuple[int, int, int], m: str, columns: int, contracted: int
) -> Row:
    spatial = dict.fromkeys(("N_dram_sx", "N_dram_sy", "N_gb_sx", "N_gb_sy"), edge)
    rows = dict(
        zip(("M_dram_t", "M_gb_t", "M_core_t", "M_comp"), (int(x) for x in m.split()), strict=True)
    )
    return Row(
        machine=machine,
        sizes=sizes,
        factors={**rows, **spatial, "N_comp": columns, "K_comp": contracted},
    )


ROWS = (
    _row("edge", 2, (1, 1024, 128), "1 1 1 1", 64, 128),
    _row("edge", 2, (1024, 1024, 256), "16 4 1 16", 64, 256),
    _row("cloud", 4, (1024, 1024, 512), "4 4 1 64", 4, 512),
    _row("edge", 2, (256, 256, 128), "32 8 1 1", 16, 128),
)
"""Four runs of the authors' program (d-matrix-ai/comet 917af0d), M factors from DRAM to call."""


@dataclass(frozen=True, kw_only=True)
class Effect:
    """What making one rule right changes, per row of `ROWS`.

    Attributes:
      option: name of the rule.
      program: value in the preset ``comet-program``.
      right: value in the preset ``default``.
      cycles: change of the latency.
      energy_pj: change of the energy.
      held_bytes: change of the bytes that the limited memories hold, one instance of each.
    """

    option: str
    program: str
    right: str
    cycles: tuple[float, ...]
    energy_pj: tuple[float, ...]
    held_bytes: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Effects:
    """The effects of all rules that the program breaks.

    Attributes:
      base_cycles: latency under ``comet-program``, per row of `ROWS`.
      base_energy_pj: energy under it.
      base_held_bytes: bytes held under it.
      rules: one entry per rule whose value differs from the default, in the order of `RULES`.
    """

    base_cycles: tuple[float, ...]
    base_energy_pj: tuple[float, ...]
    base_held_bytes: tuple[float, ...]
    rules: tuple[Effect, ...]


class Prices(NamedTuple):
    """Figures of the rows under one set of rules; see `Effect` for the units."""

    cycles: tuple[float, ...]
    energy_pj: tuple[float, ...]
    held_bytes: tuple[float, ...]


def _price(chosen: Conventions) -> Prices:
    cycles, energies, held = [], [], []
    for row in ROWS:
        machine = hardware.load(row.machine)
        workload = gemm_softmax(*row.sizes)
        mapping = strategies.build(
            workload, machine, "fused-gemm-distsm", row.factors, reduce="tile"
        )
        cost = evaluate(workload, mapping, machine, conventions=chosen)
        cycles.append(float(cost.latency_cycles))
        energies.append(float(cost.energy_pj))
        limited = (o for o in cost.occupancy if o.capacity_bytes is not None)
        held.append(sum(float(o.needed_bytes) for o in limited))
    return Prices(tuple(cycles), tuple(energies), tuple(held))


def _changes(new: tuple[float, ...], old: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(a - b for a, b in zip(new, old, strict=True))


def convention_effects() -> Effects:
    """The effect of each rule of ``comet-program`` alone, made right.

    Returns:
      Base figures and one entry per rule that differs between ``comet-program`` and ``default``.
    """
    base = _price(PRESETS[BASE])
    rules = []
    for option in RULES:
        program, right = getattr(PRESETS[BASE], option), getattr(DEFAULT, option)
        if program == right:
            continue
        prices = _price(conventions(BASE, **{option: right}))
        rules.append(
            Effect(
                option=option,
                program=program,
                right=right,
                cycles=_changes(prices.cycles, base.cycles),
                energy_pj=_changes(prices.energy_pj, base.energy_pj),
                held_bytes=_changes(prices.held_bytes, base.held_bytes),
            )
        )
    return Effects(
        base_cycles=base.cycles,
        base_energy_pj=base.energy_pj,
        base_held_bytes=base.held_bytes,
        rules=tuple(rules),
    )
