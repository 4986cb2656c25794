"""Messages, bytes and links of a run's tables add up to its summary, also where switches reduce."""

import itertools
import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from nadi import topologies
from tests.nonempty import nonempty
from tests.samples import each_value

MODEL = 'source = "x"\nlayers = 2\nhidden = 512\nheads = 8\nvocab = 1024\nsequence = 128\nglobal_batch = 8\n'
IN_NETWORK = '[system.collectives]\nall-reduce = "in-network"\n'
MACHINES = {
    "NVLS": ("dgx-h100:npus=8", "dp8,gb8", ""),
    "NVLS on two hosts": ("dgx-h100:npus=16", "dp8,pp2,gb8", ""),
    "no NVLS": ("dgx-a100:npus=16", "tp2,pp2,dp4,gb8", ""),
    "a rack": ("gb200-nvl72:npus=8", "dp8,gb8", ""),
    "two jobs": ("dgx-h100:npus=16", "dp8,gb8", ""),
    "trees of switches": ("leaf-spine:leaves=2,hosts_per_leaf=4,spines=2,rate=100Gbps", "tp2,dp4,gb8", IN_NETWORK),
}
NETWORKS = {
    "packets": 'reuse = "off"',
    "packets, reused": 'reuse = "exact"',
    "packets beside flows": '[network]\nflows = ["tp"]',
    "NVLink by closed forms": '[network]\nnvlink = "closed-form"',
    "flows": '[network]\nfidelity = "flow"',
    "coupled flows": '[network]\nfidelity = "flow"\ncollectives = "coupled"',
    "messages": '[network]\nfidelity = "analytical"',
    "messages alone": '[network]\nfidelity = "analytical"\ncongestion_aware = false',
    "closed forms": '[network]\nfidelity = "closed-form"',
    "two processes": 'backend = "processes"\nworkers = 2',
}


@pytest.fixture
def results(nadi, tmp_path):
    """Run a step, or two jobs with that step, on a machine; give the summary, and a function that reads a table."""

    def run(machine, network, *, jobs=1, more=""):
        spec, plan, collectives = MACHINES[machine]
        (tmp_path / "tiny.toml").write_text(MODEL)
        work = f'model = "tiny.toml"\nplan = "{plan}"\n'
        jobs_of = f'[[jobs]]\nname = "a"\n{work}[[jobs]]\nname = "b"\n{work}start = "5us"\n'
        engine = "" if NETWORKS[network].startswith("[") else "[engine]\n"
        text = f'{collectives}{engine}{NETWORKS[network]}\n{more}[topology]\nspec = "{spec}"\n[compute]\ngpu = "h100"\n'
        (tmp_path / "run.toml").write_text(text + (f"[workload]\n{work}" if jobs == 1 else jobs_of))
        done = nadi("run", tmp_path / "run.toml", "-q", "--force", "--out", tmp_path / "out")
        assert done.code == 0, done.err
        return json.loads((tmp_path / "out/summary.json").read_text()), lambda name: pq.read_table(
            tmp_path / f"out/{name}.parquet"
        )

    return run


CASES = [case for case in itertools.product(MACHINES, NETWORKS) if case[0] != "two jobs"]


@pytest.mark.parametrize(("machine", "network"), sorted({*itertools.product(["NVLS"], NETWORKS), *each_value(CASES)}))
def test_rows_add_up(results, machine, network):
    summary, table = results(machine, network)
    flows = table("flows")
    left_out = summary.get("flows_without_rows", 0)
    assert len(flows) + left_out == summary["flows"]
    assert int(np.sum(flows["bytes"])) + summary.get("bytes_without_rows", 0) == summary["payload_bytes"]
    assert (left_out > 0) == (network == "coupled flows")
    graph = topologies.build(MACHINES[machine][0])
    ends = np.concatenate([np.asarray(flows["src"]), np.asarray(flows["dst"])])
    assert ends.max(initial=0) < graph.nodes
    # only an all-reduce by NVLS or in-network has messages of switches, all of them for a group
    reduces = machine != "no NVLS" and network not in {"coupled flows", "closed forms", "NVLink by closed forms"}
    is_switch = (np.asarray(flows["src"]) >= graph.npus) | (np.asarray(flows["dst"]) >= graph.npus)
    assert is_switch.any() == (reduces or (machine, network) == ("trees of switches", "NVLink by closed forms"))
    assert np.all(np.asarray(flows["group"])[is_switch] >= 0)
    # each NPU sends what its messages have: on the links that leave it, besides headers and acknowledgements
    links = table("links")
    sent = np.bincount(graph.link_src, np.asarray(links["tx_bytes"]), graph.nodes)
    if network not in {"coupled flows", "closed forms"}:
        of_messages = np.bincount(np.asarray(flows["src"]), np.asarray(flows["bytes"]), graph.nodes)
        assert np.all(sent[: graph.npus] >= of_messages[: graph.npus])
        assert sent[: graph.npus].sum() <= 1.5 * of_messages[: graph.npus].sum() + 200 * len(flows)


@pytest.mark.parametrize("network", ["packets", "packets, reused", "flows", "messages", "two processes"])
def test_jobs_add_up(results, network):
    """Two jobs on hosts with NVLS: bytes of jobs on links are those of links, and each message has a job."""
    summary, table = results("two jobs", network, jobs=2)
    flows, job_links = table("flows"), table("job_links").to_pydict()
    assert (len(flows), int(np.sum(flows["bytes"]))) == (summary["flows"], summary["payload_bytes"])
    assert flows["job"].null_count == 0
    of_links = np.bincount(job_links["link"], job_links["tx_bytes"], summary["links"])
    assert np.array_equal(of_links, np.asarray(table("links")["tx_bytes"]))
    same = {job: int(np.sum(flows.filter(np.asarray(flows["job"]) == job)["bytes"])) for job in "ab"}
    assert same["a"] == same["b"] == summary["payload_bytes"] / 2
    sent = {job: sum(b for b, own in zip(job_links["tx_bytes"], job_links["job"], strict=True) if own == job)
            for job in "ab"}  # fmt: skip
    assert sent["a"] == sent["b"]


@pytest.mark.slow
def test_reuse_and_workers_change_no_row(results):
    """The same rows of messages with and without replays, and on two processes."""
    rows = [results("NVLS on two hosts", network)[1]("flows") for network in ("packets", "packets, reused")]
    rows.append(results("NVLS on two hosts", "two processes")[1]("flows"))
    assert len(rows[0]) > 1000
    assert all(table.equals(rows[0]) for table in nonempty(rows[1:]))


@pytest.mark.parametrize("network", ["packets", "flows"])
def test_readers_take_messages_of_switches(results, nadi, tmp_path, network):
    """Commands that read messages, samples and limits do not take a switch for an NPU."""
    sample = '[output]\nsample = "10us"\n' if network == "packets" else ""
    summary, table = results("NVLS on two hosts", network, more=sample)
    for name in nonempty(["samples"] if network == "packets" else ["limits"]):
        assert max(table(name)["link"].to_pylist()) < summary["links"]
    written = {"timeline": "t.pftrace", "report": "r.html"}
    for command in (["explain"], ["timeline"], ["report"], ["net", "show"], ["net", "slowdown"]):
        out = ["--out", tmp_path / written[command[0]]] if command[0] in written else []
        done = nadi(*command, tmp_path / "out", *out)
        assert done.code == 0, (command, done.err)
