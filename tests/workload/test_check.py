"""Every error between traces, one by one, with its text."""

import pytest

from nadi.et import CollectiveCommType, coll_node, comp_node, metadata, recv_node, send_node, table_of
from nadi.workload import WorkloadError, build_program
from tests.workload.ranks import build_on_ranks

AR, AG, BARRIER = CollectiveCommType.ALL_REDUCE, CollectiveCommType.ALL_GATHER, CollectiveCommType.BARRIER


def error_of(*traces, npus=None, groups=None, own=None):
    """Text of the error that these lists of nodes raise, trace i on NPU i unless told otherwise.

    Ranks that share the NPUs in any way raise it too, all of them.
    """
    tables = [table_of(metadata(), nodes, f"t.{i}.et") for i, nodes in enumerate(traces)]
    own = list(range(len(traces))) if own is None else own
    npus = npus or len(own)
    own += [-1] * (npus - len(own))
    with pytest.raises(WorkloadError) as error:
        build_program(tables, own, npus, groups)
    assert error.value.exit_code == 2
    for n in (2, 3):
        for rank_of_npu in ([npu % n for npu in range(npus)], [(npus - npu) % n for npu in range(npus)]):
            of_ranks = build_on_ranks(n, rank_of_npu, tables, own, groups)
            assert [(type(e), str(e)) for e in of_ranks] == [(WorkloadError, str(error.value))] * n
    return str(error.value)


def without(node, name):
    """The node without an attribute."""
    kept = [a for a in node.attr if a.name != name]
    del node.attr[:]
    node.attr.extend(kept)
    return node


def test_comm_size_is_missing():
    node = without(coll_node(4, "", AR, 1), "comm_size")
    assert error_of([node]) == "t.0.et: node 4: comm_size is missing, expected more than 0"
    send = without(send_node(5, "", 0, 1, 1), "comm_size")
    assert error_of([send], [recv_node(0, "", 0, 1, 1)]) == "t.0.et: node 5: comm_size is missing, expected 0 or more"


def test_comm_size_is_zero():
    assert error_of([coll_node(4, "", AR, 0)]) == "t.0.et: node 4: comm_size is 0, expected more than 0"


def test_a_barrier_needs_no_size_and_a_message_may_be_empty():
    nodes = [without(coll_node(0, "", BARRIER, 1), "comm_size")]
    build_program([table_of(metadata(), nodes)], [0, 0], 2)
    traces = [[send_node(0, "", 0, 1, 0)], [recv_node(0, "", 0, 1, 0)]]
    build_program([table_of(metadata(), nodes) for nodes in traces], [0, 1], 2)


def test_peer_is_missing_or_out_of_range():
    gone = without(send_node(3, "", 0, 1, 8), "comm_dst")
    assert error_of([gone], npus=2) == "t.0.et: node 3: comm_dst is missing, expected an NPU from 0 to 1"
    far = recv_node(3, "", 2, 0, 8)
    assert error_of([far], npus=2) == "t.0.et: node 3: comm_src is 2, expected an NPU from 0 to 1"


def test_tag_is_out_of_range():
    node = send_node(3, "", 0, 1, 8, 1 << 24)
    assert error_of([node], npus=2) == "t.0.et: node 3: comm_tag is 16777216, expected below 2^24"


def test_unknown_group():
    node = coll_node(3, "", AR, 8, pg_name="9")
    assert error_of([node], groups={"1": (0,), "2": (0,)}) == (
        't.0.et: node 3: group "9": unknown group, expected one of the group file ("1", "2")'
    )


def test_not_a_member_of_the_own_group():
    node = coll_node(3, "", AR, 8, pg_name="1")
    assert error_of([node], npus=4, groups={"1": (1, 2)}) == (
        't.0.et: node 3: group "1": NPU 0 runs it but is not one of the group\'s 2 members'
    )


def test_member_that_the_fabric_lacks():
    node = coll_node(3, "", AR, 8, pg_name="1")
    assert error_of([node], groups={"1": (0, 7)}) == 'group "1": member 7, expected an NPU from 0 to 0'
    assert error_of([node], groups={"1": (0, 0)}) == 'group "1": a member stands twice, expected each once'


def test_member_without_a_trace():
    assert error_of([coll_node(3, "", AR, 8)], npus=2) == (
        't.0.et: node 3: group "": all-reduce of 8 B, the first of the group, has no counterpart on member NPU 1: '
        "no trace"
    )


def test_member_that_does_not_use_the_group():
    assert error_of([comp_node(0, "")], [coll_node(3, "", BARRIER, 8)]) == (
        't.1.et: node 3: group "": barrier, the first of the group, has no counterpart on member NPU 0: '
        "whose trace t.0.et has no collective of this group"
    )


