"""The environment of all tests: emulated devices, checked annotations, repeatable hypothesis."""

import os
import sys
from importlib import metadata
from pathlib import Path

# Both must be set before jax starts its CPU client.
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = (
        os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
    ).strip()
# jaxlib before 0.12 sizes the thread pool of the CPU client by NPROC; with few cores and many
# sharded calls in flight the pool is exhausted and the process aborts.
if tuple(int(part) for part in metadata.version("jaxlib").split(".")[:2]) < (0, 12):
    os.environ.setdefault("NPROC", "16")

from hypothesis import settings
from jaxtyping import install_import_hook

# Last on the path, so that `tests.reference` is found wherever pytest is started, and an installed
# jaxcomet is still preferred to the one beside the tests.
sys.path.append(str(Path(__file__).resolve().parents[1]))

settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("repeatable")

# Annotations and array shapes are checked in the test run, not in production.
install_import_hook("jaxcomet", "beartype.beartype")
