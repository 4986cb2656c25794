"""`nadi collective`: split sizes, files of users, closed forms alone, and the predicted duration of long rows."""

import re

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

from nadi import et
from nadi.configuration.run_file import load_config
from nadi.simulation.resolving import Resolver
from nadi.studies.collectives import measuring
from nadi.studies.collectives.measuring import MIN_MEASURED_WORK, MeasuredRow, Pace, calibration_sizes
from nadi.studies.collectives.options import parse_skew
from tests.nonempty import nonempty
from tests.workload import msccl_files

SWITCH = "switch:npus=4,rate=100Gbps,delay=1us"
RING = "ring:npus=4,rate=100Gbps,delay=1us"
MTU, HEADER, ACK, PS_PER_BYTE, DELAY_PS = 4096, 82, 86, 80, 10**6
MATRIX = np.array([[9, 1, 2, 3], [1, 9, 1, 1], [40, 1, 9, 0], [30, 0, 1, 9]]) * MTU


@pytest.fixture
def collective(nadi):
    def run(*arguments, topology=SWITCH):
        return nadi.ok("collective", "all-to-all-v", "-t", topology, "--json", "-q", *arguments).document

    return run


@pytest.fixture
def matrix_file(tmp_path):
    path = tmp_path / "bytes.csv"
    lines = [",".join(map(str, row)) for row in MATRIX.tolist()]
    path.write_text("# who sends, by row\n" + "\n\n".join(lines) + "  # the last\n")
    return path


def test_the_fullest_member_sets_the_pace(collective, matrix_file):
    """Members 2 and 3 send 70 packets to 0 together, which it takes one after another and acknowledges by its port.

    The bound leaves out acknowledgements that may come after the end, and what rounding may take off each packet.
    """
    document = collective("--matrix", matrix_file, "--algorithm", "direct")
    (row,) = document["rows"]
    assert document["matrix"] == str(matrix_file)
    assert row["bytes"] == MATRIX.sum() // 4
    assert row["busbw_Bps"] == pytest.approx(row["algbw_Bps"] * 3 / 4)
    in_ps = (71 * (MTU + HEADER) + 6 * ACK) * PS_PER_BYTE
    assert row["bound_ps"] == in_ps - 6 * ACK * PS_PER_BYTE - 71 / 2 + DELAY_PS
    assert row["bound_ps"] < row["time_ps"] < in_ps + 2 * DELAY_PS + 6 * (MTU + HEADER + ACK) * PS_PER_BYTE
    assert row["ratio"] == pytest.approx(1, rel=1e-2)


def test_a_wrong_file_is_refused_before_the_fabric_is_built(nadi, tmp_path, monkeypatch):
    def build(*_arguments, **_named):
        raise AssertionError("a fabric for a wrong file")

    monkeypatch.setattr(Resolver, "idle_fabric", build)
    path = tmp_path / "bytes.csv"
    path.write_text("1,x\n2,3\n")
    outcome = nadi.refuse("collective", "all-to-all-v", "-t", SWITCH, "-q", "--matrix", path)
    assert f"--matrix {path}: " in outcome.err


def test_numpys_files_are_the_same(collective, matrix_file, tmp_path):
    np.save(tmp_path / "bytes.npy", MATRIX.astype(np.uint32))
    one, other = (collective("--matrix", path)["rows"] for path in (matrix_file, tmp_path / "bytes.npy"))
    assert one == other


def test_even_bytes_take_as_long_as_the_all_to_all(collective, nadi):
    arguments = ("--sizes", "64KiB,1MiB", "--algorithm", "pairwise")
    uneven = collective("--skew", "zipf:0", *arguments)["rows"]
    even = nadi("collective", "all-to-all", "-t", SWITCH, "--json", "-q", *arguments).document["rows"]
    for column in ("bytes", "time_ps", "busbw_Bps", "packet_hops", "bound_ps"):
        assert [row[column] for row in uneven] == [row[column] for row in even], column
    assert [row["closed_form_ps"] for row in uneven] == pytest.approx([r["closed_form_ps"] for r in even], rel=1e-2)


