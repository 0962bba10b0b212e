"""Python processes that tests start, with an environment of their own."""

import os
from pathlib import Path

import jaxcomet

PACKAGE = Path(jaxcomet.__file__).parents[1]  # the tree, or where it is installed
SCRIPTS = Path(__file__).with_name("scripts")


def environment(**more):
    """Ours on a CPU, without what the tests' own process has settled on: devices and threads."""
    settled = ("NPROC", "XLA_FLAGS", "JAX_NUM_CPU_DEVICES")
    inherited = {key: value for key, value in os.environ.items() if key not in settled}
    path = os.pathsep.join(part for part in (str(PACKAGE), os.environ.get("PYTHONPATH")) if part)
    return {**inherited, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu", **more}
