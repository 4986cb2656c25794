import pytest

from nadi.et.pytorch.comm_calls import (
    GROUP_ANNOTATION,
    RECV,
    SEND,
    call_of_host,
    call_of_kineto,
    kind_named,
    with_issuer,
)
from nadi.et.pytorch.host_trace import HostOp
from nadi.et.pytorch.injected import nadi_collecting
from nadi.et.schema import CollectiveCommType as Kind

TENSOR = [5, 6, 0, 1000, 2, "cuda:0"]


def record(inputs, types, **attributes):
    return HostOp(1, "record_param_comms", 0, 1, 1, inputs, types, [], attributes)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("allreduce", Kind.ALL_REDUCE),
        ("_allgather_base", Kind.ALL_GATHER),
        ("all_gather_into_tensor_coalesced", Kind.ALL_GATHER),
        ("reduce_scatter_tensor_coalesced", Kind.REDUCE_SCATTER),
        ("all_to_allv", Kind.ALL_TO_ALL),
        ("c10d::alltoall_base_", Kind.ALL_TO_ALL),
        ("c10d::allreduce_coalesced_", Kind.ALL_REDUCE),
        ("reduce", Kind.REDUCE),
        ("scatter", Kind.SCATTER),
        ("send", SEND),
        ("recv_any_source", RECV),
        ("wait", None),
        ("all_reduce_of_the_future", None),
    ],
)
def test_a_name_means_its_kind_or_none(name, kind):
    assert kind_named(name) == kind


OLD = ([[TENSOR], 3, 93825114103440, 0, "allreduce", [], [], 8], ["GenericList[Tensor(c10::Half)]", *["Int"] * 7])
NEW = ([[TENSOR], 3, ["1", "tp"], 0, "allreduce", [], [], 4, 2, 8], ["GenericList[Tensor(float)]", *["Int"] * 9])


def test_every_schema_says_kind_bytes_and_group():
    old = call_of_host(record(*OLD))
    assert (old.kind, old.size_bytes, old.group, old.group_size, old.dtype) == (0, 2000, "93825114103440", 8, "Half")
    new = call_of_host(record(*NEW, pg_name="1", pg_size=8, global_rank_start=4, global_rank_stride=2, dtype="Half"))
    assert (new.kind, new.size_bytes, new.group, new.ranks) == (0, 2000, "1", tuple(range(4, 20, 2)))
    assert call_of_host(record([3, 0, 0, "wait", [], [], 1], ["Int"] * 7)) is None


def test_split_sizes_and_sizes_in_elements_are_kept():
    args = {"Collective name": "all_to_allv", "In msg nelems": 6, "Out msg nelems": 4, "dtype": "BFloat16"}
    call = call_of_kineto("record_param_comms", args | {"In split size": "[4, 2]", "Out split size": "[1, 3]"})
    assert (call.size_bytes, call.in_split, call.out_split) == (12, (4, 2), (1, 3))
    cut = call_of_kineto("record_param_comms", args | {"In split size": "[4, ...]"})
    assert cut.in_split == ()


def test_gloo_has_peers_and_splits_from_what_has_issued_it():
    send = call_of_kineto("gloo:send", {"Input Dims": [[4]], "Input type": ["float"]})
    send = with_issuer(send, "c10d::send", ["", "", "3", "17"])
    assert (send.kind, send.size_bytes, send.peer, send.tag) == (SEND, 16, 3, 17)
    even = call_of_kineto("gloo:all_to_all", {"Input Dims": [[4]], "Input type": ["float"]})
    uneven = with_issuer(even, "c10d::alltoall_base_", ["", "", "", "[3, 1]", "[1, 3]", "False", "-1"])
    assert (uneven.in_split, uneven.out_split) == ((1, 3), (3, 1))
    assert call_of_kineto("gloo:barrier", {}).size_bytes == 0
    assert call_of_kineto("gloo:all_reduce", {}).size_bytes == -1


def test_the_annotation_of_groups_is_that_of_the_collector():
    assert GROUP_ANNOTATION == nadi_collecting.GROUP_ANNOTATION
