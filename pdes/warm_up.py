"""Compilation of all kernels that any run may use, before the first one (`nadi doctor --compile`)."""

import time

import numpy as np

from nadi.pdes.checkpoint.packets import wait_on_links
from nadi.pdes.checkpoint.queues import follow_queues
from nadi.pdes.construction.constants import all_hooks
from nadi.pdes.core.jit import compile_for, hook_address
from nadi.pdes.messages import message_loop, posting
from nadi.pdes.workers.other_teams import OTHER_TEAMS
from nadi.pdes.workers.worker_pool import compile_kernels


def compile_all() -> float:
    """Compile or load all kernels of any run, and return the seconds."""
    begun = time.perf_counter()
    compile_entries()
    compile_hooks()
    return time.perf_counter() - begun


def compile_entries() -> None:
    """Compile or load the kernels that Python calls."""
    compile_kernels()
    compile_for(message_loop.work_messages, 0, 0, 0)
    compile_for(posting.post_from_outside, 0, 0, 0, 0, 0, 0)
    compile_for(posting.next_message_event_ps, 0)
    compile_for(wait_on_links, 0, 0, 0)
    compile_for(follow_queues, *[np.zeros(1, np.int64)] * 6)


def compile_hooks() -> None:
    """Compile or load the kernels that other kernels call by their addresses, of which a run uses some."""
    for function in [*all_hooks(), *OTHER_TEAMS.values()]:
        hook_address(function)
