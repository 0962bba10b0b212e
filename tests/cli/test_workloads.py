"""Every workload on the command line: flags, records, tables and shapes."""

import csv
import io
import json

import pytest

from jaxcomet import (
    attention,
    evaluate,
    gemm,
    gemm_layernorm,
    hardware,
    optimize,
    strategies,
)
from jaxcomet.cli import flags, ranking, shapes
from jaxcomet.cli.errors import InputError
from jaxcomet.cost import conventions
from jaxcomet.mapping import MappingError
from jaxcomet.operations.catalog import CATALOG
from jaxcomet.optimize.enumeration import enumerate_mappings
from jaxcomet.optimize.ways import candidates, ways

HEADS = ("--heads", 4, "--q", 16, "--head-dim", 8)
SPLIT = {"H_dram_t": 4, "M_comp": 16, "N_comp": 16, "K_comp": 8, "L_comp": 8}
FLASH = ("evaluate", "attention", "--strategy", "flash", "--machine", "edge", *HEADS)
LAYER = ("evaluate", "gemm-layernorm", "--strategy", "fused-gemm-distln", "--machine", "edge")
COMPARE = ("compare", "attention", *HEADS, "--machine", "edge")


def _factors(factors: dict[str, int]) -> tuple[str, ...]:
    return tuple(word for n, v in factors.items() for word in ("--factor", f"{n}={v}"))


def _json(result):
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


# -- flags -----------------------------------------------------------------------------------------


def test_every_option_of_a_strategy_has_a_text_and_every_size_the_same_one():
    assert set(flags.known_ways()) == set(flags._WAYS)
    texts = {(s.name, s.text) for entry in CATALOG.values() for s in entry.sizes}
    assert len(texts) == len({name for name, _ in texts})


@pytest.mark.parametrize("command", ["compare", "evaluate"])
def test_the_help_lists_every_workload_and_flag(cli, command: str):
    shown = cli(command, "--help", columns=200).stdout
    for entry in CATALOG.values():
        assert entry.name in shown
        for named in (*entry.sizes, *entry.options):
            assert f"{flags.flag(named.name)} " in shown
    for name in flags.known_ways():
        assert f"{flags.flag(name)} " in shown
    assert "as --heads if left out" in " ".join(shown.split())


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("gemm", "--m", 8, "--q", 8), ("--q: no size of gemm", "--m, --n and --k")),
        (("attention", "--m", 8, "--n", 8), ("--m and --n: no size", "--batch, --heads")),
        (("attention", "--norm", "rms"), ("--norm: no option of attention", "--causal")),
        (("gemm-softmax", "--causal"), ("--causal: no option of gemm-softmax", "it has none")),
        (("gemm-layernorm", "--norm", "batch"), ("--norm: got 'batch'", "layer or rms")),
        (("gemm-softmax", "--spread", "keys"), ("--spread: no option", "--weights")),
        (("gemm-layernorm", "--reduce", "tile"), ("--reduce: no option",)),
        (("gemm", "--binding", "pipelined"), ("--binding: no option", "--order")),
        (("gemm", "--order", "MNO"), ("--order: got 'MNO'", "NMK or ", "KMN")),
        (("attention", "--spread", "all"), ("--spread: got 'all'", "heads or rows or keys")),
        (("attention", "--weights", "none"), ("resident or streamed",)),
        (("attention", "--algorithm", "fast"), ("--algorithm: got 'fast'", "mesh or auto")),
        (("attention", "--head-dim", "wide"), ("--head-dim: got 'wide'", "whole number")),
        (("attention", "--heads", 4, "--head-dim", 8), ("--q: missing", "--heads, --q and")),
        (("attention", *HEADS), ("--machine: missing", "cloud, edge")),
        (("attenton",), ("did you mean attention",)),
    ],
    ids=lambda value: " ".join(str(v) for v in value),
)
@pytest.mark.parametrize("command", ["compare", "evaluate"])
def test_a_flag_that_does_not_belong_is_refused(refused, command, words, parts):
    strategy = ()
    if command == "evaluate":
        strategy = ("--strategy", {"gemm": "tiled"}.get(words[0], "unfused"))
    message = refused(command, *words, *strategy)
    assert all(part in message for part in parts), message


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("gemm",), "gemm has no shapes to compare without sizes"),
        (("gemm", "--m", 8), "--n, --k: missing; expected --m, --n and --k\n"),
        (("attention", "--machine", "edge"), "for the 12 shapes of attention"),
        ((*COMPARE[1:], "--kv-heads", 3), "kv_heads: got 3 for 4 heads; expected a divisor"),
        ((*COMPARE[1:], "--kv", 8, "--causal"), "expected q <= kv"),
        (("gemm-softmax", "--m", 8, "--n", 8, "--k", 8, "--machine", "r2"), "no vector engine"),
    ],
)
def test_what_cannot_be_compared_is_refused(refused, words, part: str):
    assert part in refused("compare", *words)


