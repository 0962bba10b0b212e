import json
import math
import re
from importlib import resources

import pytest

from jaxcomet import hardware


def _edge() -> str:
    return (resources.files("jaxcomet.hardware") / "specs" / "edge.toml").read_text("utf-8")


def test_the_list_names_every_machine_with_levels_cores_and_bandwidth(cli):
    result = cli("machines")
    assert result.exit_code == 0
    for words in (("edge", "2x2 gb", "16", "25"), ("cloud", "4x4 gb", "256", "50")):
        assert all(word in result.stdout for word in words)


def test_the_list_as_json(cli):
    rows = {row["name"]: row for row in json.loads(cli("machines", "--json").stdout)}
    assert set(rows) == set(hardware.machine_names())
    assert rows["edge"]["cores"] == 2 * 2 * 2 * 2
    assert rows["cloud"]["cores"] == 4 * 4 * 4 * 4
    assert rows["edge"]["macs_per_core"] == 32 * 32 * 8 * 8
    assert rows["edge"]["capacities_bytes"]["gb"] == 2 * 2**20
    assert rows["edge"]["root_bandwidth_bytes_per_cycle"] == 25


@pytest.mark.parametrize("name", hardware.machine_names())
def test_one_machine_is_shown_with_every_number_unit_kind_and_source(cli, name: str):
    shown = " ".join(cli("machines", name).stdout.replace("│", " ").split())
    spec = hardware.read_spec(name)
    for key, entry in spec.entries():
        assert f"{key.rpartition('.')[2]} = " in shown
        assert f"[{entry.kind}]" in shown
        if isinstance(entry, hardware.Choice):
            assert f"= {entry.value}" in shown
        if isinstance(entry, hardware.Quantity) and math.isinf(entry.value):
            assert f"{key.rpartition('.')[2]} = unlimited" in shown
        elif isinstance(entry, hardware.Quantity) and entry.unit != "1":
            number = repr(entry.value).removesuffix(".0")
            assert f"{number} {entry.unit}" in shown
    for part in (*spec.levels, *spec.memory, *spec.engine):
        assert part in shown
    assert ("router" in shown) == (spec.router is not None)
    assert not re.search(r"\binf\b", shown)


def test_one_machine_as_json_holds_all_entries(cli):
    data = json.loads(cli("machines", "edge", "--json").stdout)
    for key, entry in hardware.read_spec("edge").entries():
        node = data
        for part in key.split("."):
            node = node[part]
        assert node["value"] == entry.value
        assert node["source"] == entry.source


@pytest.mark.parametrize("name", ["r2", "r2w", "r2v"])
def test_unlimited_is_null_in_json(cli, name: str):
    text = cli("machines", name, "--json").stdout
    assert "Infinity" not in text
    glb = json.loads(text)["memory"]["glb"]
    assert glb["child_bandwidth"]["value"] is None
    assert glb["child_bandwidth"]["unit"] == "byte/cycle"
    assert glb["network"]["channel_width"]["value"] is None
    assert glb["capacity"]["value"] == 131_072


def test_an_unlimited_outermost_memory(cli):
    words = ("machines", "edge", "--set", "memory.dram.child_bandwidth=inf")
    assert "child_bandwidth = unlimited " in cli(*words).stdout
    entry = json.loads(cli(*words, "--json").stdout)["memory"]["dram"]["child_bandwidth"]
    assert entry["value"] is None


def test_the_list_shows_an_unlimited_outermost_memory(cli, monkeypatch):
    spec = hardware.read_spec("edge", [("memory.dram.child_bandwidth", "inf")])
    monkeypatch.setattr(hardware, "machine_names", lambda: ("edge",))
    monkeypatch.setattr(hardware, "read_spec", lambda _: spec)
    assert "unlimited" in cli("machines").stdout
    (row,) = json.loads(cli("machines", "--json").stdout)
    assert row["root_bandwidth_bytes_per_cycle"] is None


def test_set_changes_the_number_that_is_shown(cli):
    words = ("machines", "edge", "--set", "memory.dram.child_bandwidth=50", "--json")
    entry = json.loads(cli(*words).stdout)["memory"]["dram"]["child_bandwidth"]
    assert entry["value"] == 50
    assert entry["kind"] == "assumed"
    assert "override of 25" in entry["source"]


def test_an_unknown_machine_lists_the_known_ones(refused):
    message = refused("machines", "egde")
    assert "did you mean edge" in message
    assert "cloud" in message


def test_an_unknown_path_of_set_names_the_near_ones(refused):
    message = refused("machines", "edge", "--set", "memory.dram.child_bandwith=50")
    assert "did you mean memory.dram.child_bandwidth" in message


def test_set_without_a_machine_is_refused(refused):
    assert "name the machine" in refused("machines", "--set", "memory.dram.child_bandwidth=50")


@pytest.mark.parametrize("word", ["memory.dram.child_bandwidth", "=3", "a.b="])
def test_set_without_path_and_value_is_refused(refused, word: str):
    assert "expected NAME=VALUE" in refused("machines", "edge", "--set", word)


def test_a_file_with_a_typo_is_refused_with_its_key(refused, tmp_path):
    text = _edge()
    file = tmp_path / "mine.toml"
    file.write_text(text.replace("child_bandwidth", "child_bandwith", 1), encoding="utf-8")
    message = refused("machines", file)
    assert "memory.dram.child_bandwith" in message
    assert str(file) in message


def test_a_file_with_a_number_without_unit_is_refused(refused, tmp_path):
    text = _edge()
    file = tmp_path / "mine.toml"
    file.write_text(text.replace('value = 25, unit = "byte/cycle",', "value = 25,"))
    assert "25 without unit" in refused("machines", file)
