"""Several jobs in a run file, and messages without a model as the work of a job or of a run."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from nadi import et
from nadi.configuration.run_file import load_config
from nadi.insight.runs import Run
from nadi.simulation.assembly.placement import network_rate_bps, placements
from nadi.topologies import build
from tests.nonempty import nonempty

LEAVES = "leaf-spine:leaves=4,hosts_per_leaf=4,spines=1,uplinks=4,rate=100Gbps"
PLAIN = '[[jobs]]\nname = "a"\ntraces = "step"\n[[jobs]]\nname = "b"\ntraces = "step"\n'


@pytest.fixture
def write(tmp_path, write_step):
    write_step(1 << 18)

    def to(jobs=PLAIN, topology=LEAVES, more=""):
        path = tmp_path / "run.toml"
        path.write_text(f'{more}[topology]\nspec = "{topology}"\n{jobs}')
        return path

    return to


def summary_of(folder):
    return json.loads((folder / "summary.json").read_text())


def test_each_job_has_results_of_its_own(nadi, write, tmp_path):
    jobs = PLAIN + 'start = "20us"\nplacement = "scattered:seed=3"\n'
    done = nadi.ok("run", write(jobs), "--set", "output.alone=true", "--out", tmp_path / "out")
    first, second = summary_of(tmp_path / "out")["jobs"]
    assert (first["name"], second["name"]) == ("a", "b")
    assert second["start_ps"] == 20_000_000
    assert second["time_ps"] == second["finish_ps"] - second["start_ps"]
    assert first["slowdown"] == pytest.approx(first["time_ps"] / first["alone_ps"])
    npus = pq.read_table(tmp_path / "out" / "npus.parquet").to_pydict()
    assert [npus["job"].count(name) for name in ("a", "b", None)] == [4, 4, 8]
    ends = {name: max(f for f, job in zip(npus["finish_ps"], npus["job"], strict=True) if job == name) for name in "ab"}
    assert ends == {"a": first["finish_ps"], "b": second["finish_ps"]}
    nodes, flows = (pq.read_table(tmp_path / "out" / f"{name}.parquet") for name in ("nodes", "flows"))
    job_of = dict(zip(npus["npu"], npus["job"], strict=True))
    assert nodes["job"].to_pylist() == [job_of[npu] for npu in nodes["npu"].to_pylist()]
    assert flows["job"].to_pylist() == [job_of[npu] for npu in flows["src"].to_pylist()]
    assert set(pq.read_table(tmp_path / "out" / "collectives.parquet")["job"].to_pylist()) == {"a", "b"}
    links = pq.read_table(tmp_path / "out" / "links.parquet")["tx_bytes"].to_numpy()
    of_jobs = pq.read_table(tmp_path / "out" / "job_links.parquet").to_pydict()
    assert np.array_equal(np.bincount(of_jobs["link"], of_jobs["tx_bytes"], len(links)), links)
    for text in ("jobs", "slow-down", first["digest"][:12]):
        assert text in done.out


def test_a_job_has_the_digest_of_its_own_run(nadi, write, tmp_path):
    """Each job has a leaf, and so the digest of a run of the same traces on a fabric of one leaf."""
    same = ["--set", "network.window=64KiB", "--out"]  # by default as long as the longest round trip of the fabric
    nadi.ok("run", write(), *same, tmp_path / "both")
    jobs = summary_of(tmp_path / "both")["jobs"]
    one_leaf = LEAVES.replace("leaves=4", "leaves=1").replace("uplinks=4", "uplinks=1")
    alone = write("", one_leaf, '[workload]\ntraces = "step"\n')
    nadi.ok("run", alone, *same, tmp_path / "alone")
    found = summary_of(tmp_path / "alone")
    assert [job["digest"] for job in jobs] == [found["digest"]] * 2
    assert [job["time_ps"] for job in jobs] == [found["finish_time_ps"]] * 2
    assert "jobs" not in found


TINY = 'source = "x"\nlayers = 6\nhidden = 1024\nheads = 8\nvocab = 1024\nsequence = 128\nglobal_batch = 8\n'
MIXED = (
    '[[jobs]]\nname = "copies"\nmodel = "tiny.toml"\nplan = "dp8,gb8"\nframework = "fsdp"\nrepeat = 2\n'
    '[[jobs]]\nname = "serving"\nmodel = "tiny.toml"\nplan = "tp8"\nframework = "inference"\n'
    "[jobs.serving]\nprompt = 64\ngenerate = 4\n"
    '[[jobs]]\nname = "overlapped"\nmodel = "tiny.toml"\nplan = "dp8,gb8,zero1"\n'
    '[[jobs]]\nname = "bursts"\ngpus = 8\n[jobs.traffic]\nsizes = "1MB"\nload = 0.01\nduration = "100us"\n'
)


@pytest.mark.slow
@pytest.mark.parametrize("fidelity", ["closed-form", "flow", pytest.param("packet", marks=pytest.mark.full)])
def test_each_job_has_the_slowdown_that_it_has_alone(nadi, write, tmp_path, fidelity):
    """Jobs of three frameworks in hosts of their own, so that the network makes no difference."""
    (tmp_path / "tiny.toml").write_text(TINY)
    run = write(MIXED, "dgx-h100:npus=40", '[compute]\ngpu = "h100"\npace = "alone"\n')
    how = ["--set", f"network.fidelity={fidelity}", "--json", "--set"]
    together = nadi.ok("run", run, *how, "output.alone=true")
    jobs = {job["name"]: job for job in together.document["jobs"]}
    slowdowns = {name: job["compute_slowdown"] for name, job in jobs.items()}
    assert slowdowns == {"copies.0": 2, "copies.1": 2, "serving": 1, "overlapped": 1.138, "bursts": 1}
    assert "compute_slowdown" not in together.document["config"]["system"]
    for job in nonempty(jobs.values()):
        assert job["time_ps"] == job["alone_ps"]
    uniform = {factor: nadi("run", run, *how, f"system.compute_slowdown={factor}").document for factor in (1, 2, 1.138)}
    for factor, document in nonempty(uniform.items()):
        assert document["config"]["system"]["compute_slowdown"] == factor
        for job in nonempty(document["jobs"]):
            is_equal = slowdowns[job["name"]] == factor or job["name"] in {"serving", "bursts"}
            assert (job["digest"] == jobs[job["name"]]["digest"]) == is_equal, (factor, job["name"])


def test_iterations_run_one_after_another(nadi, write):
    once = nadi("run", write(PLAIN), "--json").document["jobs"]
    thrice = nadi("run", write(PLAIN + "iterations = 3\n"), "--json").document["jobs"]
    assert thrice[0] == once[0]
    assert thrice[1]["time_ps"] == pytest.approx(3 * once[1]["time_ps"], rel=0.01)


def test_copies_have_names_npus_and_starts_of_their_own(nadi, write):
    jobs = '[[jobs]]\nname = "a"\ntraces = "step"\nrepeat = 3\nstart = "every:5us"\n'
    found = nadi("run", write(jobs), "--json").document["jobs"]
    assert [job["name"] for job in found] == ["a.0", "a.1", "a.2"]
    assert [job["start_ps"] for job in found] == [0, 5_000_000, 10_000_000]
    assert len({job["digest"] for job in found}) == 1


def test_poisson_arrivals_have_their_mean(write):
    jobs = '[[jobs]]\nname = "a"\ntraces = "step"\nrepeat = 1000\nstart = "poisson:1ms,seed=5"\n'
    begins = np.array(load_config(write(jobs)).jobs[0].begins_ps)
    gaps = np.diff(begins, prepend=0)
    assert gaps.min() >= 0
    assert gaps.mean() == pytest.approx(1e9, rel=0.1)  # the standard error is 3 %
    assert (gaps > 1e9).mean() == pytest.approx(np.exp(-1), abs=0.05)


def placed(path):
    config = load_config(path)
    graph = build(config.topology.source())
    return graph, [npus.tolist() for copies in placements(config.jobs, graph) for npus in copies]


def test_placements(write, tmp_path):
    (tmp_path / "npus.txt").write_text("# the last leaf\n12-14, 15")
    jobs = PLAIN + '[[jobs]]\nname = "c"\ntraces = "step"\nplacement = "npus.txt"\n'
    jobs += '[[jobs]]\nname = "d"\ntraces = "step"\nplacement = [3, 1, 2, 0]\n'
    assert placed(write(jobs))[1] == [[4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15], [3, 1, 2, 0]]
    rails = "rail-optimised:npus=16,gpus_per_host=4,hosts_per_rail_leaf=2,spines=2,rate=100Gbps"
    by_rail = PLAIN.replace("[[jobs]]", '[[jobs]]\nplacement = "rail"')
    assert placed(write(by_rail, rails))[1] == [[0, 4, 8, 12], [1, 5, 9, 13]]
    scattered = PLAIN.replace("[[jobs]]", '[[jobs]]\nplacement = "scattered:seed=4"')
    _, found = placed(write(scattered))
    assert found == placed(write(scattered))[1]
    assert found != placed(write(scattered.replace("seed=4", "seed=5")))[1]
    every = [npu for npus in nonempty(found) for npu in npus]
    assert len(set(every)) == len(every) == 8


SHARED = (
    '[[jobs]]\nname = "a"\ntraces = "step"\nplacement = [0, 4, 8, 12]\n'
    '[[jobs]]\nname = "b"\ntraces = "step"\nplacement = [1, 5, 9, 13]\n'
)
ONE_UPLINK = LEAVES.replace("uplinks=4", "uplinks=1")


@pytest.fixture
def shared(nadi, write, tmp_path):
    nadi.ok("run", write(SHARED, ONE_UPLINK), "--set", "output.alone=true", "--out", tmp_path / "shared")
    return tmp_path / "shared"


def test_links_that_jobs_share_are_those_of_the_fabric(nadi, write, tmp_path):
    """Switches that reduce have links of their own, which the fabric lacks."""
    jobs = '[[jobs]]\nname = "a"\ntraces = "step"\nrepeat = 2\nplacement = [0, 2, 4, 6, 1, 3, 5, 7]\n'
    more = '[network]\nfidelity = "analytical"\n[system.collectives]\nall-reduce = "in-network"\n'
    nadi.ok("run", write(jobs, "switch:npus=8,rate=100Gbps", more), "--out", tmp_path / "out")
    links = {share["link"] for job in summary_of(tmp_path / "out")["jobs"] for share in job["shares"]}
    assert links <= set(range(16))


def test_results_say_who_takes_what_from_whom(shared):
    first, second = summary_of(shared)["jobs"]
    assert first["slowdown"] > 1.2
    (seen,) = first["shares"]
    assert seen["job"] == "b"
    assert seen["links"] == 8  # of four leaves, up and down
    assert "spine 0" in seen["link_name"]
    (back,) = second["shares"]
    assert (seen["bytes"], seen["other_bytes"]) == (back["other_bytes"], back["bytes"])
    links = pq.read_table(shared / "links.parquet").to_pydict()
    at_spine = ["spine" in src or "spine" in dst for src, dst in zip(links["src"], links["dst"], strict=True)]
    assert seen["bytes"] + back["bytes"] == np.array(links["tx_bytes"])[at_spine].sum()


def test_comparison_names_jobs_and_losses(nadi, write, shared, tmp_path):
    alone = SHARED.partition('[[jobs]]\nname = "b"')[0]
    nadi.ok("run", write(alone, ONE_UPLINK), "--out", tmp_path / "alone")
    compared = nadi("compare", tmp_path / "alone", shared, "--json").document["jobs"]
    first, second = summary_of(shared)["jobs"]
    assert [row["job"] for row in compared] == ["a", "b"]
    assert compared[0]["time_ps"] == [first["alone_ps"], first["time_ps"]]
    assert compared[0]["change"][1] == pytest.approx(first["slowdown"] - 1)
    assert compared[1]["time_ps"] == [None, second["time_ps"]]
    shown = nadi("compare", tmp_path / "alone", shared).out
    assert "time of jobs" in shown
    assert "b (8 links" in shown


def test_energy_of_jobs_is_part_of_that_of_the_run(nadi, shared):
    bill = nadi("energy", shared, "--json").document
    jobs = bill["jobs"]
    assert [job["job"] for job in jobs] == ["a", "b"]
    assert [job["npus"] for job in jobs] == [4, 4]
    assert 0 < sum(job["energy_J"] for job in jobs) < bill["energy_J"]  # eight NPUs are idle
    hours = [job["time_ps"] * 4 / 3.6e15 for job in summary_of(shared)["jobs"]]
    assert [job["gpu_hours"] for job in jobs] == pytest.approx(hours)


def test_the_page_has_the_jobs(nadi, shared):
    nadi.ok("report", shared)
    page = (shared / "report.html").read_text()
    assert "links that jobs share" in page
    assert "slow-down" in page


def test_a_run_of_jobs_is_read_again(shared):
    work = Run(shared).work
    assert work.program.jobs.names == ("a", "b")
    assert work.program.jobs.npus_of(1).tolist() == [1, 5, 9, 13]


def test_timelines_take_runs_of_jobs(nadi, shared, tmp_path):
    nadi.ok("timeline", shared, "-o", tmp_path / "timeline.pftrace")


def test_wrong_traces_name_the_job(nadi, write, tmp_path):
    et.write_trace(tmp_path / "step.2.et", et.metadata(), [et.send_node(0, "s", 2, 3, 64, 1)])
    assert 'job "a": ' in nadi.refuse("run", write()).err


def test_a_job_that_does_not_fit_is_named(nadi, tmp_path):
    run = tmp_path / "run.toml"
    job = '[[jobs]]\nname = "large"\nmodel = "llama2-70b"\nplan = "dp4,gb4"\n'
    more = '[topology]\nspec = "switch:npus=4"\n[compute]\ngpu = "a100"\n[network]\nfidelity = "closed-form"\n'
    run.write_text(more + job)
    assert 'job "large": ' in nadi("run", run, "--quiet").err


WEB = 'traffic = { sizes = "hadoop", load = 0.4, duration = "200us" }\n'
STEP = '[[jobs]]\nname = "step"\ntraces = "step"\nplacement = [0, 4, 8, 12]\n'
BESIDE = '[[jobs]]\nname = "web"\ngpus = 8\nplacement = [1, 5, 9, 13, 2, 6, 10, 14]\n'


@pytest.fixture
def write_beside(write, write_step):
    """Write traces of four ranks with a longer all-reduce, and a run file for a fabric whose leaves have one uplink."""
    write_step(1 << 20)
    return lambda work, topology=ONE_UPLINK, more="": write(work, topology, more)


def jobs_of(folder):
    return summary_of(folder)["jobs"]


def flows_of(folder, *columns):
    rows = pq.read_table(folder / "flows.parquet", columns=["src", "dst", "start_ps", *columns]).to_pylist()
    return sorted(tuple(row.values()) for row in rows)


def test_a_run_file_has_the_messages_of_the_command(nadi, write_beside, tmp_path):
    """Traces have whole microseconds, so that starts differ by at most half of one."""
    options = ("--npus", 16, "--load", 0.4, "--rate", "100Gbps", "--duration", "200us", "--size", "hadoop")
    nadi.ok("workload", "traffic", "poisson", *options, "--prefix", "t", "-o", tmp_path / "et")
    nadi.ok("run", write_beside('[workload]\ntraces = "et/t"\n'), "--out", tmp_path / "files")
    nadi.ok("run", write_beside(f"[workload]\n{WEB}"), "--out", tmp_path / "own")
    files, own = (flows_of(tmp_path / name, "bytes") for name in ("files", "own"))
    assert sorted((*flow[:2], flow[3]) for flow in files) == sorted((*flow[:2], flow[3]) for flow in own)
    late = np.array([(one[2], other[2]) for one, other in nonempty(zip(files, own, strict=True))])
    assert 0 < np.abs(late[:, 0] - late[:, 1]).max() <= 500_000


@pytest.mark.parametrize("process", ["poisson", "lognormal:sigma=2"])
def test_a_list_of_the_flows_of_a_run_is_the_same_run(nadi, write_beside, tmp_path, process):
    run = write_beside("[workload]\n" + WEB.replace("}", f', arrivals = "{process}" }}'))
    nadi.ok("run", run, "--out", tmp_path / "random")
    made = flows_of(tmp_path / "random", "bytes", "finish_ps")
    rows = [f"{src},{dst},{size},{start}" for src, dst, start, size, _ in nonempty(made)]
    (tmp_path / "flows.csv").write_text("src,dst,bytes,start_ps\n" + "\n".join(rows))
    nadi.ok("run", write_beside('[workload]\ntraffic = { file = "flows.csv" }\n'), "--out", tmp_path / "list")
    assert flows_of(tmp_path / "list", "bytes", "finish_ps") == made


def test_a_run_without_jobs_has_queue_pairs_by_message(nadi, write_beside, tmp_path):
    def finishes(name, work):
        nadi.ok("run", write_beside(work), "--out", tmp_path / name)
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
    done = nadi.ok("run", run, "--out", tmp_path / "out")
    (_, _, begin, end), (_, _, begin_slow, end_slow) = flows_of(tmp_path / "out", "finish_ps")
    assert (end - begin) / 1e9 == pytest.approx(0.82, abs=0.01)  # at 100 Gb/s
    assert (end_slow - begin_slow) / 1e9 == pytest.approx(3.27, abs=0.01)  # at 25 Gb/s
    warnings = json.loads((tmp_path / "out/summary.json").read_text())["warnings"]
    assert any("flow.txt: 1 line is not read, from line 4 on" in text for text in warnings)
    (tmp_path / "flow.txt").write_text("1\n2 0 3 100 10000000 2\n")
    done = nadi.refuse("run", run)
    assert "flow.txt: line 2: found node 0, a switch or none; expected the number of a GPU" in done.err


def test_background_traffic_slows_a_job(nadi, write_beside, tmp_path):
    nadi.ok("run", write_beside(STEP + BESIDE + WEB), "--set", "output.alone=true", "--out", tmp_path / "out")
    step, web = jobs_of(tmp_path / "out")
    assert step["slowdown"] > 1.1
    assert [each["job"] for each in step["shares"]] == ["web"]
    assert [each["job"] for each in web["shares"]] == ["step"]
    assert web["time_ps"] >= 150_000_000  # the last message arrives near the end of the duration
    assert web["step"] == {}


def test_each_job_has_queue_pairs_of_its_own_kind(nadi, write_beside, tmp_path):
    """Short messages wait for long ones only in the job whose pairs share a queue pair."""
    rows = "src,dst,bytes,start_us\n0,1,4000000,0\n0,1,1000,20\n"
    (tmp_path / "flows.csv").write_text(rows)
    jobs = [
        f'[[jobs]]\nname = "{kind}"\ngpus = 4\ntraffic = {{ file = "flows.csv", queue_pairs = "{kind}" }}\n'
        for kind in ("pair", "message")
    ]
    nadi.ok("run", write_beside("".join(jobs)), "--out", tmp_path / "out")
    rows = pq.read_table(tmp_path / "out" / "flows.parquet").to_pylist()
    short_us = {row["job"]: (row["finish_ps"] - row["start_ps"]) / 1e6 for row in rows if row["bytes"] == 1000}
    assert short_us["pair"] > 300
    assert short_us["message"] < 10
    other = '[network]\nqueue_pairs = "message"\n'
    nadi.ok("run", write_beside("".join(jobs), more=other), "--out", tmp_path / "other")
    assert [job["digest"] for job in jobs_of(tmp_path / "other")] == [
        job["digest"] for job in jobs_of(tmp_path / "out")
    ]


def test_queue_pairs_of_the_network_are_those_of_other_jobs(nadi, write_beside, tmp_path):
    def digests(*arguments):
        nadi.ok("run", write_beside(STEP.replace("[0, 4, 8, 12]", '"packed"') + BESIDE + WEB), *arguments)
        return [job["digest"] for job in jobs_of(arguments[1])]

    usual = digests("--out", tmp_path / "usual")
    other = digests("--out", tmp_path / "other", "--set", "network.queue_pairs=message")
    assert other[1] == usual[1]


def test_starts_of_a_list_count_from_the_start_of_the_job(nadi, write_beside, tmp_path):
    (tmp_path / "flow.txt").write_text("2\n0 1 3 100 1000 2.1\n1 0 3 100 1000 2.1000025\n")
    job = '[[jobs]]\nname = "flows"\nstart = "3us"\ntraffic = { file = "flow.txt" }\n'
    nadi.ok("run", write_beside(job), "--out", tmp_path / "out")
    starts = [flow[2] for flow in flows_of(tmp_path / "out")]
    assert starts[0] == 3_000_000
    assert starts[1] == pytest.approx(5_500_000, abs=500)
    assert jobs_of(tmp_path / "out")[0]["npus"] == 2


def test_triggers_of_a_matrix_work_in_a_job(nadi, write_beside, tmp_path):
    (tmp_path / "x.cm").write_text(
        "Nodes 4\nConnections 2\nTriggers 1\n0->1 id 1 start 1500000 size 9000 recv_done_trigger 1\n"
        "1->2 id 2 trigger 1 size 9000\ntrigger id 1 oneshot\n"
    )
    job = '[[jobs]]\nname = "flows"\nplacement = [8, 9, 10, 11]\ntraffic = { file = "x.cm" }\n'
    nadi.ok("run", write_beside(job), "--out", tmp_path / "out")
    (first, second) = flows_of(tmp_path / "out", "finish_ps")
    assert first[:3] == (8, 9, 1_500_000)
    assert second[2] == first[3]


@pytest.mark.parametrize("fidelity", ["analytical", "closed-form", "flow"])
def test_traffic_runs_at_other_fidelities(nadi, write_beside, fidelity):
    done = nadi.ok(
        "run", write_beside(STEP + BESIDE + WEB), "--set", f"network.fidelity={fidelity}", "--json", "--quiet"
    )
    assert done.document["jobs"][1]["time_ps"] > 100_000_000


def test_the_rate_of_a_rank_is_that_of_its_links_to_the_network():
    npus = np.arange(8, dtype=np.int32)
    assert network_rate_bps(build("dgx-h100:npus=8"), npus) == 400 * 10**9
    assert network_rate_bps(build("dgx-h100-superpod:gpus=32"), npus) == 400 * 10**9
    assert network_rate_bps(build("torus:sizes=4x2,rate=100Gbps"), npus) == 300 * 10**9
    assert network_rate_bps(build(ONE_UPLINK), npus) == 100 * 10**9


def test_paths_count_from_the_run_file(nadi, write_beside, tmp_path):
    (tmp_path / "sizes.txt").write_text("1000 50\n2000 100\n")
    run = write_beside('[workload]\ntraffic = { sizes = "sizes.txt", load = 0.1, duration = "50us" }\n')
    assert load_config(run).workload.traffic.sizes == str(tmp_path / "sizes.txt")
    done = nadi.ok("run", run, "--json")
    (entry,) = (each for each in done.document["files"] if each["key"] == "workload.traffic.sizes")
    assert entry["files"] == 1


def test_keys_of_jobs_without_effect_are_named(nadi, write_beside):
    jobs = STEP + 'framework = "fsdp"\n' + BESIDE + 'strict = false\ntraffic = { file = "x.cm", seed = 3 }\n'
    (write_beside(jobs).parent / "x.cm").write_text("Nodes 4\nConnections 1\n0->1 start 0 size 5\n")
    (warning,) = nadi("run", write_beside(jobs), "--json", "-q").document["warnings"]
    assert "[jobs.0] framework (needs model)" in warning
    assert "[jobs.1] strict (needs traces)" in warning
    assert "[jobs.1.traffic] seed (needs sizes)" in warning


def test_slowdown_of_the_messages_of_a_job(nadi, write_beside, tmp_path):
    """Runs at two loads are groups; only the messages of the job count."""
    for load in ("0.1", "0.6"):
        run = write_beside(STEP + BESIDE + WEB)
        nadi.ok("run", run, "--set", f"jobs.1.traffic.load={load}", "--out", tmp_path / load)
    folders = [tmp_path / "0.1", tmp_path / "0.6"]
    shown = nadi.ok("net", "slowdown", *folders, "--job", "web", "--by", "jobs.1.traffic.load", "--json")
    every = {row["group"]: row for row in json.loads(shown.out) if row["from_bytes"] is None}
    for load in nonempty(("0.1", "0.6")):
        jobs = pq.read_table(tmp_path / load / "flows.parquet")["job"].to_pylist()
        assert every[load]["messages"] == jobs.count("web") < len(jobs)
    assert every["0.6"]["slowdown"]["p50"] > every["0.1"]["slowdown"]["p50"]
    for option, words in (
        ("--job=db", "has no such job; expected one of step, web"),
        ("--by=jobs.7.name", "no such key"),
    ):
        assert words in nadi.refuse("net", "slowdown", *folders, option).err


def test_the_step_of_a_run_is_that_of_npus_that_train(nadi, write_beside):
    alone = nadi("run", write_beside(STEP), "--json", "-q").document["step"]
    beside = nadi("run", write_beside(STEP + BESIDE + WEB), "--json", "-q").document["step"]
    assert beside["npus"] == alone["npus"] == 4
    assert beside["compute_ps"] == alone["compute_ps"]


def test_the_critical_path_is_that_of_the_job_that_trains(nadi, write_beside, tmp_path):
    nadi.ok("run", write_beside(STEP + BESIDE + WEB), "--out", tmp_path / "out")
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
    assert "has no such job; expected one of step, web" in nadi.refuse("explain", tmp_path / "out", "--job=db").err
