"""The cost model: time, traffic, energy and occupancy of a mapping on a machine."""

from jaxcomet.cost.conventions import (
    COMET_PROGRAM as COMET_PROGRAM,
    DEFAULT as DEFAULT,
    PRESETS as PRESETS,
    ROOFLINE as ROOFLINE,
    ConventionError as ConventionError,
    Conventions as Conventions,
    conventions as conventions,
)
from jaxcomet.cost.evaluate import (
    cost_of as cost_of,
    evaluate as evaluate,
    evaluate_totals as evaluate_totals,
)
from jaxcomet.cost.result import Cost as Cost
