"""What takes more memory than is free, or more than a day, is refused before it is built; --force has it tried."""

import pytest

from nadi import et
from nadi.simulation.assembly import resource_checks
from nadi.simulation.assembly.resource_checks import available_bytes
from nadi.workload.collectives import AlgorithmChoice

GB = 10**9


@pytest.fixture
def free(monkeypatch):
    """Have the machine's memory be as much as is set."""

    def have(size_bytes):
        monkeypatch.setattr(resource_checks, "available_bytes", lambda: size_bytes)

    return have


def write(folder, path, text):
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_memory_is_what_machine_and_control_groups_have(tmp_path):
    assert available_bytes(tmp_path) is None
    write(tmp_path, "proc/meminfo", "MemTotal: 64000 kB\nMemFree: 100 kB\nMemAvailable: 2000 kB\n")
    assert available_bytes(tmp_path) == 2000 * 1024
    write(tmp_path, "proc/self/cgroup", "0::/a/job\n")
    write(tmp_path, "sys/fs/cgroup/a/job/memory.max", "max\n")
    write(tmp_path, "sys/fs/cgroup/a/job/memory.current", "1\n")
    assert available_bytes(tmp_path) == 2000 * 1024
    write(tmp_path, "sys/fs/cgroup/a/memory.max", "1000000\n")
    write(tmp_path, "sys/fs/cgroup/a/memory.current", "900000\n")
    write(tmp_path, "sys/fs/cgroup/a/memory.stat", "anon 500000\ninactive_file 300000\n")
    assert available_bytes(tmp_path) == 400_000
    write(tmp_path, "proc/self/cgroup", "4:memory:/slurm/1\n3:cpu:/x\n")
    write(tmp_path, "sys/fs/cgroup/memory/slurm/1/memory.limit_in_bytes", "70000\n")
    write(tmp_path, "sys/fs/cgroup/memory/slurm/1/memory.usage_in_bytes", "90000\n")
    assert available_bytes(tmp_path) == 0


def test_this_machine_says_something():
    assert available_bytes() > 2**20


RING = "ring:npus=4,rate=100Gbps"
COMMANDS = {
    "run": ("run run.toml -q", "cables"),
    "collective": (f"collective all-reduce -t {RING} --sizes 1KiB -q", "cables"),
    "topology show": (f"topology show {RING}", "cables"),
    "topology build": (f"topology build {RING} -o there.toml", "cables"),
    "partition": ("partition run.toml --parts 2", "cables"),
    "workload": ("workload transformer --npus 2 --layers 1 --hidden 12 -o there", "a trace of"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_what_does_not_fit_in_memory(nadi, write_run, tmp_path, monkeypatch, free, step, command):
    write_run([step] * 4)
    monkeypatch.chdir(tmp_path)
    text, word = COMMANDS[command]
    before = sorted(tmp_path.iterdir())
    free(100)
    outcome = nadi(*text.split())
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert word in outcome.err
    assert "0.0 GB are free" in outcome.err
    assert outcome.err.endswith("or --force\n")
    assert sorted(tmp_path.iterdir()) == before
    assert nadi(*text.split(), "--force").code == 0


def test_a_fabric_in_a_file_that_does_not_fit(nadi, tmp_path, free):
    path = tmp_path / "fabric.toml"
    assert nadi("topology", "build", RING, "-o", path).code == 0
    free(100)
    outcome = nadi("topology", "show", path)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert "4 nodes and 4 cables would take about" in outcome.err
    assert nadi("topology", "show", path, "--force").code == 0


def test_collectives_whose_plans_do_not_fit(nadi, write_run, free, step, monkeypatch):
    """Found before any is made, by a run and by `nadi collective`."""
    monkeypatch.setattr(resource_checks, "check_fabric", lambda *_, **__: None)
    made = []
    plan = AlgorithmChoice.plan
    monkeypatch.setattr(AlgorithmChoice, "plan", lambda *arguments: made.append(1) or plan(*arguments))
    run = write_run([step] * 4, '[system]\ncollectives = { all-reduce = "double-binary-tree:chunks=64" }\n')
    arguments = ("collective", "all-reduce", "-t", RING, "--algorithm", "double-binary-tree:chunks=64", "--sizes",
                 "1KiB", "-q")  # fmt: skip
    for command in (("run", run, "-q"), arguments):
        free(100_000)
        outcome = nadi(*command)
        assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
        assert "algorithm double-binary-tree for all-reduce of 4 members: its 1,560 steps would take" in outcome.err
        assert outcome.err.endswith("fewer members, or --force\n")
        assert not made
        assert nadi(*command, "--force").code == 0
        made.clear()


def test_a_run_whose_messages_do_not_fit(nadi, free):
    arguments = ("collective", "all-to-all", "-t", "switch:npus=64", "--sizes", "4KiB", "-q", "--algorithm")
    free(61_000_000)
    outcome = nadi(*arguments, "direct")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "4,032 messages between 4,032 pairs of NPUs would take about 0.1 GB" in outcome.err
    left = nadi(*arguments, "all", "--json").document
    assert "direct" in [each["algorithm"] for each in left["left_out"]]
    assert "bruck" in [row["algorithm"] for row in left["rows"]]


@pytest.mark.parametrize("fidelity", ["packet", "analytical"])
def test_more_than_a_day(nadi, write_run, monkeypatch, fidelity):
    """A gigabyte is a matter of seconds; where a day had but a moment, it would not be."""
    size = 1 << 20
    nodes = [[et.send_node(1, "s", 0, 1, size)], [et.recv_node(1, "r", 0, 1, size)]]
    run = write_run(nodes, f'[network]\nfidelity = "{fidelity}"\n')
    assert nadi("run", run, "-q").code == 0
    monkeypatch.setattr(resource_checks, "MAX_WALL_S", 1e-7)
    outcome = nadi("run", run, "-q")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert ("512 packet-hops (256 packets)" if fidelity == "packet" else "1 messages") in outcome.err
    assert "expected less than 24, or --force" in outcome.err
    assert nadi("run", run, "-q", "--force").code == 0


def test_a_tebibyte_to_each_of_1024_is_refused_at_once(nadi):
    arguments = ("collective", "all-reduce", "-t", "leaf-spine:npus=1024", "--sizes", "1TiB", "-q")
    outcome = nadi(*arguments)
    assert outcome.code == 2
    assert "packets) would take about" in outcome.err


def test_more_equal_links_than_the_engine_tells_apart(nadi):
    outcome = nadi("collective", "all-reduce", "-t", "leaf-spine:npus=4,hosts_per_leaf=2,spines=600", "-q")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "600 equal links side by side; expected at most 511" in outcome.err


def test_more_than_the_counter_of_a_link_holds(nadi):
    """A ring of four moves 1.5 times the buffer over each link: 60 TiB are too many, 30 are not."""
    more = ("-t", "ring:npus=4,rate=1000Tbps", "-q", "--set", "network.fidelity=analytical", "--json", "--sizes")
    assert nadi("collective", "all-reduce", *more, "30TiB", "--algorithm", "ring").code == 0
    outcome = nadi("collective", "all-reduce", *more, "60TiB", "--algorithm", "ring")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "link npu 0 - npu 1 of ring:npus=4,rate=1000Tbps would send about 99.0 TB" in outcome.err
    assert "at most 70.4 TB" in outcome.err
