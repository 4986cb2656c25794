"""Results of ASTRA-sim's analytical back ends, from its own files, to the nanosecond."""

import csv
import re

import pytest

from nadi import et
from nadi.configuration.run_file import load_config
from tests.importers.conftest import SYSTEM
from tests.running import simulate

MEMORY = 1600
BANDWIDTHS = {True: [400.0, 50.0], False: [50.0, 25.0]}
"""Of two switches one above the other, and of other networks; the files are not published, but one choice fits all."""


def files_of(row, data):
    """Network and system of a row: the shipped files, or what their names say."""
    shipped = data / "astra-sim" / "network" / "analytical" / row["network"]
    if row["tag"] == "shipped":
        return shipped, data / "astra-sim" / "system" / "native_collectives" / row["system"]
    algorithms, chunks = re.fullmatch(r"([a-zA-Z_]+)_(\d)chunks?\.json", row["system"]).groups()
    system = SYSTEM | {"preferred-dataset-splits": int(chunks)}
    system |= {key: algorithms.split("_") for key in SYSTEM if key.endswith("-implementation")}
    two = re.fullmatch(r"(\D+)(\d+)_(\D+)(\d+)\.yml", row["network"])
    if not two:
        kind = row["network"].split("_")[0]
        return {"topology": [kind], "npus_count": [int(row["npus"])]}, system
    network = {
        "topology": [two[1], two[3]],
        "npus_count": [int(two[2]), int(two[4])],
        "bandwidth": BANDWIDTHS[two[1] == two[3] == "Switch"],
        "latency": [500.0, 1000.0],
    }
    return network, system


def uncharged_ns(row):
    """Their halving-doubling takes no time for the first of its reductions, of half of what the dimension has."""
    if row["collective"] == "all_gather" or not re.search("halvingDoubling|r_hd", row["system"] + row["tag"]):
        return 0
    outer = re.fullmatch(r"\D+(\d+)_\D+\d+\.yml", row["network"])
    first = int(row["bytes"]) // (int(outer[1]) if outer else 1) // 2
    return 3 * (first // MEMORY)


@pytest.mark.slow
def test_every_published_row(shared_data, astra_sim):
    path = shared_data / "astra-sim" / "analytical_results_8_16_npus.csv"
    rows = list(csv.DictReader(path.read_text().splitlines()))
    off = {}
    for row in rows:
        network, system = files_of(row, shared_data)
        is_shipped = row["tag"] == "shipped"
        kind = et.CollectiveCommType[row["collective"].upper()]
        nodes = [et.coll_node(1, row["collective"], kind, int(row["bytes"]))]
        files = astra_sim(
            () if is_shipped else system, () if is_shipped else network, nodes=nodes, npus=int(row["npus"])
        )
        named = {"network": network, "system": system} if is_shipped else {}
        sections, _ = files.sections(congestion_aware=row["backend"] == "Aware", **named)
        results = simulate(load_config(None, sections=sections)).results
        expected = tuple(int(row[f"{end}_cycles"]) + uncharged_ns(row) for end in ("min", "max"))
        ends_ps = [
            results.node_finish_ps[first:last].max()
            for first, last in zip(results.npu_node_ptr, results.npu_node_ptr[1:], strict=False)
        ]
        if (min(ends_ps), max(ends_ps)) != tuple(1000 * end for end in expected):
            off[tuple(row.values())] = (min(ends_ps), max(ends_ps))
    assert off == {}
    assert len(rows) == 178
    assert sum(uncharged_ns(row) > 0 for row in rows) == 12


@pytest.mark.parametrize("collective", ["all_gather", "all_reduce", "all_to_all", "reduce_scatter"])
@pytest.mark.parametrize("npus", [4, 8, 16])
def test_shipped_microbenchmarks(shared_data, shipped, collective, npus):
    """Their traces, unchanged; 4 NPUs have no published result."""
    done = shipped(collective, npus, '--comm-group-configuration="empty"')
    path = shared_data / "astra-sim" / "analytical_results_8_16_npus.csv"
    rows = csv.DictReader(path.read_text().splitlines())
    own = [row for row in rows if row["network"] == f"Ring_{npus}npus.yml" and row["collective"] == collective]
    cycles = {row["max_cycles"] for row in own}
    form = r"\[workload\] sys\[(\d+)\] finished, (\d+) cycles, exposed communication (\d+) cycles\."
    lines = re.findall(form, done.out)
    assert len(lines) == npus
    assert done.err.count("without effect here") == 1
    assert {cycle for _, *both in lines for cycle in both} == cycles or (npus == 4 and not cycles)
