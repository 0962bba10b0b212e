"""Search for the best mapping: enumerated and proven, or by gradients and local moves; bounds."""

if not __name__.startswith("jaxcomet."):
    raise ImportError(f"import jaxcomet.{__name__}, not {__name__}")

from jaxcomet.optimize.enumeration import (
    Best as Best,
)
from jaxcomet.optimize.enumeration import (
    Searched as Searched,
)
from jaxcomet.optimize.enumeration import (
    enumerate_mappings as enumerate_mappings,
)
from jaxcomet.optimize.pricing import (
    OBJECTIVES as OBJECTIVES,
)
from jaxcomet.optimize.pricing import (
    Objective as Objective,
)
from jaxcomet.optimize.result import (
    ImpossibleError as ImpossibleError,
)
from jaxcomet.optimize.result import (
    MapResult as MapResult,
)
from jaxcomet.optimize.result import (
    SearchError as SearchError,
)
from jaxcomet.optimize.search import (
    map as map,
)
from jaxcomet.optimize.space import (
    ConstraintError as ConstraintError,
)
from jaxcomet.optimize.space import (
    Scope as Scope,
)
