import json

import pytest

from jaxcomet import evaluate, gemm, gemm_softmax, hardware, strategies
from jaxcomet.cost import conventions

# column 1 of the worked rows of the closed form: 9,270 cycles
FACTORS = {"N_dram_sx": 2, "N_dram_sy": 2, "N_gb_sx": 2, "N_gb_sy": 2, "N_comp": 64, "K_comp": 128}
SIZES = ("--m", 1, "--n", 1024, "--k", 128)
COMMAND = ("evaluate", "gemm-softmax")
FUSED = (*COMMAND, "--strategy", "fused-gemm-distsm")
PROGRAM = (*FUSED, "--reduce", "tile", "--conventions", "comet-program", "--machine", "edge")
GIVEN = tuple(word for n, v in FACTORS.items() for word in ("--factor", f"{n}={v}"))


def _json(result):
    assert result.exit_code == 0
    return json.loads(result.stdout)


def test_one_mapping_by_factors_costs_what_the_program_printed(cli):
    data = _json(cli(*PROGRAM, *SIZES, *GIVEN, "--json"))
    assert data["cost"]["latency_cycles"] == 9270
    assert data["cost"]["energy_pj"] == pytest.approx(1.333222e7, rel=1e-6)
    assert data["sizes"] == {"M": 1, "N": 1024, "K": 128}
    assert data["options"]["reduce"] == "tile"
    assert data["conventions"] == {"preset": "comet-program", "options": {}}
    assert {n: data["factors"][n] for n in FACTORS} == FACTORS


def test_the_text_shows_the_exact_numbers_and_the_breakdowns(cli):
    result = cli(*PROGRAM, *SIZES, *GIVEN)
    assert result.exit_code == 0
    assert "latency 9270 cycles" in result.stdout
    for word in ("CS, compulsory stalls", "all_reduce of F", "dram to gb", "Occupancy", "µJ"):
        assert word in result.stdout


def test_explain_adds_the_formulas(cli):
    mapping = (*PROGRAM, *SIZES, *GIVEN)
    explanation = _json(cli(*mapping, "--json", "--explain"))["explanation"]
    assert "dram" in explanation
    shown = cli(*mapping, "--explain").stdout
    assert explanation.strip().splitlines()[0] in shown


def test_the_cost_is_that_of_the_library(cli):
    machine = hardware.load("edge", [("memory.dram.child_bandwidth", "50")])
    workload = gemm_softmax(1, 1024, 128)
    mapping = strategies.build(workload, machine, "fused-gemm-distsm", FACTORS, reduce="tile")
    rules = conventions("comet-program", staging="pipelined")
    cost = evaluate(workload, mapping, machine, conventions=rules)
    words = ("--set", "memory.dram.child_bandwidth=50", "--convention", "staging=pipelined")
    data = _json(cli(*PROGRAM, *SIZES, *GIVEN, *words, "--json"))
    assert data["cost"] == json.loads(json.dumps(cost.as_dict()))


def test_set_changes_the_result(cli):
    plain = _json(cli(*PROGRAM, *SIZES, *GIVEN, "--json"))
    faster = _json(
        cli(*PROGRAM, *SIZES, *GIVEN, "--set", "memory.dram.child_bandwidth=50", "--json")
    )
    assert faster["cost"]["latency_cycles"] < plain["cost"]["latency_cycles"]
    assert faster["machine_overrides"] == ["memory.dram.child_bandwidth=50"]


@pytest.mark.parametrize("by", ["file", "stdin"])
def test_the_json_of_a_mapping_prices_to_the_same_number(cli, tmp_path, by: str):
    words = ("--set", "memory.dram.child_bandwidth=50", "--convention", "staging=pipelined")
    first = cli(*PROGRAM, *SIZES, *GIVEN, *words, "--json")
    file = tmp_path / "mapping.json"
    file.write_text(first.stdout, encoding="utf-8")
    if by == "file":
        second = cli(*COMMAND, "--mapping", file, "--json")
    else:
        second = cli(*COMMAND, "--mapping", "-", "--json", stdin=first.stdout)
    assert second.exit_code == 0
    assert second.stdout == first.stdout


def test_what_the_command_line_says_wins_over_the_file(cli):
    first = cli(*PROGRAM, *SIZES, *GIVEN, "--json")
    words = ("--conventions", "default", "--set", "memory.dram.child_bandwidth=50")
    data = _json(cli(*COMMAND, "--mapping", "-", *words, "--json", stdin=first.stdout))
    direct = _json(
        cli(*FUSED, "--reduce", "tile", "--machine", "edge", *SIZES, *GIVEN, *words, "--json")
    )
    assert data == direct


