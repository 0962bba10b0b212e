"""Branches: their bounds hold for every mapping, and what they leave out is never better."""

import dataclasses
import typing

import numpy as np
import pytest

from jaxcomet import CompoundOp, attention, gemm, gemm_layernorm, gemm_softmax, optimize
from jaxcomet.cost import conventions
from jaxcomet.cost.conventions import DEFAULT, Conventions
from jaxcomet.hardware import Machine, load
from jaxcomet.optimize import enumeration, pruning, search
from jaxcomet.optimize.branches import branches
from jaxcomet.optimize.enumeration import enumerate_way
from jaxcomet.optimize.pricing import OBJECTIVES, Objective, Part, objective_keys
from jaxcomet.optimize.pruning import BeatenError, TooManyError
from jaxcomet.optimize.space import Scope
from jaxcomet.optimize.ways import Way, candidates, ways

QUICK = ((0, "default"), (2, "roofline"), (6, "default"))
EVERY = {"order": "all", "binding": "all", "algorithm": "auto"}
R2 = load("r2", [("memory.glb.capacity", "3000 B")])
FREE = Scope(units="free")

CASES = (
    (gemm(24, 36, 20), R2, Scope(tiles="any")),
    (gemm(16, 32, 12), load("edge"), Scope(tiles="divisors")),
    (gemm(32, 48, 24), load("edge", [("memory.gb.capacity", "1 KiB")]), Scope(tiles="divisors")),
    (gemm_softmax(16, 96, 24), load("edge"), Scope()),
    (gemm_softmax(16, 96, 24), load("cloud"), Scope()),
    (gemm_softmax(16, 24, 24), load("edge"), FREE),
    (gemm_layernorm(16, 40, 24), load("r2v", [("memory.glb.capacity", "1500 B")]), Scope()),
    (attention(1, 2, 16, 32, 8), load("edge"), Scope()),
)


def _ways(op: CompoundOp, machine: Machine, scope: Scope) -> list[Way]:
    found = ways(op, machine, candidates(op.name, EVERY), scope=scope)
    return [w for w in found if not w.refusal]


def _parts(op: CompoundOp, machine: Machine, scope: Scope) -> list[Part]:
    return [p for w in _ways(op, machine, scope) for p in w.parts(op, machine, scope=scope)]


def _drawn(
    part: Part, objective: Objective, rng: np.random.Generator, count: int
) -> tuple[int, int]:
    """Random mappings: (those that a bound of their branch denies, those less than twice above)."""
    found = branches(part, objective)
    if found is None:
        return 0, 0
    assert int(found.sizes.sum()) == part.size
    choices = np.stack([rng.integers(0, n, count) for n in part.sizes], axis=1)
    group = np.empty_like(choices)
    for axis, each in enumerate(found.groups):
        for number, rows in enumerate(each):
            group[np.isin(choices[:, axis], rows), axis] = number
    place, prices = tuple(group.T), part.price(choices)
    keys = objective_keys(objective, prices.latency_cycles, prices.energy_pj)
    wrong = (prices.pressure <= 1.0) & ~found.fits[place]
    for bound, key in zip((found.first, found.second), keys, strict=True):
        wrong |= bound[place] > key
    return int(wrong.sum()), int((found.first[place] > 0.5 * keys[0]).sum())


@pytest.mark.slow
@pytest.mark.parametrize("case", [0, 2, 3, 6, 7])
def test_no_mapping_is_below_under_any_single_convention(case: int):
    op, machine, scope = CASES[case]
    rng = np.random.default_rng(case)
    allowed = typing.get_type_hints(Conventions)
    for part in _parts(op, machine, scope)[::7]:
        for option in dataclasses.fields(Conventions):
            for value in typing.get_args(allowed[option.name]):
                rules = dataclasses.replace(DEFAULT, **{option.name: value})
                changed = dataclasses.replace(part, conventions=rules)
                for objective in ("latency", "energy"):
                    wrong, _ = _drawn(changed, objective, rng, 60)
                    assert wrong == 0, (option.name, value, objective)


@pytest.mark.parametrize(
    ("case", "rules"),
    [
        pytest.param(case, rules, marks=pytest.mark.slow if (case, rules) not in QUICK else ())
        for case in range(len(CASES))
        for rules in ("default", "roofline")
    ],
)
def test_no_mapping_is_below_the_bounds_of_its_branch(case: int, rules: str):
    op, machine, scope = CASES[case]
    rng = np.random.default_rng(case)
    compared = tight = 0
    for part in _parts(op, machine, scope)[:: 1 if case < 4 else 3]:
        part = dataclasses.replace(part, conventions=conventions(rules))
        for objective in OBJECTIVES:
            assert branches(part, objective) is not None
            wrong, near = _drawn(part, objective, rng, 200)
            assert wrong == 0, (objective, part.mapping.tree)
            compared, tight = compared + 200, tight + near
    assert compared >= 1000
    assert tight > 0  # they do say something


