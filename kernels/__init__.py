"""Sharded JAX kernels for the mapping strategies of the model; imports nothing else of ours."""

if not __name__.startswith("jaxcomet."):
    raise ImportError(f"import jaxcomet.{__name__}, not {__name__}")