def test_a_strategy_without_the_option_is_refused_with_those_that_it_has(refused):
    words = ("evaluate", "attention", "--strategy", "ring", "--machine", "edge", *HEADS)
    message = refused(*words, "--spread", "keys")
    assert "strategy ring: got option 'spread'; it has algorithm" in message


# -- one mapping -----------------------------------------------------------------------------------


def test_attention_costs_what_the_library_says(cli):
    words = ("--kv", 32, "--kv-heads", 2, "--causal", "--spread", "rows")
    factors = {**SPLIT, "H_dram_t": 2, "M_comp": 32, "N_comp": 32}
    data = _json(cli(*FLASH, *words, *_factors(factors), "--json"))
    machine = hardware.load("edge")
    op = attention(1, 4, 16, 32, 8, kv_heads=2, causal=True)
    mapping = strategies.build(op, machine, "flash", factors, spread="rows")
    cost = evaluate(op, mapping, machine)
    assert data["cost"] == json.loads(json.dumps(cost.as_dict()))
    assert data["workload_options"] == {"causal": True}
    assert data["sizes"] == {
        "batch": 1,
        "heads": 4,
        "kv_heads": 2,
        "q": 16,
        "kv": 32,
        "head_dim": 8,
        "value_dim": 8,
    }


@pytest.mark.parametrize(
    ("words", "norm"),
    [((), {}), (("--norm", "rms"), {"norm": "rms"}), (("--affine",), {"affine": True})],
)
def test_a_normalization_costs_what_the_library_says(cli, words, norm):
    factors = {"M_dram_t": 8, "N_comp": 8, "K_comp": 8}
    sizes = ("--m", 8, "--n", 8, "--k", 8)
    data = _json(cli(*LAYER, *sizes, *_factors(factors), *words, "--json"))
    machine, op = hardware.load("edge"), gemm_layernorm(8, 8, 8, **norm)
    mapping = strategies.build(op, machine, "fused-gemm-distln", factors)
    assert data["cost"]["latency_cycles"] == evaluate(op, mapping, machine).latency_cycles
    assert data["workload_options"] == {"norm": "layer", "affine": False, **norm}


def test_a_plain_product_costs_what_the_library_says(cli):
    factors = {"M_dram_t": 8, "N_comp": 8, "K_comp": 8}
    words = ("evaluate", "gemm", "--strategy", "tiled", "--machine", "r2", "--order", "KNM")
    sizes = ("--m", 8, "--n", 8, "--k", 8)
    data = _json(cli(*words, *sizes, *_factors(factors), "--json"))
    machine, op = hardware.load("r2"), gemm(8, 8, 8)
    mapping = strategies.build(op, machine, "tiled", factors, order="KNM")
    assert data["cost"]["energy_pj"] == evaluate(op, mapping, machine).energy_pj
    assert data["options"]["order"] == "KNM"


def test_a_record_is_read_again_and_can_be_changed(cli):
    first = cli(*FLASH, "--causal", *_factors(SPLIT), "--json")
    read = ("evaluate", "attention", "--mapping", "-", "--json")
    assert cli(*read, stdin=first.stdout).stdout == first.stdout
    changed = _json(
        cli(*read, "--no-causal", "--batch", 2, "--factor", "H_dram_t=8", stdin=first.stdout)
    )
    direct = _json(cli(*FLASH, "--batch", 2, *_factors({**SPLIT, "H_dram_t": 8}), "--json"))
    assert changed == direct
    assert changed["workload_options"] == {"causal": False}


