"""`nadi workload traffic`, and its traces in runs."""

import re

import pytest

PACKET, HEADER = 4096, 82


def run(nadi, folder, topology, *arguments):
    file = folder / "run.toml"
    file.write_text(f'[workload]\ntraces = "traffic"\n[topology]\nspec = "{topology}"\n')
    return nadi("run", file, "--quiet", "--json", *arguments).document


def test_incast_takes_what_the_receivers_link_needs(nadi, tmp_path):
    """The first packet goes over two links, all packets over the last one, which is never idle."""
    senders, size = 8, 1_000_000
    outcome = nadi("workload", "traffic", "incast", "--npus", senders + 1, "--size", f"{size}B", "-o", tmp_path)
    assert outcome.out == f"{tmp_path}/traffic.<npu>.et: 9 traces, 8 messages, 8.00 MB\n"
    done = run(nadi, tmp_path, "switch:npus=9,rate=100Gbps,delay=1us")
    wire = size + -(-size // PACKET) * HEADER
    assert done["finish_time_ps"] == (senders * wire + PACKET + HEADER) * 80 + 2 * 10**6


@pytest.mark.parametrize(
    "arguments",
    [
        ("incast", "--fan-in", 3),
        ("permutation", "--messages", 2),
        ("pairs", "--stride", 1),
        ("poisson", "--size", "hadoop", "--duration", "100us"),
        ("bursty", "--size", "hadoop", "--duration", "100us", "--sigma", 1.5),
        ("all-to-all", "--size", "uniform:1KiB-64KiB"),
    ],
)
def test_every_pattern_runs_at_every_fidelity(nadi, tmp_path, arguments):
    assert nadi("workload", "traffic", *arguments, "-o", tmp_path).code == 0
    for fidelity in ("packet", "analytical"):
        done = run(
            nadi,
            tmp_path,
            "leaf-spine:npus=8,hosts_per_leaf=4,spines=2,rate=400Gbps,delay=500ns",
            "--set",
            f"network.fidelity={fidelity}",
        )
        assert done["finish_time_ps"] > 0


def test_poisson_says_what_it_offers(nadi, tmp_path):
    outcome = nadi(
        "workload", "traffic", "poisson", "--load", 0.4, "--duration", "5ms", "--size", "64KiB", "-o", tmp_path
    )
    offered = float(outcome.out.split(", ")[-1].split()[0])
    assert offered == pytest.approx(0.4, rel=0.1)
    assert outcome.out.endswith(" of 8 x 400Gbps in 5ms\n")


def test_a_run_of_messages_alone_has_no_share_of_computation_and_no_energy(nadi, tmp_path):
    """The report on the terminal, the page, and comparisons; messages have their completion times there."""
    options = ("poisson", "--size", "hadoop", "--duration", "100us")
    assert nadi("workload", "traffic", *options, "-o", tmp_path).code == 0
    file = tmp_path / "run.toml"
    file.write_text('[workload]\ntraces = "traffic"\n[topology]\nspec = "switch:npus=8,rate=400Gbps"\n')
    printed = nadi("run", file, "--out", tmp_path / "out", "--report")
    assert (printed.code, printed.out.count("busiest links")) == (0, 1)
    assert not re.search("exposed|compute|idle", printed.out)
    page = (tmp_path / "out" / "report.html").read_text().partition("<script>")[0]
    assert 'id="network-title"' in page
    assert 'id="energy-title"' not in page
    assert 'id="step-title"' not in page
    document = nadi("compare", tmp_path / "out", tmp_path / "out", "--json").document
    names = {row["name"] for row in document["figures"]}
    assert "median_completion_ps" in names
    assert not [name for name in names if "share" in name or "energy" in name or "cost" in name]
    assert document["times"]["rows"] == []
    assert nadi("compare", tmp_path / "out", tmp_path / "out", "-o", tmp_path / "page.html").code == 0
