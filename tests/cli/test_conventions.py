"""Effects of single rules against section 9 of the closed form of the authors' program.

The columns are the rows 1x1024x128 and 1024x1024x256 on edge, 1024x1024x512 on cloud and
256x256x128 on edge; each figure follows by hand from that closed form (docs/equations.md).
"""

import json

import pytest

from jaxcomet.cli import effects
from jaxcomet.cli.effects import Effects, convention_effects
from jaxcomet.cost.conventions import PRESETS, RULES, Conventions

EFFECTS = {
    "read_stalls": (0, 13440, 12824, 6720),
    "compulsory": (0, -3888, -192, -3456),
    "resident_ramp": (0, 0, 0, 510),
    "intermediate_drain": (-18, -1024, -64, -32),
    "staging": (-2630, -28148, -7416, -3037),
    "all_reduce_memory": (-265, -271360, -272608, -17152),
    "all_reduce_arithmetic": (-116, -119296, -395472, -7424),
}


@pytest.fixture(scope="module")
def computed() -> Effects:
    return convention_effects()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prices that are made up: 100 cycles more where tiles are staged one after the other."""

    def price(rules: Conventions) -> effects.Prices:
        cycles = 1100.0 if rules.staging == "serial" else 1000.0
        return effects.Prices((cycles,) * 4, (5e6,) * 4, (1000.0,) * 4)

    monkeypatch.setattr(effects, "_price", price)


@pytest.mark.slow
def test_the_base_is_what_the_program_printed(computed: Effects):
    assert computed.base_cycles == (9270, 629116, 751611, 88934)


@pytest.mark.slow
def test_effects_of_single_rules_are_those_of_the_closed_form(computed: Effects):
    found = {effect.option: effect.cycles for effect in computed.rules}
    assert {option: found[option] for option in EFFECTS} == EFFECTS


@pytest.mark.slow
def test_energy_rules_move_no_cycle(computed: Effects):
    for effect in computed.rules:
        if RULES[effect.option].group == "energy":
            assert effect.cycles == (0, 0, 0, 0)


@pytest.mark.slow
def test_buffer_rules_hold_more_bytes(computed: Effects):
    # bytes under comet-program by hand (closed form, section 2), row 1: A 128 and B 8,192 in ib and
    # wb, 4 x 64 + 2 in ob, A 128 + B 32,768 + D 1 + F and H 256 each in gb
    assert computed.base_held_bytes[0] == 128 + 8192 + 258 + 33409
    grown = {e.option: e.held_bytes for e in computed.rules if any(e.held_bytes)}
    assert set(grown) == {"double_buffer", "live_ranges", "intermediate_bits"}
    # two bytes for D, F and H in gb
    assert grown["intermediate_bits"][0] == 1 + 256 + 256
    assert all(change >= 0 for changes in grown.values() for change in changes)


@pytest.mark.usefixtures("quick")
def test_every_rule_that_the_program_breaks_has_an_effect_and_no_other():
    program, default = PRESETS["comet-program"], PRESETS["default"]
    differ = [o for o in RULES if getattr(program, o) != getattr(default, o)]
    assert [effect.option for effect in convention_effects().rules] == differ


@pytest.mark.usefixtures("quick")
def test_the_table_shows_rules_values_and_effects(cli):
    result = cli("conventions")
    assert result.exit_code == 0
    for word in ("comet-program", "roofline", "resident_ramp", "all-or-nothing", "1,100", "-100"):
        assert word in result.stdout


@pytest.mark.usefixtures("quick")
def test_presets_that_are_named_are_the_columns(cli):
    result = cli("conventions", "default", "--json")
    assert result.exit_code == 0
    assert all(set(rule["values"]) == {"default"} for rule in json.loads(result.stdout)["rules"])


@pytest.mark.usefixtures("quick")
def test_json_holds_every_rule_with_its_values_and_effect(cli):
    data = json.loads(cli("conventions", "--json").stdout)
    assert [rule["option"] for rule in data["rules"]] == list(RULES)
    by_option = {rule["option"]: rule for rule in data["rules"]}
    assert by_option["staging"]["values"] == {
        "default": "pipelined",
        "comet-program": "serial",
        "roofline": "pipelined",
    }
    assert by_option["staging"]["effect_cycles"] == [-100] * 4
    assert by_option["fill_drain"]["effect_cycles"] == [0, 0, 0, 0]
    assert [row["latency_cycles"] for row in data["rows"]] == [1100] * 4


def test_an_unknown_preset_lists_the_known_ones(refused):
    message = refused("conventions", "program")
    assert all(name in message for name in PRESETS)
