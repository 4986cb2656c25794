"""`nadi energy`: joules and dollars against what a few lines of arithmetic say."""

import re
import tomllib

import numpy as np
import pytest

from nadi import energy, et
from nadi.insight.metrics import metrics_of
from nadi.insight.runs import Run, energy_of
from nadi.reports.text.energy import energy_facts, plain, usd_text
from nadi.topologies import GraphBuilder, build
from nadi.workload.generators.training import parallel_plan
from tests.nonempty import nonempty

ROUND = """
[gpus.other]
tdp_W = 100.0
usd_per_hour = 3.6
[power]
compute = 1.0
communication = 0.5
memory = 0.25
idle = 0.1
[host]
W_per_gpu = 10.0
[nic]
W = 4.0
rate = "100Gbps"
pJ_per_bit = 1.0
[switch_port]
W = 2.0
rate = "100Gbps"
pJ_per_bit = 3.0
[transceiver]
W = 1.0
rate = "100Gbps"
pJ_per_bit = 0.5
[direct_port]
W = 5.0
rate = "100Gbps"
pJ_per_bit = 7.0
[facility]
pue = 1.5
usd_per_kWh = 0.1
"""
SECOND_PS = 10**12


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "round.toml"
    path.write_text(ROUND)
    return path


@pytest.fixture
def finished(nadi, write_run, tmp_path):
    def run(traces, topology, text=""):
        nadi.ok("run", write_run(traces, text, topology), "--out", tmp_path / "out", "-q")
        return Run(tmp_path / "out")

    return run


def test_one_npu_and_one_link_by_hand(table):
    """2 s, of which 1 of compute, 0.5 of communication, 0.3 of memory, 0.2 idle; 1 GB over a NIC of 200 Gb/s."""
    times = dict(zip(energy.NPU_TIMES, (1.0, 0.5, 0.3, 0.2), strict=True))
    npu_ps = {name: seconds * SECOND_PS for name, seconds in times.items()}
    usage = energy.Usage("", 1, 2.0 * SECOND_PS, npu_ps, {"nic": energy.PortUse(1, 200e9, 1e9, 1)}, steps=4, tokens=1e6)
    found = energy.bill(usage, energy.read_table(table))
    joules = {part.name: (part.static_J, part.per_bit_J) for part in found.parts}
    assert joules == {
        "GPUs: compute": (100.0, 0.0),
        "GPUs: communication": (25.0, 0.0),
        "GPUs: memory": pytest.approx((7.5, 0.0)),
        "GPUs: idle": pytest.approx((2.0, 0.0)),
        "hosts": (20.0, 0.0),
        "NICs": (16.0, pytest.approx(8e9 * 1e-12)),
        "transceivers": (4.0, pytest.approx(8e9 * 0.5e-12)),
    }
    machines = 174.5 + 0.012
    assert found.overhead_J == pytest.approx(machines / 2)
    assert found.joules == pytest.approx(machines * 1.5)
    assert found.electricity_usd == pytest.approx(machines * 1.5 / 3.6e6 * 0.1)
    assert found.gpu_hours == pytest.approx(2 / 3600)
    assert found.usd == found.gpu_usd == pytest.approx(3.6 * 2 / 3600)
    whole = energy.bill_document(usage, found)
    assert whole["step"] == {"steps": 4, "energy_J": found.joules / 4, "cost_usd": found.usd / 4}
    assert whole["million_tokens"]["cost_usd"] == pytest.approx(found.usd)
    assert sum(part["J"] for part in whole["parts"]) == pytest.approx(whole["energy_J"])
    assert sum(part["share"] for part in whole["parts"]) == pytest.approx(1)
    assert whole["mean_W"] == pytest.approx(whole["energy_J"] / 2)


def test_a_run_of_one_npu_that_only_computes(finished, table):
    run = finished([[et.comp_node(1, "work", duration_micros=1000)]], 'spec = "switch:npus=1,rate=100Gbps,delay=1us"')
    found = energy_of(run, table)
    # 1 ms of compute and host; a NIC and a switch's port with a transceiver each
    watts = 100 + 10 + (4 + 1) + (2 + 1)
    assert found.bill.joules == pytest.approx(watts * 1e-3 * 1.5)
    assert found.notes == ("the run names no GPU: power and price are those of gpus.other.",)
    assert metrics_of(run)["energy_J"] == energy_of(run).bill.joules