def test_member_with_fewer_collectives():
    one = [coll_node(1, "", AR, 8)]
    two = [coll_node(5, "", AR, 8), coll_node(6, "", AG, 4, deps=[5])]
    for own, missing in (([0, 1], 0), ([1, 1, 0], 2)):
        assert error_of(one, two, own=own) == (
            f't.1.et: node 6: group "": all-gather of 4 B, collective 1 of the group, has no counterpart on member '
            f"NPU {missing}, which issues 1 (t.0.et)"
        )


def test_members_that_disagree():
    ar, ag, small = coll_node(5, "", AR, 8), coll_node(5, "", AG, 8), coll_node(5, "", AR, 4)
    first = coll_node(1, "", AR, 8)
    assert error_of([first], [ag]) == (
        't.0.et: node 1: group "": collective 0 on NPU 0 is all-reduce of 8 B, '
        "but on NPU 1 it is all-gather of 8 B (t.1.et: node 5)"
    )
    assert error_of([first], [ar], [small]) == (
        't.0.et: node 1: group "": collective 0 on NPU 0 is all-reduce of 8 B, '
        "but on NPU 2 it is all-reduce of 4 B (t.2.et: node 5)"
    )


def test_members_that_disagree_in_order():
    def nodes(*types):
        return [coll_node(i, "", kind, 8) for i, kind in enumerate(types)]

    assert error_of(nodes(AR, AR, AG), nodes(AR, AG, AR)) == (
        't.0.et: node 1: group "": collective 1 on NPU 0 is all-reduce of 8 B, '
        "but on NPU 1 it is all-gather of 8 B (t.1.et: node 1)"
    )


def test_barriers_may_differ_in_size_and_variants_of_reduce_scatter_are_the_same():
    for a, b in (
        (coll_node(0, "", BARRIER, 1), coll_node(0, "", BARRIER, 2)),
        (coll_node(0, "", 7, 4), coll_node(0, "", 8, 4)),
    ):
        build_program([table_of(metadata(), [n]) for n in (a, b)], [0, 1], 2)


def test_send_without_receive():
    sends = [send_node(4, "", 0, 1, 8, 7), send_node(5, "", 0, 1, 8, 7)]
    assert error_of(sends, [recv_node(0, "", 0, 1, 8, 7)]) == (
        "t.0.et: node 5: send 1 from NPU 0 to NPU 1 with tag 7 has no receive there"
    )
    assert error_of(sends[:1], [recv_node(0, "", 0, 1, 8, 6)]) == (
        "t.1.et: node 0: receive 0 on NPU 1 from NPU 0 with tag 6 has no send there"
    )
    assert error_of(sends[:1], npus=2) == "t.0.et: node 4: send 0 from NPU 0 to NPU 1 with tag 7 has no receive there"


def test_receive_without_send():
    receives = [recv_node(4, "", 0, 1, 8), recv_node(5, "", 0, 1, 8)]
    assert error_of([send_node(0, "", 0, 1, 8)], receives) == (
        "t.1.et: node 5: receive 1 on NPU 1 from NPU 0 with tag 0 has no send there"
    )


def test_sizes_of_a_message_differ():
    assert error_of([send_node(3, "", 0, 1, 8)], [recv_node(4, "", 0, 1, 9)]) == (
        "t.0.et: node 3: NPU 0 sends 8 B, but NPU 1 expects 9 B (t.1.et: node 4)"
    )


def test_a_message_to_itself():
    assert error_of([send_node(3, "", 0, 0, 8)], npus=2) == (
        "t.0.et: node 3: NPU 0 sends to or receives from itself, expected another peer (comm_src 0, comm_dst 0)"
    )


def test_a_trace_of_another_npu():
    assert error_of([send_node(3, "", 0, 1, 8)], own=[-1, -1, 0]) == (
        "t.0.et: node 3: NPU 2 runs it, but its own end is another NPU's (comm_src 0, comm_dst 1)"
    )


def test_of_several_faults_the_first_npu_s_is_told():
    zero = coll_node(4, "", AR, 0)
    assert error_of([comp_node(0, "")], [zero], [zero]) == "t.1.et: node 4: comm_size is 0, expected more than 0"


def test_messages_alone_are_told_before_sizes_that_differ():
    traces = [
        [send_node(3, "", 0, 1, 8)],
        [recv_node(4, "", 0, 1, 9), send_node(5, "", 1, 2, 8, 1), send_node(6, "", 1, 2, 8, 1)],
        [recv_node(7, "", 1, 2, 7, 1)],
    ]
    assert error_of(*traces) == "t.1.et: node 6: send 1 from NPU 1 to NPU 2 with tag 1 has no receive there"
