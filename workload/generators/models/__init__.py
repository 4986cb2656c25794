"""Models: their architecture, a library of them, and their numbers of parameters and operations."""

from nadi.workload.generators.models.library import find, names
from nadi.workload.generators.models.model import Experts, LatentAttention, Model
from nadi.workload.generators.models.operations import training_flops
from nadi.workload.generators.models.weights import active_parameters, parameters
