import pytest

from nadi import et


def kinds(node):
    return {attribute.name: attribute.WhichOneof("value") for attribute in node.attr}


def test_attributes_have_the_types_that_astra_sim_reads(small_trace):
    _, (group, load, comp, coll, send, recv, _) = small_trace
    assert kinds(group) == {"is_cpu_op": "bool_val", "pg_name": "string_val", "ranks": "int32_list"}
    assert kinds(load) == {"is_cpu_op": "bool_val", "tensor_size": "uint64_val", "tensor_loc": "int32_val"}
    assert kinds(comp) == {"is_cpu_op": "bool_val", "num_ops": "int64_val", "tensor_size": "uint64_val"}
    assert kinds(coll) == {
        "is_cpu_op": "bool_val", "comm_type": "int64_val", "comm_size": "int64_val", "comm_priority": "int32_val",
        "pg_name": "string_val",
    }  # fmt: skip
    peers = {
        "is_cpu_op": "bool_val", "comm_size": "int64_val", "comm_src": "int32_val", "comm_dst": "int32_val",
        "comm_tag": "int32_val",
    }  # fmt: skip
    assert kinds(send) == kinds(recv) == peers


def test_what_is_not_given_is_not_written():
    assert kinds(et.comp_node(1, "a")) == {"is_cpu_op": "bool_val"}
    assert "pg_name" not in kinds(et.coll_node(1, "a", et.CollectiveCommType.BARRIER, 0))


def test_further_attributes_and_dimensions():
    node = et.coll_node(1, "a", et.CollectiveCommType.BARRIER, 0, involved_dim=[True, False, True],
                        attrs=[et.attribute("stream", "int64", 20)])  # fmt: skip
    assert kinds(node)["involved_dim"] == "bool_list"
    assert kinds(node)["stream"] == "int64_val"
    assert et.table_of(et.metadata(), [node]).involved_dim.tolist() == [0b101]


def test_values_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="range"):
        et.send_node(1, "a", 0, 2**31, 1)
    with pytest.raises(TypeError):
        et.comp_node(1, "a", num_ops="many")
    with pytest.raises(ValueError, match="expected MEM_LOAD_NODE or MEM_STORE_NODE"):
        et.mem_node(1, "a", et.NodeType.COMP_NODE, 1)
