"""Whether two tables say the same, field by field, whatever their rows of words are numbered."""

import numpy as np

from tests.nonempty import nonempty

ARRAYS = (
    *("node_id", "type", "is_cpu_op", "start_time_micros", "duration_micros", "num_ops", "tensor_size", "tensor_loc"),
    *("comm_type", "comm_size", "comm_src", "comm_dst", "comm_tag", "comm_priority", "involved_dim", "dep_ptr", "dep"),
)
WORDS = {
    "group": "group_names",
    "in_split_size": "split_sizes",
    "out_split_size": "split_sizes",
    "operators": "operator_lists",
}


def check_alike(found, wanted, *, but=()):
    """Both tables have the same nodes; `but`: columns that may differ."""
    for name in nonempty(name for name in ARRAYS if name not in but):
        a, b = getattr(found, name), getattr(wanted, name)
        assert a.dtype == b.dtype, name
        assert np.array_equal(a, b), name
    for name, words in nonempty((name, words) for name, words in WORDS.items() if name not in but):
        a, b = ([getattr(table, words)[row] for row in getattr(table, name).tolist()] for table in (found, wanted))
        assert a == b, name
    assert list(found.names) == list(wanted.names)
    assert found.version == wanted.version
    assert found.metadata_groups == wanted.metadata_groups
    assert others(found) == others(wanted)


def others(table):
    rows = [0] * len(table) if table.other is None else table.other.tolist()
    return [table.other_attributes[row] for row in rows]