def test_a_record_without_options_of_the_workload_is_still_read(cli):
    words = ("--m", 8, "--n", 8, "--k", 8, *_factors({"M_comp": 8, "N_comp": 8, "K_comp": 8}))
    start = ("evaluate", "gemm-softmax", "--strategy", "unfused", "--machine", "edge")
    given = ("softmax.M_comp=8", "softmax.N_comp=8", "row.M_comp=8")
    more = tuple(word for pair in given for word in ("--factor", pair))
    data = _json(cli(*start, *words, *more[:4], "--json"))
    del data["workload_options"], data["collectives"]
    again = _json(
        cli("evaluate", "gemm-softmax", "--mapping", "-", "--json", stdin=json.dumps(data))
    )
    assert again["cost"] == data["cost"]


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda d: d["sizes"].pop("heads"), "sizes.heads: missing; expected heads, q, head_dim"),
        (lambda d: d["sizes"].update(M=3), "sizes.M: no size of attention; it has batch"),
        (lambda d: d.update(workload_options=["causal"]), "workload_options: got"),
        (lambda d: d.update(workload_options={"norm": "rms"}), "workload_options.norm: no option"),
        (lambda d: d["workload_options"].update(causal="yes"), 'causal: got "yes"; expected true'),
        (lambda d: d.update(workload="gemm"), "workload: got 'gemm'; expected 'attention'"),
    ],
)
def test_a_broken_record_is_refused_with_its_key(cli, refused, change, part: str):
    data = _json(cli(*FLASH, *_factors(SPLIT), "--json"))
    change(data)
    assert part in refused("evaluate", "attention", "--mapping", "-", stdin=json.dumps(data))


def test_all_collectives_of_a_mapping_are_listed(cli):
    factors = {"H_dram_t": 4, "M_dram_t": 16, "N_dram_sx": 2, "N_gb_sx": 2, "N_comp": 4}
    words = (*_factors({**factors, "K_comp": 8, "L_comp": 8}), "--spread", "keys")
    data = _json(cli(*FLASH, *words, "--algorithm", "ring", "--json"))
    found = {(c["kind"], c["tensor"], c["where"]): c for c in data["collectives"]}
    exchange = found["all_reduce", "X", "between gb"]
    # 2 clusters hold one maximum of 16 bits, in each of 4 heads x 16 rows
    assert exchange["explicit"]
    assert (exchange["participants"], exchange["part_bytes"], exchange["executions"]) == (2, 2, 64)
    assert exchange["algorithm"] == "ring"
    assert not found["scatter", "KT", "dram to gb"]["explicit"]
    shown = cli(*FLASH, *words, "--algorithm", "ring").stdout
    for c in data["collectives"]:
        assert f"{c['kind']} of {c['tensor']}" in shown


# -- a table ---------------------------------------------------------------------------------------

HEAD = "heads,q,head_dim,H_dram_t,M_comp,N_comp,K_comp,L_comp"
TABLE = ("evaluate", "attention", "--strategy", "flash", "--machine", "edge", "--out", "-")


@pytest.fixture
def table(tmp_path):
    """Writes a table and returns its name."""

    def write(*lines: str):
        file = tmp_path / "in.csv"
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return file

    return write


@pytest.mark.slow
def test_a_table_has_the_sizes_of_its_workload_as_columns(cli, table):
    file = table(
        f"{HEAD},kv,kv_heads,batch", "4,16,8,4,16,16,8,8,16,4,1", "4,16,8,2,32,64,8,8,64,2,1"
    )
    result = cli(*TABLE, "--table", file, "--causal")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    single = _json(cli(*FLASH, "--causal", *_factors(SPLIT), "--json"))
    assert float(rows[0]["latency_cycles"]) == single["cost"]["latency_cycles"]
    other = {"H_dram_t": 2, "M_comp": 32, "N_comp": 64, "K_comp": 8, "L_comp": 8}
    words = ("--kv", 64, "--kv-heads", 2, "--causal")
    single = _json(cli(*FLASH, *words, *_factors(other), "--json"))
    assert float(rows[1]["latency_cycles"]) == single["cost"]["latency_cycles"]


