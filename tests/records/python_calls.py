"""Calls of `nadi.simulate` whose resolved settings are recorded: fabrics and traces that are values of Python."""

import networkx as nx

import nadi
from nadi import et

_NODES = [
    et.comp_node(1, "forward", duration_micros=10),
    et.coll_node(2, "gradients", et.CollectiveCommType.ALL_REDUCE, 1 << 20, deps=[1]),
]


def _table():
    """Return a trace of one computation and one all-reduce of 1 MiB."""
    et.write_trace("one.et", et.metadata(), _NODES)
    return et.read_trace("one.et")


def _star():
    """Return four NPUs on one switch, as a graph of networkx."""
    graph = nx.Graph()
    graph.add_node("switch", kind="switch")
    for npu in range(4):
        graph.add_node(npu, kind="npu")
        graph.add_edge(npu, "switch", rate="100Gbps", delay="1us")
    return graph


CALLS = {
    "traces and a specification": lambda: nadi.simulate(topology="ring:npus=4,rate=100Gbps", workload=_table()),
    "a graph of networkx": lambda: nadi.simulate(topology=_star(), workload=[_table()] * 4, network={"mtu": "1KiB"}),
    "groups": lambda: nadi.simulate(topology="ring:npus=4", workload=[_table()] * 4, groups={"half": [0, 1]}),
    "sections": lambda: nadi.simulate(
        {"workload": {"model": "gpt3-125m", "plan": "dp8,gb8,seq256"}, "topology": {"cluster": "selene"}},
        network={"fidelity": "flow"},
        engine={"workers": 2, "seed": 3},
    ),
    "a workload and a results folder": lambda: nadi.simulate(
        topology={"cluster": "dgx-h100-superpod", "gpus": 8},
        workload=nadi.generate("gpt3-125m", "tp2,dp4,gb4,seq256"),
        compute={"gpu": "h100"},
        network={"fidelity": "closed-form"},
        out="out",
    ),
}
