"""Energy of routers and links of a mesh (Orion type).

The one idea: a router is the sum of its parts (wires, clocks, buffers, crossbar, arbiters); each
has the power that switching in every cycle takes, and power / clock is the energy of one word's
pass (docs/equations.md, 5.4; constants and structure as in COMET's use of Orion,
doi:10.1145/774861.774893). The constants are needed once for a machine, not for each mapping.
"""

from dataclasses import dataclass
from functools import cached_property

from jaxcomet.arith import Number, is_unlimited, select
from jaxcomet.cost.conventions import Conventions
from jaxcomet.hardware.machine import Network, RouterTechnology


@dataclass(frozen=True)
class RouterPower:
    """Power in watt of one router's parts at a channel width, and the clock they run at."""

    wire: Number
    clock: Number
    data: Number
    read: Number
    write: Number
    crossbar: Number
    crossbar_control: Number
    output: Number
    output_clock: Number
    frequency_hz: Number

    @cached_property
    def word_pj(self) -> Number:
        """Energy of one word's pass, which switches every part once."""
        parts = self.wire + self.clock + self.data + self.read + self.write
        parts = parts + self.crossbar + self.crossbar_control
        parts = parts + self.output + self.output_clock
        return parts / self.frequency_hz * 1e12


def router_power(
    technology: RouterTechnology, width_bits: Number, rules: Conventions
) -> RouterPower:
    """Power of a router's parts.

    Args:
      technology: circuit constants.
      width_bits: channel width; where it has no limit, which no router is modelled for, that of 1
        bit.
      rules: with ``router_power="watt-cycle"`` a part of the write power lacks the clock, as in
        the program.

    Returns:
      Power in watt.
    """
    t = technology
    gate, drain, overlap = (
        t.gate_capacitance_farad,
        t.drain_capacitance_farad,
        t.overlap_capacitance_farad,
    )
    gate_in, drain_out, inverter = 3.0 * gate, 3.0 * drain, 3.0 * (gate + overlap)
    delay = t.transistor_resistance_ohm * (3.0 * drain + 12.0 * gate + 12.0 * overlap)
    frequency = 1.0 / (t.fanout_delays_per_clock * delay)
    square = t.supply_volt * t.supply_volt
    unit = square * frequency
    pitch, channel, wire, feature = (
        t.metal_pitch,
        t.channel_pitch,
        t.wire_capacitance_farad,
        t.feature_size,
    )
    depth = t.virtual_channels * t.buffer_depth
    # of femtofarads: a derivative passes 1 / farad^2 on its way, which float32 does not hold
    growth = (drain_out * 1e15) / (inverter * 1e15)
    load_growth = (drain_out * 1e15) / (gate_in * 1e15)
    chain = (5.0 / 16.0) * (1.0 + growth)
    width = select(is_unlimited(width_bits), 1.0, width_bits)

    def clock_power(fanout: float, bits: Number) -> Number:
        return fanout * (1.0 + chain) * bits * (8.0 * pitch * wire + inverter) * unit

    def flip_flop_power(fanout: float, bits: Number) -> Number:
        switching = 1.6 * (gate_in + drain_out)
        inner = 0.5 * (switching + 1.6 * (2.0 / 3.0) * drain_out)
        return fanout * bits * unit * (inner + switching + 1.6 * (2.0 / 3.0) * gate)

    line = unit * (
        1.25 * (1.0 + load_growth) * (12.0 * width * pitch * wire + 5.0 * width * gate_in)
        + (1.0 + (5.0 / 16.0) * (1.0 + load_growth))
        * (
            2.0 * wire * (8.0 * pitch + depth) * gate_in
            + width * (8.0 * feature * gate + 6.0 * pitch * wire)
        )
    )
    flip = square if rules.router_power == "watt-cycle" else unit
    bit = depth * (4.0 * feature * drain + 8.0 * pitch * wire)
    span = t.crossbar_ports * width * channel
    load = span * wire
    fan_in = load / 16.0
    fan_out = fan_in * 4.0 * growth
    kappa = chain
    crossbar = (
        0.5
        * width
        * unit
        * (
            kappa * (0.5 * wire * span + fan_in)
            + 2.0 * load
            + 6.0 * fan_in
            + 5.0 * fan_out
            + fan_out
        )
    )
    control = (1.0 + kappa) * unit * (t.crossbar_ports * width * load / 16.0 + 2.0 * span * wire)
    return RouterPower(
        wire=unit * (t.repeater_factor * (gate_in + drain_out) + wire),
        clock=clock_power(2.0, 2.0),
        data=flip_flop_power(2.0, 2.0),
        read=line + width * unit * bit,
        write=line + width * (flip * (drain_out + gate_in) + unit * bit),
        crossbar=crossbar,
        crossbar_control=control,
        output=flip_flop_power(1.0, width),
        output_clock=clock_power(1.0, width),
        frequency_hz=frequency,
    )


def mesh_energy_pj(
    power: RouterPower | None,
    network: Network,
    *,
    x: Number,
    y: Number,
    hops: Number,
    words: Number,
    word_hops: Number,
    rules: Conventions,
) -> Number:
    """Energy of one move through an x by y mesh.

    Args:
      power: power of its routers; None: no energy is modelled and 0 is returned.
      network: its channel width and queuing delay count.
      x: units along x that take part.
      y: units along y.
      hops: hops of the move, both directions together for an all-reduce.
      words: channel words (see `jaxcomet.cost.transfer.mesh_words`).
      word_hops: routers passed, summed over all words.
      rules: ``router_power`` and, for the program's form, ``mesh_queuing``.

    Returns:
      pJ. Each word switches every part of a router that it passes once. The program's form lets
      all routers of the mesh work for all cycles and reads watt-cycles as pJ. 0 for channels
      without limit.
    """
    if power is None:
        return 0.0
    if rules.router_power == "switched":
        energy = word_hops * power.word_pj
    else:
        energy = _program_energy(power, network, x, y, hops, words, rules)
    return select(is_unlimited(network.channel_width_bits), 0.0, energy)


def _program_energy(
    power: RouterPower,
    network: Network,
    x: Number,
    y: Number,
    hops: Number,
    words: Number,
    rules: Conventions,
) -> Number:
    queued = words * network.queuing_delay_cycles if rules.mesh_queuing == "per-word" else words
    time = hops + queued
    links = x * (y - 1.0) + y * (x - 1.0)
    routers = x * y
    output_clock = power.output_clock * hops * 2.0 * routers
    return (
        (power.wire + power.data) * time * links
        + power.clock * 2.0 * routers
        + (power.read + power.write) * queued * routers
        + power.crossbar * 3.0 * hops * routers
        + power.crossbar_control * (3.0 * hops + queued) * routers
        + power.output * time * routers
        + output_clock
        + output_clock * time * routers
    )
