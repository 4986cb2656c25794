"""Diagnoses of logs that users have published: figures of issues, in the forms that the programs print."""

import pytest

from nadi.insight.benchmark_logs import read_logs
from nadi.insight.node_times import bus_factor
from nadi.studies.diagnosis import diagnose
from tests.studies.printed_logs import Times, today

GIB = 1 << 30
# nccl issue 2409: bus bandwidths in GB/s of 2 x 8 H100 with 8 NICs of 400 Gb/s each, RoCE
TESTS_2409 = (
    ("all_reduce", "all-reduce", 16, ((GIB, 216.5), (8 * GIB, 231.0))),
    ("all_gather", "all-gather", 16, ((GIB // 4, 101.0),)),
    ("reduce_scatter", "reduce-scatter", 16, ((GIB // 4, 100.0),)),
    ("alltoall", "all-to-all", 16, ((GIB // 4, 25.0),)),
    ("sendrecv", "send-receive", 2, ((GIB, 13.1),)),
)
# one queue pair, memory of hosts, one rail
PERFTEST_2409 = """
 Number of qps   : 1            Transport type : IB
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 131072     5000             392.10             392.10             0.374
""".splitlines()
GPUS, NICS = range(8), range(8)


def matrix():
    """Yield what `nvidia-smi topo -m` prints where each GPU has a NIC behind its PCIe switch."""
    yield "        " + " ".join([*(f"GPU{gpu}" for gpu in GPUS), *(f"NIC{nic}" for nic in NICS)])
    for me in GPUS:
        paths = ["X" if gpu == me else "NV18" for gpu in GPUS] + ["PIX" if nic == me else "SYS" for nic in NICS]
        yield f"GPU{me} {' '.join(paths)}"


def of_2409():
    for program, kind, ranks, rows in TESTS_2409:
        yield f"$ {program}_perf -b 256M"
        times = [Times(size, *[size * bus_factor(kind, ranks) / rate / 1e3] * 2) for size, rate in rows]
        yield from today(times, kind, ranks, 2)


@pytest.mark.slow
def test_issue_2409_is_no_cap_of_the_fabric(tmp_path):
    path = tmp_path / "rows.log"
    path.write_text("\n".join([*matrix(), *PERFTEST_2409, *of_2409()]), encoding="utf-8")
    found = diagnose("dgx-h100-superpod", read_logs([path]))
    assert all(row.ratio > 2 for row in found.rows)
    best = found.hypotheses[0]
    # on two hosts the rows are those of any limit between a GPU and its peer in the other host; the matrix of paths
    # puts a path through the CPU behind
    assert best.name == "pair-cap"
    assert best.severity == pytest.approx(0.28, abs=0.03)  # 13 to 14 GB/s of 50
    assert {"gdr-off", "nic-path"} <= set(best.alike)


@pytest.mark.slow
def test_issue_252_is_healthy(tmp_path):
    # nccl-tests issue 252: 2 x 4 H100, 4 NICs of 200 Gb/s, rings; times in microseconds
    rows = [Times(GIB // 2, 10_052.0, 9_676.9), Times(GIB, 20_079.0, 19_265.0), Times(2 * GIB, 39_871.0, 39_357.0)]
    lines = ["$ mpirun -x NCCL_ALGO=RING -np 8 all_reduce_perf -b 512M -f 2 -g 1", *today(rows, "all-reduce", 8, 2)]
    (tmp_path / "rows.log").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "cluster.toml").write_text(
        'gpu = "h100"\ngpus_per_host = 4\ngpus = 8\n[fabric]\nname = "rail-fat-tree"\naccelerator = "h100"\n'
        'nvlink_rate = "450GB/s"\nrate = "200Gbps"\nhosts_per_unit = 4\nspines = 4\nswitch_latency = "600ns"\n',
        encoding="utf-8",
    )
    found = diagnose(str(tmp_path / "cluster.toml"), read_logs([tmp_path / "rows.log"]))
    assert found.hypotheses[0].name == "healthy"
    errors = [abs(1 / row.ratio - 1) for row in found.rows]
    assert sum(errors) / len(errors) < 0.06
    assert max(errors) < 0.15
