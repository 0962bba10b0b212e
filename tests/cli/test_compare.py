import json
import math
from types import SimpleNamespace

import pytest

from jaxcomet import optimize

COMMAND = ("compare", "gemm-softmax")
EDGE = (*COMMAND, "--m", 256, "--n", 256, "--k", 128, "--machine", "edge")
NAMES = {"unfused", "fused-distsm", "fused-gemm-sm", "fused-gemm-distsm"}


def _json(result):
    assert result.exit_code == 0
    return json.loads(result.stdout)


def _check(data):
    """What must hold of every comparison."""
    assert {entry["strategy"] for entry in data["ranking"]} == NAMES
    ranked = [entry for entry in data["ranking"] if entry["rank"] is not None]
    cycles = [entry["cost"]["latency_cycles"] for entry in ranked]
    assert cycles == sorted(cycles)
    assert data["best"] == ranked[0]["label"]
    unfused = next(e["cost"]["latency_cycles"] for e in ranked if e["strategy"] == "unfused")
    for entry in ranked:
        assert sum(entry["latency_groups"].values()) == entry["cost"]["latency_cycles"]
        assert entry["speedup_over_unfused"] == unfused / entry["cost"]["latency_cycles"]
    assert data["why"][0].startswith(data["best"])


@pytest.mark.usefixtures("first_mapping")
def test_json_ranks_the_four_strategies(cli):
    result = cli(*EDGE, "--json")
    assert result.stderr == ""  # no progress bar where there is no terminal
    _check(_json(result))


@pytest.mark.usefixtures("first_mapping")
def test_the_text_has_ranking_breakdown_mapping_and_reason(cli):
    result = cli(*EDGE)
    assert result.exit_code == 0
    for name in NAMES:  # long names are broken after a hyphen
        assert name.rpartition("-")[2] in result.stdout
    for word in ("speedup", "CS, compulsory stalls", "collectives", "Best mapping", "fewer than"):
        assert word in result.stdout


@pytest.mark.usefixtures("first_mapping")
@pytest.mark.parametrize("columns", [40, 80, 120])
def test_numbers_are_whole_however_narrow_the_terminal(cli, columns: int):
    entries = _json(cli(*EDGE, "--json"))["ranking"]
    ranked = [entry for entry in entries if entry["rank"] is not None]
    shown = cli(*EDGE, columns=columns).stdout
    for entry in ranked:
        assert f"{entry['cost']['latency_cycles']:,.0f}" in shown
        for cycles in entry["latency_groups"].values():
            assert f"{cycles:,.0f}" in shown


@pytest.mark.usefixtures("first_mapping")
def test_every_entry_prices_to_its_number_again(cli):
    text = cli(*EDGE, "--reduce", "tile", "--json").stdout
    data = json.loads(text)
    words = ("evaluate", "gemm-softmax", "--mapping", "-", "--json")
    best = _json(cli(*words, stdin=text))
    assert best["cost"] == data["ranking"][0]["cost"]
    for entry in data["ranking"]:
        again = _json(cli(*words, "--strategy", entry["strategy"], stdin=text))
        assert again["cost"] == entry["cost"]
    assert "did you mean unfused" in cli(*words, "--strategy", "unfuse", stdin=text).stderr


@pytest.mark.usefixtures("first_mapping")
def test_set_conventions_and_options_reach_the_result(cli):
    plain = _json(cli(*EDGE, "--json"))
    words = ("--set", "memory.dram.child_bandwidth=50", "--binding", "pipelined")
    rules = ("--conventions", "comet-program", "--convention", "staging=pipelined")
    data = _json(cli(*EDGE, "--reduce", "tile", *words, *rules, "--json"))
    assert data["conventions"] == "comet-program+staging=pipelined"
    assert data["machine_overrides"] == ["memory.dram.child_bandwidth=50"]
    options = {entry["strategy"]: entry["options"] for entry in data["ranking"]}
    assert not {"reduce", "binding"} & set(options["unfused"])
    assert options["fused-distsm"]["reduce"] == "tile"
    assert "binding" not in options["fused-distsm"]
    assert options["fused-gemm-sm"]["binding"] == "pipelined"
    assert options["fused-gemm-distsm"]["reduce"] == "tile"
    assert options["fused-gemm-distsm"]["binding"] == "pipelined"
    before = {e["strategy"]: e["cost"]["latency_cycles"] for e in plain["ranking"]}
    after = {e["strategy"]: e["cost"]["latency_cycles"] for e in data["ranking"]}
    assert before != after


@pytest.mark.usefixtures("first_mapping")
def test_strategies_that_do_not_fit_are_listed_with_their_reason(cli):
    words = (*EDGE, "--set", "memory.ob.capacity=64 B")
    data = _json(cli(*words, "--json"))
    assert data["best"] is None
    assert all(entry["rank"] is None for entry in data["ranking"])
    shown = cli(*words).stdout
    assert "ob: needs" in shown
    assert "No strategy has a mapping that fits" in shown


@pytest.mark.usefixtures("first_mapping")
@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_the_figure_is_written_whole(cli, tmp_path, kind: str):
    file = tmp_path / f"bars.{kind}"
    assert cli(*EDGE, "--figure", file).exit_code == 0
    start = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[kind]
    content = file.read_bytes()
    assert content.startswith(start)
    if kind == "svg":
        assert b"fused-gemm-distsm" in content
        assert b"latency [cycles]" in content
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


