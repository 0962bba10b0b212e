"""`jaxcomet map`: the answer, its proof and its bound, in text and as data."""

import json
import os
import re
import shlex
import signal
import time

import pytest

from jaxcomet import gemm, hardware, optimize
from jaxcomet.cli import tables

COMMAND = ("map", "gemm")
SIZES = ("--m", 6, "--n", 4, "--k", 4, "--machine", "r2")
ONE = (*COMMAND, *SIZES, "--order", "MNK")  # a single way
SOFTMAX = ("map", "gemm-softmax", "--m", 2, "--n", 8, "--k", 4, "--machine", "edge")
WAY = ("--strategy", "fused-gemm-distsm", "--weights", "resident", "--binding", "sequential")
FUSED = (*SOFTMAX, *WAY)  # a single way


def _json(result, code: int = 0):
    assert result.exit_code == code, result.stderr
    return json.loads(result.stdout)


def _again(cli, text: str):
    """What evaluate makes of the JSON of a search."""
    workload = json.loads(text)["workload"]
    return _json(cli("evaluate", workload, "--mapping", "-", "--json", stdin=text))


def test_the_answer_is_that_of_the_library(cli):
    data = _json(cli(*COMMAND, *SIZES, "--json"))
    found = optimize.map(gemm(6, 4, 4), hardware.load("r2"))
    assert data["value"] == data["cost"]["latency_cycles"] == found.value
    assert data["factors"] == {n: int(f) for n, f in found.mapping.factors.items()}
    assert (data["strategy"], data["options"]) == (found.strategy, found.options)
    assert (data["size"], data["evaluated"]) == (found.size, found.evaluated)
    assert data["history"] == [list(step) for step in found.history]
    assert data["bound"]["latency_cycles"] == found.bound.latency_cycles
    assert data["gap"] == found.gap >= 0.0
    assert [way["label"] for way in data["ways"]] == [way.label for way in found.ways]
    assert data["proven"] is True
    assert (data["stopped"], data["method"]) == ("complete", "enumerate")
    assert data["settings"]["versions"] == found.settings["versions"]


@pytest.mark.parametrize("objective", ["latency", "energy", "edp"])
def test_the_json_prices_to_its_numbers_again(cli, objective: str):
    result = cli(*ONE, "--objective", objective, "--tiles", "any", "--json")
    data = _json(result)
    again = _again(cli, result.stdout)
    assert again["cost"] == data["cost"]
    assert again.items() <= data.items()  # a superset of what evaluate prints
    cost, bound = data["cost"], data["bound"]
    value = {
        "latency": cost["latency_cycles"],
        "energy": cost["energy_pj"],
        "edp": cost["latency_cycles"] * cost["energy_pj"],
    }[objective]
    least = {
        "latency": bound["latency_cycles"],
        "energy": bound["energy_pj"],
        "edp": bound["latency_cycles"] * bound["energy_pj"],
    }[objective]
    assert data["value"] == pytest.approx(value, rel=1e-12)
    assert data["gap"] == pytest.approx(value / least - 1.0, rel=1e-9)
    limiting = bound["limiting"]
    assert limiting["value"] <= bound["energy_pj" if objective == "energy" else "latency_cycles"]
    assert limiting["name"]
    assert limiting["reason"]


def test_everything_that_the_numbers_depend_on_is_in_the_json(cli):
    words = ("--set", "memory.dram.child_bandwidth=50", "--convention", "staging=pipelined")
    result = cli(*FUSED, *words, "--reduce", "tile", "--loop-order", "core=NKM", "--json")
    data = _json(result)
    assert data["loop_orders"] == {"core": "NKM"}
    assert data["options"]["reduce"] == "tile"
    options = {"reduce": "tile", "weights": "resident", "binding": "sequential"}
    assert data["settings"]["options"] == options
    assert data["settings"]["loop_orders"] == {"core": "NKM"}
    assert data["machine_overrides"] == ["memory.dram.child_bandwidth=50"]
    assert _again(cli, result.stdout)["cost"] == data["cost"]


