"""Bug reports of other projects, each with a test here that names it, or the reason why not.

The one idea: numerics of normalization, attention and losses go wrong in few ways, again and again.
Who finds another report adds it here, and its minimal input with the right answer to the tests.
"""

import re
from pathlib import Path

import pytest

TESTED = {
    # LayerNorm, RMSNorm
    "pytorch": (
        *(51102, 40302, 41527, 162489, 173793, 186577),
        *(103749, 110213, 41508, 101967, 121558, 119131, 196678),  # attention
    ),
    "onnxruntime": (28463, 21935, 29034),
    "burn": (5607,),
    "mlx": (2238, 4188),
    "samples": (88,),
    "tvm": (19643,),
    "tensorflow": (118701,),
    "tt-metal": (45968, 55159),
    "equinox": (314,),
    "jax": (39899, 17117, 21495, 32242),
    "xla": (3658,),
    "triton": (9838,),
    "Liger": (950, 1462, 830, 1329),
    "TransformerEngine": (1132, 3193),
    "apex": (411,),
    "IRON": (139,),
    # softmax, attention
    "optax": (1762,),
    "candle": (3727,),
    "executorch": (20090,),
    "flash-attention": (334, 443, 978, 2082),
    "flashinfer": (4051, 4401),
    "lattice": (361,),
    "transformers": (17306,),
    "ring-flash-attention": (30,),
    "DeepLearningExamples": (169,),
    "ik_llama.cpp": (1196,),
    # cross-entropy
    "Megatron-LM": (737, 7464),
}
NOT_TESTED = {
    "Liger 871": "a compiler's fault, which showed as results of 0: any test of values shows it",
    "tensorflow 24979": "the same as pytorch 41527",
    "flax 982": "the same as transformers 17306: a finite number that stands for minus infinity",
}
"""Reports that call for no test of their own, with the reason."""


def _sources() -> str:
    here = Path(__file__)
    return "\n".join(
        path.read_text(encoding="utf-8") for path in here.parent.glob("*.py") if path != here
    )


@pytest.mark.parametrize(
    ("project", "number"), [(name, number) for name, all_ in TESTED.items() for number in all_]
)
def test_a_report_has_its_test(project: str, number: int):
    name = re.escape(project)
    assert re.search(rf"{name}[^\n]*\b{number}\b", _sources()), f"no test names {project} {number}"
