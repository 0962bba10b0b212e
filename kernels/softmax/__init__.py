"""Softmax over rows that are split over devices."""

from jaxcomet.kernels.softmax.api import distributed_softmax as distributed_softmax