@pytest.mark.parametrize("topology", [SWITCH, RING, "torus:sizes=3x2", "leaf-spine:leaves=2,spines=2,hosts_per_leaf=2"])
def test_nothing_is_faster_than_the_busiest_link(collective, topology):
    document = collective("--skew", "zipf:1.2", "--sizes", "4KiB,1MiB", "--algorithm", "all", topology=topology)
    assert len(document["rows"]) == 6
    for row in document["rows"]:
        assert row["bound_ps"] <= row["time_ps"]


def test_files_hold_bound_and_matrix(collective, tmp_path):
    rows = collective("--skew", "zipf:1", "--sizes", "4KiB,1MiB", "-o", tmp_path)["rows"]
    table = pq.read_table(tmp_path / "collective.parquet")
    assert table["bound_ps"].to_pylist() == [row["bound_ps"] for row in rows]
    assert b'"matrix": "zipf:1"' in table.schema.metadata[b"nadi"]
    assert ">zipf:1</td>" in (tmp_path / "collective.html").read_text()


def test_zipf_shares():
    """1, 1/2, 1/3, 1/4 of what a member sends, to members in a random order; whole tokens, none lost."""
    matrix = parse_skew("zipf:1", 7)(1 << 20, 4)
    assert np.all(matrix == matrix[0])
    assert matrix[0].sum() == 1 << 20
    expected = (1 << 20) / np.arange(1, 5) / (1 + 1 / 2 + 1 / 3 + 1 / 4)
    assert sorted(matrix[0].tolist(), reverse=True) == pytest.approx(expected.tolist(), abs=16)
    assert np.all(matrix % 16 == 0)
    wanted = {tuple(parse_skew("zipf:1", seed)(64, 4)[0]) for seed in range(20)}
    assert len(wanted) > 5


def experts(npu):
    """Tokens to experts and back, and an even all-to-all."""
    kind, row, column = et.CollectiveCommType.ALL_TO_ALL, MATRIX[npu], MATRIX[:, npu]
    return [
        et.coll_node(1, "there", kind, int(row.sum()), in_split_size=row.tolist(), out_split_size=column.tolist()),
        et.coll_node(2, "back", kind, int(column.sum()), in_split_size=column.tolist(), deps=[1]),
        et.coll_node(3, "even", kind, 4 * MTU, deps=[2]),
    ]


def test_runs_have_them_too(nadi, write_run, tmp_path):
    """Each beside what its fullest member takes; the second begins where members are done with the first."""
    run = write_run(map(experts, range(4)), '[system.collectives]\nall-to-all-v = "pairwise"\n', f'spec = "{SWITCH}"')
    nadi.ok("run", run, "--out", tmp_path / "out", "-q")
    rows = pq.read_table(tmp_path / "out" / "collectives.parquet").to_pylist()
    assert [row["algorithm"] for row in rows] == ["pairwise", "pairwise", "direct"]
    assert {row["kind"] for row in rows} == {"all-to-all"}
    for row, matrix in nonempty(zip(rows, (MATRIX, MATRIX.T), strict=False)):
        np.save(tmp_path / "m.npy", matrix)
        arguments = ("--matrix", tmp_path / "m.npy", "--algorithm", "pairwise", "--json", "-q")
        (alone,) = nadi("collective", "all-to-all-v", "-t", SWITCH, *arguments).document["rows"]
        own = matrix * (1 - np.eye(4, dtype=int))
        packets = max(own.sum(axis=0).max(), own.sum(axis=1).max()) // MTU
        assert row["closed_form_ps"] == ((packets + 1) * (MTU + HEADER)) * PS_PER_BYTE + 2 * DELAY_PS
        assert row["closed_form_ps"] < row["time_ps"]
        assert row["time_ps"] == pytest.approx(alone["time_ps"], rel=2e-2)
        assert row["bytes"] == max(matrix.sum(axis=0).max(), matrix.sum(axis=1).max())


