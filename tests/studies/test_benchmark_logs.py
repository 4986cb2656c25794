"""Logs of benchmarks: every form that the tests have printed gives the same rows, and wrong rows one line."""

import json
import math
from functools import partial

import pytest

from nadi.errors import ConfigError
from nadi.insight.benchmark_logs import SEND_RECEIVE, read_logs
from nadi.insight.lines_beside_rows import HostEvidence, Nic, with_host_line
from nadi.insight.node_times import bus_factor
from tests.refusals import refused
from tests.studies.printed_logs import (
    PROGRAM,
    Times,
    errors_as_numbers,
    first_version,
    heading,
    of_mscclpp,
    part,
    today,
)

ROWS = (Times(1 << 20, 41.25, 40.5), Times(16 << 20, 310.5, 308.0), Times(1 << 30, 12_345.0, 12_301.0))
NAN = math.nan
STAMP = "  2026-11-30 22:10:05"
FORMS = {
    "first": (first_version, ("all-reduce",)),
    "errors": (errors_as_numbers, ("all-reduce", "all-gather", "reduce")),
    "today": (today, tuple(PROGRAM)),
    "timestamps": (partial(today, timestamp=STAMP), ("all-reduce",)),
    "per iteration": (partial(today, per_iteration=True, timestamp=STAMP), ("all-to-all",)),
}


def written(tmp_path, lines, name="out.log"):
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def one(tmp_path, lines, name="out.log"):
    (log,) = read_logs([written(tmp_path, lines, name)])
    return log


def commanded(kind, lines, program="{}_perf"):
    return [f"$ ./build/{program.format(PROGRAM[kind])} -b 1M -e 1G -f 2", *lines]


def assert_rows(log, kind, rows, ranks=16, hosts=2, rel=1e-3):
    assert (log.collective, log.gpus, log.hosts) == (kind, ranks, hosts)
    assert log.gpu_name == "NVIDIA H100 80GB HBM3"
    assert [row.size_bytes for row in log.rows] == [row.size_bytes for row in rows]
    for row, (size, out, within) in zip(log.rows, rows, strict=True):
        assert row.time_us == pytest.approx(out, rel=rel, nan_ok=True)
        assert row.time_in_place_us == pytest.approx(within, rel=rel, nan_ok=True)
        for time, rate in ((out, row.bus_bandwidth_Bps), (within, row.bus_bandwidth_in_place_Bps)):
            expected = size / time * 1e6 * bus_factor(kind, ranks)
            assert rate == pytest.approx(expected, rel=1e-3, nan_ok=True)


@pytest.mark.parametrize(("form", "kind"), [(form, kind) for form, (_, kinds) in FORMS.items() for kind in kinds])
def test_every_form_gives_its_times(tmp_path, form, kind):
    write, _ = FORMS[form]
    log = one(tmp_path, commanded(kind, write(ROWS, kind, 16, 2)))
    assert_rows(log, kind, ROWS, rel=0.02 if form == "first" else 1e-3)  # the first form prints whole microseconds
    checked = form in {"today", "timestamps"} and "reduc" in kind
    assert {row.wrong for row in log.rows} == {0 if checked else None}
    assert {row.data_type for row in log.rows} == {"float"}
    assert log.nccl is None


@pytest.mark.parametrize("counts", [True, False])
def test_mscclpp_prints_in_place_first_and_one_part(tmp_path, counts):
    for rows in (
        [Times(size, NAN, within) for size, _, within in ROWS],
        [Times(size, out, NAN) for size, out, _ in ROWS],
    ):
        lines = commanded("all-gather", of_mscclpp(rows, "all-gather", 16, 2, counts), "allgather_test_perf")
        assert_rows(one(tmp_path, lines), "all-gather", rows)


@pytest.mark.parametrize(
    "prefix",
    ["[1,0]<stdout>:", "> ", "0: ", "worker-0: ", "\x1b[32m", "2026-11-30T10:00:00.123Z ", "> > [1,12]<stdout>: "],
)
def test_prefixes_of_launchers_and_messages(tmp_path, prefix):
    lines = [prefix + line for line in commanded("all-reduce", today(ROWS, "all-reduce", 16, 2))]
    assert_rows(one(tmp_path, lines), "all-reduce", ROWS)


