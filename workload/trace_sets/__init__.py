"""Sets of traces, one per NPU or shared, from files or generators, with the groups that they name."""

from nadi.workload.trace_sets.files import (
    check_prefix,
    describe_set,
    expanded_tables,
    is_set,
    read_ranks,
    staged_traces,
    with_node_counts,
    write_set,
)
from nadi.workload.trace_sets.groups import GroupTable
from nadi.workload.trace_sets.load import TRACE_ENDINGS, files_of, files_of_traces, users_of_contents
from nadi.workload.trace_sets.manifest import read_manifest, repeated
from nadi.workload.trace_sets.trace_set import ELSEWHERE, IDLE, Families, TraceSet, TraceView
