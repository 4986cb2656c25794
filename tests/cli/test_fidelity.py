"""The analytical network on the command line: report, files, closed forms, and keys that mean nothing to it."""

import json

import pyarrow.parquet as pq
import pytest

from nadi.configuration.sections import NetworkSection
from nadi.pdes import fidelity
from nadi.reports.run_folder import TABLES
from nadi.simulation.network_settings import documentation
from tests.network_sections import network_section

ANALYTICAL = '[network]\nfidelity = "analytical"\n'
RING_STEP_PS = (1 << 14) * 80 + 10**6
FINISH_PS = 10 * 10**6 + 2 * 6 * RING_STEP_PS


@pytest.mark.parametrize("aware", ["false", "true"])
def test_report_and_files(nadi, write_run, step, tmp_path, aware):
    """10 us forward, then two all-reduces of 6 ring steps of 16 KiB at 100 Gb/s and 1 us; nothing but payload."""
    run = write_run([step] * 4, f"{ANALYTICAL}congestion_aware = {aware}\n")
    outcome = nadi.ok("run", run, "--out", tmp_path / "out")
    kind = "congestion-aware" if aware == "true" else "congestion-unaware"
    for text in (f"48 messages, whole ({kind})", "48 message-hops", "collectives: mean time", "npu 0 → npu 1"):
        assert text in outcome.out
    assert "packet-hops" not in outcome.out
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "summary.json",
        *(f"{table}.parquet" for table in TABLES),
    }
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["finish_time_ps"] == FINISH_PS
    assert (summary["network"], summary["switches"]) == ("analytical", "none")
    assert summary["config"]["network"] == {
        "fidelity": "analytical",
        "congestion_aware": aware == "true",
        "endpoint_delay": "0ps",
        "resolution": "1ps",
    }
    flows = pq.read_table(tmp_path / "out" / "flows.parquet").to_pydict()
    assert flows["slowdown"] == [1.0] * 48
    assert pq.read_table(tmp_path / "out" / "collectives.parquet")["ratio"].to_pylist() == pytest.approx([1, 1])
    assert sum(pq.read_table(tmp_path / "out" / "links.parquet")["tx_bytes"].to_pylist()) == 48 << 14


def test_messages_alone_are_as_fast_as_the_tables_say(nadi, write_run, tmp_path):
    """Through a switch, with everything that takes time."""
    from nadi import et

    nodes = [[et.send_node(1, "s", 0, 1, 87_513, 0)], [et.recv_node(1, "r", 0, 1, 87_513, 0)]]
    more = 'congestion_aware = true\nendpoint_delay = "7ns"\nresolution = "10ns"\n'
    switch = 'spec = "switch:npus=2,rate=100Gbps,delay=1.003us,switch_latency=300ns"'
    nadi("run", write_run(nodes, ANALYTICAL + more, switch), "--out", tmp_path / "out")
    (flow,) = pq.read_table(tmp_path / "out" / "flows.parquet").to_pylist()
    over_a_link_ps = (87_513 * 80 + 1_003_000) // 10_000 * 10_000
    assert flow["finish_ps"] == flow["ideal_ps"] == 2 * over_a_link_ps + 300_000 + 7000


@pytest.mark.parametrize(
    ("kind", "topology", "aware"),
    [
        *(("all-reduce", f"{topology}:npus=8", aware) for topology in ("ring", "switch") for aware in (False, True)),
        ("barrier", "switch:npus=8,switch_latency=300ns", False),
        ("barrier", "fully-connected:npus=8", True),
        ("all-to-all", "switch:npus=8,switch_latency=300ns", True),
    ],
)
def test_collectives_take_their_closed_form(nadi, kind, topology, aware):
    given = ("--set", "network.fidelity=analytical", "--set", f"network.congestion_aware={str(aware).lower()}")
    document = nadi("collective", kind, "-t", topology, "--sizes", "8MiB,80MiB", *given, "--json").document
    assert document["network"]["congestion_aware"] == aware
    assert "mtu" not in document["network"]
    assert [row["ratio"] for row in document["rows"]] == pytest.approx([1] if kind == "barrier" else [1, 1])


@pytest.mark.parametrize("aware", ["false", "true"])
def test_a_closed_form_with_endpoints_and_a_resolution(nadi, aware):
    """An endpoint's delay for each of 6 steps, and one more before the first."""
    given = ["fidelity=analytical", f"congestion_aware={aware}", "endpoint_delay=10ns", "resolution=1ns"]
    options = [word for text in given for word in ("--set", f"network.{text}")]
    document = nadi("collective", "all-reduce", "-t", "ring:npus=4", "--sizes", "8MiB", "--json", *options).document
    (row,) = document["rows"]
    assert row["time_ps"] == row["closed_form_ps"]


def test_a_section_is_read_as_it_was_written():
    given = network_section(["network.fidelity=analytical", "network.reduction_bandwidth=2TB/s"])
    assert NetworkSection.model_validate(given.model_dump(mode="json", exclude_none=True)) == given
    written = NetworkSection().model_dump(mode="json")
    assert written["mtu"] == "4KiB"
    assert "congestion_aware" not in written


