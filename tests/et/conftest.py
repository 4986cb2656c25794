import pytest

from nadi import et
from nadi.et.schema import Node


@pytest.fixture(scope="session")
def shared(shared_data):
    """The folder of real inputs, data and all, that stands beside the repository."""
    return shared_data.parent


@pytest.fixture
def small_trace():
    """Metadata and nodes of a trace with one of each kind of node."""
    return et.metadata(), [
        et.group_node(1, "groups", "7", [0, 2]),
        et.mem_node(2, "load", et.NodeType.MEM_LOAD_NODE, 4096, tensor_loc=1, ctrl_deps=[1]),
        et.comp_node(3, "matmul", duration_micros=12, num_ops=1 << 40, tensor_size=1 << 33, deps=[2]),
        et.coll_node(4, "grads", et.CollectiveCommType.ALL_REDUCE, 1 << 20, pg_name="7", comm_priority=3, deps=[3]),
        et.send_node(5, "to 1", 0, 1, 65536, 9, deps=[3]),
        et.recv_node(6, "from 1", 1, 0, 65536, 9, deps=[3], ctrl_deps=[5]),
        et.mem_node(7, "store", et.NodeType.MEM_STORE_NODE, 4096, deps=[4, 6]),
    ]


@pytest.fixture
def write_nodes(tmp_path):
    """Write nodes given as (id, ids of data dependencies), all of type COMP."""

    def write(*nodes):
        path = tmp_path / "trace.0.et"
        made = [Node(id=i, name=f"n{i}", type=et.NodeType.COMP_NODE, data_deps=deps) for i, deps in nodes]
        et.write_trace(path, et.metadata(), made)
        return path

    return write