def test_numbers_mappings_and_rows_of_a_branch_agree():
    part = _parts(*CASES[0])[0]
    found = branches(part, "energy")
    assert found is not None
    every = np.concatenate([found.choices([b]) for b in range(found.first.size)])
    assert len({tuple(row) for row in every.tolist()}) == part.size
    for number in (0, found.first.size // 2):
        one, choices = found.only(number), found.choices([number])
        assert one.size == len(choices) == found.sizes.ravel()[number]
        inside = one.points(one.choices(np.arange(one.size)))
        for name, values in part.points(choices).items():
            assert (inside[name] == values).all()
            outermost = name.startswith(("M_dram", "N_dram", "K_dram"))
            assert not outermost or len(set(values)) == 1


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize(
    "case", [0, 6, *(pytest.param(case, marks=pytest.mark.slow) for case in (1, 2, 3))]
)
def test_branches_find_what_pricing_everything_finds(
    case: int, objective: Objective, monkeypatch: pytest.MonkeyPatch
):
    op, machine, scope = CASES[case]
    chosen = _ways(op, machine, scope)[:: 2 if case else 3]
    monkeypatch.setattr(pruning, "_WORTH_S", 0.0)
    monkeypatch.setattr(pruning, "_TRIED", 1e9)  # never gives up
    monkeypatch.setattr(pruning, "_CHUNK_S", 1e-2)  # several looks at what is left
    branched = [enumerate_way(op, machine, w, objective=objective, scope=scope) for w in chosen]
    monkeypatch.setattr(enumeration, "search_branches", lambda *_: None)
    for w, found in zip(chosen, branched, strict=True):
        whole = enumerate_way(op, machine, w, objective=objective, scope=scope)
        assert found.proven
        # what differs by less than 2e-9 counts as the same (`Branches.may_beat`)
        assert found.key == pytest.approx(whole.key, rel=1e-8), w.label
        assert found.evaluated <= whole.evaluated
        assert [s.size for s in found.searched] == [s.size for s in whole.searched]
    assert sum(f.evaluated for f in branched) < sum(w.size for w in chosen)


def test_a_program_prices_branches_like_numpy(monkeypatch: pytest.MonkeyPatch):
    op, machine, scope = CASES[0]
    (one,) = [w for w in _ways(op, machine, scope) if w.options["order"] == "NMKM"]
    monkeypatch.setattr(pruning, "_WORTH_S", 0.0)
    plain = enumerate_way(op, machine, one, objective="energy", scope=scope)
    rates = dataclasses.replace(pruning._PLAIN, compiling=0.0, program=1e-12)
    monkeypatch.setattr(pruning, "_PLAIN", rates)
    monkeypatch.setattr(pruning, "_PROGRAM", 1 << 9)
    taken: list[int] = []
    price = Part.price

    def counted(self: Part, choices: np.ndarray, *, compiled: bool = False) -> object:
        taken.append(len(choices) if compiled else 0)
        return price(self, choices, compiled=compiled)

    monkeypatch.setattr(Part, "price", counted)
    by_program = enumerate_way(op, machine, one, objective="energy", scope=scope)
    assert 1 << 9 in taken
    assert by_program.key == pytest.approx(plain.key, rel=1e-12)


def test_a_way_that_cannot_be_better_is_left(monkeypatch: pytest.MonkeyPatch):
    op, machine, scope = CASES[0]
    monkeypatch.setattr(pruning, "_WORTH_S", 0.0)
    monkeypatch.setattr(pruning, "_CHUNK_S", 1e-2)
    (one,) = [w for w in _ways(op, machine, scope) if w.options["order"] == "NMK"]
    best = enumerate_way(op, machine, one, objective="energy", scope=scope)
    with pytest.raises(BeatenError) as caught:
        enumerate_way(op, machine, one, objective="energy", scope=scope, above=best.key)
    assert caught.value.evaluated <= best.evaluated
    worse = (best.key[0] * 1.01, 0.0)
    again = enumerate_way(op, machine, one, objective="energy", scope=scope, above=worse)
    assert again.key == best.key
    # told to stop before that is known, it does not say so
    stopped = enumerate_way(
        *(op, machine, one), objective="energy", scope=scope, above=best.key, stop=lambda: True
    )
    assert not stopped.proven
    assert stopped.evaluated == 0
    done: list[int] = []
    with pytest.raises(BeatenError):
        enumerate_way(
            *(op, machine, one),
            objective="energy",
            scope=scope,
            above=best.key,
            progress=done.append,
        )
    assert sum(done) == one.size
    with pytest.raises(TooManyError):
        enumerate_way(op, machine, one, objective="energy", scope=scope, most=10)


def test_a_space_of_thousands_of_millions_is_proven():
    # 43 numbers of steps of a dimension of 512 differ, 711 pairs of them, thousands of triples
    machine = load("r2", [("memory.glb.capacity", "263168 B")])
    rules = conventions("roofline")  # no second copies
    found = optimize.map(
        gemm(512, 512, 512), machine, objective="energy", tiles="any", conventions=rules
    )
    assert found.size > 2e9 > search.ENUMERATED
    assert found.proven
    assert found.method == "enumerate"
    assert found.evaluated < 1e6
    # each element once: a whole result and slices of the operands fit beside each other
    crossed = [t.parent_bytes for t in found.cost.traffic if t.parent == "dram"]
    assert sum(crossed) == 3 * 512 * 512
