"""Models: their architecture, a library of them, and their numbers of parameters and operations."""

from workload.generators.models.library import find, names
from workload.generators.models.model import Experts, LatentAttention, Model
from workload.generators.models.operations import training_flops
from workload.generators.models.weights import active_parameters, parameters
