from rich.console import Console

from jaxcomet import gemm_softmax, hardware, strategies
from jaxcomet.cli.nest import nest
from jaxcomet.mapping import describe

FACTORS = {"N_dram_sx": 2, "N_dram_sy": 2, "N_gb_sx": 2, "N_gb_sy": 2, "N_comp": 64, "K_comp": 128}


def test_the_tree_has_the_lines_of_the_description_below_each_other():
    op, machine = gemm_softmax(1, 1024, 128), hardware.load("edge")
    mapping = strategies.build(op, machine, "fused-gemm-distsm", FACTORS)
    console = Console(width=200, markup=False, highlight=False)
    with console.capture() as captured:
        console.print(nest(mapping))
    shown = captured.get().splitlines()
    assert [line.lstrip("│├└─ ").rstrip() for line in shown] == [
        line.strip() for line in describe(mapping.tree, mapping.factors).splitlines()
    ]
    assert shown[1].startswith("└── ")