def test_a_message_over_one_link(finished, table):
    """A send from NPU 0 to 1 on a ring of two: the link's bytes, headers included, times its picojoules."""
    size = 1 << 20
    traces = [[et.send_node(1, "send", 0, 1, size)], [et.recv_node(1, "recv", 0, 1, size)]]
    run = finished(traces, 'spec = "ring:npus=2,rate=100Gbps,delay=1us"')
    sent = int(np.sum(run.links["tx_bytes"]))
    assert sent >= size
    usage, found = energy_of(run, table)[:2]
    assert set(usage.ports) == {"direct_port"}
    (port,) = (part for part in found.parts if part.name == "GPU ports")
    assert port.number == len(run.links)
    assert port.per_bit_J == pytest.approx(sent * 8 * 7e-12)
    assert port.static_J == pytest.approx(5.0 * len(run.links) * run.finish_time_ps / SECOND_PS)


def test_every_npu_second_and_every_sent_byte_is_counted_once():
    import nadi as package

    run = package.simulate(
        workload={"model": "gpt3-125m", "plan": "tp2,pp2,dp4,gb8"},
        topology={"cluster": "selene", "gpus": 16},
        network={"mtu": "16KiB"},
    )
    found = energy_of(run)
    assert sum(found.usage.npu_ps.values()) == pytest.approx(16 * run.finish_time_ps)
    assert min(found.usage.npu_ps.values()) >= 0
    assert found.usage.npu_ps["compute"] == np.sum(run.npus["compute_ps"])
    assert sum(ports.tx_bytes for ports in found.usage.ports.values()) == np.sum(run.links["tx_bytes"])
    assert found.bill.gpu == "a100"
    whole = found.document()
    assert sum(part["J"] for part in whole["parts"]) == pytest.approx(whole["energy_J"])
    assert whole["step"]["energy_J"] == pytest.approx(metrics_of(run)["energy_J"])
    # of Selene's switches those count that serve these NPUs or sent, of whose ports the share that the NPUs can fill
    ports = found.usage.ports
    assert ports["nic"].number == 16
    assert ports["nic"].number < ports["switch_port"].number < ports["switch_port"].present < len(run.links)
    assert any("switches that serve no NPU" in note for note in found.notes)
    low, high = 400 * 0.1 * 16, (400 + 250 + 500) * 16 * 1.56
    assert low < whole["mean_W"] < high


def shares_of(spec):
    """Shares of the links between switches, by the names of their ends without numbers."""
    graph = build(spec)
    is_npu = np.arange(graph.nodes) < graph.npus
    share = energy.shares(graph.link_src, graph.link_dst, is_npu, graph.link_rate_bps)
    found = {}
    for link, (src, dst) in nonempty(enumerate(zip(graph.link_src.tolist(), graph.link_dst.tolist(), strict=True))):
        if min(src, dst) < graph.npus:
            assert share[link] == 1
        else:
            names = [re.sub(r"[0-9 ]+$", "", graph.node_name(node)).split()[0] for node in (src, dst)]
            found.setdefault(tuple(sorted(names)), set()).add(round(float(share[link]), 9))
    return found


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("switch:npus=4", {}),
        ("leaf-spine:leaves=4,hosts_per_leaf=4,spines=4", {1.0}),
        ("leaf-spine:leaves=4,hosts_per_leaf=8,spines=4", {1.0}),
        ("leaf-spine:leaves=4,hosts_per_leaf=1,spines=4", {0.25}),
        ("leaf-spine:leaves=2,hosts_per_leaf=2,spines=4,rate=100Gbps,uplink_rate=200Gbps", {0.25}),
        ("fat-tree:k=4", {1.0}),
    ],
)
def test_the_share_that_npus_can_fill(spec, expected):
    assert set().union(*shares_of(spec).values()) == set(expected)


