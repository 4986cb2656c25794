"""Bad input: each is one line on standard error and exit code 2, and nothing is written."""

import pytest

from nadi import et
from nadi.et import CollectiveCommType
from tests.nonempty import nonempty

ALL_REDUCE = CollectiveCommType.ALL_REDUCE
RING = 'spec = "ring:npus=4,rate=100Gbps,delay=1us"'


def reduce(size=1024, **more):
    return [et.coll_node(1, "grads", ALL_REDUCE, size, **more)]


def two(first, second):
    return [et.coll_node(1, "a", ALL_REDUCE, first), et.coll_node(2, "b", ALL_REDUCE, second, deps=[1])]


def cycle():
    return [et.comp_node(1, "a", deps=[2]), et.comp_node(2, "b", deps=[1])]


def without_size():
    node = reduce()[0]
    for i, attribute in enumerate(node.attr):
        if attribute.name == "comm_size":
            del node.attr[i]
    return [node]


# what is wrong: nodes of each NPU, topology, further text, words that the line must hold
CASES = {
    "dependency cycle": ([cycle()], RING, "", ["trace.0.et", "cycle", "1", "2"]),
    "dangling dependency": ([[et.comp_node(1, "a", deps=[9])]], RING, "", ["trace.0.et: node 1", "node 9"]),
    "missing member": ([reduce()] * 3, RING, "", ["trace.0.et", "all-reduce", "NPU 3"]),
    "sizes disagree": ([reduce()] * 3 + [reduce(2048)], RING, "", ["1024 B", "2048 B"]),
    "order disagrees": ([two(1, 2)] * 3 + [two(2, 1)], RING, "", ["trace.0.et", "trace.3.et"]),
    "kinds disagree": (
        [reduce()] * 3 + [[et.coll_node(1, "x", CollectiveCommType.ALL_GATHER, 1024)]],
        RING,
        "",
        ["all-reduce", "all-gather"],
    ),
    "send without receive": ([[et.send_node(1, "s", 0, 1, 64)], []], RING, "", ["trace.0.et: node 1", "no receive"]),
    "receive without send": ([[et.recv_node(1, "r", 1, 0, 64)], []], RING, "", ["trace.0.et: node 1", "no send"]),
    "missing comm_size": ([without_size()] * 4, RING, "", ["trace.0.et: node 1", "comm_size", "missing"]),
    "unknown group": ([reduce(pg_name="5")] * 4, RING, "", ["trace.0.et: node 1", '"5"', "unknown group"]),
    "trace of a lacking NPU": ([reduce()] * 5, RING, "", ["trace.4.et", "4 NPUs"]),
    "zero rate": ([reduce()] * 4, 'spec = "ring:npus=4,rate=0Gbps"', "", ["rate", "zero"]),
    "unknown topology": ([reduce()] * 4, 'spec = "rnig:npus=4"', "", ["rnig", "ring"]),
    "unknown parameter": ([reduce()] * 4, 'spec = "ring:npsu=4"', "", ["npsu", "npus"]),
    "missing file": ([reduce()] * 4, 'file = "nothing.toml"', "", ["nothing.toml"]),
    "unknown key": ([reduce()] * 4, RING, "[network]\nmut = 1\n", ["run.toml", "[network] mut", "mtu"]),
    "unknown kind": ([reduce()] * 4, RING, "[system]\ncollectives = { sum = 'ring' }\n", ["sum", "all-reduce"]),
    "unknown algorithm": (
        [reduce()] * 4,
        RING,
        "[system]\ncollectives = { all-reduce = 'rnig' }\n",
        ["rnig", "all-reduce", "ring"],
    ),
    "no rate for a roofline": (
        [[et.comp_node(1, "a", num_ops=10)]],
        RING,
        "[compute]\nmodel = 'roofline'\n",
        ["trace.0.et: node 1", "peak_flops"],
    ),
}