def test_the_text_says_how_good_and_how_sure_the_answer_is(cli):
    data = _json(cli(*FUSED, "--json"))
    shown = cli(*FUSED).stdout
    assert "gemm-softmax M 2 × N 8 × K 4 on edge" in shown
    assert f"latency {tables.count(data['value'])} cycles: fused-gemm-distsm" in shown
    assert f"PROVEN best of {tables.count(data['size'])} mappings" in shown
    (bound,) = re.findall(r"lower bound ([\d,.]+) cycles", shown)
    assert float(bound.replace(",", "")) == pytest.approx(
        data["bound"]["latency_cycles"], abs=0.01, rel=1e-3
    )
    assert f"gap {tables.percent(data['gap'])}" in shown
    assert data["bound"]["limiting"]["name"] in shown
    for word in ("└── ", "spread over core units", "gemm on a tile of", "all_reduce of"):
        assert word in shown
    for word in ("Latency, cycles", "CS, compulsory stalls", "Occupancy", "Ways"):
        assert word in shown


@pytest.mark.parametrize(
    "words", [(), ("--loop-order", "glb=NKM", "--convention", "staging=serial")]
)
def test_the_command_that_is_shown_prices_the_same(cli, words: tuple[str, ...]):
    data = _json(cli(*ONE, *words, "--json"))
    shown = cli(*ONE, *words, columns=60).stdout
    command = shown[shown.index("jaxcomet evaluate") :].replace("\\\n", " ")
    _, *again = shlex.split(command)
    assert _json(cli(*again, "--json"))["cost"] == data["cost"]
    assert ("loop orders glb NKM" in " ".join(shown.split())) == bool(words)


def test_numbers_are_whole_however_narrow_the_terminal(cli):
    data = _json(cli(*ONE, "--json"))
    for columns in (40, 80):
        shown = cli(*ONE, columns=columns).stdout
        for number in (data["size"], data["value"], *(way["size"] for way in data["ways"])):
            assert re.search(rf"(?<![\d,]){tables.count(number)}(?![\d,])", shown), number


@pytest.mark.slow
def test_skipped_ways_are_counted_and_named(cli):
    words = ("map", "gemm-softmax", "--m", 256, "--n", 256, "--k", 128, "--machine", "edge")
    data = _json(cli(*words, "--json"))
    skipped = [way for way in data["ways"] if way["skipped"]]
    assert "unfused" in {way["strategy"] for way in skipped}
    assert all(way["bound"] > data["value"] and way["evaluated"] == 0 for way in skipped)
    rest = data["size"] - data["evaluated"]
    assert rest >= sum(way["size"] for way in skipped) > 0
    shown = cli(*words).stdout
    assert f"{tables.count(rest)} ruled out by bounds" in shown
    assert "skipped: no mapping of the way can be better" in shown


# -- constraints -----------------------------------------------------------------------------------


def test_constraints_are_obeyed_and_shown(cli):
    words = (*FUSED, "--fix", "K_comp=2", "--max-units", "core=2")
    result = cli(*words, "--json")
    data = _json(result)
    assert data["factors"]["K_comp"] == 2
    assert data["scope"]["fixed"] == {"K_comp": 2}
    assert data["scope"]["max_units"] == {"core": 2}
    used = [f for n, f in data["factors"].items() if n.endswith(("_sx", "_sy"))]
    product = 1
    for factor in used:
        product *= factor
    assert product <= 2
    assert _again(cli, result.stdout)["cost"] == data["cost"]
    shown = cli(*words).stdout
    assert "constraints: K_comp = 2, at most 2 units of core" in shown
    assert "units free" in shown


def test_strategies_and_values_can_be_chosen_and_left_out(cli):
    words = ("--without", "unfused", "--without", "fused-distsm", "--without", "fused-gemm-sm")
    ways = ("--weights", "resident", "--binding", "sequential", "--reduce", "all")
    data = _json(cli(*SOFTMAX, *words, *ways, "--json"))
    assert {way["label"] for way in data["ways"]} == {
        "fused-gemm-distsm[algorithm=auto]",
        "fused-gemm-distsm[reduce=tile,algorithm=auto]",
    }
    assert data["settings"]["without"] == ["unfused", "fused-distsm", "fused-gemm-sm"]