@pytest.mark.usefixtures("first_mapping")
def test_without_arguments_the_published_shapes_are_compared(cli, tmp_path):
    file = tmp_path / "speedups.svg"
    data = _json(cli("compare", "--json", "--figure", file))
    assert file.read_bytes().startswith(b"<?xml")
    assert [s["machine"] for s in data["shapes"]] == ["edge", "cloud"]
    for name, mean in data["geometric_mean_speedup_over_unfused"].items():
        found = [
            math.log(entry["speedup_over_unfused"])
            for shape in data["shapes"]
            for entry in shape["ranking"]
            if entry["strategy"] == name and entry["speedup_over_unfused"] is not None
        ]
        assert len(found) == data["shapes_in_mean"][name]
        assert mean is None or mean == pytest.approx(math.exp(sum(found) / len(found)))


@pytest.mark.usefixtures("first_mapping")
def test_the_table_of_the_published_shapes_has_means(cli):
    shown = cli("compare").stdout
    for word in ("e1", "c4", "1x8192x128", "geometric", "1.00×"):
        assert word in shown


@pytest.mark.usefixtures("first_mapping")
@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ((*COMMAND, "--m", 1, "--n", 8, "--k", 8), ("--machine: missing", "cloud, edge")),
        ((*COMMAND, "--machine", "edge"), ("--m, --n, --k: missing",)),
        ((*COMMAND, "--m", 8, "--machine", "edge"), ("--n, --k: missing",)),
        ((*EDGE, "--m", 0), ("--m: got '0'",)),
        ((*EDGE, "--n", "1.5"), ("--n: got '1.5'",)),
        ((*EDGE, "--k", "nan"), ("--k: got 'nan'",)),
        ((*EDGE, "--machine", "egde"), ("did you mean edge",)),
        ((*EDGE, "--objective", "time"), ("--objective: got 'time'", "latency, energy, edp")),
        ((*EDGE, "--reduce", "all"), ("rows or tile",)),
        ((*EDGE, "--binding", "parallel"), ("sequential or pipelined",)),
        ((*EDGE, "--conventions", "x"), ("comet-program",)),
        ((*EDGE, "--set", "memory.drm.child_bandwidth=1"), ("memory.dram.child_bandwidth",)),
        ((*EDGE, "--figure", "bars.jpg"), ("bars.jpg", ".png")),
        ((*EDGE, "--figure", "nowhere/bars.png"), ("nowhere/bars.png", "no folder")),
        (("compare", "softmax"), ("softmax", "gemm-softmax")),
        (("compare", "--set", "memory.drm.child_bandwidth=1"), ("memory.dram.child_bandwidth",)),
    ],
    ids=lambda value: " ".join(str(v) for v in value[-2:]),
)
def test_bad_input_is_one_message(
    refused, words: tuple[object, ...], parts: tuple[str, ...], tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    message = refused(*words)
    assert all(part in message for part in parts), message
    assert list(tmp_path.iterdir()) == []


def test_the_answer_of_a_strategy_is_that_of_the_search_with_its_proof_and_gap(cli):
    words = ("--m", 6, "--n", 4, "--k", 4, "--machine", "r2", "--json")
    (entry,) = _json(cli("compare", "gemm", *words))["ranking"]
    found = _json(cli("map", "gemm", *words))  # the same ways: the strategy has no other options
    for name in ("strategy", "options", "loop_orders", "factors", "cost", "proven", "gap"):
        assert entry[name] == found[name]
    assert entry["proven"] is True
    assert entry["mappings"] == found["evaluated"]


def test_an_interrupted_comparison_shows_no_ranking(cli, monkeypatch):
    def interrupted(*_, **__):
        return SimpleNamespace(stopped="interrupted")

    monkeypatch.setattr(optimize, "map", interrupted)
    result = cli(*EDGE)
    assert result.exit_code == 130
    assert result.stdout == ""


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["latency", "energy", "edp"])
def test_the_real_search_ranks_by_the_objective(cli, objective: str):
    data = _json(cli(*EDGE, "--objective", objective, "--json"))
    costs = [entry["cost"] for entry in data["ranking"]]
    key = {
        "latency": lambda c: c["latency_cycles"],
        "energy": lambda c: c["energy_pj"],
        "edp": lambda c: c["latency_cycles"] * c["energy_pj"],
    }[objective]
    values = [key(c) for c in costs]
    assert values == sorted(values)
    if objective == "latency":
        _check(data)
        assert data["best"].startswith("fused-gemm-distsm")


@pytest.mark.slow
def test_the_twelve_shapes_are_won_by_the_fused_distributed_softmax(cli):
    data = _json(cli("compare", "--json"))
    assert [s["machine"] for s in data["shapes"]] == ["edge"] * 6 + ["cloud"] * 6
    for shape in data["shapes"]:
        _check(shape)
        assert shape["best"].startswith("fused-gemm-distsm")
    assert data["geometric_mean_speedup_over_unfused"]["fused-gemm-distsm"] > 2.0
