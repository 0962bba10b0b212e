"""Machines: the pytree that the model reads, and the files that describe one."""

if not __name__.startswith("jaxcomet."):
    raise ImportError(f"import jaxcomet.{__name__}, not {__name__}")

from jaxcomet.hardware import numbers as numbers
from jaxcomet.hardware.entries import Choice as Choice
from jaxcomet.hardware.entries import Quantity as Quantity
from jaxcomet.hardware.entries import Switch as Switch
from jaxcomet.hardware.errors import MachineFileError as MachineFileError
from jaxcomet.hardware.errors import Problem as Problem
from jaxcomet.hardware.loader import Override as Override
from jaxcomet.hardware.loader import load as load
from jaxcomet.hardware.loader import machine_names as machine_names
from jaxcomet.hardware.loader import read_spec as read_spec
from jaxcomet.hardware.loader import to_machine as to_machine
from jaxcomet.hardware.machine import Level as Level
from jaxcomet.hardware.machine import Machine as Machine
from jaxcomet.hardware.machine import MatrixEngine as MatrixEngine
from jaxcomet.hardware.machine import Memory as Memory
from jaxcomet.hardware.machine import Network as Network
from jaxcomet.hardware.machine import Port as Port
from jaxcomet.hardware.machine import RouterTechnology as RouterTechnology
from jaxcomet.hardware.machine import Scalar as Scalar
from jaxcomet.hardware.machine import VectorEngine as VectorEngine
from jaxcomet.hardware.machine import VectorOp as VectorOp
from jaxcomet.hardware.schema import MachineSpec as MachineSpec
from jaxcomet.hardware.technology import Area as Area
from jaxcomet.hardware.technology import PowerLaw as PowerLaw
from jaxcomet.hardware.technology import Sram as Sram
from jaxcomet.hardware.technology import Technology as Technology
from jaxcomet.hardware.technology import area as area
from jaxcomet.hardware.technology import outside as outside
from jaxcomet.hardware.technology import scaled_energies as scaled_energies
from jaxcomet.hardware.technology_file import load_technology as load_technology
from jaxcomet.hardware.technology_file import technology_names as technology_names
