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
from jaxcomet.optimize.joint.design import (
    DesignError as DesignError,
)
from jaxcomet.optimize.joint.design import (
    DesignSpace as DesignSpace,
)
from jaxcomet.optimize.joint.design import (
    InfeasibleError as InfeasibleError,
)
from jaxcomet.optimize.joint.entry import (
    codesign as codesign,
)
from jaxcomet.optimize.joint.files import (
    load_space as load_space,
)
from jaxcomet.optimize.joint.files import (
    space_names as space_names,
)
from jaxcomet.optimize.joint.objectives import (
    pareto as pareto,
)
from jaxcomet.optimize.joint.outcome import (
    CodesignResult as CodesignResult,
)
from jaxcomet.optimize.joint.outcome import (
    DesignPoint as DesignPoint,
)
from jaxcomet.optimize.joint.store import (
    CheckpointError as CheckpointError,
)
from jaxcomet.optimize.joint.suites import (
    load_suite as load_suite,
)
from jaxcomet.optimize.joint.suites import (
    suite_names as suite_names,
)
from jaxcomet.optimize.joint.sweep import (
    Sweep as Sweep,
)
from jaxcomet.optimize.joint.sweep import (
    sweep as sweep,
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
