"""Dense peaks, bits and bytes: T07 of the users' list.

Asked for in Lightning-AI/pytorch-lightning 21743, pytorch/pytorch 182023, bytedance/flux 117: the
peak of an H100 SXM is 989.5 TFLOP/s in bf16 for dense matrices (NVIDIA H100 Tensor Core GPU
Architecture, table 2: 1,830 MHz boost, 132 SMs with 4 tensor cores of 512 multiply-accumulates a
cycle); the doubled figure is for 2:4 sparse ones. A port's rate is in bits, a message in bytes.
"""

import pytest

from jaxcomet import evaluate, gemm, strategies
from jaxcomet.cost import Fabric, conventions, exchange
from jaxcomet.hardware import Level, Machine, MatrixEngine, Memory, Network, Port, units

INF = float("inf")
CLOCK_HZ = 1.83e9
SMS = (12, 11)


def _h100() -> Machine:
    """132 units of 2,048 multiply-accumulates a cycle, fed without limit: the peak alone."""
    free = Network(
        port_bandwidth_bytes_per_cycle=INF,
        hop_latency_cycles=0.0,
        queuing_delay_cycles=0.0,
        channel_width_bits=INF,
        num_ports=1.0,
        broadcast=True,
        reduction=True,
    )

    def memory(name: str, parent: str | None) -> Memory:
        return Memory(
            name=name,
            level=name,
            parent=parent,
            capacity_bytes=None,
            child_bandwidth_bytes_per_cycle=INF,
            parent_bandwidth_bytes_per_cycle=None if parent is None else INF,
            link_bandwidth_bytes_per_cycle=None,
            read_energy_pj_per_byte=0.0,
            write_energy_pj_per_byte=0.0,
            network=None if parent is None else free,
            duplex=True,
            shared_ports=False,
            double_buffered=True,
        )

    tensor_cores = MatrixEngine(
        name="tensor",
        level="sm",
        operands=("sm", "sm"),
        result="sm",
        ports={"sm": Port(bandwidth_bytes_per_cycle=INF, hop_latency_cycles=0.0)},
        array_rows=16.0,
        array_columns=32.0,
        grid_rows=2.0,
        grid_columns=2.0,
        mac_energy_pj=0.0,
        array="broadcast",
    )
    return Machine(
        name="h100-peak",
        levels=(
            Level(name="hbm", mesh_x=1.0, mesh_y=1.0),
            Level(name="sm", mesh_x=float(SMS[0]), mesh_y=float(SMS[1])),
        ),
        memories={"hbm": memory("hbm", None), "sm": memory("sm", "hbm")},
        engines={"tensor": tensor_cores},
        router=None,
        clock_hz=CLOCK_HZ,
    )


def test_a_product_of_side_4096_takes_the_time_of_the_dense_peak():
    peak = 2 * 132 * 4 * 512 * CLOCK_HZ
    assert peak == pytest.approx(989.5e12, rel=1e-3)
    workload, machine = gemm(4096, 4096, 4096, operand_bits=16, output_bits=16), _h100()
    # without links the rows are dealt out: 12 x 11 units of 32 rows, the last ones without work
    factors = {"M_hbm_sx": 12, "M_hbm_sy": 11, "M_comp": 32, "N_sm_t": 64, "N_comp": 64}
    factors |= {"K_sm_t": 128, "K_comp": 32}
    mapping = strategies.build(workload, machine, "tiled", factors)
    cost = evaluate(workload, mapping, machine, conventions=conventions("roofline"))
    seconds = float(cost.latency_cycles) / CLOCK_HZ
    assert seconds >= 138.9e-6 * (1 - 1e-3)  # 69.4 us would be the sparse peak
    # 128 of 132 units have rows: 4096 x 64 x 128 rows of 32 a unit
    assert cost.latency_cycles == 32 * 64 * 128
    assert cost.utilization == pytest.approx(4096**3 / (32 * 64 * 128 * 132 * 2048))


@pytest.mark.parametrize(("size", "milliseconds"), [(1e9, 20.0), (2.0**30, 21.47)])
def test_a_port_of_400_gigabit_takes_bytes(size: float, milliseconds: float):
    bytes_per_second = units.to_base(400.0, "Gbit/s", units.BANDWIDTH, clock_hz=1.0)
    assert bytes_per_second == 50e9
    pair = Fabric(topology="switch", x=2.0, step_latency=0.0, bandwidth=bytes_per_second)
    assert exchange("permute", size, pair).time == pytest.approx(milliseconds / 1e3, rel=1e-3)
