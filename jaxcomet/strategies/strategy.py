"""What a strategy is: a named function that builds a mapping tree for a workload and a machine."""

import dataclasses
import difflib
from collections.abc import Callable, Sequence
from collections.abc import Mapping as MappingABC
from dataclasses import dataclass, field

from jaxcomet.hardware.machine import Machine
from jaxcomet.mapping import Mapping, MappingError, Node, factor_names, reordered
from jaxcomet.rewrite import rewritten
from jaxcomet.workload import CompoundOp


@dataclass(frozen=True)
class Plan:
    """What a strategy builds.

    Attributes:
      tree: the mapping tree.
      homes: memory of every intermediate that is not handed over in the outermost one.
      rewrites: rewrites of the workload that the tree is made for.
    """

    tree: Node
    homes: dict[str, str] = field(default_factory=dict)
    rewrites: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """A way to map a compound operation.

    Attributes:
      name: as on the command line.
      options: allowed values of each option, the default first.
      tried: of an option, the values that a search tries where none is asked for; all if left out.
      plan: (workload, machine, all options) -> tree, homes and rewrites.
    """

    name: str
    options: MappingABC[str, tuple[str, ...]]
    tried: MappingABC[str, tuple[str, ...]] = field(default_factory=dict)
    plan: Callable[[CompoundOp, Machine, dict[str, str]], Plan]

    def chosen(self, options: MappingABC[str, str]) -> dict[str, str]:
        """All options with defaults filled in.

        Raises:
          MappingError: an unknown option or value.
        """
        for name, value in options.items():
            if name not in self.options:
                known = ", ".join(self.options) or "none"
                raise MappingError(f"strategy {self.name}: got option {name!r}; it has {known}")
            if value not in self.options[name]:
                raise MappingError(
                    f"strategy {self.name}, option {name}: got {value!r}; expected "
                    f"{' or '.join(self.options[name])}"
                )
        return {n: options.get(n, values[0]) for n, values in self.options.items()}

    def label(
        self,
        options: MappingABC[str, str],
        loop_orders: MappingABC[str, Sequence[str]] | None = None,
    ) -> str:
        """Name with the options that differ from their defaults, and with loop orders given."""
        chosen = self.chosen(options)
        changed = [f"{n}={v}" for n, v in chosen.items() if v != self.options[n][0]]
        changed += [f"{n}:{''.join(v)}" for n, v in (loop_orders or {}).items()]
        return self.name + (f"[{','.join(changed)}]" if changed else "")

    def planned(
        self,
        workload: CompoundOp,
        machine: Machine,
        loop_orders: MappingABC[str, Sequence[str]] | None = None,
        /,
        **options: str,
    ) -> Plan:
        """The plan for a workload on a machine.

        Args:
          workload: what is mapped.
          machine: where.
          loop_orders: other orders of the loops in time by level; see `mapping.reordered`.
          **options: the strategy's options.
        """
        plan = self.plan(workload, machine, self.chosen(options))
        if not loop_orders:
            return plan
        return dataclasses.replace(plan, tree=reordered(plan.tree, loop_orders))

    def build(
        self,
        workload: CompoundOp,
        machine: Machine,
        factors: MappingABC[str, object],
        loop_orders: MappingABC[str, Sequence[str]] | None = None,
        /,
        **options: str,
    ) -> Mapping:
        """The mapping with the given factors; see `Mapping.from_factors` for what is refused."""
        plan = self.planned(workload, machine, loop_orders, **options)
        return Mapping.from_factors(
            rewritten(workload, plan.rewrites),
            strategy=self.label(options, loop_orders),
            tree=plan.tree,
            homes=plan.homes,
            factors=factors,
            rewrites=plan.rewrites,
        )

    def factor_names(
        self, workload: CompoundOp, machine: Machine, **options: str
    ) -> tuple[str, ...]:
        """Names of the factors, outermost first."""
        return factor_names(self.planned(workload, machine, **options).tree)


def find(strategies: tuple[Strategy, ...], name: str, workload: str) -> Strategy:
    """The strategy called `name`.

    Raises:
      MappingError: there is none; the known ones are listed.
    """
    for strategy in strategies:
        if strategy.name == name:
            return strategy
    names = [s.name for s in strategies]
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise MappingError(f"strategy: got {name!r} for {workload}; {hint}known: {', '.join(names)}")
