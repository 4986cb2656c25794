"""Models: their architecture, a library of them, and their numbers of parameters and operations."""

from nadi.workload.generators.models.architecture import (
    Experts,
    LatentAttention,
    Model,
    active_parameters,
    by_part,
    mtp_parameters,
    parameters,
    training_flops,
)
from nadi.workload.generators.models.library import find, names
