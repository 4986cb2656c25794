"""Messages without a model as the work of a run file: [workload.traffic] and [jobs.traffic]."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from nadi.configuration.run_file import load_config
from nadi.simulation.assembly.placement import network_rate_bps
from nadi.topologies import build
from tests.nonempty import nonempty

LEAVES = "leaf-spine:leaves=4,hosts_per_leaf=4,spines=1,uplinks=1,rate=100Gbps"
WEB = 'traffic = { sizes = "hadoop", load = 0.4, duration = "200us" }\n'
STEP = '[[jobs]]\nname = "step"\ntraces = "step"\nplacement = [0, 4, 8, 12]\n'
BESIDE = '[[jobs]]\nname = "web"\ngpus = 8\nplacement = [1, 5, 9, 13, 2, 6, 10, 14]\n'


@pytest.fixture
def write(tmp_path, write_step):
    """Write traces of four ranks, and a run file."""
    write_step(1 << 20)

    def to(work, topology=LEAVES, more=""):
        path = tmp_path / "run.toml"
        path.write_text(f'[topology]\nspec = "{topology}"\n{more}{work}')
        return path

    return to


def jobs_of(folder):
    return json.loads((folder / "summary.json").read_text())["jobs"]


def flows_of(folder, *columns):
    """Columns of flows.parquet, ordered by sender, receiver and start."""
    rows = pq.read_table(folder / "flows.parquet", columns=["src", "dst", "start_ps", *columns]).to_pylist()
    return sorted(tuple(row.values()) for row in rows)


def test_a_run_file_has_the_messages_of_the_command(nadi, write, tmp_path):
    """Traces have whole microseconds, so that starts differ by at most half of one."""
    options = ("--npus", 16, "--load", 0.4, "--rate", "100Gbps", "--duration", "200us", "--size", "hadoop")
    assert nadi("workload", "traffic", "poisson", *options, "--prefix", "t", "-o", tmp_path / "et").code == 0
    assert nadi("run", write('[workload]\ntraces = "et/t"\n'), "--out", tmp_path / "files").code == 0
    assert nadi("run", write(f"[workload]\n{WEB}"), "--out", tmp_path / "own").code == 0
    files, own = (flows_of(tmp_path / name, "bytes") for name in ("files", "own"))
    assert sorted((*flow[:2], flow[3]) for flow in files) == sorted((*flow[:2], flow[3]) for flow in own)
    late = np.array([(one[2], other[2]) for one, other in nonempty(zip(files, own, strict=True))])
    assert 0 < np.abs(late[:, 0] - late[:, 1]).max() <= 500_000


@pytest.mark.parametrize("process", ["poisson", "lognormal:sigma=2"])
def test_a_list_of_the_flows_of_a_run_is_the_same_run(nadi, write, tmp_path, process):
    run = write("[workload]\n" + WEB.replace("}", f', arrivals = "{process}" }}'))
    assert nadi("run", run, "--out", tmp_path / "random").code == 0
    made = flows_of(tmp_path / "random", "bytes", "finish_ps")
    rows = [f"{src},{dst},{size},{start}" for src, dst, start, size, _ in nonempty(made)]
    (tmp_path / "flows.csv").write_text("src,dst,bytes,start_ps\n" + "\n".join(rows))
    assert nadi("run", write('[workload]\ntraffic = { file = "flows.csv" }\n'), "--out", tmp_path / "list").code == 0
    assert flows_of(tmp_path / "list", "bytes", "finish_ps") == made


def test_a_run_without_jobs_has_queue_pairs_by_message(nadi, write, tmp_path):
    def finishes(name, work):
        assert nadi("run", write(work), "--out", tmp_path / name).code == 0
        return flows_of(tmp_path / name, "finish_ps")

    usual = finishes("usual", f"[workload]\n{WEB}")
    assert finishes("message", f'[network]\nqueue_pairs = "pair"\n[workload]\n{WEB}') == usual
    assert finishes("pair", "[workload]\n" + WEB.replace("}", ', queue_pairs = "pair" }')) != usual


STAR = "5 1 4\n0\n0 1 100Gbps 1us 0\n0 2 100Gbps 1us 0\n0 3 25Gbps 1us 0\n0 4 100Gbps 1us 0\n"


@pytest.mark.parametrize("work", ["[workload]\n", '[[jobs]]\nname = "a"\n'])
def test_flows_of_ns3_are_between_the_nodes_of_its_topology(nadi, tmp_path, work):
    (tmp_path / "star.txt").write_text(STAR)
    (tmp_path / "flow.txt").write_text("2\n2 1 3 100 10000000 2\n3 2 3 100 10000000 2.01\nsrc dst\n")
    run = tmp_path / "run.toml"
    run.write_text(f'[topology]\nspec = "simai:path={tmp_path}/star.txt"\n{work}traffic = {{ file = "flow.txt" }}\n')
    done = nadi("run", run, "--out", tmp_path / "out")
    assert done.code == 0, done.err
    (_, _, begin, end), (_, _, begin_slow, end_slow) = flows_of(tmp_path / "out", "finish_ps")
    assert (end - begin) / 1e9 == pytest.approx(0.82, abs=0.01)  # at 100 Gb/s
    assert (end_slow - begin_slow) / 1e9 == pytest.approx(3.27, abs=0.01)  # at 25 Gb/s
    warnings = json.loads((tmp_path / "out/summary.json").read_text())["warnings"]
    assert any("flow.txt: 1 line is not read, from line 4 on" in text for text in warnings)
    (tmp_path / "flow.txt").write_text("1\n2 0 3 100 10000000 2\n")
    done = nadi("run", run)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "flow.txt: line 2: found node 0, a switch or none; expected the number of a GPU" in done.err


def test_background_traffic_slows_a_job(nadi, write, tmp_path):
    done = nadi("run", write(STEP + BESIDE + WEB), "--set", "output.alone=true", "--out", tmp_path / "out")
    assert done.code == 0, done.err
    step, web = jobs_of(tmp_path / "out")
    assert step["slowdown"] > 1.1
    assert [each["job"] for each in step["shares"]] == ["web"]
    assert [each["job"] for each in web["shares"]] == ["step"]
    assert web["time_ps"] >= 150_000_000  # the last message arrives near the end of the duration
    assert web["step"] == {}


@pytest.mark.alone
@pytest.mark.parametrize("workers", [2, 3])
def test_digests_do_not_depend_on_workers(nadi, write, tmp_path, workers):
    run = write(STEP + BESIDE + WEB.replace("}", ', arrivals = "lognormal:sigma=2" }'))
    assert nadi("run", run, "--out", tmp_path / "one").code == 0
    assert nadi("run", run, "--set", f"engine.workers={workers}", "--out", tmp_path / "several").code == 0
    one, several = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("one", "several"))
    assert several["threads"] == workers
    assert several["digest"] == one["digest"]
    assert [job["digest"] for job in several["jobs"]] == [job["digest"] for job in one["jobs"]]


def test_each_job_has_queue_pairs_of_its_own_kind(nadi, write, tmp_path):
    """Short messages wait for long ones only in the job whose pairs share a queue pair."""
    rows = "src,dst,bytes,start_us\n0,1,4000000,0\n0,1,1000,20\n"
    (tmp_path / "flows.csv").write_text(rows)
    jobs = [
        f'[[jobs]]\nname = "{kind}"\ngpus = 4\ntraffic = {{ file = "flows.csv", queue_pairs = "{kind}" }}\n'
        for kind in ("pair", "message")
    ]
    assert nadi("run", write("".join(jobs)), "--out", tmp_path / "out").code == 0
    rows = pq.read_table(tmp_path / "out" / "flows.parquet").to_pylist()
    short_us = {row["job"]: (row["finish_ps"] - row["start_ps"]) / 1e6 for row in rows if row["bytes"] == 1000}
    assert short_us["pair"] > 300
    assert short_us["message"] < 10
    other = '[network]\nqueue_pairs = "message"\n'
    assert nadi("run", write("".join(jobs), more=other), "--out", tmp_path / "other").code == 0
    assert [job["digest"] for job in jobs_of(tmp_path / "other")] == [
        job["digest"] for job in jobs_of(tmp_path / "out")
    ]


def test_queue_pairs_of_the_network_are_those_of_other_jobs(nadi, write, tmp_path):
    def digests(*arguments):
        assert nadi("run", write(STEP.replace("[0, 4, 8, 12]", '"packed"') + BESIDE + WEB), *arguments).code == 0
        return [job["digest"] for job in jobs_of(arguments[1])]

    usual = digests("--out", tmp_path / "usual")
    other = digests("--out", tmp_path / "other", "--set", "network.queue_pairs=message")
    assert other[1] == usual[1]


def test_starts_of_a_list_count_from_the_start_of_the_job(nadi, write, tmp_path):
    (tmp_path / "flow.txt").write_text("2\n0 1 3 100 1000 2.1\n1 0 3 100 1000 2.1000025\n")
    job = '[[jobs]]\nname = "flows"\nstart = "3us"\ntraffic = { file = "flow.txt" }\n'
    assert nadi("run", write(job), "--out", tmp_path / "out").code == 0
    starts = [flow[2] for flow in flows_of(tmp_path / "out")]
    assert starts[0] == 3_000_000
    assert starts[1] == pytest.approx(5_500_000, abs=500)
    assert jobs_of(tmp_path / "out")[0]["npus"] == 2


def test_triggers_of_a_matrix_work_in_a_job(nadi, write, tmp_path):
    (tmp_path / "x.cm").write_text(
        "Nodes 4\nConnections 2\nTriggers 1\n0->1 id 1 start 1500000 size 9000 recv_done_trigger 1\n"
        "1->2 id 2 trigger 1 size 9000\ntrigger id 1 oneshot\n"
    )
    job = '[[jobs]]\nname = "flows"\nplacement = [8, 9, 10, 11]\ntraffic = { file = "x.cm" }\n'
    assert nadi("run", write(job), "--out", tmp_path / "out").code == 0
    (first, second) = flows_of(tmp_path / "out", "finish_ps")
    assert first[:3] == (8, 9, 1_500_000)
    assert second[2] == first[3]


@pytest.mark.parametrize("fidelity", ["analytical", "closed-form", "flow"])
def test_traffic_runs_at_other_fidelities(nadi, write, fidelity):
    done = nadi("run", write(STEP + BESIDE + WEB), "--set", f"network.fidelity={fidelity}", "--json", "--quiet")
    assert done.code == 0, done.err
    assert done.document["jobs"][1]["time_ps"] > 100_000_000


def test_the_rate_of_a_rank_is_that_of_its_links_to_the_network():
    npus = np.arange(8, dtype=np.int32)
    assert network_rate_bps(build("dgx-h100:npus=8"), npus) == 400 * 10**9
    assert network_rate_bps(build("dgx-h100-superpod:gpus=32"), npus) == 400 * 10**9
    assert network_rate_bps(build("torus:sizes=4x2,rate=100Gbps"), npus) == 300 * 10**9
    assert network_rate_bps(build(LEAVES), npus) == 100 * 10**9


def test_paths_count_from_the_run_file(nadi, write, tmp_path):
    (tmp_path / "sizes.txt").write_text("1000 50\n2000 100\n")
    run = write('[workload]\ntraffic = { sizes = "sizes.txt", load = 0.1, duration = "50us" }\n')
    assert load_config(run).workload.traffic.sizes == str(tmp_path / "sizes.txt")
    done = nadi("run", run, "--json")
    assert done.code == 0, done.err
    (entry,) = (each for each in done.document["files"] if each["key"] == "workload.traffic.sizes")
    assert entry["files"] == 1


WRONG = {
    "no source": ('[[jobs]]\nname = "a"\ngpus = 2\ntraffic = {}\n', "found neither of sizes and file"),
    "both": (BESIDE + 'traffic = { sizes = "1KiB", file = "x.csv" }\n', "found both of sizes and file"),
    "no load": (BESIDE + 'traffic = { sizes = "1KiB", duration = "1us" }\n', "found sizes without load"),
    "load of a list": (BESIDE + 'traffic = { file = "x.csv", load = 0.5 }\n', "load is set beside file"),
    "unknown sizes": (BESIDE + WEB.replace("hadoop", "spark"), "job \"web\": sizes 'spark': expected a size"),
    "unknown process": (BESIDE + WEB.replace("}", ', arrivals = "burst" }'), "[jobs.0.traffic] arrivals"),
    "no message": (BESIDE + WEB.replace("200us", "1ps"), 'job "web": traffic: no message arrives'),
    "no number": ('[[jobs]]\nname = "web"\n' + WEB, 'job "web": gpus is missing beside traffic; expected a number'),
    "beside traces": (STEP + WEB, "traces is set beside traffic; expected one of them"),
    "NPUs of another job": (STEP + BESIDE.replace("[1,", "[0,") + WEB, "NPU 0 has another rank, too"),
    "a list of more ranks": (BESIDE + 'traffic = { file = "wide.csv" }\n', "wide.csv: flows between 10 NPUs"),
    "too much memory": (BESIDE + WEB.replace("200us", "200000s"), "of memory"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_traffic_is_refused_in_one_line(nadi, write, tmp_path, case):
    (tmp_path / "wide.csv").write_text("src,dst,bytes,start_us\n0,9,5,0\n")
    work, words = WRONG[case]
    refused = nadi("run", write(work))
    assert refused.code == 2, refused.out
    assert words in refused.err
    assert refused.err.count("\n") == 1


def test_keys_of_jobs_without_effect_are_named(nadi, write):
    jobs = STEP + 'framework = "fsdp"\n' + BESIDE + 'strict = false\ntraffic = { file = "x.cm", seed = 3 }\n'
    (write(jobs).parent / "x.cm").write_text("Nodes 4\nConnections 1\n0->1 start 0 size 5\n")
    (warning,) = nadi("run", write(jobs), "--json", "-q").document["warnings"]
    assert "[jobs.0] framework (needs model)" in warning
    assert "[jobs.1] strict (needs traces)" in warning
    assert "[jobs.1.traffic] seed (needs sizes)" in warning


def test_slowdown_of_the_messages_of_a_job(nadi, write, tmp_path):
    """Runs at two loads are groups; only the messages of the job count."""
    for load in ("0.1", "0.6"):
        run = write(STEP + BESIDE + WEB)
        assert nadi("run", run, "--set", f"jobs.1.traffic.load={load}", "--out", tmp_path / load).code == 0
    folders = [tmp_path / "0.1", tmp_path / "0.6"]
    shown = nadi("net", "slowdown", *folders, "--job", "web", "--by", "jobs.1.traffic.load", "--json")
    assert shown.code == 0, shown.err
    every = {row["group"]: row for row in json.loads(shown.out) if row["from_bytes"] is None}
    for load in nonempty(("0.1", "0.6")):
        jobs = pq.read_table(tmp_path / load / "flows.parquet")["job"].to_pylist()
        assert every[load]["messages"] == jobs.count("web") < len(jobs)
    assert every["0.6"]["slowdown"]["p50"] > every["0.1"]["slowdown"]["p50"]
    for option, words in (
        ("--job=db", "has no such job; expected one of step, web"),
        ("--by=jobs.7.name", "no such key"),
    ):
        refused = nadi("net", "slowdown", *folders, option)
        assert refused.code == 2
        assert words in refused.err


def test_the_step_of_a_run_is_that_of_npus_that_train(nadi, write):
    alone = nadi("run", write(STEP), "--json", "-q").document["step"]
    beside = nadi("run", write(STEP + BESIDE + WEB), "--json", "-q").document["step"]
    assert beside["npus"] == alone["npus"] == 4
    assert beside["compute_ps"] == alone["compute_ps"]


def test_the_critical_path_is_that_of_the_job_that_trains(nadi, write, tmp_path):
    assert nadi("run", write(STEP + BESIDE + WEB), "--out", tmp_path / "out").code == 0
    step, web = jobs_of(tmp_path / "out")
    assert web["finish_ps"] > step["finish_ps"]
    names = ("", "step", "web")
    documents = {name: nadi("explain", tmp_path / "out", f"--job={name}", "--json").document for name in names}
    assert documents[""] == documents["step"]
    assert documents["step"]["finish_time_ps"] == step["finish_ps"]
    assert set(documents["step"]["npus"]) <= {0, 4, 8, 12}
    assert sum(row["time_ps"] for row in documents["step"]["by_what"]) == pytest.approx(step["finish_ps"])
    assert documents["web"]["finish_time_ps"] == web["finish_ps"]
    for answer in nonempty(documents["step"]["what_if"]):
        assert answer["finish_time_ps"] <= step["finish_ps"]
    refused = nadi("explain", tmp_path / "out", "--job=db")
    assert refused.code == 2
    assert "has no such job; expected one of step, web" in refused.err