@pytest.mark.parametrize(
    ("lines", "parts"),
    [
        (("q,head_dim", "1,8"), ("no column heads", "heads, q, head_dim")),
        (
            (f"{HEAD},kv_heads", "4,16,8,4,16,16,8,8,4", "4,16,8,4,16,16,8,8,3"),
            ("row 2 (line 3)", "divisor"),
        ),
        ((HEAD, "4,16,8,4,16,16,8,8", "4,16,8,4,16,8,8,8"), ("row 2 (line 3)", "at least 16")),
        ((f"{HEAD},L_cmp", "4,16,8,4,16,16,8,8,8"), ("column L_cmp", "L_comp")),
    ],
    ids=lambda value: value[0],
)
def test_a_bad_table_of_attention_is_refused_with_its_place(refused, table, lines, parts):
    message = refused(*TABLE, "--table", table(*lines))
    assert all(part in message for part in parts), message


def test_sizes_do_not_go_with_a_table(refused, table):
    file = table(HEAD, "4,16,8,4,16,16,8,8")
    assert "--head-dim" in refused(*TABLE, "--table", file, "--head-dim", 8)


# -- comparing -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("first_mapping")
def test_the_strategies_of_attention_are_compared(cli):
    data = _json(cli(*COMPARE, "--causal", "--json"))
    names = {s.name for s in strategies.available("attention")}
    assert {entry["strategy"] for entry in data["ranking"]} == names
    assert data["workload_options"] == {"causal": True}
    best = data["ranking"][0]
    again = _json(cli("evaluate", "attention", "--mapping", "-", "--json", stdin=json.dumps(data)))
    assert again["cost"] == best["cost"]
    assert again["collectives"] == best["collectives"]
    shown = cli(*COMPARE, "--causal").stdout
    assert "head_dim 8, value_dim 8, causal on edge" in shown


@pytest.mark.usefixtures("first_mapping")
def test_a_strategy_that_the_machine_has_none_of_is_listed_with_the_reason(cli):
    words = (*COMPARE[:-1], "r2v")
    data = _json(cli(*words, "--json"))
    assert list(data["not_possible"]) == ["ring"]
    assert "2 levels" in data["not_possible"]["ring"]
    assert "ring: not possible: machine r2v: got 2 levels" in cli(*words, columns=200).stdout


@pytest.mark.usefixtures("first_mapping")
def test_a_workload_without_a_baseline_has_no_speedup(cli, tmp_path):
    words = ("compare", "gemm", "--m", 8, "--n", 8, "--k", 8, "--machine", "r2")
    file = tmp_path / "bars.svg"
    shown = cli(*words, "--figure", file).stdout
    assert "tiled" in shown
    assert "speedup" not in shown
    assert "energy\nratio" not in shown
    assert b"speedup" not in file.read_bytes()
    assert _json(cli(*words, "--json"))["ranking"][0]["speedup_over_unfused"] is None


@pytest.mark.usefixtures("first_mapping")
@pytest.mark.parametrize(
    "workload",
    [w if w != "attention" else pytest.param(w, marks=pytest.mark.slow) for w in shapes.SHAPES],
)
def test_without_sizes_the_shapes_of_a_workload_are_compared(cli, workload: str, tmp_path):
    file = tmp_path / "speedups.svg"
    shown = cli("compare", workload, "--figure", file).stdout
    assert "geometric" in shown
    assert ("1x12/12 256x256x64" if workload == "attention" else "256x256x128") in shown
    assert "speedup over unfused" in file.read_text()


@pytest.mark.usefixtures("first_mapping")
def test_an_option_replaces_that_of_the_shapes(cli):
    data = _json(cli("compare", "gemm-layernorm", "--norm", "rms", "--json"))
    assert [s["workload_options"]["norm"] for s in data["shapes"]] == ["rms", "rms"]


