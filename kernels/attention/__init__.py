"""Attention, from scores kept whole to blocks that go round a ring of devices."""

from jaxcomet.kernels.attention.api import attention as attention
