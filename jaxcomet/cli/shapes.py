"""The twelve GEMM-softmax shapes that the authors of COMET released, with their machines.

Source: d-matrix-ai/comet 917af0d, test/iterative_mapper/multiple_run.sh (edge) and
cloud_multiple_run.sh (cloud), in the order of the files; the labels are ours.
"""

SHAPES: dict[str, tuple[str, int, int, int]] = {
    "e1": ("edge", 256, 256, 128),
    "e2": ("edge", 1024, 1024, 256),
    "e3": ("edge", 1, 1024, 128),
    "e4": ("edge", 1, 512, 256),
    "e5": ("edge", 1, 2048, 256),
    "e6": ("edge", 512, 256, 128),
    "c1": ("cloud", 256, 256, 512),
    "c2": ("cloud", 2048, 2048, 256),
    "c3": ("cloud", 1, 4096, 512),
    "c4": ("cloud", 1, 8192, 128),
    "c5": ("cloud", 1, 16384, 128),
    "c6": ("cloud", 1024, 1024, 512),
}
"""Label to machine, M, N, K."""
