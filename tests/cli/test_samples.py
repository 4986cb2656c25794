"""[output] sample: bytes sent and queues of links per interval of the user."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.nonempty import nonempty

LEAVES = "leaf-spine:leaves=3,hosts_per_leaf=4,spines=2,rate=100Gbps"
WEB = 'traffic = { sizes = "hadoop", load = 0.6, duration = "100us" }\n'
SWITCHES = {
    "output-queued": "",
    "shared-buffer": 'switch = "shared-buffer"\ncongestion_control = "dcqcn"\n',
    "cut-through": "cut_through = true\n",
}


@pytest.fixture
def sampled(nadi, tmp_path):
    """Columns of samples.parquet, links.parquet and the summary of a run."""

    def run(work, topology=LEAVES, network="", more=(), name="out"):
        path = tmp_path / "run.toml"
        path.write_text(f'[topology]\nspec = "{topology}"\n[network]\n{network}{work}')
        done = nadi("run", path, "--out", tmp_path / name, *more)
        assert done.code == 0, done.err
        folder = tmp_path / name
        tables = [
            {column: table[column].to_numpy() for column in table.column_names if column not in {"src", "dst"}}
            for table in (pq.read_table(folder / f"{table}.parquet") for table in ("samples", "links"))
        ]
        return *tables, json.loads((folder / "summary.json").read_text())

    return run


@pytest.mark.parametrize("kind", SWITCHES)
@pytest.mark.parametrize("interval_ps", [700_000, 10_000_000])
def test_samples_add_up_to_the_bytes_of_each_link(sampled, kind, interval_ps):
    work = f"[workload]\n{WEB}"
    samples, links, _ = sampled(work, network=SWITCHES[kind], more=["--set", f"output.sample={interval_ps}ps"])
    assert np.array_equal(np.bincount(samples["link"], samples["tx_bytes"], len(links["tx_bytes"])), links["tx_bytes"])
    assert np.all(samples["time_ps"] % interval_ps == 0)
    assert len(np.unique(samples["link"] * 10**12 + samples["time_ps"])) == len(samples["link"])
    rate = samples["tx_bytes"] * 8 / (interval_ps / 1e12)
    assert rate.max() <= 100e9 * 1.0001
    assert rate.max() > 90e9
    longest = np.zeros(len(links["tx_bytes"]), np.int64)
    np.maximum.at(longest, samples["link"], samples["queue_bytes"])
    assert longest.max() > 10_000
    if kind == "shared-buffer":
        assert np.array_equal(longest, links["buffered_bytes"])


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("kind", SWITCHES)
@pytest.mark.parametrize("workers", [2, 3])
def test_samples_do_not_depend_on_workers(sampled, kind, workers):
    work, more = f"[workload]\n{WEB}", ["--set", "output.sample=2us"]
    one, _, _ = sampled(work, network=SWITCHES[kind], more=more)
    other, _, summary = sampled(
        work, network=SWITCHES[kind], more=[*more, "--set", f"engine.workers={workers}"], name="o"
    )
    assert summary["threads"] == workers
    for column in nonempty(one):
        assert np.array_equal(one[column], other[column])


def test_rates_and_queues_of_an_incast(sampled, tmp_path):
    """Three senders of 1 MB: the receiver's link is full from the first packet to the last, and its queue drains."""
    (tmp_path / "x.csv").write_text("src,dst,bytes,start_us\n" + "".join(f"{src},3,999000,0\n" for src in range(3)))
    work = '[workload]\ntraffic = { file = "x.csv" }\n'
    spec, network = "switch:npus=4,rate=100Gbps,delay=1us", 'mtu = "999B"\nheader = "1B"\nack = "1B"\nwindow = "1GB"\n'
    samples, _, summary = sampled(work, spec, network, ["--set", "output.sample=10us"])
    down = samples["link"] == samples["link"][np.argmax(samples["queue_bytes"])]
    at_us, sent, queue = (samples[name][down] for name in ("time_ps", "tx_bytes", "queue_bytes"))
    at_us = at_us // 10**6
    assert summary["finish_time_ps"] >= 240 * 10**6
    full = (at_us >= 10) & (at_us < 230)
    assert sent[full] == pytest.approx(np.full(full.sum(), 125_000), abs=1)
    # two of the three senders' bytes wait: 25 kB more per us while they send, and 12.5 kB less later
    arrived_us = 80
    for begin_us, bytes_waiting in nonempty(zip(at_us[full], queue[full], strict=True)):
        end_us = begin_us + 10
        if end_us < arrived_us:
            assert bytes_waiting == pytest.approx(25_000 * (end_us - 1), rel=0.05)
        elif begin_us < arrived_us:
            assert bytes_waiting == pytest.approx(25_000 * arrived_us, rel=0.05)


def test_a_log_that_fills_up_is_emptied(sampled):
    """More entries than the log holds: two per packet and link, at an interval shorter than a packet."""
    work = '[workload]\ntraffic = { sizes = "64KiB", load = 0.9, duration = "2ms" }\n'
    network = 'mtu = "1000B"\n'
    samples, links, _ = sampled(work, network=network, more=["--set", "output.sample=100ns"])
    assert len(samples["link"]) > 4 * (1 << 14)
    assert np.array_equal(np.bincount(samples["link"], samples["tx_bytes"], len(links["tx_bytes"])), links["tx_bytes"])


def test_a_run_has_the_same_digest_with_and_without_samples(nadi, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(f'[topology]\nspec = "{LEAVES}"\n[workload]\n{WEB}')
    without = nadi("run", path, "--out", tmp_path / "without", "--json").document
    with_samples = nadi("run", path, "--set", "output.sample=1us", "--out", tmp_path / "with", "--json").document
    assert with_samples["digest"] == without["digest"]
    assert not (tmp_path / "without" / "samples.parquet").exists()


def test_the_pages_draw_samples(nadi, sampled, tmp_path):
    sampled(f"[workload]\n{WEB}", more=["--set", "output.sample=1us"])
    assert nadi("net", tmp_path / "out", "-o", tmp_path / "net.html").code == 0
    assert nadi("report", tmp_path / "out").code == 0
    for page in (tmp_path / "net.html", tmp_path / "out" / "report.html"):
        assert "sending rates of the" in page.read_text(encoding="utf-8")
        assert "in intervals of 1 µs" in page.read_text(encoding="utf-8")


def test_replayed_collectives_are_simulated_where_links_are_sampled(nadi, tmp_path):
    """NVLink's links have their bytes in samples, too."""
    path = tmp_path / "run.toml"
    path.write_text(
        '[topology]\ncluster = "dgx-h100-superpod"\ngpus = 16\n[workload]\nmodel = "gpt3-125m"\nplan = "tp4,dp4,gb8"\n'
    )
    document = nadi("run", path, "--set", "output.sample=100us", "--out", tmp_path / "out", "--json", "-q").document
    assert document["network"] == "packet"
    samples, links = (pq.read_table(tmp_path / "out" / f"{name}.parquet") for name in ("samples", "links"))
    sums = np.bincount(samples["link"].to_numpy(), samples["tx_bytes"].to_numpy(), len(links))
    assert np.array_equal(sums, links["tx_bytes"].to_numpy())