STEPS = {"M_core_t": 8, "N_core_t": 4, "N_comp": 16, "K_comp": 16}
SPLIT = ("--m", 8, "--n", 64, "--k", 16)
SPLIT += tuple(word for n, v in STEPS.items() for word in ("--factor", f"{n}={v}"))
CORE_ORDER = ("--loop-order", "core=MNK")


def test_another_loop_order_is_priced_and_recorded(cli):
    given = ("evaluate", "gemm", "--strategy", "tiled", "--machine", "edge", *SPLIT)
    result = cli(*given, *CORE_ORDER, "--json")
    data = _json(result)
    machine, op = hardware.load("edge"), gemm(8, 64, 16)
    mapping = strategies.get("gemm", "tiled").build(op, machine, STEPS, {"core": "MNK"})
    cost = evaluate(op, mapping, machine)
    assert data["cost"] == json.loads(json.dumps(cost.as_dict()))
    assert data["loop_orders"] == {"core": "MNK"}
    assert cli("evaluate", "gemm", "--mapping", "-", "--json", stdin=result.stdout).stdout == (
        result.stdout
    )
    own = _json(cli(*given, "--json"))
    assert own["loop_orders"] == {}
    assert own["cost"]["energy_pj"] != data["cost"]["energy_pj"]
    changed = cli(
        "evaluate", "gemm", "--mapping", "-", *CORE_ORDER, "--json", stdin=json.dumps(own)
    )
    assert changed.stdout == result.stdout


def test_a_record_from_before_loop_orders_is_read(cli):
    data = _json(cli(*PROGRAM, *SIZES, *GIVEN, "--json"))
    older = {name: value for name, value in data.items() if name != "loop_orders"}
    again = _json(cli(*COMMAND, "--mapping", "-", "--json", stdin=json.dumps(older)))
    assert again == data


def test_a_table_is_priced_in_another_loop_order(cli, tmp_path):
    file = tmp_path / "in.csv"
    file.write_text("M,N,K,M_core_t,N_core_t,N_comp,K_comp\n8,64,16,8,4,16,16\n")
    words = ("evaluate", "gemm", "--strategy", "tiled", "--machine", "edge")
    one = _json(cli(*words, *SPLIT, *CORE_ORDER, "--json"))
    priced = cli(*words, *CORE_ORDER, "--table", file, "--out", "-")
    assert priced.exit_code == 0
    _, row = priced.stdout.splitlines()
    assert float(row.split(",")[7]) == one["cost"]["latency_cycles"]
    assert float(row.split(",")[8]) == one["cost"]["energy_pj"]


def test_a_mapping_that_does_not_fit_says_why(cli):
    words = ("--m", 1024, "--n", 1024, "--k", 256, "--machine", "edge", "--factor", "M_comp=1024")
    spatial = ("N_dram_sx=2", "N_dram_sy=2", "N_gb_sx=2", "N_gb_sy=2", "N_comp=64", "K_comp=256")
    given = tuple(word for s in spatial for word in ("--factor", s))
    data = _json(cli(*FUSED, *words, *given, "--json"))
    assert data["cost"]["feasible"] is False
    assert "needs" in data["cost"]["reasons"][0]
    assert "INFEASIBLE: " in cli(*FUSED, *words, *given).stdout


