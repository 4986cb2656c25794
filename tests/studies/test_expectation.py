"""What `nadi expect` says, beside nccl-tests' definitions, `nadi collective`, flows, and counting."""

import csv
import io
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nadi
from nadi import topologies
from nadi.configuration.run_file import collective_config
from nadi.errors import ConfigError
from nadi.inputs import plug_ins
from nadi.inputs.errors import InputError
from nadi.insight.nccl_tests_command import parse_command
from nadi.simulation.closed_forms import payload_shape
from nadi.simulation.resolving import Resolver, TimedFabric
from nadi.studies.expectation import ClusterQuestion, expect, expectation_page, expectation_table, written
from nadi.studies.expectation.link_loads import LinkLoads, between_hosts, of_shift
from nadi.validation import band_of, bands_of, class_bands
from nadi.workload.collectives import choose
from tests.nonempty import nonempty
from tests.studies.published_sites import AWS_P5, CRUSOE

H100 = "dgx-h100-superpod:gpus=64"
SIZES = "1KiB,64KiB,1MiB,4MiB,16MiB,256MiB"
# nccl-tests 2.19.6: factors of *GetBw in src/*.cu, for n ranks
FACTORS = {
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "all-gather": lambda n: (n - 1) / n,
    "reduce-scatter": lambda n: (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
    "gather": lambda n: (n - 1) / n,
    "scatter": lambda n: (n - 1) / n,
    "broadcast": lambda _: 1,
    "reduce": lambda _: 1,
    "send-receive": lambda _: 1,
}


def fabric(spec: str) -> TimedFabric:
    return Resolver(collective_config(spec, []), force=True).idle_fabric(1)


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return nadi.expect("dgx-h100-superpod:gpus=32", sizes=SIZES)["rows"]


def test_bandwidths_are_those_of_nccl_tests() -> None:
    kinds = tuple(FACTORS)
    for row in nonempty(nadi.expect("dgx-h100", 2, kinds, "1MiB")["rows"]):
        algbw = row["bytes"] / row["time_us"] / 1e3
        assert row["algbw_GB_per_s"] == pytest.approx(algbw)
        assert row["busbw_GB_per_s"] == pytest.approx(algbw * FACTORS[row["collective"]](row["gpus"]))


def test_one_host_takes_what_nadi_collective_says(rows: list[dict[str, Any]]) -> None:
    for kind in ("all-reduce", "all-gather", "all-to-all", "broadcast"):
        sweep = nadi.collective(kind, "dgx-h100:npus=8", "1KiB,1MiB,16MiB", fidelity="closed-form")["rows"]
        known = {row["bytes"]: row["time_ps"] / 1e6 for row in sweep}
        own = {row["bytes"]: row["time_us"] for row in rows if (row["collective"], row["hosts"]) == (kind, 1)}
        for size, time_us in nonempty(known.items()):
            # a formula in place of millions of packets: NVLS from 16 MiB on
            assert own[size] == pytest.approx(time_us, rel=1e-3)


def test_more_bytes_take_longer_unless_nccl_chooses_otherwise(rows: list[dict[str, Any]]) -> None:
    for before, after in nonempty(list(itertools.pairwise(rows))):
        is_same = all(before[key] == after[key] for key in ("collective", "hosts", "choice"))
        # host threads have less to do for larger messages of an all-to-all (nccl.host_threads)
        slack = 0.9 if after["collective"] == "all-to-all" else 1.0
        assert not is_same or after["time_us"] >= slack * before["time_us"]


def test_every_row_says_where_it_comes_from(rows: list[dict[str, Any]]) -> None:
    kinds = {row["collective"] for row in rows}
    assert len(rows) == len(kinds) * 3 * 6
    assert {row["source"].partition(",")[0].partition(" ")[0] for row in rows} <= {
        "packets",
        "flows",
        "formula",
        "messages",
    }
    assert {row["class"] for row in rows} == {"NCCL in one host", "NCCL over hosts"}
    for row in nonempty(rows):
        assert row["fastest_us"] < row["time_us"] < row["slowest_us"]
        assert row["threshold_busbw_GB_per_s"] < row["busbw_GB_per_s"] < row["best_busbw_GB_per_s"]
        bands = class_bands(row["class"])
        assert bands.latency is not None
        assert bands.rate is not None
        between = bands.latency if bands.sites is None else bands.latency.between_sites(bands.sites)
        assert (bands.sites is None) == (row["hosts"] == 1)
        ends = sorted((between.high, bands.rate.high))
        assert ends[0] <= row["slowest_us"] / row["time_us"] * (1 + 1e-9)
        assert row["slowest_us"] / row["time_us"] <= ends[1] * (1 + 1e-9)
        assert row["cases"] in {bands.latency.cases, bands.rate.cases}
        measured = bands.kinds.get(row["collective"], 0)
        assert row["evidence"].startswith(f"{measured} of" if measured else "no measured rows behind this")
        if row["limit"] in {"launch", "protocol"} and row["limit_share"] > 0.5:
            assert (row["cases"], row["coverage"]) == (between.cases, between.coverage)


@pytest.mark.parametrize("kind", ["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "reduce"])
def test_parts_of_a_time_are_all_of_it(kind: str) -> None:
    timed = fabric(H100)
    chosen = choose(kind, "nccl")
    for hosts in (1, 2, 8):
        members = np.flatnonzero(timed.graph.host < hosts)
        shape = payload_shape(timed.graph, timed.settings, members, trees=chosen.trees)
        for power in range(10, 35, 3):
            parts = chosen.parts_of_time(kind, shape, 1 << power)
            assert sum(parts.values()) == pytest.approx(1, abs=0.02)
            assert min(parts.values()) >= 0


def test_what_limits_is_what_must_become_faster() -> None:
    """A NIC at half the rate doubles the times that NICs limit, and leaves those alone that launches limit."""
    full, half = (
        nadi.expect(f"{H100},rate={rate}Gbps", 2, ("all-gather", "all-to-all", "send-receive"), "1KiB,1GiB")["rows"]
        for rate in (400, 200)
    )
    for row, slower in nonempty(zip(full, half, strict=True)):
        if row["hosts"] == 1:
            assert slower["time_us"] == pytest.approx(row["time_us"])
        elif row["limit"] == "NIC" and row["limit_share"] > 0.9 and slower["choice"] == row["choice"]:
            assert slower["time_us"] / row["time_us"] == pytest.approx(1 + row["limit_share"], rel=0.05)
        elif row["bytes"] == 1024 and slower["choice"] == row["choice"]:
            assert slower["time_us"] / row["time_us"] < 1.1


def test_a_shift_takes_what_was_measured_on_b200() -> None:
    # nccl-tests sendrecv on HGX B200 (docs/explanation/nccl.md): no constant is fitted to these
    measured_us = {1 << 10: 9.45, 1 << 20: 27.9, 32 << 20: 406.0}
    found = nadi.expect("dgx-b200", 1, "send-receive", "1KiB,1MiB,32MiB")["rows"]
    assert {row["bytes"]: row["time_us"] for row in found} == pytest.approx(measured_us, rel=0.08)


def test_even_paths_load_links_as_counting_says() -> None:
    """Two leaves of four NPUs and two spines: four messages cross, and each cable of a leaf carries two of them."""
    timed = fabric("leaf-spine:leaves=2,hosts_per_leaf=4,spines=2,rate=100Gbps,uplink_rate=100Gbps")
    members = np.arange(8)
    far = (members + 4) % 8
    sent = between_hosts(timed.graph, members, far, np.full(8, 1_000_000))
    loads = LinkLoads(timed.graph, timed.settings, sent, connections=1)
    wire = (timed.settings.mtu_bytes + timed.settings.header_bytes) / timed.settings.mtu_bytes
    assert loads.even().time_ps == pytest.approx(2e6 * 8 / 100e9 * 1e12 * wire)
    assert loads.even().tier == "leaf"
    # with one path each, a cable carries two, three or four of the messages
    times = [each.time_ps / (1e6 * 80 * wire) for each in loads.hashed(200)]
    assert {round(time) for time in times} == {2, 3, 4}
    # both leaves in both directions: four independent choices of four coins, of which the fullest side counts.
    # Leaves up and down share paths: two directions. P(both split 2:2) = (6/16)^2
    assert np.mean([round(time) == 2 for time in times]) == pytest.approx((6 / 16) ** 2, abs=0.08)


def test_a_shift_crosses_hosts_on_the_receivers_rail() -> None:
    graph = topologies.build("dgx-h100:npus=16")
    plain, relayed = (of_shift(graph, np.arange(16), 8, relays=relays) for relays in (False, True))
    assert list(zip(plain.src.tolist(), plain.dst.tolist(), strict=True)) == [(7, 8), (15, 0)]
    assert list(zip(relayed.src.tolist(), relayed.dst.tolist(), strict=True)) == [(0, 8), (8, 0)]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "tolerance"), [("all-gather", 0.15), ("all-to-all", 0.15), ("all-reduce", 0.3)])
def test_draws_of_paths_are_near_coupled_flows(kind: str, tolerance: float) -> None:
    spec = "llama3-24k:gpus=64"
    (row,) = (row for row in nadi.expect(spec, 8, kind, "256MiB")["rows"] if row["hosts"] == 8)
    assert (row["limit"], row["hashed_paths"]) == ("leaf", 16)
    flows_us = [
        nadi.collective(kind, spec, "256MiB", fidelity="flow", network={"collectives": "coupled"}, seed=seed)["rows"][
            0
        ]["time_ps"]
        / 1e6
        for seed in (1, 2, 3)
    ]
    assert row["time_us"] == pytest.approx(np.mean(flows_us), rel=tolerance)
    assert row["fastest_us"] < min(flows_us)
    assert row["slowest_us"] > max(flows_us)


def test_rows_whose_paths_are_not_followed_have_no_band(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.studies.expectation.expecting.MAX_CONNECTIONS", 8)
    found = nadi.expect("llama3-24k:gpus=64", 0, "all-gather", "1MiB")
    assert [row["threshold_busbw_GB_per_s"] is None for row in found["rows"]] == [False, True, True]
    assert any("no bands where paths" in note for note in found["notes"])


def test_oversubscription_limits_what_leaves_the_unit() -> None:
    spec = "rail-optimised:npus=64,hosts_per_rail_leaf=4,oversubscription={}"
    even, narrow = (
        nadi.expect(spec.format(ratio), 0, "all-to-all", "256MiB", overrides=_SPRAY)["rows"] for ratio in (1, 4)
    )
    assert narrow[-1]["limit"] in {"leaf", "spine"}
    assert even[-1]["limit"] == "NIC"
    assert narrow[-1]["time_us"] > 1.5 * even[-1]["time_us"]
    assert [row["time_us"] for row in narrow[:2]] == pytest.approx([row["time_us"] for row in even[:2]])


_SPRAY = ('network.load_balancing="spray"',)


def test_a_band_goes_from_rank_to_rank() -> None:
    ratios = [1 + place / 1000 for place in range(199)]
    band = band_of(ratios[::-1])
    # 0.05 x 200 = 10 cases below, and 10 above: 180 of 200 places of the next one
    assert band is not None
    assert (band.low, band.high, band.coverage) == (1.009, 1.189, 0.9)
    few = band_of([1.0, 1.2, 0.9])
    assert few is not None
    assert (few.low, few.high, few.coverage) == (0.9, 1.2, 0.5)
    assert band_of([1.0, 1.1]) is None


def test_a_band_is_that_of_latency_and_of_rates_by_their_shares() -> None:
    """Cases by hand: latency takes 1 to 2 times as long as predicted, data 0.9 to 1.1 times."""
    cases = [("all-reduce", 0.9, ratio) for ratio in (1.0, 1.5, 2.0)]
    cases += [("all-gather", 0.1, ratio) for ratio in (0.9, 1.0, 1.1)]
    bands = bands_of(cases)
    assert bands.kinds == {"all-reduce": 3, "all-gather": 3}
    for share, low, high in ((0.0, 0.9, 1.1), (0.25, 0.925, 1.325), (0.5, 0.95, 1.55), (1.0, 1.0, 2.0)):
        band = bands.at(share)
        assert band is not None
        assert (band.low, band.high) == pytest.approx((low, high))
        assert band.cases == 3
    sites = band_of([1.0, 1.0, 3.0])
    assert sites is not None
    between = bands_of(cases, sites)
    assert between.at(0) == bands.at(0)
    assert between.at(1, is_calibrated=True) == bands.at(1)
    other = between.at(1)
    assert other is not None
    assert (other.low, other.high, other.coverage) == (1.0, 6.0, 0.25)
    only = bands_of(cases[:3])
    assert only.at(0.2) is None
    assert only.at(0.8) is not None


def test_a_calibrated_cluster_has_no_spread_of_sites(tmp_path: Path) -> None:
    """Only a file with fitted constants of collectives has the band of rows alone, which matters over hosts."""
    text = 'gpu = "h100"\ngpus_per_host = 8\ngpus = 64\n[fabric]\nname = "dgx-h100"\n'
    highs = {}
    for name, provenance in (("cited", ""), ("own", "[calibration]\nfactors = { nic = 1.0 }\n")):
        (tmp_path / f"{name}.toml").write_text(text + provenance, encoding="utf-8")
        rows = nadi.expect(f"{tmp_path / name}.toml:gpus=16", 0, "all-reduce", "1KiB")["rows"]
        highs[name] = [row["slowest_us"] / row["time_us"] for row in rows]
    assert highs["own"][0] == highs["cited"][0]
    assert highs["own"][1] < highs["cited"][1] / 1.5


@pytest.mark.slow
@pytest.mark.parametrize(("site", "cluster"), [(AWS_P5, "dgx-h100"), (CRUSOE, "dgx-h100")], ids=["p5", "crusoe"])
def test_published_sites_are_in_their_bands(site: tuple[str, str], cluster: str) -> None:
    """Most times of sites whose NICs take longer are in the band, which has nothing of them but their factor."""
    measured_us = [float(time) for time in site[0].split()]
    sizes = [8 << power for power in range(len(measured_us))]
    found = nadi.expect(cluster, 2, "all-reduce", ",".join(str(size) for size in sizes if size >= 1024))
    rows = {row["bytes"]: row for row in found["rows"] if row["hosts"] == 2}
    inside = [
        rows[size]["fastest_us"] <= time_us <= rows[size]["slowest_us"]
        for size, time_us in zip(sizes, measured_us, strict=True)
        if size in rows
    ]
    assert len(inside) == 22
    assert np.mean(inside) > 0.8, inside


def test_channels_of_a_command_are_kept() -> None:
    def choices(variables: str, size: str) -> str:
        line = f"{variables} all_gather_perf -b {size} -e {size} -g 8"
        return nadi.expect("dgx-h100", 1, command=line)["rows"][0]["choice"]

    assert choices("", "1G") == "ring simple, 24 channels, h100"
    assert choices("NCCL_MAX_NCHANNELS=8", "1G") == "ring simple, 8 channels, h100"
    assert choices("NCCL_MIN_NCHANNELS=32", "1G") == "ring simple, 32 channels, h100"
    # NCCL uses fewer channels for small buffers, whatever the minimum
    assert choices("NCCL_MIN_NCHANNELS=32", "64K") == choices("", "64K")
    assert choices("NCCL_PROTO=LL", "1G") == "ring ll, 24 channels, h100"


def test_a_command_has_the_ranks_and_columns_of_nccl_tests() -> None:
    command = parse_command("mpirun -np 8 -N 4 all_gather_perf -b 64 -e 1M -f 128 -d half")
    found = expect(ClusterQuestion("small-a100", command=command))
    assert [(row.bytes, row.gpus, row.hosts) for row in found.rows] == [(8192, 8, 2), (1 << 20, 8, 2)]
    assert found.counts == [512, 65536]
    assert any("rounds to 0" in note for note in found.notes)
    table = expectation_table(found)
    assert table.rows[0][:5] == ("8192", "512", "half", "none", "-1")


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        (("small-a100:gpus=1",), "found one GPU"),
        (("small-a100", 9), "--hosts 9: found 8 hosts"),
        (("dgx-h100", 1, "barrier"), "--kind barrier: expected some of"),
        (("nothing",), "unknown topology 'nothing'"),
    ],
)
def test_wrong_questions_are_one_line(question: tuple, expected: str) -> None:
    with pytest.raises(InputError) as refusal:
        nadi.expect(*question)
    assert expected in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("command", "hosts", "expected"),
    [
        ("all_reduce_perf -g 8", 9, "found 72 ranks on 9 hosts; expected at most 8 hosts of 8 GPUs"),
        ("all_reduce_perf -g 16", 1, "found 16 ranks on 1 host; expected at most"),
        ("mpirun -np 9 all_reduce_perf", 2, "expected equally many on each host"),
        ("all_reduce_perf", 0, "found 1 rank on 1 host; expected two or more"),
        ("broadcast_perf -g 8 -r 8", 1, "-r 8: expected a root below 8"),
    ],
)
def test_commands_must_fit_the_cluster(command: str, hosts: int, expected: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        nadi.expect("small-a100", hosts, command=command)
    assert expected in str(refusal.value)


def test_files_hold_the_rows(tmp_path: Path) -> None:
    found = expect(ClusterQuestion("dgx-h100", kinds=("all-reduce",), sizes=(1 << 20, 1 << 30)))
    written(found, tmp_path / "all.csv", tmp_path / "thresholds.csv", tmp_path / "page.html")
    thresholds = list(csv.reader(io.StringIO((tmp_path / "thresholds.csv").read_text(encoding="utf-8"))))
    assert thresholds[0] == ["collective", "bytes", "hosts", "gpus", "threshold_busbw_GB_per_s"]
    assert float(thresholds[2][4]) == pytest.approx(found.rows[1].threshold_gb_per_s, rel=1e-5)
    every = list(csv.DictReader(io.StringIO((tmp_path / "all.csv").read_text(encoding="utf-8"))))
    assert [row["source"] for row in every] == [row.source for row in found.rows]
    assert "What to expect of dgx-h100" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert len(expectation_page(found).sections) == 2


@pytest.mark.slow
def test_every_named_cluster_and_machine_has_an_answer() -> None:
    for name in nonempty(plug_ins.names("cluster")):
        gpus = 72 if "nvl72" in name else 16 if name != "tpu-v4" else 8
        assert nadi.expect(f"{name}:gpus={gpus}", 0, ("all-reduce", "send-receive"), "1MiB")["rows"]
    for name in nonempty(plug_ins.names("machine")):
        assert nadi.expect(f"{name}:npus={72 if 'nvl72' in name else 8}", 0, "all-reduce", "1MiB")["rows"]