def test_links_between_switches_of_one_tier_count_whole():
    graph = GraphBuilder("ring of switches", 3)
    graph.add_named_switches([f"switch {number}" for number in range(3)], latency_ps=0)
    graph.add_cables([0, 1, 2, 3, 4, 5], [3, 4, 5, 4, 5, 3], [10**9] * 3 + [10**11] * 3, [1000] * 6)
    made = graph.graph()
    assert np.all(energy.shares(made.link_src, made.link_dst, np.arange(6) < 3, made.link_rate_bps) == 1)


def test_shares_of_three_tiers():
    """A quarter of what leads from leaves to spines, and of that, where spines have half as much to cores, half."""
    graph = GraphBuilder("tiers", 2)
    for name in ("leaf 0", "spine 0", "core 0"):
        graph.add_named_switches([name], latency_ps=0)
    rate, delay = 10**11, 1000
    for a, b, count in ((0, 2, 1), (1, 2, 1), (2, 3, 8), (3, 4, 4)):
        graph.add_cables([a] * count, [b] * count, [rate] * count, [delay] * count)
    made = graph.graph()
    is_npu = np.arange(made.nodes) < 2
    share = energy.shares(made.link_src, made.link_dst, is_npu, made.link_rate_bps)
    ends = {(a, b): set() for a, b in ((2, 3), (3, 2), (3, 4), (4, 3))}
    for link, pair in enumerate(zip(made.link_src.tolist(), made.link_dst.tolist(), strict=True)):
        if pair in ends:
            ends[pair].add(float(share[link]))
    assert ends == {(2, 3): {0.25}, (3, 2): {0.25}, (3, 4): {0.5}, (4, 3): {0.5}}
    uses, unused = energy.port_uses(
        made.link_src, made.link_dst, is_npu, is_npu & False, made.link_rate_bps, np.zeros(made.links)
    )
    # the leaf's ports alone: the others serve no NPU and sent nothing
    assert uses["switch_port"] == energy.PortUse(2 + 8 * 0.25, 4 * rate, 0.0, 10)
    assert unused == 2


def test_one_host_of_a_superpod_is_charged_its_share():
    import nadi as package

    run = package.simulate(
        workload={"model": "llama3-8b", "plan": "tp8"},
        topology={"cluster": "dgx-h100-superpod", "gpus": 8},
        network={"fidelity": "closed-form"},
    )
    found = energy_of(run)
    rows = {row["part"]: row for row in found.document()["parts"]}
    assert (rows["switch ports"]["count"], rows["switch ports"]["of"]) == (16, 264)
    assert (rows["transceivers"]["count"], rows["transceivers"]["of"]) == (24, 272)
    assert rows["NICs"]["count"] == rows["NICs"]["of"] == 8
    assert found.document()["mean_W"] < 10_200 * 1.56  # what a DGX H100 draws at most, by its data sheet
    assert any("the run's share is 16.0 of 264" in note for note in found.notes)


@pytest.mark.parametrize(
    ("cluster", "plan"), [("selene", "tp2,pp2,dp4,gb8"), ("dgx-h100-superpod", "tp4,dp4,gb8"), ("tpu-v4", "dp8,gb8")]
)
def test_closed_forms_tell_what_links_send(cluster, plan):
    """Within 3 % of what the packets of the same run are; each sort of port, over switches, NVLink and a torus."""
    import nadi as package

    inputs = {
        "workload": {"model": "gpt3-125m", "plan": plan},
        "topology": {"cluster": cluster, "gpus": parallel_plan(plan).gpus},
    }
    by_packets = package.simulate(**inputs, network={"mtu": "16KiB"})
    told = package.simulate(**inputs, network={"mtu": "16KiB", "fidelity": "closed-form"})
    sent, expected = (energy_of(run).usage.ports for run in (told, by_packets))
    assert sent.keys() == expected.keys()
    for sort, ports in nonempty(expected.items()):
        assert sent[sort].number == pytest.approx(ports.number), sort
        assert sent[sort].rate_bps == pytest.approx(ports.rate_bps)
        assert sent[sort].tx_bytes == pytest.approx(ports.tx_bytes, rel=0.03)
    assert any("told from the traces" in note for note in energy_of(told).notes)
    assert energy_of(told).bill.joules == pytest.approx(energy_of(by_packets).bill.joules, rel=0.1)