def test_every_workload_has_twelve_shapes_or_none():
    for workload, some in shapes.SHAPES.items():
        assert len(some) == 12
        for shape in some.values():
            op = CATALOG[workload].build(shape.sizes, shape.options)
            assert op.name == workload


def test_all_loop_orders_spreads_and_weights_are_tried():
    (tiled,) = candidates("gemm", {})
    assert len(tiled[1]) == 6
    tried = {s.name: options for s, options in candidates("attention", {})}
    assert [len(tried[n]) for n in ("unfused", "partial", "row-fused", "flash", "ring")] == [
        3,
        6,
        6,
        3,
        1,
    ]
    fixed = {
        s.name: o for s, o in candidates("attention", {"spread": "keys", "weights": "resident"})
    }
    assert fixed["partial"] == ({"spread": "keys", "weights": "resident"},)
    assert fixed["ring"] == ({},)


def test_a_spread_that_changes_nothing_is_priced_once():
    # 16 heads fill the 4 x 4 cores of edge, so that no core is left for rows or keys
    machine, op = hardware.load("edge"), attention(1, 16, 4, 4, 2)
    found = [
        w for w in ways(op, machine, candidates("attention", {})) if w.strategy.name == "flash"
    ]
    assert [w.options["spread"] for w in found] == ["heads", "keys"]
    # 4 heads leave cores for rows
    few = ways(attention(1, 4, 4, 4, 2), machine, candidates("attention", {}))
    assert [w.options["spread"] for w in few if w.strategy.name == "flash"] == [
        "heads",
        "rows",
        "keys",
    ]
    assert all(w.size > 0 for w in few)


@pytest.mark.slow
def test_spreads_that_are_priced_once_cost_the_same():
    machine, op = hardware.load("edge"), attention(1, 16, 4, 4, 2)
    strategy = strategies.get("attention", "flash")
    best = [
        enumerate_mappings(op, machine, strategy, options={"spread": s}) for s in ("heads", "rows")
    ]
    assert best[0].cost.latency_cycles == best[1].cost.latency_cycles
    assert best[0].cost.energy_pj == best[1].cost.energy_pj


@pytest.mark.usefixtures("first_mapping")
def test_a_faster_way_to_exchange_is_named_with_what_it_would_take(cli):
    words = ("compare", "gemm-layernorm", "--m", 64, "--n", 256, "--k", 64, "--machine", "edge")
    data = _json(cli(*words, "--json"))
    (hint,) = [s for s in data["why"] if s.startswith("With --algorithm auto")]
    best = data["ranking"][0]
    read = ("evaluate", "gemm-layernorm", "--mapping", "-", "--algorithm", "auto", "--json")
    cost = _json(cli(*read, stdin=json.dumps(data)))["cost"]
    assert cost["latency_cycles"] < best["cost"]["latency_cycles"]
    assert f"{cost['latency_cycles']:,.0f} cycles" in hint
    for c in cost["collectives"]:
        assert f"{c['kind']} of {c['tensor']} by {c['algorithm']}" in hint
    given = _json(cli(*words, "--algorithm", "mesh", "--json"))
    assert not any("--algorithm auto" in s for s in given["why"])


def test_progress_adds_up_where_a_strategy_fails_half_way(monkeypatch):
    setting = ranking.Setting(
        workload="gemm-softmax",
        sizes={"M": 8.0, "N": 8.0, "K": 8.0},
        workload_options={},
        machine="edge",
        machine_overrides=(),
        preset="default",
        convention_options={},
        objective="latency",
        options={},
    )
    machine = hardware.load("edge")

    def fail(*_, progress, **__):
        progress(3, 6)
        raise MappingError("no links")

    monkeypatch.setattr(optimize, "map", fail)
    shares: list[tuple[str, float]] = []
    with pytest.raises(InputError, match="gemm-softmax: no strategy is possible on edge: no links"):
        ranking.rank(setting, machine, conventions("default"), lambda *x: shares.append(x))
    names = [s.name for s in strategies.available("gemm-softmax")]
    assert shares == [(name, share) for name in names for share in (0.5, 1.0)]