def test_all_loop_orders_are_ways_and_the_best_is_no_worse(cli):
    fixed = _json(cli(*ONE, "--json"))
    every = _json(cli(*COMMAND, *SIZES, "--loop-orders", "all", "--json"))
    assert len(every["ways"]) > 1
    assert every["value"] <= fixed["value"]
    assert every["settings"]["loop_orders"] == "all"


def test_a_way_without_a_fixed_factor_is_listed_with_the_reason(cli):
    words = (*FUSED, "--strategy", "unfused", "--fix", "softmax.M_gb_t=1")
    data = _json(cli(*words, "--json"))
    refusals = {way["strategy"]: way["refusal"] for way in data["ways"]}
    assert refusals["unfused"] is None
    assert "softmax.M_gb_t: no such factor" in refusals["fused-gemm-distsm"]
    shown = cli(*words).stdout
    assert "fused-gemm-distsm: not possible: fixed softmax.M_gb_t: no such factor" in shown


# -- ends ------------------------------------------------------------------------------------------


def test_a_budget_ends_the_search_without_a_proof(cli):
    words = (*ONE, "--method", "random", "--budget", 20, "--key", 3)
    data = _json(cli(*words, "--json"))
    assert data["proven"] is False
    assert data["method"] == "random"
    assert data["evaluated"] <= 20
    assert data["settings"]["key"] == [3]
    shown = cli(*words).stdout
    assert "best found, not proven" in shown
    assert "PROVEN" not in shown
    assert _json(cli(*words, "--json")) == data


def test_the_end_of_the_time_is_told(cli, monkeypatch):
    from jaxcomet.optimize.task import Clock

    monkeypatch.setattr(Clock, "over", lambda self: self.limit_s is not None)
    result = cli(*ONE, "--time-limit", 0.5)
    assert result.exit_code == 0
    assert "the time is over" in result.stdout


def test_ctrl_c_shows_the_best_so_far_and_ends_as_interrupted(cli, monkeypatch):
    from jaxcomet.optimize.pricing import Part

    whole = Part.slab_best

    sent = []

    def slow(self, start, objective):
        if not sent:
            sent.append(start)
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)  # the search is told to end while this is priced
        return whole(self, start, objective)

    monkeypatch.setattr("jaxcomet.optimize.pricing._HOST_SLAB", 64)  # several slabs
    monkeypatch.setattr(Part, "slab_best", slow)
    result = cli(*ONE)
    assert result.exit_code == 130
    assert "INTERRUPTED" in result.stdout
    assert "best found, not proven" in result.stdout
    sent.clear()
    data = _json(cli(*ONE, "--json"), code=130)
    assert data["stopped"] == "interrupted"
    assert data["proven"] is False
    assert 0 < data["evaluated"] < data["size"]
    assert _again(cli, json.dumps(data))["cost"] == data["cost"]


def test_what_fits_nowhere_says_why(cli):
    words = (*ONE, "--set", "memory.glb.capacity=4 B")
    data = _json(cli(*words, "--json"))
    assert data["feasible"] is False
    assert data["value"] is None
    assert data["gap"] is None
    assert "glb: needs" in data["reasons"][0]
    result = cli(*words)
    assert result.exit_code == 0  # as evaluate and compare
    assert "NOTHING FITS" in result.stdout
    assert "glb: needs" in result.stdout
    assert "PROVEN" not in result.stdout