PACKET_KEYS = {
    "mtu": "1KiB", "window": "1MiB", "header": "100B", "pfc": True, "ecn": True, "buffer": "1MB", "trimming": True,
    "congestion_control": "dcqcn", "load_balancing": "spray", "queue_limit": "1MB", "cut_through": True,
    "selective_repeat": False, "detection_time": "1ms", "switch": "shared-buffer", "send_latency": "1us",
    "acknowledged": True,
}  # fmt: skip


@pytest.mark.parametrize("key", PACKET_KEYS)
def test_keys_of_packets_change_nothing_at_message_level(key):
    given = network_section(["network.fidelity=analytical", f"network.{key}={json.dumps(PACKET_KEYS[key])}"])
    assert given == network_section(["network.fidelity=analytical"])
    assert key not in given.model_dump(mode="json")


@pytest.mark.parametrize("key", ["congestion_aware=false", "resolution=1ns"])
def test_keys_of_whole_messages_change_nothing_with_packets(key):
    assert network_section([f"network.{key}"]) == network_section([])


ENDS = ("endpoint_delay=10ns", "reduction_bandwidth=1TB/s", "send_latency=2us", "acknowledged=true")
PLAIN_STEP_PS = 20 * (2 * (4096 + 82)) + 500_000
"""Of two packets over a link of 400 Gb/s."""


def test_packets_with_all_that_passes_at_the_ends(nadi):
    """Steps of a ring of 4, of which 3 add 8 KiB to what is there: 8 ns for each way through memory."""
    options = [word for text in ENDS for word in ("--set", f"network.{text}")]
    given = ("collective", "all-reduce", "-t", "ring:npus=4,rate=400Gbps,delay=500ns", "--sizes", "32KiB", "--json")
    document = nadi(*given, *options).document
    (row,) = document["rows"]
    assert document["network"]["acknowledged"] is True
    back_ps, added_ps = 86 * 20 + 500_000, 3 * 8192
    assert row["time_ps"] == 6 * (PLAIN_STEP_PS + 2_000_000 + back_ps + 10_000) + 3 * added_ps + 10_000
    assert row["closed_form_ps"] == row["time_ps"]
    (plain,) = nadi(*given).document["rows"]
    assert plain["time_ps"] == 6 * PLAIN_STEP_PS
    (halves,) = nadi(*given, "--algorithm", "ring:dataset_splits=2", *options).document["rows"]
    half_ps = row["time_ps"] - 6 * 20 * (4096 + 82) - 3 * added_ps // 2
    assert halves["time_ps"] == halves["closed_form_ps"] == 2 * half_ps


def test_a_message_begins_when_it_is_posted(nadi, write_run, tmp_path):
    """Alone it takes its latency too; its send is done when the acknowledgement is back."""
    from nadi import et

    nodes = [[et.send_node(1, "s", 0, 1, 8192, 0)], [et.recv_node(1, "r", 0, 1, 8192, 0)]]
    more = 'send_latency = "2us"\nacknowledged = true\nendpoint_delay = "7ns"\n'
    run = write_run(nodes, f"[network]\n{more}", 'spec = "ring:npus=2,rate=400Gbps,delay=500ns"')
    nadi("run", run, "--out", tmp_path / "out")
    (flow,) = pq.read_table(tmp_path / "out" / "flows.parquet").to_pylist()
    assert (flow["start_ps"], flow["finish_ps"], flow["slowdown"]) == (0, 2_000_000 + PLAIN_STEP_PS, 1.0)
    done_ps = pq.read_table(tmp_path / "out" / "nodes.parquet")["finish_ps"].to_pylist()
    assert done_ps == [flow["finish_ps"] + 86 * 20 + 500_000, flow["finish_ps"] + 86 * 20 + 507_000]


@pytest.mark.parametrize("aware", [False, True])
def test_links_that_would_have_to_carry_more_than_they_can(nadi, write_run, tmp_path, aware):
    """Three senders to one NPU: its link has three times what it can send in the time that one message takes."""
    from nadi import et

    nodes = [[et.send_node(1, "s", npu, 3, 10**6, npu)] for npu in range(3)]
    nodes.append([et.recv_node(1 + npu, "r", npu, 3, 10**6, npu) for npu in range(3)])
    text = f"{ANALYTICAL}congestion_aware = {str(aware).lower()}\n"
    run = write_run(nodes, text, 'spec = "switch:npus=4,rate=100Gbps,delay=1ns"')
    said = " ".join(nadi("run", run, "--out", tmp_path / "out").out.split())
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    text = "1 of 8 links would have to carry more than they can, up to 300% of it (switch 0 → npu 3)"
    assert [warning.startswith(text) for warning in summary["warnings"]] == ([] if aware else [True])
    assert (f"warning: {text}" in said) != aware
    assert ("congestion_aware = true or" in said) != aware


