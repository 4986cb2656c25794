"""Random trace sets, and what they mean for each NPU, said the slow way: one list of nodes for each."""

import numpy as np
from hypothesis import strategies as st

from nadi.workload import TraceSet
from nadi.workload.trace_sets.trace_set import IDLE
from tests.workload import naive

TP, PP = "tp", "pp"


@st.composite
def sets(draw):
    """Nodes of a trace for each stage of NPUs, as its first NPU or another has them, and the families.

    Stages are blocks of NPUs. Messages go from a place of one stage to the same place of another one, collectives are
    of groups within the stages, of equal places of all stages, of a group with a name, or of all NPUs.
    """
    width, stages = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    places = draw(st.permutations(range(width)))
    cut = draw(st.integers(1, width))
    parts = [places[:cut], *([places[cut:]] if cut < width else [])]
    families = {
        TP: tuple(tuple(stage * width + p for p in part) for stage in range(stages) for part in parts),
        PP: tuple(tuple(stage * width + p for stage in range(stages)) for p in range(width)),
    }
    groups = {"named": tuple(draw(st.permutations(range(width * stages))))}
    example = [stage * width + draw(st.integers(0, width - 1)) for stage in range(stages)]
    nodes = [[] for _ in range(stages)]
    for _ in range(draw(st.integers(1, 10))):
        what = draw(st.sampled_from(["comp", "coll", "message", "message"]))
        if what == "coll":
            name = draw(st.sampled_from([TP, PP, "", "named"]))
            node = {"what": "coll", "group": name, "type": draw(st.integers(0, 9)), "size": draw(st.integers(1, 99))}
            for stage in [draw(st.integers(0, stages - 1))] if name == TP else range(stages):
                nodes[stage].append(dict(node))
        elif what == "message" and stages > 1:
            a, b = draw(st.lists(st.integers(0, stages - 1), min_size=2, max_size=2, unique=True))
            said = {"size": draw(st.integers(0, 99)), "tag": draw(st.integers(0, 2))}
            nodes[a].append({"what": "send", "peer": example[a] + (b - a) * width, **said})
            nodes[b].append({"what": "recv", "peer": example[b] + (a - b) * width, **said})
        else:
            stage = draw(st.integers(0, stages - 1))
            nodes[stage].append({"what": "comp", "micros": draw(st.integers(0, 9)), "cpu": False})
    for own in nodes:
        for i, node in enumerate(own):
            node["id"] = 3 * i + 1
            node["deps"] = sorted(draw(st.sets(st.sampled_from([3 * k + 1 for k in range(i)])))) if i else []
    idle = draw(st.integers(0, 2))
    return nodes, example, width, families, groups, idle


def trace_set(nodes, example, width, families, idle):
    traces, owner, examples = [], [], []
    for stage, own in enumerate(nodes):
        traces.append(naive.table(example[stage], own))
        owner += [len(traces) - 1] * width
        examples.append(example[stage])
    return TraceSet(traces, np.array(owner + [IDLE] * idle, np.int32), np.array(examples, np.int32), families)


def expanded(nodes, example, width, families):
    """Nodes of each NPU, with its own peers and numbers in place of families, and what the numbers mean."""
    numbers, groups = {}, {}
    for name, family in families.items():
        for members in family:
            groups[str(len(groups) + 1)] = members
            numbers.update({(name, npu): str(len(groups)) for npu in members})
    of_npus = []
    for npu in range(len(nodes) * width):
        own = []
        for node in nodes[npu // width]:
            mine = dict(node)
            if "peer" in mine:
                mine["peer"] += npu - example[npu // width]
            if mine["what"] == "coll" and mine["group"] in families:
                mine["group"] = numbers[mine["group"], npu]
            own.append(mine)
        of_npus.append(own)
    return of_npus, groups
