"""Networks as graphs: builders, importers, routing.

`build("fat-tree:k=16,rate=100Gbps,delay=1us")` returns a `Graph`; `topologies()` lists what can be built.
"""

from nadi.topologies.builders.file import write_toml
from nadi.topologies.description import describe
from nadi.topologies.errors import TopologyError
from nadi.topologies.extent import Extent
from nadi.topologies.graph import (
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
from nadi.topologies.graph_builder import GraphBuilder
from nadi.topologies.networkx_form import from_networkx
from nadi.topologies.registry import (
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
from nadi.topologies.routing import next_links, route
from nadi.topologies.table_routing import routing_without