def test_a_launcher_may_name_the_rank_before_each_piece_of_a_row(tmp_path):
    plain = commanded("all-reduce", today(ROWS, "all-reduce", 16, 2))
    lines = ["[0]" + line.replace(" -1 ", " -1[0] ").replace(" 0 ", " 0[0] ") for line in plain]
    assert any(line.count("[0]") == 3 for line in lines)
    assert_rows(one(tmp_path, lines), "all-reduce", ROWS)


def test_lines_without_the_marks_of_comments(tmp_path):
    lines = [line.lstrip("#") for line in commanded("all-reduce", today(ROWS, "all-reduce", 16, 2))]
    assert_rows(one(tmp_path, lines), "all-reduce", ROWS)


def test_rows_alone_show_collective_and_ranks(tmp_path):
    rows = [line for line in today(ROWS, "all-reduce", 16, 2) if line.strip()[0].isdigit()]
    log = one(tmp_path, rows)
    assert (log.collective, log.gpus, log.hosts, log.gpu_name) == ("all-reduce", 16, None, None)
    reduced = [line for line in today(ROWS, "reduce", 16, 2) if line.strip()[0].isdigit()]
    assert one(tmp_path, reduced).collective == "reduce"
    assert one(tmp_path, reduced).gpus == 0


def test_the_name_of_the_file_names_the_collective(tmp_path):
    lines = list(today(ROWS, "all-gather", 16, 2))
    assert one(tmp_path, lines, "all-gather-16.txt").collective == "all-gather"
    assert one(tmp_path, lines, "sendrecv.txt").collective == SEND_RECEIVE
    text = refused(ConfigError, one, tmp_path, lines, "16.txt")
    assert "16.txt:24: rows of an unnamed collective; expected the command line" in text


def test_several_tests_and_files(tmp_path):
    first = commanded("all-reduce", today(ROWS, "all-reduce", 16, 2))
    second = ["all done", *commanded("all-to-all", today(ROWS[:1], "all-to-all", 8, 1))]
    third = commanded("broadcast", errors_as_numbers(ROWS[1:], "broadcast", 4, 2))
    paths = [written(tmp_path, [*first, *second]), written(tmp_path, third, "other.log")]
    logs = read_logs(paths)
    assert_rows(logs[0], "all-reduce", ROWS)
    assert_rows(logs[1], "all-to-all", ROWS[:1], 8, 1)
    assert_rows(logs[2], "broadcast", ROWS[1:], 4, 2)
    assert [log.file.name for log in logs] == ["out.log", "out.log", "other.log"]
    assert logs[1].rows[0].line == len(first) + 2 + len(list(heading(8, 1))) + 4


def test_wrong_elements_and_values_that_are_not_available(tmp_path):
    lines = [*commanded("all-reduce", heading(2, 2))]
    lines += ["# out-of-place in-place", "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong"]
    lines += [f"1024 256 float sum -1 {part(30.0, 1024, 'all-reduce', 2, 3)} {part(31.0, 1024, 'all-reduce', 2, '4*')}"]
    lines += [f"2048 512 float sum -1 {part(30.0, 1024, 'all-reduce', 2, 'N/A')} {part(NAN, 1, 'all-reduce', 2, '')}"]
    log = one(tmp_path, lines)
    assert [row.wrong for row in log.rows] == [7, None]
    assert math.isnan(log.rows[1].time_in_place_us)
    assert log.rows[1].best_time_us == 30.0


NCCL_LINES = """
host-0:14:20 [0] NCCL INFO NCCL_IB_HCA set by environment to mlx5
NCCL version 2.21.5+cuda12.4
host-0:14:20 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_bond_1:2/IB [RO]; OOB eth0:10.0.0.1<0>
host-0:14:20 [0] NCCL INFO Using network IB
host-0:14:20 [0] NCCL INFO comm 0x1 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0
host-0:14:20 [0] NCCL INFO NVLS multicast support is available on dev 0
host-0:14:20 [0] NCCL INFO Channel 00/16 :    0   1   2   3
host-0:14:20 [0] NCCL INFO Channel 03/0 : 0[0] -> 9[1] [send] via NET/IB/1(1)/GDRDMA
host-0:14:20 [0] NCCL INFO Connected all rings
host-0:14:20 [0] NCCL INFO Connected all trees
""".strip().splitlines()


