"""Results as files: summary.json and Parquet tables, complete in a folder of `nadi.staging`."""

import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from nadi import __version__, step
from nadi.analysis import COLLECTIVE, COMPUTE, MEMORY, npu_blocks, rows_of
from nadi.fabric import settled_parameters
from nadi.findings import Findings
from nadi.flows import UNKNOWN, ideal_ps, slowdown
from nadi.gather import ALONE, Ranks
from nadi.simulate import Simulation
from workload import KINDS

SUMMARY = "summary.json"
TABLES = ("nodes", "flows", "links", "collectives", "npus")
LOGS = ("queues", "pauses")
"""Tables that a run writes only where it has recorded any."""
NODE_KINDS = ("noop", "compute", "memory", "send", "recv", "collective")
LANES = ("cpu", "compute", "memory")
RUN_FILES = (SUMMARY, *(f"{table}.parquet" for table in (*TABLES, *LOGS)))
"""What a run may write; the first stands for its being complete."""
_SWITCHES = {"output-queued": "output queues", "shared-buffer": "shared buffers"}


def write_results(simulation: Simulation, findings: Findings | None, folder: Path | None, ranks: Ranks = ALONE) -> None:
    """Write all tables and the summary into a folder (see nadi.staging). All ranks call it; rank 0 writes.

    Args:
        simulation: what this rank has of the run; on rank 0 flows, links and counters are those of all ranks.
        findings: of the whole run; None on other ranks than 0.
        folder: where to; None on other ranks than 0.
        ranks: the other ranks.
    """
    output = simulation.config.output
    if folder:
        folder.mkdir(exist_ok=True)
    if output.nodes == "all":
        _write_nodes(simulation, folder and folder / "nodes.parquet", ranks)
    if findings and folder:
        if output.flows == "all":
            pq.write_table(_flows(simulation), folder / "flows.parquet")
        pq.write_table(_links(simulation, findings), folder / "links.parquet")
        pq.write_table(_collectives(findings), folder / "collectives.parquet")
        pq.write_table(_npus(simulation, findings), folder / "npus.parquet")
        for name in LOGS:
            columns = getattr(simulation.results, name, None)
            if columns and len(next(iter(columns.values()))):
                pq.write_table(pa.table(dict(columns)), folder / f"{name}.parquet")
    peaks = ranks.gather(simulation.peak_rss_bytes())
    if folder:
        text = json.dumps(summary(simulation, peaks, findings), indent=2)
        (folder / SUMMARY).write_text(text + "\n", encoding="utf-8")


def summary(
    simulation: Simulation, peak_rss_of_ranks: Sequence[int] | None = None, findings: Findings | None = None
) -> dict[str, Any]:
    """What summary.json holds: figures of the run and the settled configuration.

    Args:
        simulation: of rank 0.
        peak_rss_of_ranks: bytes; None = this process is all there is.
        findings: of the whole run, for warnings and the step.
    """
    peaks = peak_rss_of_ranks or [simulation.peak_rss_bytes()]
    results, counters = simulation.results, simulation.results.counters
    return {
        "version": __version__,
        "network": simulation.config.network.fidelity,
        "switches": _switches(simulation),
        "topology": simulation.graph.name,
        "npus": simulation.graph.npus,
        "nodes": simulation.graph.nodes,
        "links": simulation.graph.links,
        "finish_time_ps": results.finish_time_ps,
        **counters,
        "ranks": len(peaks),
        "threads": simulation.workers.threads,
        "processes": simulation.workers.processes,
        "lps": simulation.workers.lps,
        "wall_s": results.wall_s,
        "setup_s": results.setup_s,
        "first_event_s": results.first_event_s,
        "packet_hops_per_s": counters["packet_hops"] / max(results.wall_s, 1e-9),
        "peak_rss_bytes": sum(peaks),
        "digest": results.digest,
        "warnings": list(findings.warnings) if findings else [],
        "step": step.document(simulation, findings.step_times if findings else None),
        "settled": _settled(simulation),
        "config": simulation.config.settled(),
    }


def _switches(simulation: Simulation) -> str:
    """What the switches of packets have; messages that go whole know of none."""
    whole = simulation.settings.fidelity.act or simulation.settings.fidelity.is_closed_form
    return "none" if whole else _SWITCHES[simulation.config.network.switch]


def _settled(simulation: Simulation) -> dict[str, Any]:
    """What was settled from the fabric, and the values of the congestion control's parameters."""
    chosen = simulation.settings.control
    collectives = {kind: simulation.collectives.algorithm_of(kind) for kind in simulation.collectives.algorithm}
    found = simulation.results.settled | ({"collectives": collectives} if collectives else {})
    return found | ({"congestion": settled_parameters(chosen)} if chosen.update else {})


def _write_nodes(simulation: Simulation, path: Path | None, ranks: Ranks) -> None:
    """One row for each trace node of each NPU, in blocks of NPUs that are the same for any number of ranks."""
    names = _NodeNames(simulation)
    with pq.ParquetWriter(path, _NODE_SCHEMA) if path else nullcontext() as writer:
        for npus in npu_blocks(_rows_of_npu(simulation, ranks)):
            parts = ranks.gather(_nodes(simulation, names, npus))
            if writer and parts:
                writer.write_table(_by_npu(parts))


def _rows_of_npu(simulation: Simulation, ranks: Ranks) -> NDArray[np.int64]:
    """int64[npus]: trace nodes of each NPU, of all ranks."""
    own = np.flatnonzero(simulation.program.trace_of_npu >= 0)
    rows_of_npu = np.zeros(simulation.program.npus, np.int64)
    for npus, rows in ranks.exchange((own, np.diff(simulation.results.npu_node_ptr)[own])):
        rows_of_npu[npus] = rows
    return rows_of_npu


