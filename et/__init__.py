"""Chakra execution traces: read, write and summarise the file format.

`read_trace` returns a TraceTable (arrays) and `read_messages` the protobuf messages. `write_trace` writes messages,
which the `*_node` functions make; `write_table` writes tables, which `TraceColumns` builds from `Block`s. `describe`
summarises a file. All of them raise TraceError for a wrong file.
"""

from et.blocks import Block, TraceColumns
from et.builders import attribute, coll_node, comp_node, group_node, mem_node, metadata, recv_node, send_node
from et.errors import TraceError
from et.framing import write_trace
from et.groups import read_groups
from et.names import ComposedNames, NameTable
from et.order import children, depth, topological_order
from et.reader import read_messages, read_trace, table_of
from et.schema import CollectiveCommType, NodeType
from et.summary import collective_name, describe
from et.table import TraceTable
from et.table_writer import write_table