def test_lines_of_nccl(tmp_path):
    lines = ["$ mpirun -x NCCL_ALGO=Ring,Tree all_reduce_perf", *NCCL_LINES, *today(ROWS, "all-reduce", 16, 2)]
    info = one(tmp_path, lines).nccl
    assert (info.version, info.channels, info.nvls, info.pxn, info.gpu_direct) == ("2.21.5", 16, True, True, True)
    assert (info.rings, info.trees, info.network, info.ranks, info.nodes) == (True, True, "IB", 16, 2)
    assert info.nics == (Nic("mlx5_0", 1, "RoCE"), Nic("mlx5_bond_1", 2, "IB"))
    assert info.settings == {"NCCL_ALGO": "Ring,Tree", "NCCL_IB_HCA": "mlx5"}
    copies = [*NCCL_LINES, NCCL_LINES[7].replace("/GDRDMA", ""), "NCCL INFO 8 coll channels, 0 nvls channels"]
    info = one(tmp_path, [*copies, *commanded("all-reduce", today(ROWS, "all-reduce", 16, 2))]).nccl
    assert (info.gpu_direct, info.nvls, info.channels) == (False, False, 8)


def test_processes_that_ran_alone_are_refused(tmp_path):
    lines = [line.replace("Rank  1", "Rank  0") for line in commanded("all-reduce", today(ROWS, "all-reduce", 2, 2))]
    assert "out.log:6: rank 0 twice, as each process ran alone; expected" in refused(ConfigError, one, tmp_path, lines)


def test_hosts_that_share_a_name_are_not_counted(tmp_path):
    lines = [line.replace("host-1", "host-0") for line in commanded("all-reduce", today(ROWS, "all-reduce", 16, 2))]
    assert one(tmp_path, lines).hosts is None


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("1048576 262144 float sum -1 41.2 25.4", "expected a row with time, algbw, busbw and number of wrong"),
        ("1048576 262144 float sum -1", "expected a row with time"),
        ("1048576 262144 float sum -1 41.2 25.4 47.7 0 host-0:14 NCCL WARN x y", "expected a row with time"),
        ("1048576 262144 float sum -1 41.2 25.4 x7.7 0 41.2 25.4 47.7 0", "'x7.7' in a row; expected a number"),
        ("1048576 262144 float sum -1 -41.2 25.4 47.7 0", "'-41.2' in a row; expected a number of 0 or more"),
        ("1048576 262144 float sum -1 inf 25.4 47.7 0", "'inf' in a row"),
        ("1" * 20 + " 262144 float sum -1 41.2 25.4 47.7 0", "expected at most 15 digits"),
    ],
)
def test_rows_that_cannot_be_read(tmp_path, row, expected):
    lines = [*commanded("all-reduce", today(ROWS, "all-reduce", 2, 1)), row]
    text = refused(ConfigError, one, tmp_path, lines)
    assert f"out.log:{len(lines)}: " in text
    assert expected in text


def test_files_without_rows(tmp_path):
    assert "no row of a benchmark; expected rows" in refused(ConfigError, one, tmp_path, ["hello", "# 12 words"])
    assert "none.log: No such file" in refused(ConfigError, read_logs, [tmp_path / "none.log"])
    lines = [
        line.replace("all_reduce", "hypercube") for line in commanded("all-reduce", today(ROWS, "all-reduce", 2, 1))
    ]
    assert "rows of hypercube_perf; expected one of all_gather" in refused(ConfigError, one, tmp_path, lines)


def test_variables_of_commands_over_several_lines_and_of_exports(tmp_path):
    rows = list(today(ROWS, "all-reduce", 16, 2))
    lines = ["$ export NCCL_PROTO=Simple", "$ mpirun -np 16 \\", "  -x NCCL_ALGO=Ring \\", "  all_reduce_perf", *rows]
    lines += ["$ mpirun -np 16 \\", "  -x NCCL_ALGO=Tree \\", "  all_gather_perf", *today(ROWS, "all-gather", 16, 2)]
    first, second = read_logs([written(tmp_path, lines)])
    assert first.nccl.settings == {"NCCL_PROTO": "Simple", "NCCL_ALGO": "Ring"}
    assert second.nccl.settings == {"NCCL_PROTO": "Simple", "NCCL_ALGO": "Tree"}
    assert second.collective == "all-gather"
    assert first.members == tuple((f"host-{host}", device) for host in range(2) for device in range(8))


