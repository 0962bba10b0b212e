from jaxcomet.cli.again import command
from jaxcomet.cli.record import Record

RECORD = Record(
    workload="attention",
    sizes={
        "batch": 1.0,
        "heads": 8.0,
        "kv_heads": 2.0,
        "q": 16.0,
        "kv": 16.0,
        "head_dim": 64.0,
        "value_dim": 64.0,
    },
    workload_options={"causal": True},
    strategy="flash",
    options={"spread": "keys", "tiling": "rows", "algorithm": "auto", "binding": "sequential"},
    machine="my machine.toml",
    machine_overrides=("memory.gb.capacity=4 MiB",),
    preset="roofline",
    convention_options={"staging": "serial"},
    factors={"M_dram_t": 1.0, "N_comp": 16.0},
    loop_orders={"core": "NKM"},
)


def test_what_differs_from_the_defaults_is_in_the_command_and_nothing_else():
    words = command(RECORD).replace(" \\\n ", "")
    assert words == (
        "jaxcomet evaluate attention --strategy flash --machine 'my machine.toml' "
        "--set 'memory.gb.capacity=4 MiB' --heads 8 --kv-heads 2 --q 16 --head-dim 64 --causal "
        "--spread keys --algorithm auto --loop-order core=NKM --factor N_comp=16 "
        "--conventions roofline --convention staging=serial"
    )


def test_lines_are_short():
    lines = command(RECORD).split(" \\\n")
    assert len(lines) > 1
    assert max(map(len, lines)) <= 98