# -- figure ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_the_figure_is_written_whole(cli, tmp_path, kind: str):
    file = tmp_path / f"search.{kind}"
    result = cli(*ONE, "--figure", file)
    assert result.exit_code == 0
    assert f"figure: {file}" in result.stdout
    content = file.read_bytes()
    assert content.startswith({"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[kind])
    if kind == "svg":
        for word in ("best latency [cycles]", "lower bound", "enumerate: ", "proven"):
            assert word.encode() in content
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_without_anything_that_fits_there_is_no_figure(cli, tmp_path):
    file = tmp_path / "search.png"
    result = cli(*ONE, "--set", "memory.glb.capacity=4 B", "--figure", file, "--json")
    assert _json(result)["history"] == []
    assert f"no figure {file}" in result.stderr
    assert not file.exists()


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("map", "gemm", "--m", 4), ("--n, --k: missing", "--m, --n and --k")),
        (("map", "gem", *SIZES), ("'gem'", "gemm")),
        (("map", "gemm", "--m", 4, "--n", 4, "--k", 4), ("--machine: missing", "edge")),
        ((*ONE, "--m", "1.5"), ("--m: got '1.5'", "whole number")),
        ((*ONE, "--objective", "time"), ("--objective: got 'time'", "latency, energy, edp")),
        ((*ONE, "--strategy", "tile"), ("'tile'", "did you mean tiled")),
        ((*ONE, "--without", "tiled"), ("tiled left out",)),
        ((*ONE, "--loop-orders", "some"), ("--loop-orders: got 'some'", "fixed, all")),
        ((*ONE, "--loop-order", "glb"), ("--loop-order: got 'glb'", "LEVEL=DIMS")),
        ((*ONE, "--loop-order", "gb=NKM"), ("--loop-order gb", "did you mean glb")),
        ((*ONE, "--loop-order", "glb=NKN"), ("got N twice", "NKN")),
        ((*ONE, "--loop-order", "glb=XY"), ("'X'", "K, M, N")),
        (
            (*ONE, "--loop-orders", "all", "--loop-order", "glb=NKM"),
            ("--loop-order", "--loop-orders all"),
        ),
        ((*ONE, "--tiles", "odd"), ("--tiles: got 'odd'", "padded, divisors, any")),
        ((*ONE, "--units", "some"), ("--units: got 'some'", "all, free")),
        ((*ONE, "--method", "magic"), ("--method: got 'magic'", "enumerate")),
        ((*ONE, "--fix", "M_comp"), ("--fix: got 'M_comp'", "FACTOR=VALUE")),
        ((*ONE, "--fix", "M_comp=two"), ("--fix M_comp: got 'two'", "whole number")),
        ((*ONE, "--fix", "M_copm=2"), ("--fix M_copm", "did you mean M_comp")),
        ((*ONE, "--fix", "M_comp=7"), ("M_comp=7", "M = 6")),
        ((*ONE, "--max-units", "core=2"), ("max_units core", "glb")),
        ((*ONE, "--max-units", "glb=0"), ("--max-units glb: got '0'", "whole number")),
        ((*ONE, "--seeds", "0"), ("--seeds: got '0'", "whole number")),
        ((*ONE, "--budget", "-5"), ("--budget: got '-5'", "whole number")),
        ((*ONE, "--time-limit", "soon"), ("--time-limit: got 'soon'", "seconds above 0")),
        ((*ONE, "--time-limit", "nan"), ("--time-limit: got 'nan'", "seconds above 0")),
        ((*ONE, "--time-limit", 0), ("--time-limit: got '0'", "seconds above 0")),
        ((*ONE, "--key", "-1"), ("--key: got '-1'", "whole number")),
        ((*ONE, "--order", "MKX"), ("--order: got 'MKX'", "or all")),
        ((*ONE, "--reduce", "tile"), ("--reduce", "no option of the strategies of gemm")),
        (
            (*SOFTMAX, "--strategy", "unfused", "--reduce", "tile"),
            ("--reduce: no option of unfused", "fused-gemm-distsm"),
        ),
        ((*ONE, "--figure", "search.jpg"), ("search.jpg", ".png")),
        ((*ONE, "--figure", "nowhere/search.png"), ("nowhere/search.png", "no folder")),
        ((*ONE, "--set", "memory.drm.child_bandwidth=1"), ("memory.dram.child_bandwidth",)),
        ((*ONE, "--conventions", "x"), ("comet-program",)),
        (
            ("map", "gemm-softmax", "--m", 4, "--n", 4, "--k", 4, "--machine", "r2"),
            ("no strategy is possible on r2", "no vector engine"),
        ),
    ],
    ids=lambda value: " ".join(str(v) for v in value[-2:]),
)
def test_bad_input_is_one_message(
    refused, words: tuple[object, ...], parts: tuple[str, ...], tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    message = refused(*words)
    assert message.startswith("error: ")
    assert all(part in message for part in parts), message
    assert list(tmp_path.iterdir()) == []
