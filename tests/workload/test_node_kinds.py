"""The engine has its own numbers of the kinds of trace nodes and of the lanes; they are those of a Program."""

from nadi.pdes.core import state
from nadi.pdes.npu import trace
from nadi.workload import node_kinds

KINDS = ("NOOP", "COMPUTE", "MEMORY", "SEND", "RECV", "COLLECTIVE")


def test_the_engine_and_programs_number_kinds_and_lanes_alike() -> None:
    assert [getattr(trace, f"KIND_{kind}") for kind in KINDS] == [getattr(node_kinds, kind) for kind in KINDS]
    assert (state.COMPUTE_LANE, state.LANES) == (node_kinds.COMPUTE_LANE, node_kinds.REMOTE_LANE + 1)