EDGE = (*FUSED, "--machine", "edge")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ((*COMMAND, "--machine", "edge", *SIZES), ("--strategy: missing", "unfused")),
        ((*FUSED, *SIZES), ("--machine: missing", "cloud, edge")),
        ((*EDGE, "--m", 1, "--k", 2), ("--n: missing",)),
        ((*EDGE, "--m", 0, "--n", 8, "--k", 8), ("--m: got '0'", "whole number")),
        ((*EDGE, "--m", -4, "--n", 8, "--k", 8), ("--m: got '-4'", "whole number")),
        ((*EDGE, "--m", 2.5, "--n", 8, "--k", 8), ("--m: got '2.5'", "whole number")),
        ((*EDGE, "--m", "nan", "--n", 8, "--k", 8), ("--m: got 'nan'", "whole number")),
        ((*EDGE, "--m", 1e30, "--n", 8, "--k", 8), ("--m: got", "2**53")),
        ((*EDGE, *SIZES, "--factor", "N_copm=64"), ("N_copm", "N_comp")),
        ((*EDGE, *SIZES, "--factor", "N_comp=6.5"), ("N_comp: got '6.5'", "whole number")),
        ((*EDGE, *SIZES, "--factor", "N_comp"), ("--factor: got 'N_comp'", "NAME=VALUE")),
        (
            (*EDGE, *SIZES, "--factor", "N_comp=1", "--factor", "N_comp=2"),
            ("--factor N_comp: got it twice",),
        ),
        ((*EDGE, *SIZES, "--factor", "N_comp=64"), ("multiply to 64", "at least 1024")),
        ((*EDGE, *SIZES, *GIVEN, "--reduce", "row"), ("reduce", "'row'", "rows or tile")),
        ((*EDGE, *SIZES, *GIVEN, "--conventions", "defualt"), ("'defualt'", "comet-program")),
        ((*EDGE, *SIZES, *GIVEN, "--convention", "stagin=serial"), ("stagin", "staging")),
        ((*EDGE, *SIZES, *GIVEN, "--convention", "staging=x"), ("staging", "pipelined")),
        (
            (*EDGE, *SIZES, *GIVEN, "--set", "memory.dram.child_bandwith=1"),
            ("memory.dram.child_bandwith", "did you mean memory.dram.child_bandwidth"),
        ),
        (
            (*EDGE, *SIZES, *GIVEN, "--set", "memory.dram.child_bandwidth=nan"),
            ("memory.dram.child_bandwidth", "nan", "above 0"),
        ),
        ((*FUSED, "--machine", "egde", *SIZES), ("egde", "did you mean edge")),
        (
            (*COMMAND, "--machine", "edge", *SIZES, "--strategy", "fused-gem-sm"),
            ("did you mean fused-gemm-sm",),
        ),
        (
            (*COMMAND, "--machine", "edge", *SIZES, "--strategy", "unfused", "--reduce", "rows"),
            ("unfused", "reduce"),
        ),
        ((*EDGE, *SIZES, *GIVEN, "--loop-order", "core"), ("--loop-order", "LEVEL=DIMS")),
        ((*EDGE, *SIZES, *GIVEN, "--loop-order", "core=NN"), ("--loop-order core", "N twice")),
        ((*EDGE, *SIZES, *GIVEN, "--loop-order", "cor=NK"), ("level 'cor'", "core")),
        ((*EDGE, *SIZES, *GIVEN, "--loop-order", "core=NX"), ("dimension 'X'", "K, M, N")),
        (("evaluate", "gemm-softmaks", *SIZES), ("gemm-softmaks", "gemm-softmax")),
        ((*EDGE, *SIZES, "--out", "x.csv"), ("--out", "--table")),
        ((*COMMAND, "--mapping", "no-such.json"), ("no-such.json", "no such file")),
    ],
    ids=lambda value: " ".join(str(v) for v in value[-2:]),
)
def test_bad_input_is_one_message(refused, words: tuple[object, ...], parts: tuple[str, ...]):
    message = refused(*words)
    assert all(part in message for part in parts), message


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda d: d.pop("factors"), ("factors: missing",)),
        (lambda d: d["sizes"].pop("K"), ("sizes.K: missing",)),
        (lambda d: d["sizes"].update(M=0), ("sizes.M: got 0", "whole number")),
        (lambda d: d["factors"].update(N_comp=1.5), ("factors.N_comp: got 1.5",)),
        (lambda d: d["factors"].update(N_comp="64"), ("factors.N_comp: got",)),
        (lambda d: d["factors"].update(N_comp=float("nan")), ("factors.N_comp: got NaN",)),
        (lambda d: d["factors"].update(N_copm=64), ("N_copm", "N_comp")),
        (lambda d: d.update(strategy=3), ("strategy: got 3", "a text")),
        (lambda d: d.update(conventions="default"), ("conventions: got",)),
        (lambda d: d.update(machine_overrides=[1]), ("machine_overrides: got",)),
        (lambda d: d.update(options=["tile"]), ("options: got",)),
        (lambda d: d.update(loop_orders="NKM"), ("loop_orders: got",)),
        (lambda d: d.update(loop_orders={"core": 3}), ("loop_orders.core: got 3", "a text")),
        (lambda d: d.update(workload="gemm"), ("workload: got 'gemm'",)),
        (lambda d: d.update(ranking=[]), ("ranking: got []",)),
        (lambda d: d.update(shapes=[]), ("several shapes",)),
    ],
)
def test_a_broken_mapping_file_is_refused_with_its_key(cli, refused, change, parts):
    data = _json(cli(*PROGRAM, *SIZES, *GIVEN, "--json"))
    change(data)
    message = refused(*COMMAND, "--mapping", "-", stdin=json.dumps(data))
    assert all(part in message for part in parts), message


@pytest.mark.parametrize("text", ["", "{", "[]", "3"])
def test_what_is_no_mapping_is_refused(refused, text: str):
    message = refused(*COMMAND, "--mapping", "-", stdin=text)
    assert "standard input" in message
