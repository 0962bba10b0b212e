"""What accelforge is given: our machine and our workload as lines of its YAML, and what is legal.

The one idea: both sides read the same description, so nothing can be set differently by hand. Only
what R2 and R2V have is written: main memory, one buffer, one array, one vector unit that reads and
writes the buffer; tensors of one byte an element. accelforge's units are bit, joule and second.
"""

from typing import Any

from jaxcomet.hardware import Machine, MatrixEngine, VectorEngine
from jaxcomet.workload import CompoundOp


def architecture(machine: Machine) -> list[str]:
    """A machine of one buffer and one array as lines of accelforge's YAML: bits, joule, seconds."""
    dram, glb, clock = machine.memories["dram"], machine.memories["glb"], machine.clock_hz
    (array,) = (e for e in machine.engines.values() if isinstance(e, MatrixEngine))
    vector = [e for e in machine.engines.values() if isinstance(e, VectorEngine)]
    free = "leak_power: 0, area: 0"

    def memory(name: str, given: Any, size: float, rate: float, keep: str) -> str:
        actions = ", ".join(
            f"{{name: {what}, energy: {energy * 1e-12}, throughput: {rate}}}"
            for what, energy in (
                ("read", given.read_energy_pj_per_byte),
                ("write", given.write_energy_pj_per_byte),
            )
        )
        return (
            f"  - !Memory {{name: {name}, size: {size}, {free}, bits_per_action: 8, "
            f"tensors: {{{keep}}}, actions: [{actions}]}}"
        )

    def compute(name: str, energy: float, rate: float, where: str) -> str:
        action = f"{{name: compute, energy: {energy * 1e-12}, throughput: {rate}}}"
        return f"  - !Compute {{name: {name}, {free}, actions: [{action}], enabled: {where}}}"

    rate = dram.child_bandwidth_bytes_per_cycle * clock
    lines = ["arch:", "  nodes:"]
    lines.append(memory("DRAM", dram, float("inf"), rate, "keep: ~Intermediates, may_keep: All"))
    lines.append(memory("GLB", glb, glb.capacity_bytes * 8, float("inf"), "keep: All"))
    for engine in vector:
        (energy,) = {op.energy_pj for op in engine.ops.values()}
        assert all(op.cycles == 1 for op in engine.ops.values())
        lines.append(compute("Vector", energy, engine.lanes * clock, "len(weight) == 0"))
    lines.append(
        "  - !Container {name: Array, spatial: ["
        f"{{name: columns, fanout: {int(array.array_columns)}, reuse: input}}, "
        f"{{name: rows, fanout: {int(array.array_rows)}, reuse: output}}]}}"
    )
    if array.weight_registers:
        actions = ", ".join(f"{{name: {n}, energy: 0, throughput: inf}}" for n in ("read", "write"))
        lines.append(
            f"  - !Memory {{name: Register, size: 8, {free}, tensors: {{keep: weight}}, "
            f"actions: [{actions}]}}"
        )
    lines.append(compute("MAC", array.mac_energy_pj, clock, "len(weight) == 1"))
    return lines


def cascade(workload: CompoundOp) -> list[str]:
    """A workload of one byte an element as lines of accelforge's YAML."""

    def access(name: str) -> str:
        return f"{name}[{','.join(workload.tensor(name).dims).lower()}]"

    sizes = ", ".join(f"{d}: {int(n)}" for d, n in workload.sizes.items())
    lines = ["workload:", f"  rank_sizes: {{{sizes}}}", "  bits_per_value: {All: 8}", "  einsums:"]
    for o in workload.operations:
        weight = o.inputs[1] if o.kind == "contract" else "Nothing"
        lines += [
            f"  - einsum: {access(o.output)} = {' * '.join(access(t) for t in o.inputs)}",
            f"    renames: {{input: {o.inputs[0]}, weight: {weight}, output: {o.output}}}",
        ]
    return lines


def held(workload: CompoundOp) -> dict[str, list[str]]:
    """Dimensions by tensor over which no loop may run around its place.

    Those that a reduction has summed up, for a consumer that steps over them; and those of a tensor
    that is read again once the reduction that it goes into has ended.
    """
    made = {o.output: o for o in workload.operations}

    def before(name: str) -> set[str]:
        """Tensors that one depends on, and itself."""
        inputs = made[name].inputs if name in made else ()
        return {name}.union(*(before(t) for t in inputs))

    found: dict[str, list[str]] = {}
    for reduction in workload.operations:
        reduced = [
            d
            for d in workload.iteration_dims(reduction)
            if d not in workload.tensor(reduction.output).dims
        ]
        for name in made:
            if not workload.is_intermediate(name) or name not in before(reduction.output):
                continue
            later = [
                o
                for o in workload.operations
                if name in o.inputs and any(reduction.output in before(t) for t in o.inputs)
            ]
            for d in reduced:
                if any(d in workload.iteration_dims(o) for o in later):
                    found.setdefault(name, []).append(d)
    return {name: sorted(set(dims)) for name, dims in found.items()}