# what is wrong with [network]: text, words that the line must hold
NETWORKS = {
    "unknown switch": ("switch = 'voq'", ["[network] switch", "voq", "output-queued"]),
    "cut-through with a shared buffer": (
        "ecn = true\ncut_through = true",
        ["cut_through = true", "cut_through = false"],
    ),
    "kmin above kmax": ("ecn_kmin = '500kB'", ["ecn_kmin = 500kB", "ecn_kmax = 400kB"]),
    "pmax above 1": ("ecn_pmax = 1.5", ["[network] ecn_pmax", "1.5", "expected 0 to 1"]),
    "pmax below 0": ("ecn_pmax = -0.5", ["[network] ecn_pmax", "-0.5", "expected 0 to 1"]),
    "pfc as text": ("pfc = 'yes'", ["[network] pfc", "'yes'", "boolean"]),
    "alpha of zero": ("pfc_alpha = 0", ["[network] pfc_alpha"]),
    "trimming with pfc": ("trimming = true", ["trimming", "pfc = false"]),
    "one weight": ("class_weights = [1]", ["[network] class_weights"]),
    "unknown discipline": ('switch = "shared-buffer"\ndiscipline = "x"', ["discipline", "known: strict, weighted"]),
    "weight of zero": ("class_weights = [1, 0]", ["class_weights", "greater than or equal to 1"]),
    "share above all": ("p2p_share = 1.5", ["[network] p2p_share", "1.5", "0.001 to 1"]),
    "third class": ("p2p_class = 2", ["[network] p2p_class", "0 or 1"]),
    "buffer too small": ("buffer = '100kB'", ["[network] buffer", "100kB", "switch 0", "pfc_headroom"]),
    "headroom too large": ("pfc_headroom = '9MB'", ["[network] buffer", "36MB", "pfc_headroom"]),
    "mtu too large": ("mtu = 65500", ["[network] mtu", "65582", "65535"]),
    "unknown control": ("congestion_control = 'dctpc'", ["[network] congestion_control", "dctpc", "dcqcn, dctcp"]),
    "unknown parameter": (
        "congestion_control = 'dctcp'\ncongestion = { gain = 1 }",
        ["[network] congestion", "gain", "initial_alpha"],
    ),
    "parameter as text": ("congestion_control = 'dctcp'\ncongestion = { g = 'x' }", ["[network.congestion] g", "'x'"]),
    "parameter without end": ("congestion_control = 'dctcp'\ncongestion = { g = inf }", ["[network.congestion] g"]),
    "marks of output queues": (
        "switch = 'output-queued'\ncongestion_control = 'dctcp'",
        ["[network] congestion_control", "dctcp", "ecn", "shared-buffer"],
    ),
    "marks without ecn": ("ecn = false\ncongestion_control = 'dcqcn'", ["[network] congestion_control", "ecn = true"]),
    "interval without unit": ("cnp_interval = 50", ["[network] cnp_interval"]),
}


def listing(folder):
    return sorted(path.relative_to(folder) for path in folder.rglob("*"))


def refused(nadi, folder, *arguments):
    """Run, and check that the input is refused as it should be; gives the line."""
    before = listing(folder)
    outcome = nadi(*arguments)
    assert outcome.code == 2, outcome
    assert outcome.out == ""
    assert outcome.err.startswith("nadi: error: ")
    assert outcome.err.count("\n") == 1
    assert listing(folder) == before
    return outcome.err


@pytest.mark.parametrize("case", CASES)
def test_runs(nadi, write_run, tmp_path, case):
    nodes, topology, text, words = CASES[case]
    line = refused(nadi, tmp_path, "run", write_run(nodes, text, topology), "--out", tmp_path / "a" / "out", "-q")
    for word in nonempty(words):
        assert word in line


@pytest.mark.parametrize("case", NETWORKS)
def test_networks(nadi, write_run, step, tmp_path, case):
    text, words = NETWORKS[case]
    topology = 'spec = "switch:npus=4,rate=100Gbps,delay=1us"'
    run = write_run([step] * 4, f"[network]\n{text}\n", topology)
    line = refused(nadi, tmp_path, "run", run, "--out", tmp_path / "out", "-q")
    for word in nonempty(words):
        assert word in line


@pytest.mark.parametrize(("keep", "word"), [(0, "empty"), (-3, "expected at most"), (1, "byte 0")])
def test_truncated_traces(nadi, write_run, tmp_path, keep, word):
    run = write_run([reduce()] * 4)
    trace = tmp_path / "trace.2.et"
    trace.write_bytes(trace.read_bytes()[:keep])
    line = refused(nadi, tmp_path, "run", run, "--out", tmp_path / "out", "-q")
    assert "trace.2.et" in line
    assert word in line


def test_corrupt_length(nadi, write_run, tmp_path):
    run = write_run([reduce()] * 4)
    trace = tmp_path / "trace.1.et"
    trace.write_bytes(trace.read_bytes() + b"\xff" * 12)
    assert "corrupt message length" in refused(nadi, tmp_path, "run", run, "--out", tmp_path / "out", "-q")