def _nodes(simulation: Simulation, names: "_NodeNames", npus: range) -> pa.Table:
    """Trace nodes of those NPUs of a block that are this rank's."""
    program, results = simulation.program, simulation.results
    rows = rows_of(program, results.npu_node_ptr, npus)
    kind = program.node_kind[rows.at]
    group = np.full(len(rows.at), -1, np.int32)
    is_collective = kind == COLLECTIVE
    npu, at = rows.npu[is_collective], rows.at[is_collective]
    group[is_collective] = program.slot_group[program.slot_ptr[npu] + program.node_group[at]]
    columns = {
        "npu": rows.npu,
        "row": rows.row,
        "node_id": names.ids(rows.npu, rows.row),
        "name": names.names(rows.npu, rows.row),
        "kind": _words(NODE_KINDS, kind),
        "lane": _words(LANES, np.where((kind == COMPUTE) | (kind == MEMORY), program.node_lane[rows.at], -1)),
        "group": pa.array(group, mask=group < 0),
        "bytes": program.node_bytes[rows.at],
        "start_ps": results.node_start_ps[rows.result],
        "finish_ps": results.node_finish_ps[rows.result],
    }
    return pa.table(columns).cast(_NODE_SCHEMA)


def _by_npu(parts: Sequence[pa.Table]) -> pa.Table:
    """Tables of several ranks as one, in the order of NPUs."""
    if len(parts) == 1:
        return parts[0]
    table = pa.concat_tables(parts).unify_dictionaries().combine_chunks()
    return table.take(np.argsort(table["npu"].to_numpy(), kind="stable"))


_WORD = pa.dictionary(pa.int32(), pa.string())
_NODE_SCHEMA = pa.schema(
    {
        "npu": pa.int32(),
        "row": pa.int32(),
        "node_id": pa.uint64(),
        "name": _WORD,
        "kind": _WORD,
        "lane": _WORD,
        "group": pa.int32(),
        "bytes": pa.int64(),
        "start_ps": pa.int64(),
        "finish_ps": pa.int64(),
    }
)


class _NodeNames:
    """Ids and names of trace nodes; all traces' names as one dictionary, each word once."""

    def __init__(self, simulation: Simulation) -> None:
        traces = simulation.traces
        self._ptr = np.cumsum([0, *(len(trace) for trace in traces)])
        self._trace_of_npu = simulation.trace_of_npu
        self._ids = np.concatenate([np.zeros(0, np.uint64), *(trace.node_id for trace in traces)])
        words = pa.array([name for trace in traces for name in trace.names], pa.string()).dictionary_encode()
        self._words, self._index = words.dictionary, words.indices.to_numpy()

    def ids(self, npu: NDArray[np.int64], row: NDArray[np.int64]) -> NDArray[np.uint64]:
        return self._ids[self._ptr[self._trace_of_npu[npu]] + row]

    def names(self, npu: NDArray[np.int64], row: NDArray[np.int64]) -> pa.DictionaryArray:
        index = self._index[self._ptr[self._trace_of_npu[npu]] + row]
        return pa.DictionaryArray.from_arrays(index.astype(np.int32), self._words)


def _words(words: tuple[str, ...], index: NDArray[np.integer]) -> pa.DictionaryArray:
    """Words by number, null below 0."""
    return pa.DictionaryArray.from_arrays(pa.array(index.astype(np.int32), mask=index < 0), pa.array(words))


def _flows(simulation: Simulation) -> pa.Table:
    flows = simulation.results.flows
    ideal = ideal_ps(simulation.graph, simulation.settings, flows)
    unknown = ideal == UNKNOWN
    more = {"ideal_ps": pa.array(ideal, mask=unknown), "slowdown": pa.array(slowdown(ideal, flows), mask=unknown)}
    return pa.table({**flows, **more})


def _links(simulation: Simulation, findings: Findings) -> pa.Table:
    graph = simulation.graph
    names = [graph.node_name(node) for node in range(graph.nodes)]
    return pa.table(
        {
            "link": np.arange(graph.links),
            "src": _words(tuple(names), graph.link_src),
            "dst": _words(tuple(names), graph.link_dst),
            "rate_bps": graph.link_rate_bps,
            "delay_ps": graph.link_delay_ps,
            **simulation.results.links,
            "utilisation": findings.utilisation,
        }
    )


def _collectives(findings: Findings) -> pa.Table:
    found = findings.collectives
    return pa.table(
        {
            "group": found.group,
            "group_name": pa.array(findings.group_names, pa.string()),
            "seq": found.seq,
            "kind": _words(KINDS, found.kind),
            "algorithm": pa.array(findings.algorithms, pa.string()),
            "members": found.members,
            "bytes": found.size_bytes,
            "start_ps": found.start_ps,
            "ready_ps": found.ready_ps,
            "finish_ps": found.finish_ps,
            "time_ps": found.time_ps,
            "algbw_Bps": findings.algorithm_Bps,
            "busbw_Bps": findings.bus_Bps,
            "closed_form_ps": findings.closed_form_ps,
            "closed_form_played": findings.closed_form_played,
            "ratio": findings.ratio,
        }
    )


def _npus(simulation: Simulation, findings: Findings) -> pa.Table:
    """One row for each NPU; `like` is given where the trace nodes of another stand for its own."""
    times, folded = findings.npu_times, simulation.results.folded
    more = {"like": folded.like} if folded else {}
    return pa.table({"npu": np.arange(len(times.idle_ps)), **times._asdict(), **more})
