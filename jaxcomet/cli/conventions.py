"""`jaxcomet conventions`: every rule of accounting, its value per preset, and what it is worth."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from jaxcomet.cli import tables
from jaxcomet.cli.options import Json

if TYPE_CHECKING:
    from jaxcomet.cli.effects import Effects


def conventions(
    presets: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PRESET]...", help="Presets to show; all if none is named."),
    ] = None,
    as_json: Json = False,
) -> None:
    r"""Lists every rule of accounting, its value in each preset, and its effect in cycles.

    The effects are computed: on four mappings that the authors' program was run on, the preset
    comet-program is compared with itself with that one rule set to its default.

    \b
    Examples:
      jaxcomet conventions
      jaxcomet conventions default roofline
      jaxcomet conventions --json
    """
    from jaxcomet.cli.effects import convention_effects
    from jaxcomet.cost.conventions import PRESETS, RULES, allowed, conventions

    chosen = {name: conventions(name) for name in (presets or PRESETS)}
    effects = convention_effects()
    if as_json:
        tables.print_json(_as_dict({n: c for n, c in chosen.items()}, effects))
        return
    console = tables.output()
    table = tables.grid(
        "Rules of accounting",
        ("rule", "what it says", *chosen),
        left=99,
        fold=("rule", "what it says"),
    )
    group = ""
    for option, rule in RULES.items():
        if rule.group != group:
            group = rule.group
            table.add_section()
            table.add_row(group.upper(), style="bold")
        values = [getattr(c, option) for c in chosen.values()]
        table.add_row(f"{option} ({' | '.join(allowed(option))})", rule.text, *values)
    tables.show(table, console)
    _print_effects(effects)


def _print_effects(effects: "Effects") -> None:
    from jaxcomet.cli.effects import BASE, ROWS

    title = f"Effect of making one rule of {BASE} right: cycles (energy, bytes held)"
    names = [r.label.replace(" ", "\n") for r in ROWS]
    table = tables.grid(title, ("rule", "from", "to", *names), left=3)
    base = [
        f"{tables.count(c)}\n({tables.energy(e)})\n({tables.count(b)} B)"
        for c, e, b in zip(
            effects.base_cycles, effects.base_energy_pj, effects.base_held_bytes, strict=True
        )
    ]
    table.add_row(BASE, "", "", *base, style="bold")
    table.add_section()
    for effect in effects.rules:
        cells = []
        for cycles, energy, total, held in zip(
            effect.cycles,
            effect.energy_pj,
            effects.base_energy_pj,
            effect.held_bytes,
            strict=True,
        ):
            share = 100.0 * energy / total
            note = f"\n({share:+.2f} %)" if abs(share) >= 0.005 else ""
            note += f"\n({tables.change(held)} B)" if held else ""
            cells.append(tables.change(cycles) + note)
        table.add_row(effect.option, effect.program, effect.right, *cells)
    console = tables.output()
    tables.show(table, console)
    console.print(
        "Strategy fused-gemm-distsm with reduce=tile. Rules that are the same in both presets are "
        "left out."
    )


def _as_dict(chosen: dict[str, Any], effects: "Effects") -> dict[str, Any]:
    from jaxcomet.cli.effects import BASE, ROWS
    from jaxcomet.cost.conventions import RULES, allowed

    by_option = {effect.option: effect for effect in effects.rules}
    rules = []
    for option, rule in RULES.items():
        effect = by_option.get(option)
        none = (0.0,) * len(ROWS)
        rules.append(
            {
                "group": rule.group,
                "option": option,
                "text": rule.text,
                "allowed": list(allowed(option)),
                "values": {name: getattr(c, option) for name, c in chosen.items()},
                "effect_cycles": [tables.whole(c) for c in (effect.cycles if effect else none)],
                "effect_energy_pj": list(effect.energy_pj if effect else none),
                "effect_held_bytes": [
                    tables.whole(b) for b in (effect.held_bytes if effect else none)
                ],
            }
        )
    rows = [
        {
            "machine": row.machine,
            "sizes": dict(zip("MNK", row.sizes, strict=True)),
            "factors": row.factors,
            "latency_cycles": tables.whole(cycles),
            "energy_pj": energy,
            "held_bytes": tables.whole(held),
        }
        for row, cycles, energy, held in zip(
            ROWS,
            effects.base_cycles,
            effects.base_energy_pj,
            effects.base_held_bytes,
            strict=True,
        )
    ]
    return {"base": BASE, "rows": rows, "rules": rules}
