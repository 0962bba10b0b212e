"""Search for the best mapping over the model: every mapping of a space, priced exactly."""

if not __name__.startswith("jaxcomet."):
    raise ImportError(f"import jaxcomet.{__name__}, not {__name__}")

from jaxcomet.optimize.enumeration import (
    OBJECTIVES as OBJECTIVES,
)
from jaxcomet.optimize.enumeration import (
    Best as Best,
)
from jaxcomet.optimize.enumeration import (
    Objective as Objective,
)
from jaxcomet.optimize.enumeration import (
    Searched as Searched,
)
from jaxcomet.optimize.enumeration import (
    enumerate_mappings as enumerate_mappings,
)