def test_a_message_of_closed_forms_by_hand(finished, table):
    """1 MiB in 256 packets through a switch: the NIC sends data with headers, its peer's acknowledgements."""
    traces = [[et.send_node(1, "send", 0, 1, 1 << 20)], [et.recv_node(1, "recv", 0, 1, 1 << 20)]]
    said = '[network]\nfidelity = "closed-form"\nmtu = "4KiB"\nheader = "82B"\nack = "86B"\n'
    run = finished(traces, 'spec = "switch:npus=2,rate=100Gbps,delay=1us"', said)
    ports = energy_of(run).usage.ports
    sent = (1 << 20) + 256 * (82 + 86)
    assert {name: (of.number, of.tx_bytes) for name, of in ports.items()} == {
        "nic": (2, sent),
        "switch_port": (2, sent),
    }
    assert energy_of(run, table).bill.parts[-3].per_bit_J == pytest.approx(sent * 8e-12)


def test_the_gpu_is_found_by_name(tmp_path):
    table = energy.read_table()
    assert energy.gpu_cost(table, "h100")[0] == energy.gpu_cost(table, "/somewhere/H100.toml")[0] == "h100"
    assert energy.gpu_cost(table, "")[0] == energy.gpu_cost(table, "unheard-of")[0] == "other"
    own = tmp_path / "own.toml"
    own.write_text("[gpus.mine]\ntdp_W = 50.0\nusd = 8766.0\nyears = 2.0\nused = 0.5\n")
    name, cost = energy.gpu_cost(energy.read_table(own), "mine")
    assert name == "mine"
    assert energy.usd_per_hour(cost) == pytest.approx(1.0)  # over 2 * 8,766 h, half of which it works


def test_an_owned_gpu_pays_its_electricity(table, tmp_path):
    owned = tmp_path / "owned.toml"
    owned.write_text(ROUND.replace("usd_per_hour = 3.6", "usd = 8766.0\nyears = 1"))
    usage = energy.Usage(
        "", 1, 3600.0 * SECOND_PS, {"compute": 3600.0 * SECOND_PS, "communication": 0, "memory": 0, "idle": 0}, {}
    )
    rented, bought = (energy.bill(usage, energy.read_table(path)) for path in (table, owned))
    assert rented.electricity_usd == bought.electricity_usd == pytest.approx(0.11 * 1.5 * 0.1)
    assert (rented.usd, bought.usd) == (pytest.approx(3.6), pytest.approx(1.0 + 0.0165))


def test_a_network_with_a_price_by_hand(table, tmp_path):
    """Prices are at 100 Gb/s: a NIC of 200 Gb/s with its transceiver, and half a switch port of 400 Gb/s."""
    owned = tmp_path / "owned.toml"
    prices = {"nic": 300.0, "switch_port": 150.0, "transceiver": 50.0}
    text = ROUND
    for row, usd in prices.items():
        text = text.replace(f"[{row}]\n", f"[{row}]\nusd = {usd}\n")
    owned.write_text(text + "[network_life]\nyears = 4.0\nused = 0.5\n")
    npu_ps = dict.fromkeys(energy.NPU_TIMES, 0.0) | {"compute": 3600.0 * SECOND_PS}
    ports = {"nic": energy.PortUse(1, 200e9, 1e9, 1), "switch_port": energy.PortUse(0.5, 200e9, 1e9, 1)}
    usage = energy.Usage("", 1, 3600.0 * SECOND_PS, npu_ps, ports)
    found, without = energy.bill(usage, energy.read_table(owned)), energy.bill(usage, energy.read_table(table))
    assert found.network_price_usd == pytest.approx(2 * 300 + 2 * 50 + 2 * 150 + 2 * 50)
    assert found.network_usd == pytest.approx(found.network_price_usd / (4 * 8766 * 0.5))
    assert (without.network_price_usd, without.network_usd, without.usd) == (0, 0, found.usd - found.network_usd)
    assert energy.bill_document(usage, found)["network_usd"] == found.network_usd
    assert without.usd == pytest.approx(3.6)
    shown = dict(energy_facts(energy.bill_document(usage, found)))
    assert shown["network"] == f"{usd_text(found.network_usd)} of its price of $1,100.00, in the cost"
    assert "network" not in dict(energy_facts(energy.bill_document(usage, without)))


