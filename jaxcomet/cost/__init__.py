"""The cost model: time, traffic, energy and occupancy of a mapping on a machine."""

from jaxcomet.cost.conventions import (
    COMET_PROGRAM as COMET_PROGRAM,
)
from jaxcomet.cost.conventions import (
    DEFAULT as DEFAULT,
)
from jaxcomet.cost.conventions import (
    PRESETS as PRESETS,
)
from jaxcomet.cost.conventions import (
    ROOFLINE as ROOFLINE,
)
from jaxcomet.cost.conventions import (
    ConventionError as ConventionError,
)
from jaxcomet.cost.conventions import (
    Conventions as Conventions,
)
from jaxcomet.cost.conventions import (
    conventions as conventions,
)
from jaxcomet.cost.evaluate import (
    Totals as Totals,
)
from jaxcomet.cost.evaluate import (
    cost_of as cost_of,
)
from jaxcomet.cost.evaluate import (
    evaluate as evaluate,
)
from jaxcomet.cost.evaluate import (
    evaluate_relaxed as evaluate_relaxed,
)
from jaxcomet.cost.evaluate import (
    evaluate_totals as evaluate_totals,
)
from jaxcomet.cost.evaluate import (
    totals_of as totals_of,
)
from jaxcomet.cost.exchange import (
    Exchange as Exchange,
)
from jaxcomet.cost.exchange import (
    ExchangeError as ExchangeError,
)
from jaxcomet.cost.exchange import (
    algorithms as algorithms,
)
from jaxcomet.cost.exchange import (
    bound as bound,
)
from jaxcomet.cost.exchange import (
    exchange as exchange,
)
from jaxcomet.cost.fabric import Fabric as Fabric
from jaxcomet.cost.result import Cost as Cost
