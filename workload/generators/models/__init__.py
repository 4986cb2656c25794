"""Models: their architecture, a library of them, and their numbers of parameters and operations."""

from nadi.workload.generators.models.architecture import (
    Experts,
    LatentAttention,
    Model,
    active_parameters,
    by_part,
    mtp_parameters,
    parameters,
)
from nadi.workload.generators.models.library import find, names
from nadi.workload.generators.models.operations import training_flops
