"""Several jobs in a run file: `[[jobs]]`, their results, and what wrong ones are refused with."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from nadi import et
from nadi.configuration.run_file import load_config
from nadi.insight.runs import Run
from nadi.simulation.assembly.placement import placements
from nadi.topologies import build
from tests.nonempty import nonempty

LEAVES = "leaf-spine:leaves=4,hosts_per_leaf=4,spines=1,uplinks=4,rate=100Gbps"
PLAIN = '[[jobs]]\nname = "a"\ntraces = "step"\n[[jobs]]\nname = "b"\ntraces = "step"\n'


@pytest.fixture
def write(tmp_path, write_step):
    """Write traces of four ranks and a run file with these jobs."""
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
    done = nadi("run", write(jobs), "--set", "output.alone=true", "--out", tmp_path / "out")
    assert done.code == 0, done.err
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
    assert nadi("run", write(), *same, tmp_path / "both").code == 0
    jobs = summary_of(tmp_path / "both")["jobs"]
    one_leaf = LEAVES.replace("leaves=4", "leaves=1").replace("uplinks=4", "uplinks=1")
    alone = write("", one_leaf, '[workload]\ntraces = "step"\n')
    assert nadi("run", alone, *same, tmp_path / "alone").code == 0
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
    together = nadi("run", run, *how, "output.alone=true")
    assert together.code == 0, together.err
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


@pytest.mark.alone
@pytest.mark.parametrize("workers", [2, 3])
def test_digests_do_not_depend_on_workers(nadi, write, tmp_path, workers):
    jobs = PLAIN.replace("[[jobs]]", '[[jobs]]\nplacement = "scattered:seed=4"')
    run = write(jobs)
    assert nadi("run", run, "--out", tmp_path / "one").code == 0
    several = ["--set", f"engine.workers={workers}", "--out", tmp_path / "several"]
    assert nadi("run", run, *several).code == 0
    one, other = summary_of(tmp_path / "one"), summary_of(tmp_path / "several")
    assert other["threads"] == workers
    assert [job["digest"] for job in other["jobs"]] == [job["digest"] for job in one["jobs"]]
    assert other["digest"] == one["digest"]


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
    """Results of two jobs that share the links of a spine."""
    made = nadi("run", write(SHARED, ONE_UPLINK), "--set", "output.alone=true", "--out", tmp_path / "shared")
    assert made.code == 0, made.err
    return tmp_path / "shared"


def test_links_that_jobs_share_are_those_of_the_fabric(nadi, write, tmp_path):
    """Switches that reduce have links of their own, which the fabric lacks."""
    jobs = '[[jobs]]\nname = "a"\ntraces = "step"\nrepeat = 2\nplacement = [0, 2, 4, 6, 1, 3, 5, 7]\n'
    more = '[network]\nfidelity = "analytical"\n[system.collectives]\nall-reduce = "in-network"\n'
    done = nadi("run", write(jobs, "switch:npus=8,rate=100Gbps", more), "--out", tmp_path / "out")
    assert done.code == 0, done.err
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
    assert nadi("run", write(alone, ONE_UPLINK), "--out", tmp_path / "alone").code == 0
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
    assert nadi("report", shared).code == 0
    page = (shared / "report.html").read_text()
    assert "links that jobs share" in page
    assert "slow-down" in page


def test_a_run_of_jobs_is_read_again(shared):
    work = Run(shared).work
    assert work.program.jobs.names == ("a", "b")
    assert work.program.jobs.npus_of(1).tolist() == [1, 5, 9, 13]


@pytest.mark.parametrize("command", ["explain", "timeline"])
def test_other_commands_take_runs_of_jobs(nadi, shared, tmp_path, command):
    more = ["-o", tmp_path / "timeline.pftrace"] if command == "timeline" else []
    done = nadi(command, shared, *more)
    assert done.code == 0, done.err


WRONG = {
    "two sources of work": ('[workload]\ntraces = "step"\n', PLAIN, "[workload] and [[jobs]]; expected one of them"),
    "a name twice": ("", PLAIN.replace('"b"', '"a"'), 'found the name "a" twice'),
    "a bad name": ("", PLAIN.replace('"b"', '"b c"'), "[jobs.1] name"),
    "no source": ("", '[[jobs]]\nname = "a"\n', "found neither of traces and model"),
    "unknown key": ("", PLAIN + "plase = 1\n", "unknown key"),
    "unknown rule": ("", PLAIN + 'placement = "dense"\n', "[jobs.1] placement"),
    "too many": ("", PLAIN + "repeat = 4\n", "needs 4 copies of 4 NPUs, 12 of the 16"),
    "NPU out of range": ("", PLAIN + "placement = [1, 2, 3, 16]\n", "found NPU 16; expected 0 to 15"),
    "too few in a list": ("", PLAIN + "placement = [1, 2]\n", "found 2 NPUs; expected 4"),
    "NPU twice": ("", PLAIN + "placement = [1, 2, 3, 1]\n", "NPU 1 has another rank, too"),
    "NPU of two jobs": (
        "",
        PLAIN.replace('"a"', '"a"\nplacement = [1, 2, 3, 4]') + "placement = [4, 5, 6, 7]\n",
        "NPU 4 has another rank, too",
    ),
    "starts of copies": ("", PLAIN + 'repeat = 2\nstart = ["1us"]\n', "found 1 times of start"),
    "a process": ("", PLAIN + 'start = "poisson"\n', "[jobs.1] start"),
    "no file": ("", PLAIN + 'placement = "none.txt"\n', "none.txt: No such file"),
    "requests": ("", PLAIN + "[jobs.serving]\nbatch = 2\n", "serving is set without a model that is served"),
    "pool": ("[memory]\nremote_npus = [15]\nremote = 'pool'\n", PLAIN, '[memory] remote: found "pool"'),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_jobs_are_refused_in_one_line(nadi, write, case):
    more, jobs, text = WRONG[case]
    refused = nadi("run", write(jobs, more=more))
    assert refused.code == 2
    assert text in refused.err
    assert refused.err.count("\n") == 1


def test_wrong_traces_name_the_job(nadi, write, tmp_path):
    et.write_trace(tmp_path / "step.2.et", et.metadata(), [et.send_node(0, "s", 2, 3, 64, 1)])
    refused = nadi("run", write())
    assert refused.code == 2
    assert 'job "a": ' in refused.err


def test_a_job_that_does_not_fit_is_named(nadi, tmp_path):
    run = tmp_path / "run.toml"
    job = '[[jobs]]\nname = "large"\nmodel = "llama2-70b"\nplan = "dp4,gb4"\n'
    more = '[topology]\nspec = "switch:npus=4"\n[compute]\ngpu = "a100"\n[network]\nfidelity = "closed-form"\n'
    run.write_text(more + job)
    assert 'job "large": ' in nadi("run", run, "--quiet").err
