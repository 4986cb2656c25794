"""Traces of training steps, generated without a GPU from a model, a parallel plan and a framework's behaviour.

`workload.generators.training.generator` generates them. It uses `workload.generators.memory` for the transfers of
offloading, which itself uses the rules and stages of this package.
"""

from nadi.workload.generators.training.dispatchers import held_sms
from nadi.workload.generators.training.interference import (
    channels_on,
    compute_slowdown,
    copied_groups,
    products_leave_sms,
)
from nadi.workload.generators.training.item_lists import Compute, GroupCollective, Items
from nadi.workload.generators.training.parallel_plan import ParallelPlan, parallel_plan
from nadi.workload.generators.training.recomputation import recompute_options
from nadi.workload.generators.training.stages import Chunk, chunks, families, micro_batches, pipeline_of, stage_size
