"""Networks as graphs: builders, importers, routing.

`build("fat-tree:k=16,rate=100Gbps,delay=1us")` returns a `Graph`; `topologies()` lists what can be built.
"""

from topologies.builders.file import write_toml
from topologies.description import describe
from topologies.errors import TopologyError
from topologies.extent import Extent
from topologies.graph import (
    NONE,
    NPU,
    NVSWITCH,
    RING,
    SINGLE,
    SWITCH,
    TABLE,
    UNREACHABLE,
    DimensionRouting,
    Graph,
    TableRouting,
)
from topologies.graph_builder import GraphBuilder
from topologies.networkx_form import from_networkx
from topologies.registry import (
    Topology,
    TopologyParameter,
    build,
    extent,
    format_spec,
    parse_spec,
    path_parameters,
    topologies,
    with_paths,
)
from topologies.routing import next_links, route
from topologies.table_routing import routing_without
