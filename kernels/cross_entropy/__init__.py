"""Cross-entropy over a vocabulary that is split over devices, from logits or from a product."""

from jaxcomet.kernels.cross_entropy.api import cross_entropy as cross_entropy
from jaxcomet.kernels.cross_entropy.api import linear_cross_entropy as linear_cross_entropy