def json_document(rows, per_process=1):
    """Return what nccl-tests 2.17 and later write for -J: as `writeBenchmarkLineBody` of src/util.cu has it."""

    def values(time_us, size_bytes):
        rate = size_bytes / time_us / 1e3
        return {"time": time_us, "alg_bw": rate, "bus_bw": rate * bus_factor("all-reduce", 16), "nwrong": 0.0}

    places = [(host, device) for host in range(2) for device in range(0, 8, per_process)]
    return {
        "version": 2,
        "args": ["./build/all_reduce_perf", "-b", "1M"],
        "env": ["HOME=/root", "NCCL_ALGO=Ring"],
        "nccl_version": 22105,
        "config": {
            "nthreads": 1,
            "ngpus": per_process,
            "devices": [
                {"rank": k * per_process, "group": 0, "pid": 10 + k, "hostname": f"host-{host}", "device": device}
                | {"device_hex": "00", "device_info": "NVIDIA H100 80GB HBM3"}
                for k, (host, device) in enumerate(places)
            ],
        },
        "results": [
            {"size": size, "count": size // 4, "type": "float", "redop": "sum", "root": "    -1"}
            | {"out_of_place": values(out, size), "in_place": values(within, size), "experiment_name": "x"}
            for size, out, within in rows
        ],
    }


@pytest.mark.parametrize("per_process", [1, 8])
def test_json_of_nccl_tests_gives_the_same_rows(tmp_path, per_process):
    log = one(tmp_path, [json.dumps(json_document(ROWS, per_process))], "out.json")
    assert_rows(log, "all-reduce", ROWS)
    assert (log.nccl.version, log.nccl.settings) == ("2.21.5", {"NCCL_ALGO": "Ring"})
    assert len(log.members) == (16 if per_process == 1 else 0)
    assert [row.wrong for row in log.rows] == [0, 0, 0]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda document: document.pop("config"), "no key 'config'; expected the JSON document that nccl-tests"),
        (lambda document: document["results"].clear(), "no row of a benchmark; expected some in results"),
        (lambda document: document["results"][0].update(size="x"), "'x'; expected the JSON document"),
        (lambda document: document["results"][0]["in_place"].update(time="fast"), ":1: 'fast' in a row; expected"),
    ],
)
def test_wrong_json_is_refused(tmp_path, change, expected):
    document = json_document(ROWS)
    change(document)
    assert expected in refused(ConfigError, one, tmp_path, [json.dumps(document)])


PERFTEST = """
 Dual-port       : OFF          Device         : mlx5_3
 Number of qps   : 1            Transport type : IB
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      5000             392.11             391.90             0.747
 131072     5000             392.20             392.10             0.374
""".splitlines()
TOPOLOGY = """
        GPU0    GPU1    NIC0    NIC1    CPU Affinity    NUMA Affinity
GPU0     X      NV18    PIX     SYS     0-47            0
GPU1    NV18     X      SYS     PXB     0-47            0
NIC0    PIX     SYS      X      SYS
""".splitlines()


def test_perftest_and_paths_of_nics_are_evidence(tmp_path):
    lines = [*PERFTEST, *TOPOLOGY, *commanded("all-reduce", today(ROWS, "all-reduce", 16, 2))]
    log = one(tmp_path, lines)
    assert_rows(log, "all-reduce", ROWS)
    found = log.evidence
    assert (found.verbs_Bps, found.gpu_verbs_Bps, found.devices) == (392.10e9 / 8, 0.0, frozenset({"mlx5_3"}))
    assert found.near_nics is True
    far = HostEvidence()
    for line in ["initializing CUDA", *PERFTEST, *(line.replace("PXB", "NODE") for line in TOPOLOGY)]:
        far = with_host_line(far, line)
    assert (far.verbs_Bps, far.gpu_verbs_Bps, far.near_nics) == (0.0, 392.10e9 / 8, False)
    for line in (line.replace("Gb/sec", "MB/sec") for line in PERFTEST):  # a further test, without a GPU
        far = with_host_line(far, line)
    assert far.verbs_Bps == pytest.approx(392.20 * (1 << 20), rel=1e-3)
