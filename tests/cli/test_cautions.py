"""What a run cannot mean is said, and what takes more memory than is free, or more than a day, is refused."""

import pytest

from nadi import et
from nadi.simulation.assembly import resource_checks
from nadi.workload.collectives import AlgorithmChoice

ALL_REDUCE = et.CollectiveCommType.ALL_REDUCE
RING = 'spec = "ring:npus=4,rate=100Gbps,delay=1us"'


def warnings(nadi, run, *arguments):
    """Of summary.json; the report has the same."""
    said = nadi.ok("run", run, "-q", "--json", *arguments).document["warnings"]
    shown = " ".join(nadi("run", run, "-q", *arguments).out.split())
    assert [warning for warning in said if f"warning: {warning}" not in shown] == []
    assert said or "warning:" not in shown
    return said


def test_collectives_that_start_at_ever_other_offsets(nadi, write_run):
    """Computation before each differs by a microsecond more in each turn, or is the same for all."""

    def turns(npu, more_micros):
        nodes = []
        for turn in range(60):
            before = [2 * turn - 1] if turn else []
            nodes.append(et.comp_node(2 * turn, "c", duration_micros=9 + turn * npu * more_micros, deps=before))
            nodes.append(et.coll_node(2 * turn + 1, "a", ALL_REDUCE, 4096, deps=[2 * turn]))
        return nodes

    host = 'spec = "rail-optimised:npus=4,gpus_per_host=4"'
    (said,) = warnings(nadi, write_run([turns(npu, 1) for npu in range(4)], "", host))
    assert said.startswith("collectives of NVLink domains seldom repeat: of 60, 60 start at offsets")
    assert warnings(nadi, write_run([turns(npu, 0) for npu in range(4)], "", host)) == []


def test_traces_without_nodes(nadi, write_run):
    (said,) = warnings(nadi, write_run([[], []]))
    assert said.startswith("no NPU has anything to do: the trace is without nodes (")


GB = 10**9


@pytest.fixture
def free(monkeypatch):
    def have(size_bytes):
        monkeypatch.setattr(resource_checks, "available_bytes", lambda: size_bytes)

    return have


def write(folder, path, text):
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_memory_is_what_machine_and_control_groups_have(tmp_path):
    assert resource_checks.available_bytes(tmp_path) is None
    write(tmp_path, "proc/meminfo", "MemTotal: 64000 kB\nMemFree: 100 kB\nMemAvailable: 2000 kB\n")
    assert resource_checks.available_bytes(tmp_path) == 2000 * 1024
    write(tmp_path, "proc/self/cgroup", "0::/a/job\n")
    write(tmp_path, "sys/fs/cgroup/a/job/memory.max", "max\n")
    write(tmp_path, "sys/fs/cgroup/a/job/memory.current", "1\n")
    assert resource_checks.available_bytes(tmp_path) == 2000 * 1024
    write(tmp_path, "sys/fs/cgroup/a/memory.max", "1000000\n")
    write(tmp_path, "sys/fs/cgroup/a/memory.current", "900000\n")
    write(tmp_path, "sys/fs/cgroup/a/memory.stat", "anon 500000\ninactive_file 300000\n")
    assert resource_checks.available_bytes(tmp_path) == 400_000
    write(tmp_path, "proc/self/cgroup", "4:memory:/slurm/1\n3:cpu:/x\n")
    write(tmp_path, "sys/fs/cgroup/memory/slurm/1/memory.limit_in_bytes", "70000\n")
    write(tmp_path, "sys/fs/cgroup/memory/slurm/1/memory.usage_in_bytes", "90000\n")
    assert resource_checks.available_bytes(tmp_path) == 0


def test_this_machine_says_something():
    assert resource_checks.available_bytes() > 2**20


SMALL_RING = "ring:npus=4,rate=100Gbps"
COMMANDS = {
    "run": ("run run.toml -q", "cables"),
    "collective": (f"collective all-reduce -t {SMALL_RING} --sizes 1KiB -q", "cables"),
    "topology show": (f"topology show {SMALL_RING}", "cables"),
    "topology build": (f"topology build {SMALL_RING} -o there.toml", "cables"),
    "topology draw": (f"topology draw {SMALL_RING} -o there.svg", "cables"),
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
    outcome = nadi.refuse(*text.split())
    assert word in outcome.err
    assert "0.0 GB are free" in outcome.err
    assert outcome.err.endswith("or --force\n")
    assert sorted(tmp_path.iterdir()) == before
    nadi.ok(*text.split(), "--force")


def test_a_fabric_in_a_file_that_does_not_fit(nadi, tmp_path, free):
    path = tmp_path / "fabric.toml"
    nadi.ok("topology", "build", SMALL_RING, "-o", path)
    free(100)
    assert "4 nodes and 4 cables would take about" in nadi.refuse("topology", "show", path).err
    nadi.ok("topology", "show", path, "--force")


def test_collectives_whose_plans_do_not_fit(nadi, write_run, free, step, monkeypatch):
    """Found before any is made, by a run and by `nadi collective`."""
    monkeypatch.setattr(resource_checks, "check_fabric", lambda *_, **__: None)
    made = []
    plan = AlgorithmChoice.plan
    monkeypatch.setattr(AlgorithmChoice, "plan", lambda *arguments: made.append(1) or plan(*arguments))
    run = write_run([step] * 4, '[system]\ncollectives = { all-reduce = "double-binary-tree:chunks=64" }\n')
    arguments = ("collective", "all-reduce", "-t", SMALL_RING, "--algorithm", "double-binary-tree:chunks=64", "--sizes",
                 "1KiB", "-q")  # fmt: skip
    for command in (("run", run, "-q"), arguments):
        free(100_000)
        outcome = nadi.refuse(*command)
        assert "algorithm double-binary-tree for all-reduce of 4 members: its 1,560 steps would take" in outcome.err
        assert outcome.err.endswith("fewer members, or --force\n")
        assert not made
        nadi.ok(*command, "--force")
        made.clear()


def test_a_run_whose_messages_do_not_fit(nadi, free):
    arguments = ("collective", "all-to-all", "-t", "switch:npus=64", "--sizes", "4KiB", "-q", "--algorithm")
    free(61_000_000)
    outcome = nadi.refuse(*arguments, "direct")
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
    nadi.ok("run", run, "-q")
    monkeypatch.setattr(resource_checks, "MAX_WALL_S", 1e-7)
    outcome = nadi.refuse("run", run, "-q")
    assert ("512 packet-hops (256 packets)" if fidelity == "packet" else "1 messages") in outcome.err
    assert "expected less than 24, or --force" in outcome.err
    nadi.ok("run", run, "-q", "--force")
