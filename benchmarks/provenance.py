"""Where a measurement comes from: date, commit, machine and versions."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def commit() -> str:
    """The checkout's commit, with a mark if files differ from it."""

    def git(*words: str) -> str:
        found = subprocess.run(
            ["git", *words], cwd=ROOT, capture_output=True, text=True, check=False
        )
        return found.stdout.strip()

    return (git("rev-parse", "HEAD") or "unknown") + ("+" if git("status", "--porcelain") else "")


def provenance() -> dict[str, Any]:
    """What a file of raw samples says about where they come from; starts JAX."""
    import jax

    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "device": jax.devices()[0].device_kind,
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "processor": platform.processor() or platform.machine(),
        "versions": {
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("jax", "jaxlib", "numpy")},
        },
    }