def test_disconnected_fabric(nadi, write_run, tmp_path):
    (tmp_path / "net.toml").write_text(
        'npus = 4\n[[switches]]\n[[switches]]\n[[links]]\nrate = "1Gbps"\ndelay = "1us"\n'
        "cables = [[0, 4], [1, 4], [2, 5], [3, 5]]\n"
    )
    run = write_run([reduce()] * 4, topology='file = "net.toml"')
    line = refused(nadi, tmp_path, "run", run, "--out", tmp_path / "out", "-q")
    assert "net.toml" in line
    assert "npu 2" in line


def test_no_traces_and_no_run_file(nadi, write_run, tmp_path):
    assert "no traces" in refused(nadi, tmp_path, "run", write_run([]), "-q")
    assert "nope.toml" in refused(nadi, tmp_path, "run", tmp_path / "nope.toml")


@pytest.mark.parametrize("where", ["file", "file/deeper", "/dev/null/out", "/proc/nadi-out"])
def test_unwritable_output_is_found_before_simulating(nadi, write_run, step, tmp_path, monkeypatch, where):
    (tmp_path / "file").touch()
    monkeypatch.setattr("nadi.simulation.run.run_program", None)
    out = where if where.startswith("/") else tmp_path / where
    line = refused(nadi, tmp_path, "run", write_run([step] * 4), "--out", out, "-q")
    assert str(out) in line


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ("topology show rnig:npus=4", "ring"),
        ("topology show ring:npus=x", "npus"),
        ("topology build ring:npus=4 -o {}/a/b.toml", "b.toml"),
        ("trace show {}/nope.et", "nope.et"),
        ("workload transformer --npus 0 -o {}/t", "npus"),
        ("workload transformer --bucket-bytes 3q -o {}/t", "3q"),
        ("workload transformer -o /dev/null/t", "/dev/null/t"),
        ("collective all-redcue -t ring:npus=4", "all-reduce"),
        ("collective all-reduce -t ring:npus=4 --algorithm rnig", "ring"),
        ("collective all-reduce -t ring:npus=4 --sizes 1MiB:2MiB", "1MiB:1GiB:x2"),
        ("collective all-reduce -t ring:npus=4 --sizes 4:2:x2", "first size"),
        ("collective all-reduce -t ring:npus=4 --sizes 1:2:x1", "grow"),
        ("collective all-reduce -t ring:npus=4 --sizes 1:2:xx", "whole number"),
        ("collective all-reduce -t ring:npus=4 --sizes 1:1GB:+1", "1000"),
        ("collective all-reduce -t ring:npus=4 --sizes 0", "size of 0"),
        ("collective all-reduce -t ring:npus=4 --set network.mut=1", "mtu"),
        ("collective all-reduce -t switch:npus=4 --set network.congestion_control=rnig", "dcqcn"),
        ("collective all-reduce -t switch:npus=4 --set network.buffer=50kB", "[network] buffer"),
        ("net {}/nope", "expected results of"),
        ("net {}", "expected results of"),
        ("net {} -o x.png", "expected a file .html"),
        ("bench nope", "permutation"),
    ],
)
def test_commands(nadi, tmp_path, arguments, word):
    line = refused(nadi, tmp_path, *arguments.format(tmp_path).split())
    assert word in line


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("engine.partitioner=metsi", ["[engine] partitioner", "metsi", "metis"]),
        ("engine.weights=nothing-here", ["nothing-here", "links.parquet"]),
    ],
)
def test_how_the_fabric_is_divided_is_checked_for_one_worker_too(
    nadi, write_run, tmp_path, monkeypatch, workers, override, words
):
    monkeypatch.chdir(tmp_path)
    run = write_run([reduce()] * 4)
    for fidelity in ("packet", "analytical"):
        more = ("--set", override, "--workers", workers, "--set", f"network.fidelity={fidelity}")
        line = refused(nadi, tmp_path, "run", run, "-q", "--out", "out", *more)
        for word in nonempty(words):
            assert word in line


@pytest.mark.parametrize(
    "command",
    [
        "run run.toml -q --out",
        "collective all-reduce -t ring:npus=4 --sizes 1KiB -q -o",
        "topology build ring:npus=4 -o",
        "workload transformer --npus 2 --layers 1 --hidden 12 -o",
        "partition run.toml --parts 2 --plot",
        "slurm run.toml --nodes 1 -o",
        "slurm run.toml --nodes 1 --out",
    ],
)
def test_an_empty_path_is_not_this_folder(nadi, write_run, tmp_path, monkeypatch, command):
    write_run([reduce()] * 4)
    monkeypatch.chdir(tmp_path)
    assert "empty path" in refused(nadi, tmp_path, *command.split(), "")
