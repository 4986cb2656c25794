"""Random small runs with random owners: any number of LPs, any node anywhere."""

from typing import NamedTuple

import numpy as np
from hypothesis import Phase, given, settings as budget, strategies as st

from nadi.pdes import Settings
from nadi.topologies import build
from tests.budgets import bounded
from tests.pdes.cases import Workload, runs

MOST_LPS = 6


class RandomRun(NamedTuple):
    """A run as what was drawn. owner: of more nodes than there may be; numbers may have gaps."""

    spec: str
    workload: Workload
    settings: Settings
    owner: list

    def parts(self):
        """Graph, program, settings, owner."""
        graph = build(self.spec)
        owner = np.unique(np.resize(self.owner, graph.nodes), return_inverse=True)[1]
        return graph, self.workload.program(graph.npus), self.settings, owner


@st.composite
def divided(draw):
    """A random run with a random owner: of each node, in blocks, one node of many alone, or in turns."""
    spec, workload, settings = draw(runs(lossy=draw(st.booleans())))
    nodes = build(spec).nodes
    lps = draw(st.integers(1, MOST_LPS))
    how = draw(st.sampled_from(["each", "each", "blocks", "lonely", "turns"]))
    if how == "each":
        owner = draw(st.lists(st.integers(0, lps - 1), min_size=nodes, max_size=nodes))
    elif how == "blocks":
        owner = (np.arange(nodes) * min(lps, nodes) // nodes).tolist()
    elif how == "turns":
        owner = (np.arange(nodes) % lps).tolist()
    else:
        owner = [0] * nodes
        for number, node in enumerate(draw(st.lists(st.integers(0, nodes - 1), max_size=MOST_LPS - 1, unique=True))):
            owner[node] = 1 + number
    return RandomRun(spec, workload, settings, owner)


def some(number):
    """So many of them, always the same."""
    found = []

    @budget(bounded(max(1, number)), phases=[Phase.generate])
    @given(divided())
    def collect(run):
        found.append(run)

    if number:
        collect()
    return found[-number:] if number else []
