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
    own = list(range(len(traces))) if own is None else list(own)
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
    kept = [a for a in node.attr if a.name != name]
    del node.attr[:]
    node.attr.extend(kept)
    return node


def no_size(node):
    return without(node, "comm_size")


def ar(number, size=8, **more):
    return coll_node(number, "", AR, size, **more)


def send(number, size=8, tag=0, ends=(0, 1)):
    return send_node(number, "", *ends, size, tag)


def recv(number, size=8, tag=0, ends=(0, 1)):
    return recv_node(number, "", *ends, size, tag)


LACKS = "has no counterpart on member"
CASES = {
    "no size of a collective": ([[no_size(ar(4))]], {}, "node 4: comm_size is missing, expected more than 0"),
    "no size of a message": (
        [[no_size(send(5))], [recv(0)]], {}, "node 5: comm_size is missing, expected 0 or more",
    ),
    "a size of 0": ([[ar(4, 0)]], {}, "node 4: comm_size is 0, expected more than 0"),
    "no peer": (
        [[without(send(3), "comm_dst")]], {"npus": 2}, "node 3: comm_dst is missing, expected an NPU from 0 to 1",
    ),
    "a peer beyond": ([[recv(3, ends=(2, 0))]], {"npus": 2}, "node 3: comm_src is 2, expected an NPU from 0 to 1"),
    "a tag beyond": ([[send(3, tag=1 << 24)]], {"npus": 2}, "node 3: comm_tag is 16777216, expected below 2^24"),
    "an unknown group": (
        [[ar(3, pg_name="9")]], {"groups": {"1": (0,), "2": (0,)}},
        'node 3: group "9": unknown group, expected one of the group file ("1", "2")',
    ),
    "no member of its group": (
        [[ar(3, pg_name="1")]], {"npus": 4, "groups": {"1": (1, 2)}},
        'node 3: group "1": NPU 0 runs it but is not one of the group\'s 2 members',
    ),
    "a member that the fabric lacks": (
        [[ar(3, pg_name="1")]], {"groups": {"1": (0, 7)}}, '@group "1": member 7, expected an NPU from 0 to 0',
    ),
    "a member twice": (
        [[ar(3, pg_name="1")]], {"groups": {"1": (0, 0)}}, '@group "1": a member stands twice, expected each once',
    ),
    "a member without a trace": (
        [[ar(3)]], {"npus": 2}, f'node 3: group "": all-reduce of 8 B, the first of the group, {LACKS} NPU 1: no trace',
    ),
    "a member without collectives": (
        [[comp_node(0, "")], [coll_node(3, "", BARRIER, 8)]], {},
        (f'@t.1.et: node 3: group "": barrier, the first of the group, {LACKS} NPU 0: '
         "whose trace t.0.et has no collective of this group"),
    ),
    **{
        f"a member with fewer collectives, {missing}": (
            [[ar(1)], [ar(5), coll_node(6, "", AG, 4, deps=[5])]], {"own": own},
            (f'@t.1.et: node 6: group "": all-gather of 4 B, collective 1 of the group, {LACKS} '
             f"NPU {missing}, which issues 1 (t.0.et)"),
        )
        for own, missing in (([0, 1], 0), ([1, 1, 0], 2))
    },
    "other kinds": (
        [[ar(1)], [coll_node(5, "", AG, 8)]], {},
        ('node 1: group "": collective 0 on NPU 0 is all-reduce of 8 B, '
         "but on NPU 1 it is all-gather of 8 B (t.1.et: node 5)"),
    ),
    "other sizes": (
        [[ar(1)], [ar(5)], [ar(5, 4)]], {},
        ('node 1: group "": collective 0 on NPU 0 is all-reduce of 8 B, '
         "but on NPU 2 it is all-reduce of 4 B (t.2.et: node 5)"),
    ),
    "another order": (
        [[coll_node(i, "", kind, 8) for i, kind in enumerate(kinds)] for kinds in ((AR, AR, AG), (AR, AG, AR))], {},
        ('node 1: group "": collective 1 on NPU 0 is all-reduce of 8 B, '
         "but on NPU 1 it is all-gather of 8 B (t.1.et: node 1)"),
    ),
    "a send too many": (
        [[send(4, tag=7), send(5, tag=7)], [recv(0, tag=7)]], {},
        "node 5: send 1 from NPU 0 to NPU 1 with tag 7 has no receive there",
    ),
    "another tag": (
        [[send(4, tag=7)], [recv(0, tag=6)]], {},
        "@t.1.et: node 0: receive 0 on NPU 1 from NPU 0 with tag 6 has no send there",
    ),
    "a send to nobody": (
        [[send(4, tag=7)]], {"npus": 2}, "node 4: send 0 from NPU 0 to NPU 1 with tag 7 has no receive there",
    ),
    "a receive too many": (
        [[send(0)], [recv(4), recv(5)]], {},
        "@t.1.et: node 5: receive 1 on NPU 1 from NPU 0 with tag 0 has no send there",
    ),
    "sizes of a message": (
        [[send(3)], [recv(4, 9)]], {}, "node 3: NPU 0 sends 8 B, but NPU 1 expects 9 B (t.1.et: node 4)",
    ),
    "a message to itself": (
        [[send(3, ends=(0, 0))]], {"npus": 2},
        "node 3: NPU 0 sends to or receives from itself, expected another peer (comm_src 0, comm_dst 0)",
    ),
    "a trace of another NPU": (
        [[send(3)]], {"own": [-1, -1, 0]},
        "node 3: NPU 2 runs it, but its own end is another NPU's (comm_src 0, comm_dst 1)",
    ),
    "the first of several NPUs": (
        [[comp_node(0, "")], [ar(4, 0)], [ar(4, 0)]], {}, "@t.1.et: node 4: comm_size is 0, expected more than 0",
    ),
    "messages alone before sizes": (
        [[send(3)], [recv(4, 9), send(5, 8, 1, (1, 2)), send(6, 8, 1, (1, 2))], [recv(7, 7, 1, (1, 2))]], {},
        "@t.1.et: node 6: send 1 from NPU 1 to NPU 2 with tag 1 has no receive there",
    ),
}  # fmt: skip
"""Traces, how they are on the NPUs, and the error: of t.0.et, or with an @ of whatever it says."""


@pytest.mark.parametrize("name", CASES)
def test_what_does_not_fit_together_is_told(name):
    traces, how, text = CASES[name]
    assert error_of(*traces, **how) == (text[1:] if text[0] == "@" else f"t.0.et: {text}")


@pytest.mark.parametrize(
    ("traces", "own"),
    [
        ([[no_size(coll_node(0, "", BARRIER, 1))]], [0, 0]),
        ([[send(0, 0)], [recv(0, 0)]], [0, 1]),
        ([[coll_node(0, "", BARRIER, size)] for size in (1, 2)], [0, 1]),
        ([[coll_node(0, "", kind, 4)] for kind in (7, 8)], [0, 1]),
    ],
    ids=["a barrier without a size", "an empty message", "barriers of two sizes", "variants of reduce-scatter"],
)
def test_what_may_differ(traces, own):
    build_program([table_of(metadata(), nodes) for nodes in traces], own, 2)
