"""What several ranks bring together is what one rank has alone."""

import dataclasses
import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from nadi import et, workload
from nadi.configuration.run_file import load_config
from nadi.et import CollectiveCommType
from nadi.insight import node_times, run_analysis
from nadi.insight.run_analysis import analyse, analyse_rank, merge_ranks
from nadi.launching.world import RankGather
from nadi.reports.run_folder import TABLES, summary, write_results
from nadi.reports.text.run import run_report
from nadi.simulation.wiring.reading import WorkReader
from nadi.terminal import console
from tests.nonempty import nonempty
from tests.running import simulate
from tests.workload.ranks import on_ranks

SPLITS = [[0, 0, 0, 0], [0, 0, 1, 1], [1, 0, 1, 0], [2, 1, 0, 1], [1, 1, 1, 1]]


@pytest.fixture
def simulation(write_run, step, tmp_path):
    """NPUs that are ready one after another, for collectives of all and of pairs, and a message."""
    (tmp_path / "groups.json").write_text('{"7": [0, 2], "8": [3, 1]}')
    nodes = [[et.comp_node(1, "forward", duration_micros=9 + npu // 2 * 3), *step[1:]] for npu in range(4)]
    for npu, name in enumerate(["7", "8", "7", "8"]):
        gather = et.coll_node(
            5, f"gather of {npu % 2}", CollectiveCommType.ALL_GATHER, 4096 << npu % 2, pg_name=name, deps=[2]
        )
        nodes[npu].append(gather)
    nodes[0].append(et.send_node(6, "to 3", 0, 3, 100, 5))
    nodes[3].append(et.recv_node(6, "from 0", 0, 3, 100, 5))
    nodes[3].append(et.comp_node(7, "only here", duration_micros=3, is_cpu_op=True, deps=[6]))
    run = write_run(nodes, '[system.collectives]\nall-reduce = "direct"\n')
    run.write_text(run.read_text().replace('"trace"', '"trace"\ngroups = "groups.json"'))
    return simulate(load_config(run, []))


def share_of(whole, rank_of_npu, rank, exchange):
    """What a rank has of a simulation, when pdes gives it the rows of its own NPUs and rank 0 the flows."""
    config, results = whole.config, whole.results
    own = np.array(rank_of_npu) == rank
    traces, trace_of_npu = workload.load_traces(config.workload.traces, len(own), own=own, exchange=exchange)
    program = workload.build_program(
        traces,
        trace_of_npu,
        len(own),
        et.read_groups(config.workload.groups),
        WorkReader(config, whole.graph).compute_model(serves=False),
        whole.collectives,
        exchange=exchange,
    )
    counts = np.diff(results.npu_node_ptr)
    is_own = np.repeat(own, counts)
    here = dataclasses.replace(
        results,
        npu_node_ptr=np.concatenate([[0], np.cumsum(np.where(own, counts, 0))]),
        node_start_ps=results.node_start_ps[is_own],
        node_finish_ps=results.node_finish_ps[is_own],
        flows=results.flows if rank == 0 else {name: column[:0] for name, column in results.flows.items()},
    )
    return dataclasses.replace(whole, traces=traces, trace_of_npu=trace_of_npu, program=program, results=here)


def told(console_of):
    out = console()
    with out.capture() as captured:
        out.print(console_of)
    return captured.get()


def check_equal(found, wanted):
    for field in nonempty(dataclasses.fields(wanted)):
        a, b = getattr(found, field.name), getattr(wanted, field.name)
        if field.name in {"npu_times", "collectives"}:
            for name, column in nonempty(b._asdict().items()):
                assert column.dtype == getattr(a, name).dtype
                np.testing.assert_array_equal(getattr(a, name), column, name)
        else:
            np.testing.assert_array_equal(a, b, field.name)


@pytest.mark.parametrize("rank_of_npu", SPLITS)
@pytest.mark.parametrize(("most_rows", "most_packets"), [(7, 1 << 21), (4_000_000, 200)])
def test_ranks_find_and_write_what_one_does(simulation, rank_of_npu, most_rows, most_packets, tmp_path, monkeypatch):
    monkeypatch.setattr(node_times, "_MAX_ROWS", most_rows)  # of a block
    monkeypatch.setattr(run_analysis, "_MAX_PACKETS", most_packets)  # that are played for closed forms
    wanted = analyse(simulation)
    whole, merged = tmp_path / "whole", tmp_path / "merged"
    whole.mkdir()
    merged.mkdir()
    write_results(simulation, wanted, whole)

    def work(rank, exchange):
        def gather(value):
            values = exchange(value)
            return values if rank == 0 else None

        own = share_of(simulation, rank_of_npu, rank, exchange)
        parts = gather(analyse_rank(own, exchange))
        found = parts and merge_ranks(own, parts)
        write_results(own, found, merged if rank == 0 else None, RankGather(exchange, gather))
        return found, own

    n = max(rank_of_npu) + 1
    outcomes = on_ranks(n, work)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    found, own = outcomes[0]
    assert [others for others, _ in outcomes[1:]] == [None] * (n - 1)
    check_equal(found, wanted)
    assert told(run_report(own, found, 1.0)) == told(run_report(simulation, wanted, 1.0))
    for table in nonempty(TABLES):
        one, several = (pq.ParquetFile(folder / f"{table}.parquet") for folder in (whole, merged))
        assert several.schema_arrow == one.schema_arrow, table
        assert several.read().to_pylist() == one.read().to_pylist(), table
        assert several.num_row_groups == one.num_row_groups == (1 if table != "nodes" or most_rows > 7 else 3), table
    one, several = (json.loads((folder / "summary.json").read_text()) for folder in (whole, merged))
    assert (one.pop("ranks"), several.pop("ranks")) == (1, n)
    assert several.pop("peak_rss_bytes") >= n * 0.9 * one.pop("peak_rss_bytes") > 0
    assert several == one


def test_a_summary_counts_ranks_and_adds_their_memory(simulation):
    found = summary(simulation, [5, 7])
    assert (found["ranks"], found["peak_rss_bytes"]) == (2, 12)
    assert summary(simulation)["ranks"] == 1
