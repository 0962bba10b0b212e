"""Search for mappings and machines, by gradient and by enumeration, over the model."""

if not __name__.startswith("jaxcomet."):
    raise ImportError(f"import jaxcomet.{__name__}, not {__name__}")
