"""Chakra execution traces: read, write and summarise the file format.

`read_trace` returns a TraceTable (arrays) and `read_messages` the protobuf messages. `write_trace` writes messages,
which the `*_node` functions make; `write_table` writes tables, which `TraceColumns` builds from `Block`s. `describe`
summarises a file. All of them raise TraceError for a wrong file.
"""

from nadi.et.blocks import Block, TraceColumns
from nadi.et.errors import NOT_STRICT, TraceError, advising
from nadi.et.files import read_groups
from nadi.et.framing import write_trace
from nadi.et.order import occurrence, topological_order
from nadi.et.reader import collective_name, describe, read_messages, read_trace, table_of
from nadi.et.schema import (
    CollectiveCommType,
    Node,
    NodeType,
    attribute,
    coll_node,
    comp_node,
    group_node,
    mem_node,
    metadata,
    recv_node,
    send_node,
)
from nadi.et.table import ComposedNames, NameTable, TraceTable, TraceTables, write_table
