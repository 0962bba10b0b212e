"""The command line in this process, and stand-ins for what takes long."""

from collections.abc import Callable
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
    """Lets the search take the first of a few mappings that fits; this compiles nothing.

    With checked annotations one evaluation takes a quarter of a second, so the answers are kept,
    and two of the twelve shapes stand for all.
    """
    import jax

    from jaxcomet.cli import ranking, shapes
    from jaxcomet.cost import evaluate
    from jaxcomet.optimize.enumeration import Best, Searched
    from jaxcomet.optimize.space import spaces
    from jaxcomet.rewrite import rewritten

    def look(workload, machine, strategy, options, conventions, objective):
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
        return Best(
            strategy=strategy.label(options),
            mapping=mapping,
            cost=cost,
            searched=(Searched(size=tried, evaluated=tried, feasible=int(bool(cost.feasible))),),
            objective=objective,
        )

    def search(workload, machine, strategy, *, options, conventions, objective, progress):
        leaves = tuple(jax.tree.leaves((workload, machine)))
        key = (leaves, strategy.label(options), conventions, objective)
        if key not in _FOUND:
            _FOUND[key] = look(workload, machine, strategy, options, conventions, objective)
        progress(_FOUND[key].evaluated)
        return _FOUND[key]

    monkeypatch.setattr(ranking, "enumerate_mappings", search)
    for workload, some in shapes.SHAPES.items():
        two = {label: some[label] for label in ("e1", "c4")}
        monkeypatch.setitem(shapes.SHAPES, workload, two)
