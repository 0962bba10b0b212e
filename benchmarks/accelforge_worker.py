"""Runs accelforge's mapper on one case; benchmarks/accelforge.py starts it and says how.

    PYTHON -I benchmarks/accelforge_worker.py < case.json

It runs in an environment of its own, so it imports accelforge and nothing of ours. The case holds
the text of a specification, whether tiles may be of any size, and `held`: ranks by tensor, which
no loop around the place of the tensor may run over. The answer is one JSON object on the standard
output. The mapper runs twice in this process, without helpers beside it; then the partial mappings
of the second run that break `held` are left out and the rest is joined once more. The mappings of
both joins go through accelforge's own evaluation, which may reject them.
"""

import contextlib
import copy
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

SEPARATOR = "<SEP>"  # between the parts of a column's name


def clocks() -> tuple[float, float]:
    """Wall and CPU seconds."""
    return time.perf_counter(), time.process_time()


@contextlib.contextmanager
def timed(into: dict[str, Any], name: str) -> Iterator[None]:
    """Notes the seconds that the block takes as ``{"wall_s": ..., "cpu_s": ...}``."""
    before = clocks()
    yield
    after = clocks()
    into[name] = {"wall_s": after[0] - before[0], "cpu_s": after[1] - before[1]}


def keeps(group: Any, held: dict[str, list[str]]) -> bool:
    """Whether no tensor of the partial mappings lies below a loop over a rank that it needs whole.

    What is kept in main memory lies above all loops.
    """
    return not any(
        str(loop.rank_name) in held.get(tensor.name, ())
        for tensor in group.compatibility.tensors
        for loop in tensor.loops
    )


def lines(node: Any, indent: int = 0) -> Iterator[str]:
    """A mapping as a tree in text, without the lines that only restate the storage."""
    for child in node.nodes:
        if hasattr(child, "nodes"):
            yield " " * indent + type(child).__name__.lower()
            yield from lines(child, indent + 2)
        elif type(child).__name__ != "Reservation":
            yield " " * indent + child.compact_str()


def answer(spec: Any, mappings: Any, evaluate: Callable[..., Any], rejects: type) -> dict[str, Any]:
    """The best mapping of a join, and what the evaluation says about it."""
    row = mappings.data.iloc[0]
    mapping = row[f"Total{SEPARATOR}mapping"](_for_model=True)
    found: dict[str, Any] = {
        "energy_pj": float(row[f"Total{SEPARATOR}energy"]) * 1e12,
        "mapping": list(lines(mapping)),
        "rejected": "",
        "latency_cycles": None,
        "dram_bytes": None,
    }
    checked = copy.deepcopy(spec)
    checked.model.metrics = checked.mapper.info_metrics
    checked.mapping = mapping
    try:
        priced = evaluate(
            checked,
            flattened_arches=mappings.flattened_arches,
            evaluated_specs=mappings.evaluated_specs,
        ).data.iloc[0]
    except rejects as error:
        return {**found, "rejected": str(error)}
    moved = [float(priced[c]) for c in priced.index if f"{SEPARATOR}action{SEPARATOR}DRAM" in c]
    return {
        **found,
        "evaluated_energy_pj": float(priced[f"Total{SEPARATOR}energy"]) * 1e12,
        "latency_cycles": float(priced[f"Total{SEPARATOR}latency"]) * 1e9,  # at 1 GHz
        "dram_bytes": sum(moved),  # an action moves a byte
    }


def main() -> None:
    case = json.load(sys.stdin)
    out = sys.stdout
    sys.stdout = sys.stderr  # what accelforge prints
    result: dict[str, Any] = {}
    with timed(result, "import"):
        import accelforge
        from accelforge.frontend.mapper.metrics import Metrics
        from accelforge.mapper.FFM import join_pmappings, make_pmappings
        from accelforge.model.main import InvalidMappingError, evaluate_mapping
        from accelforge.util import set_n_parallel_jobs

    packages = ("accelforge", "numba", "numpy", "pandas")
    result["versions"] = {
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in packages},
    }
    set_n_parallel_jobs(1)
    metrics = Metrics.ENERGY

    def specification() -> Any:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "case.yaml"
            path.write_text(case["yaml"], encoding="utf-8")
            spec = accelforge.Spec.from_yaml(str(path))
        spec.mapper.metrics = metrics
        spec.mapper.explore_imperfect_temporal_loops = case["any_tiles"]
        return spec

    for name in ("first", "second"):
        with timed(result, name):
            spec = specification()
            parts = make_pmappings(spec, print_progress=False)
            mappings = join_pmappings(parts, metrics=metrics, print_progress=False)
    result["partial_mappings"] = round(parts.n_total_pmappings())
    result["evaluated"] = round(parts.n_evaluated_pmappings())
    result["best"] = answer(spec, mappings, evaluate_mapping, InvalidMappingError)
    if case["held"]:
        groups = parts.einsum2pmappings
        for einsum in groups:
            groups[einsum] = [g for g in groups[einsum] if keeps(g, case["held"])]
        with timed(result, "legal_join"):
            mappings = join_pmappings(parts, metrics=metrics, print_progress=False)
        result["legal"] = answer(spec, mappings, evaluate_mapping, InvalidMappingError)
    else:
        result["legal"] = result["best"]
    json.dump(result, out)


if __name__ == "__main__":
    main()