def test_on_hosts_with_nvswitches_nccls_costs_are_the_default(nadi, collective, tmp_path):
    """24 KiB on 8 A100 take as long with equal split sizes as an even all-to-all, not 0.15 us."""
    (tmp_path / "m.csv").write_text("\n".join([",".join(["3072"] * 8)] * 8))
    uneven = collective("--matrix", tmp_path / "m.csv", topology="dgx-a100:npus=8")["rows"]
    command = "collective all-to-all -t dgx-a100:npus=8 --json -q --sizes"
    even = nadi(*command.split(), "24KiB").document["rows"]
    assert [row["algorithm"] for row in (*even, *uneven)] == ["nccl", "nccl"]
    assert uneven[0]["time_ps"] == even[0]["time_ps"] > 7_200_000
    assert uneven[0]["ratio"] == 1


def test_paths_in_a_run_file_begin_at_its_folder(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(
        '[workload]\ntraces = "t"\n[topology]\nspec = "ring:npus=4"\n[system.collectives]\nall-to-all = "direct"\n'
        'all-reduce = "custom:file=own/ring, size=1MiB"\nall-gather = "custom:file=/abs/a.xml"\n',
        encoding="utf-8",
    )
    assert load_config(file).system.collectives == {
        "all-to-all": "direct",
        "all-reduce": f"custom:file={tmp_path}/own/ring, size=1MiB",
        "all-gather": "custom:file=/abs/a.xml",
    }


def test_a_ring_that_is_none_is_refused(nadi, tmp_path):
    file = tmp_path / "ring.xml"
    file.write_text(msccl_files.ring(4).replace('type="rrc"', 'type="r"', 1), encoding="utf-8")
    outcome = nadi.refuse("collective", "all-reduce", "-t", "ring:npus=4", "--algorithm", f"custom:file={file}", "-q")
    assert outcome.err.startswith(f"nadi: error: {file}: no all-reduce: member ")
    assert outcome.err.count("\n") == 1


def test_a_run_uses_the_file_beside_it(nadi, write_run, step, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "ring.xml").write_text(msccl_files.fused_ring(4), encoding="utf-8")
    text = '[system.collectives]\nall-reduce = "{}"\n'
    took = []
    for spec in ("custom:file=own/ring.xml", "ring"):
        outcome = nadi.ok("run", write_run([step] * 4, text.format(spec)), "--json", "--quiet")
        took.append(outcome.document["finish_time_ps"])
    assert took[0] == took[1]


def test_traces_of_a_collective_run_beside_a_built_in(nadi, tmp_path):
    for me in range(4):
        nodes, last = [], []
        for k in range(6):
            nodes.append(et.send_node(2 * k, "s", me, (me + 1) % 4, 25_000, deps=last))
            nodes.append(et.recv_node(2 * k + 1, "r", (me - 1) % 4, me, 25_000, deps=[2 * k]))
            last = [2 * k + 1]
        et.write_trace(tmp_path / f"c.{me}.et", et.metadata(), nodes)
    algorithms = f"ring,custom:file={tmp_path}/c,custom:file={tmp_path}/c,size=50kB"
    command = f"collective all-reduce -t ring:npus=4 --sizes 100000 --json -q --algorithm {algorithms}"
    rows = nadi(*command.split()).document["rows"]
    assert rows[0]["time_ps"] == rows[1]["time_ps"] < rows[2]["time_ps"]
    assert rows[0]["closed_form_ps"] > 0
    assert rows[1]["closed_form_ps"] < rows[2]["closed_form_ps"]


def test_closed_forms_alone_simulate_nothing(nadi, monkeypatch):
    """The same closed forms and bounds as beside a simulation, and bandwidths by them."""
    arguments = f"collective all-reduce -t {RING} --sizes 1KiB,1MiB --algorithm ring,direct".split()
    beside = nadi(*arguments, "-q", "--json").document["rows"]
    monkeypatch.setattr(measuring, "run_program", None)
    for fidelity in (("--fidelity", "closed-form"), ("--set", "network.fidelity=closed-form")):
        alone = nadi(*arguments, *fidelity, "--json").document
        assert alone["network"]["fidelity"] == "closed-form"
        for row, other in zip(alone["rows"], nonempty(beside), strict=True):
            for key in ("algorithm", "bytes", "closed_form_ps", "closed_form_played", "bound_ps"):
                assert row[key] == other[key]
            assert row["time_ps"] == round(row["closed_form_ps"])
            assert row["algbw_Bps"] == pytest.approx(row["bytes"] / row["time_ps"] * 1e12)
            assert (row["packet_hops"], row["digest"]) == (0, "")
    (heading,) = (
        line for line in nadi(*arguments, "--fidelity", "closed-form", "-q").out.splitlines() if "algbw" in line
    )
    assert "closed form" in heading
    assert "ratio" not in heading
    assert " time" not in heading


def test_a_fidelity_is_that_of_a_run_file(nadi):
    arguments = ("collective", "all-reduce", "-t", RING, "--sizes", "64KiB", "-q", "--json")
    by_option = nadi(*arguments, "--fidelity", "analytical").document
    assert by_option == nadi(*arguments, "--set", "network.fidelity=analytical").document
    assert by_option["network"]["fidelity"] == "analytical"


def test_the_pace_of_rows_predicts_longer_ones():
    pace = Pace()
    assert (pace.seconds(1e9), pace.needs_calibration(1e9), pace.needs_calibration(1e6)) == (None, True, False)
    pace.add(MeasuredRow(work=1e3, simulation_s=0.5, total_s=9.0))
    assert pace.seconds(1e9) is None
    pace.add(MeasuredRow(work=1e6, simulation_s=2.0, total_s=2.5))
    assert pace.seconds(1e9) == pytest.approx(2.5 + 2.0 * 999)
    pace.add(MeasuredRow(work=3e6, simulation_s=3.0, total_s=3.5))
    assert pace.seconds(1e9) == pytest.approx(3.5 + (1e9 - 3e6) / 2e6)
    assert not pace.needs_calibration(1e9)


@given(st.integers(1, 1 << 40), st.integers(1, 1 << 20), st.floats(1e-3, 1e6))
def test_a_calibration_is_a_small_part_of_its_row(size, least_work, work_per_byte):
    sizes = calibration_sizes(lambda part: max(least_work, part * work_per_byte), size)
    row_work = max(least_work, size * work_per_byte)
    for part in sizes:
        assert MIN_MEASURED_WORK <= max(least_work, part * work_per_byte) <= 0.05 * row_work
    if least_work < MIN_MEASURED_WORK and row_work >= 50 * MIN_MEASURED_WORK and work_per_byte <= MIN_MEASURED_WORK:
        assert sizes


@pytest.mark.parametrize(("sizes", "expected"), [("256KiB", [1]), ("128KiB,256KiB", [1, 2])])
def test_a_long_row_is_announced_before_it_runs(nadi, monkeypatch, sizes, expected):
    """Also with -q. The first row is predicted from a calibration, further ones from those before."""
    monkeypatch.setattr(measuring, "LONG_S", 0.0)
    monkeypatch.setattr("nadi.studies.collectives.measuring.MIN_MEASURED_WORK", 20.0)
    arguments = f"collective all-reduce -t {RING} --sizes {sizes} --set network.mtu=1KiB -q".split()
    lines = nadi(*arguments).err.splitlines()
    assert len(lines) == len(expected)
    for line, row in zip(lines, nonempty(expected), strict=True):
        assert re.fullmatch(rf"nadi: row {row} of {len(expected)}: ring, \d+KiB: about \d+ s", line)
    monkeypatch.setattr(measuring, "LONG_S", 60.0)
    assert nadi(*arguments).err == ""
