"""What is wrong with the words of a command line or with a file that it names."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Input that cannot be used: the message says where, what was got and what is allowed."""


def near(name: str, known: Iterable[str]) -> str:
    """Known names for a message: the closest ones where some are close, else all of them.

    Example:
      >>> near("M_copm", ["M_comp", "N_comp", "K_comp"])
      'did you mean M_comp or N_comp or K_comp?'
      >>> near("x", ["M_comp", "N_comp"])
      'known: M_comp, N_comp'
    """
    known = list(known)
    close = difflib.get_close_matches(name, known, n=3)
    return (
        f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(known) or 'none'}"
    )


def is_user_error(error: ValueError) -> bool:
    """Whether an error tells the user what to change, and needs no traceback."""
    from jaxcomet.cost.conventions import ConventionError
    from jaxcomet.hardware.errors import MachineFileError
    from jaxcomet.kernels.errors import KernelError
    from jaxcomet.mapping import MappingError
    from jaxcomet.optimize import ConstraintError, SearchError
    from jaxcomet.workload import WorkloadError

    known = (
        InputError,
        ConstraintError,
        ConventionError,
        KernelError,
        MachineFileError,
        MappingError,
        SearchError,
        WorkloadError,
    )
    return isinstance(error, known)
