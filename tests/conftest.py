"""The environment of all tests: emulated devices, checked annotations, repeatable hypothesis."""

import importlib
import os
import sys
from pathlib import Path

# Before jax starts its CPU client.
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = (
        os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
    ).strip()

from hypothesis import settings

# Last on the path, so that `tests.reference` is found wherever pytest is started, and an installed
# jaxcomet is still preferred to the one beside the tests.
sys.path.append(str(Path(__file__).resolve().parents[1]))

settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("repeatable")

# Annotations, and the dtypes in them, are checked in the test run, not in production. CI runs the
# slow tests and those of the wheel as in production, which takes less time.
if os.environ.get("JAXCOMET_CHECK_ANNOTATIONS", "1") != "0":
    importlib.import_module("tests.annotations").check("jaxcomet")

# Before any test module starts jax: it asks for the threads that sharded calls need.
importlib.import_module("jaxcomet.kernels.devices")
