"""The command line in this process, and stand-ins for what takes long."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from jaxcomet.cli.main import app

Cli = Callable[..., Any]


@pytest.fixture
def cli() -> Cli:
    """Runs the command line; an exception that is no exit is a failure of the test."""

    def run(*words: object, stdin: str | None = None, columns: int = 140) -> Any:
        result = CliRunner(env={"COLUMNS": str(columns)}).invoke(
            app, [str(word) for word in words], input=stdin
        )
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


@pytest.fixture
def refused(cli: Cli) -> Callable[..., str]:
    """Runs what must be refused; returns its message after checking how it is refused."""

    def run(*words: object, stdin: str | None = None) -> str:
        result = cli(*words, stdin=stdin)
        assert result.exit_code == 2
        assert result.stdout == ""
        assert "Traceback" not in result.stderr
        return result.stderr

    return run


_FOUND: dict[Any, Any] = {}


@pytest.fixture
def first_mapping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the search of each strategy take the first of a few mappings that fits.

    With checked annotations one evaluation takes some 20 ms, so the answers are kept, and two of
    the twelve shapes stand for all.
    """
    import jax

    from jaxcomet import optimize
    from jaxcomet.cli import shapes
    from jaxcomet.cost import evaluate
    from jaxcomet.mapping import MappingError
    from jaxcomet.optimize.pricing import objective_keys
    from jaxcomet.optimize.space import spaces
    from jaxcomet.optimize.ways import candidates
    from jaxcomet.rewrite import rewritten

    def look(workload, machine, strategy, options, conventions):
        plan = strategy.planned(workload, machine, **options)
        parts = spaces(rewritten(workload, plan.rewrites), machine, plan.tree)
        tried = 0
        for share in (0.0, 0.5):
            factors = {}
            for part in parts:
                index = np.array([int(share * (part.size - 1))])
                factors |= {n: float(v[0]) for n, v in part.factors(index).items()}
            mapping = strategy.build(workload, machine, factors, **options)
            cost = evaluate(workload, mapping, machine, conventions=conventions)
            tried += 1
            if cost.feasible:
                break
        return mapping, cost, tried

    def found(workload, machine, strategy, options, conventions):
        leaves = tuple(jax.tree.leaves((workload, machine)))
        key = (leaves, strategy.name, tuple(sorted(options.items())), conventions)
        if key not in _FOUND:
            try:
                _FOUND[key] = look(workload, machine, strategy, options, conventions)
            except MappingError as error:
                _FOUND[key] = error
        return _FOUND[key]

    def search(
        workload,
        machine,
        *,
        objective,
        strategies: tuple[str],
        options,
        method,
        conventions,
        progress,
    ):
        assert method == "enumerate"
        ((strategy, several),) = candidates(workload.name, options, strategies)
        answers = {
            i: found(workload, machine, strategy, o, conventions) for i, o in enumerate(several)
        }
        costs = {i: a for i, a in answers.items() if not isinstance(a, MappingError)}
        if not costs:
            raise optimize.ImpossibleError(workload.name, machine.name, (str(answers[0]),))

        def rank(position: int) -> tuple[object, ...]:
            cost = costs[position][1]
            values = float(cost.latency_cycles), float(cost.energy_pj)
            return not cost.feasible, *objective_keys(objective, *values)

        best = min(costs, key=rank)
        mapping, cost, _ = costs[best]
        tried = sum(a[2] for a in costs.values())
        progress(tried, tried)
        return SimpleNamespace(
            strategy=strategy.name,
            label=cost.strategy,
            options=strategy.chosen(several[best]),
            mapping=mapping,
            cost=cost,
            evaluated=tried,
            proven=True,
            gap=1.0,
            stopped="complete",
        )

    monkeypatch.setattr(optimize, "map", search)
    for workload, some in shapes.SHAPES.items():
        two = {label: some[label] for label in ("e1", "c4")}
        monkeypatch.setitem(shapes.SHAPES, workload, two)
