"""What a run would take if the GPUs, the links of a tier, or a kind of communication were faster.

The moments of the run are told again with other weights: a node of the accelerator takes 1/1.1 of its time; what a
collective or a message takes changes as its closed form does from the fabric as it is to the faster one. The order
in which nodes shared lanes stays, and so does what nobody's dependency tells; that others are in the way counts in
proportion.
"""

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi.analysis.network import tiers
from nadi.analysis.node_times import COMPUTE, SEND
from nadi.closed_forms.costs import CollectiveCosts
from nadi.closed_forms.flows import ideal_ps
from nadi.explanation.fabric import of_collectives, settings_of
from nadi.explanation.happened import DONE, DURATION, MESSAGE, Happened, names
from nadi.explanation.path import axis_of
from nadi.runs import Run
from nadi.schemas import LINKS
from pdes.build.settings import Settings
from pdes.closed_forms.folded_program import CollectiveKeys
from topologies import Graph
from workload import KINDS

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

FASTER = 1.1
_CPU_LANE = 0


class Answer(NamedTuple):
    """What a change would do.

    Attributes:
        change: in words.
        key: "gpu", "tier NAME" or "collectives NAME".
        finish_time_ps: of the run, told.
        gain: share of the run that it saves.
    """

    change: str
    key: str
    finish_time_ps: float
    gain: float


def what_if(run: Run, found: Happened, factor: float = FASTER) -> list[Answer]:
    """Answers for GPUs, tiers of links and kinds of communication, the largest gain first.

    Args:
        run: the run.
        found: its moments.
        factor: how many times as fast each would be.
    """
    weight = found.dag.edges.weight
    whole_ps = float(found.dag.times(weight)[found.last()])
    answers = []
    for change, key, changed in _changes(run, found, factor):
        n = len(found.npu)
        finish_ps = float(found.dag.times(changed)[n : 2 * n].max())
        answers.append(Answer(change, key, finish_ps, (whole_ps - finish_ps) / whole_ps if whole_ps else 0.0))
    return sorted(answers, key=lambda answer: -answer.gain)


def _changes(run: Run, found: Happened, factor: float) -> Iterator[tuple[str, str, Float64]]:
    """In words, a key, and the weights."""
    said = f"{factor - 1:.0%} faster"
    weight, kind, of_node = found.dag.edges.weight, found.kind, found.of_node
    on_gpu = (found.node_kind == COMPUTE) & (found.lane != _CPU_LANE)
    if on_gpu.any():
        faster = (kind == DURATION) & on_gpu[of_node]
        yield f"GPUs {said}", "gpu", np.where(faster, weight / factor, weight)
    sorts = _sorts(run, found)
    for name in sorted(set(sorts.tolist()) - {""}):
        of_it = (sorts[of_node] == name) & _is_communication(found)
        yield f"{name} {said}", f"collectives {name}", np.where(of_it, weight / factor, weight)
    yield from _of_tiers(run, found, factor)


def _is_communication(found: Happened) -> NDArray[np.bool_]:
    """bool[E]: the time of a collective, of a message, or until one had left."""
    own = (found.kind == DURATION) & ((found.collective >= 0) | (found.node_kind == SEND))[found.of_node]
    return (found.kind == DONE) | (found.kind == MESSAGE) | own


def _sorts(run: Run, found: Happened) -> NDArray[np.str_]:
    """str[n]: axis, or kind, of each collective, send and receive; "" of other nodes."""
    sorts = np.zeros(len(found.npu), object)
    sorts[:] = ""
    own = np.flatnonzero((found.collective >= 0) | (found.sender >= 0) | (found.node_kind == SEND))
    words = names(run).take(own).to_pylist()
    kinds = found.program.node_collective[found.at[own]].tolist()
    for node, word, kind in zip(own.tolist(), words, kinds, strict=True):
        what = KINDS[kind] if kind >= 0 else "messages"
        axis = axis_of(word)
        sorts[node] = f"{axis} communication" if axis else what
    return sorts.astype(str)


def _of_tiers(run: Run, found: Happened, factor: float) -> Iterator[tuple[str, str, Float64]]:
    if not run.has(LINKS) or not len(run.links) or not _is_communication(found).any():
        return
    graph = run.graph
    settings = settings_of(run)
    words = {"src": run.links["src"].to_pylist(), "dst": run.links["dst"].to_pylist()}
    of_link = np.array([" and ".join(sorted(tier.split(" → "))) for tier in tiers(words)])
    now = _Times(run, found, graph, settings)
    for name in dict.fromkeys(of_link.tolist()):
        rate_bps = np.where(of_link == name, np.round(graph.link_rate_bps * factor), graph.link_rate_bps)
        faster = dataclasses.replace(graph, link_rate_bps=rate_bps.astype(np.int64))
        then = _Times(run, found, faster, settings)
        ratio = now.ratio(then)
        if (ratio < 1).any():
            weight = found.dag.edges.weight
            shorter = np.where(_is_communication(found), weight * ratio[found.of_node], weight)
            yield f"links between {name} {factor - 1:.0%} faster", f"tier {name}", shorter


class _Times:
    """Closed forms of all collectives and messages of a run on a fabric.

    Attributes:
        time_ps: float64[n], of each node's collective or message; NaN = not known, or no communication.
    """

    def __init__(self, run: Run, found: Happened, graph: Graph, settings: Settings) -> None:
        program = found.program
        self.time_ps = np.full(len(found.npu), np.nan)
        first = found.first
        if len(first):
            keys, index = _keys(found)
            kinds = program.node_collective[found.at[first[keys]]]
            group, schedule, size = of_collectives(found, first[keys])
            asked = CollectiveKeys(group, schedule, size, found.npu[first[keys]], found.row[first[keys]])
            costs = CollectiveCosts(graph, settings).of_collectives(program, run.work.collectives, asked, kinds)
            own = found.collective >= 0
            self.time_ps[own] = costs.time_ps.astype(np.float64)[index][found.collective[own]]
        ends = np.flatnonzero((found.node_kind == SEND) | (found.sender >= 0))
        if len(ends):
            npu, peer = found.npu[ends], found.npu[ends] + program.node_peer[found.at[ends]]
            is_send = found.node_kind[ends] == SEND
            flows = {"src": np.where(is_send, npu, peer), "dst": np.where(is_send, peer, npu)}
            flows |= {"group": np.full(len(ends), -1), "bytes": program.node_bytes[found.at[ends]]}
            alone = ideal_ps(graph, settings, flows)
            self.time_ps[ends] = np.where(alone > 0, alone, np.nan)

    def ratio(self, then: "_Times") -> Float64:
        """float64[n]: what each takes then over what it takes now; 1 where that is not known."""
        with np.errstate(divide="ignore", invalid="ignore"):
            found = then.time_ps / self.time_ps
        return np.where(np.isfinite(found), found, 1.0)


def _keys(found: Happened) -> tuple[Int64, Int64]:
    """One collective of each group, schedule, size and kind, and which of these each collective is."""
    group, schedule, size = of_collectives(found, found.first)
    kinds = found.program.node_collective[found.at[found.first]].astype(np.int64)
    _, first, index = np.unique(
        np.stack([group, schedule, size, kinds]), axis=1, return_index=True, return_inverse=True
    )
    return first, index.reshape(-1)
