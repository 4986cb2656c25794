"""Networks as graphs: builders, importers, routing.

`build("fat-tree:k=16,rate=100Gbps,delay=1us")` returns a `Graph`; `topologies()` lists what can be built. Other folders
use only these names and six modules (tests/rules/doors.py): `clusters`, `machines`, `registry` (specs of parts of
clusters), `endpoints` (NPUs that a run adds to a fabric), `deadlock` (circles of waiting links) and `builders.htsim`,
whose files an importer reads.
"""

from nadi.topologies.builders.file import write_toml
from nadi.topologies.description import describe, links_to_npus, passing_links, tier_of_node
from nadi.topologies.dimension_routing import DimensionRouting
from nadi.topologies.graph import (
    NVSWITCH,
    SWITCH,
    UNREACHABLE,
    Graph,
    Routing,
    TopologyError,
)
from nadi.topologies.graph_builder import GraphBuilder, from_networkx
from nadi.topologies.listed_paths import with_source_routes
from nadi.topologies.parameters import parse_pairs
from nadi.topologies.registry import (
    build,
    extent,
    format_spec,
    names_cluster,
    parse_spec,
    path_parameters,
    topologies,
    with_paths,
)
from nadi.topologies.routing import next_links, path_links, route
from nadi.topologies.source_routes import SourceRoutes
from nadi.topologies.table_routing import TableRouting, build_table_routing