@pytest.mark.parametrize(("aware", "algorithm"), [("false", "direct"), ("true", "direct"), ("false", "ring")])
def test_a_collective_that_asks_too_much_of_links(nadi, aware, algorithm):
    given = ("--set", "network.fidelity=analytical", "--set", f"network.congestion_aware={aware}")
    outcome = nadi(
        "collective", "all-gather", "-t", "switch:npus=8", "--sizes", "8MiB", "--algorithm", algorithm, *given
    )
    assert ("of their capacity" in outcome.out) == (aware == "false" and algorithm == "direct")


FLOWS = '[network]\nfidelity = "flow"\n'


def test_collectives_are_coupled_flows_if_the_user_asks_or_the_run_has_many_messages(
    nadi, write_run, step, tmp_path, monkeypatch
):
    run = write_run([step] * 4, FLOWS)
    found = []
    for name, most in (("auto", 10**6), ("coupled", 10**6), ("auto", 47)):
        monkeypatch.setattr("nadi.pdes.fidelity.flow.COUPLED_ABOVE_MESSAGES", most)
        outcome = nadi.ok("run", run, "--out", tmp_path / "out", "--force", "--set", f"network.collectives={name}")
        way = "auto" if name == "auto" and most > 48 else "coupled"
        how = "48 messages as flows" if way == "auto" else "48 messages, collectives as coupled flows"
        assert how in outcome.out
        summary = json.loads((tmp_path / "out" / "summary.json").read_text())
        assert summary["config"]["network"]["collectives"] == way
        collectives = pq.read_table(tmp_path / "out" / "collectives.parquet").to_pydict()
        found.append((summary["finish_time_ps"], summary["digest"], collectives["time_ps"]))
    assert found[1] == found[2] != found[0]
    closed = 6 * (2**14 * 80 + 4 * 82 * 80 + 10**6)
    assert found[1][2] == pytest.approx([closed] * len(found[1][2]), rel=1e-3)


def test_coupled_flows_have_no_stand_ins_of_nvlink(nadi, tmp_path, monkeypatch):
    """Neither if the user asks for coupled flows, nor if the run has many messages."""
    monkeypatch.setattr("nadi.pdes.fidelity.flow.COUPLED_ABOVE_MESSAGES", 100)
    given = ("--model", "gpt3-125m", "--plan", "tp4,dp4,gb4", "--cluster", "dgx-h100-superpod", "--gpus", "16")
    found = []
    for nvlink, how in (("messages", "coupled"), ("closed-form", "coupled"), ("closed-form", "auto")):
        keys = f"fidelity=flow collectives={how} nvlink={nvlink}".split()
        sets = [word for key in keys for word in ("--set", f"network.{key}")]
        nadi.ok("run", *given, "--out", tmp_path / "out", "--force", *sets)
        summary = json.loads((tmp_path / "out" / "summary.json").read_text())
        assert summary["config"]["network"]["collectives"] == "coupled"
        found.append(
            (summary["digest"], {key: summary[key] for key in ("finish_time_ps", "packets", "packet_hops", "events")})
        )
    assert found[0] == found[1] == found[2]


def test_a_collective_alone_is_a_coupled_flow(nadi):
    given = ("all-reduce", "-t", "switch:npus=4", "--sizes", "1MiB", "--algorithm", "ring", "--json")
    rows = []
    for how in ("steps", "coupled"):
        outcome = nadi("collective", *given, "--set", "network.fidelity=flow", "--set", f"network.collectives={how}")
        rows += json.loads(outcome.out)["rows"]
    assert rows[1]["ratio"] == pytest.approx(1, abs=1e-6)
    assert rows[0]["time_ps"] == pytest.approx(rows[1]["time_ps"], rel=1e-2)


def test_flows_run_warn_of_keys_for_queues_and_refuse_losses(nadi, write_run, step, tmp_path):
    run = write_run([step] * 4, FLOWS)
    outcome = nadi.ok("run", run, "--out", tmp_path / "out", "--set", "network.buffer=4MB")
    assert "messages as flows" in outcome.out
    assert '[network] buffer (needs [network] fidelity = "packet")' in outcome.err
    faults = ("faults.0.at=1us", "faults.0.link=npu 0-npu 1", "faults.0.error_rate=0.1")
    line = nadi.refuse("run", run, "-q", *(word for each in faults for word in ("--set", each))).err
    assert line.startswith("nadi: error: [faults.0] error_rate: messages as a whole are never lost; expected another")


def test_models_are_listed(nadi):
    listed = nadi("net", "fidelities", "--json").document
    assert [model["fidelity"] for model in listed] == list(fidelity.networks())
    text = nadi("net", "fidelities").out
    for model in listed:
        assert model["message"] in text
        assert model["message"] in documentation()
    assert {model["fidelity"]: model["refused_faults"] for model in listed if model["has_links"]} == {
        "packet": [],
        "flow": ["error_rate", "pause_storm"],
        "analytical": None,
    }