def test_every_number_says_where_it_is_from():
    """And has a range, unless its maker says it; the page has all of them as they are."""
    table = energy.read_table()
    found = dict(energy.table_numbers(table))
    assert found.keys() == table.sources.keys()
    written = tomllib.loads(energy.DEFAULT_TABLE.read_text())
    rows = {key: row for key, row in written.items() if key not in ("gpus", "sources", "ranges")}
    of_rows = {f"{name}.{key}" for name, row in rows.items() for key in row if key != "rate"}
    assert set(found) == of_rows | {f"gpus.{gpu}.{key}" for gpu, row in written["gpus"].items() for key in row}
    assert set(rows) - {"power", "host", "facility"} == {row for rows in energy.PORTS.values() for row in rows}
    for path, value in nonempty(found.items()):
        basis = table.sources[path].partition(":")[0]
        assert basis in energy.BASES, path
        assert basis in ("published", "derived") or path in table.ranges, path
        if path in table.ranges:
            least, most = table.ranges[path]
            assert least <= value <= most
            assert least < most
    assert set(re.findall(r"^\| `(\S+)` \|", energy.table_documentation(), re.MULTILINE)) == set(found)


def test_a_table_stands_over_the_default(tmp_path):
    own = tmp_path / "own.toml"
    own.write_text("[facility]\npue = 1.1\n")
    ours, default = energy.read_table(own), energy.read_table()
    assert ours.facility.pue == 1.1
    assert ours.facility.usd_per_kWh == default.facility.usd_per_kWh
    assert ours.gpus == default.gpus


def test_the_command_and_the_run_file(nadi, finished, step, table, tmp_path):
    run = finished([step] * 4, 'spec = "switch:npus=4,rate=100Gbps,delay=1us"', f'[energy]\ntable = "{table.name}"\n')
    found = nadi("energy", run.folder, "--json").document
    assert found["table_from"] == str(table)
    assert found["energy_J"] == energy_of(run, table).bill.joules
    assert found["table"]["gpus"]["other"]["tdp_W"] == 100
    text = nadi("energy", run.folder).out
    for words in ("GPUs: compute", "switch ports", "data centre (PUE)", "round.toml over the default table"):
        assert words in text
    other = nadi("energy", run.folder, "--table", energy.DEFAULT_TABLE, "--json").document
    assert other["energy_J"] != found["energy_J"]
    assert "usd_per_kWh" in nadi("energy", "--show-table").out
    for arguments in ((), (tmp_path / "none",), (run.folder, "--table", tmp_path / "none.toml")):
        nadi.refuse("energy", *arguments)


def test_the_report_has_a_section(finished, step, table):
    from nadi.reports.pages.report import energy_section

    run = finished([step] * 4, 'spec = "switch:npus=4,rate=100Gbps,delay=1us"', f'[energy]\ntable = "{table.name}"\n')
    facts, plot, rows = energy_section(run).parts[:3]
    assert {fact.name for fact in facts.facts} == {"energy", "mean power", "cost", "electricity"}
    assert sum(sum(bar.x) for bar in plot.figure.data) == pytest.approx(energy_of(run).bill.joules)
    assert all(len(row) == len(rows.headings) for row in nonempty(rows.rows))


def test_small_amounts_have_no_exponent():
    assert [plain(value) for value in (0.0, 7.1884e-5, 1.5, 1234.56, 20.0)] == ["0", "0.00007188", "1.5", "1,235", "20"]
    assert [usd_text(usd) for usd in (0.0041, 123.456)] == ["$0.0041", "$123.46"]
