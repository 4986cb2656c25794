"""Entry points to single helpers of the workers, so that tests can call them compiled."""

from pdes.core.jit import kernel
from pdes.workers.team import plan_next


@kernel
def plan(crew, lps, number):
    plan_next(crew, lps, number)
