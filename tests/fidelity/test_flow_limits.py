"""Links that limited flows: which, for how long, and what reports and explanations say of them."""

import pytest

import nadi
from nadi import et, pdes
from nadi.configuration.sections import NetworkSection
from nadi.errors import ConfigError
from nadi.inputs.units import MIB
from nadi.insight.explanation import explain
from nadi.insight.runs import Run
from nadi.reports.pages.fabric import fabric_section
from nadi.simulation.network_settings import network_settings
from nadi.topologies import build, route
from tests.pdes.cases import Traces

SWITCH = build("switch:npus=5,rate=100Gbps,delay=1us")
PS_PER_BYTE = 80  # of links of 100 Gb/s


def limits(traces, graph=SWITCH):
    """Rows of Results.limits as (src, dst): (link, ps), without headers and acknowledgements."""
    section = NetworkSection.model_validate({"fidelity": "flow", "header": "1B", "ack": "1B", "window": "64MiB"})
    results = pdes.run(pdes.build_world(graph, traces.program(), network_settings(section)))
    columns = (results.limits[name].tolist() for name in ("src", "dst", "link", "limited_ps"))
    return {(src, dst): (link, ps) for src, dst, link, ps in zip(*columns, strict=True)}


def sends(*messages):
    """Traces in which each message (src, dst, bytes) is sent at once."""
    traces = Traces(SWITCH.npus)
    for tag, (src, dst, size) in enumerate(messages):
        traces.message(src, dst, size, tag=tag)
    return traces


def test_a_flow_alone_is_limited_by_nothing():
    assert limits(sends((0, 1, MIB))) == {}


def test_incast_is_limited_by_the_link_to_the_receiver():
    found = limits(sends((0, 4, MIB), (1, 4, MIB), (2, 4, MIB)))
    last = route(SWITCH, 0, 4)[-1]
    assert found.keys() == {(0, 4), (1, 4), (2, 4)}
    for link, ps in found.values():
        assert link == last
        assert ps == pytest.approx(3 * MIB * PS_PER_BYTE, rel=0.002)


def test_the_link_with_most_of_the_time_counts():
    """NPU 0 shares its link by three until 1 MiB each is sent, then the receiver's by two for 3 MiB each: 6 - 3."""
    found = limits(sends((0, 4, 4 * MIB), (0, 1, MIB), (0, 2, MIB), (3, 4, 5 * MIB)))
    link, ps = found[0, 4]
    assert link == route(SWITCH, 0, 4)[-1]
    assert ps == pytest.approx(3 * MIB * PS_PER_BYTE, rel=0.01)
    link, ps = found[0, 1]
    assert link == route(SWITCH, 0, 1)[0]
    assert ps == pytest.approx(3 * MIB * PS_PER_BYTE, rel=0.01)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Results of a step whose data parallelism crosses oversubscribed links, by value of [network] collectives."""
    folders = {}
    for way in ("steps", "coupled"):
        folders[way] = tmp_path_factory.mktemp(way) / "out"
        nadi.simulate(
            workload={"model": "gpt3-125m", "plan": "tp2,dp8,gb16,zero1"},
            topology={"spec": "leaf-spine:npus=16,hosts_per_leaf=4,rate=100Gbps,oversubscription=4"},
            compute={"gpu": "a100"},
            network={"fidelity": "flow", "collectives": way},
            out=folders[way],
        )
    return folders


@pytest.mark.parametrize("way", ["steps", "coupled"])
def test_explanation_and_report_name_the_links(folders, way):
    run = Run(folders[way])
    found = explain(run)
    (exchange,) = [row for row in found["by_what"] if row["sort"] == "dp:reduce-scatter"]
    assert exchange["bound"] == "others in the way, 2.00 times the idle time; share of leaf 0 → spine 0"
    names = {
        f"{run.links['src'][link]} → {run.links['dst'][link]}"
        for link, group in zip(*(run.limits[name].to_pylist() for name in ("link", "group")), strict=True)
        if group >= 0
    }
    assert "leaf 0 → spine 0" in names
    (table,) = [
        part for part in fabric_section(run).parts if getattr(part, "caption", "") == "links that limited flows"
    ]
    assert table.rows[0][0] == "leaf 0 → spine 0"
    assert "dp" in table.rows[0][3]


def test_faster_links_are_foreseen_for_coupled_flows(folders):
    """As for the steps of the same collectives: their messages share the links between leaves and spines."""
    (steps,), (coupled,) = (
        [row["gain"] for row in explain(Run(folders[way]))["what_if"] if "leaf and spine" in row["change"]]
        for way in ("steps", "coupled")
    )
    assert steps > 0.04
    assert coupled == pytest.approx(steps, rel=0.05)


BLACKWELL = {"topology": {"cluster": "dgx-b200-superpod", "gpus": 8}, "groups": {"all": list(range(8))}}
"""NVSwitches whose links to what reduces in them are far above what flows support elsewhere."""


def reduced(network):
    """The run of an all-reduce of 64 MiB, which NCCL lets the NVSwitch do (NVLS)."""
    nodes = [et.coll_node(1, "grads", et.CollectiveCommType.ALL_REDUCE, 64 * MIB, pg_name="all")]
    return nadi.simulate(workload=[et.table_of(et.metadata(), nodes)] * 8, network=network, **BLACKWELL)


@pytest.mark.parametrize(
    "network",
    [
        {"fidelity": "flow", "collectives": "steps"},
        {"fidelity": "flow", "collectives": "coupled"},
        {"fidelity": "packet", "flows": ["all"]},
    ],
)
def test_no_flow_is_limited_by_the_link_to_what_reduces_in_a_switch(network):
    packets, flows = reduced({"fidelity": "packet"}), reduced(network)
    assert flows.finish_time_ps == pytest.approx(packets.finish_time_ps, rel=0.02)


@pytest.mark.parametrize("network", [{"fidelity": "flow"}, {"fidelity": "packet", "flows": ["p2p"]}])
def test_a_link_that_is_too_fast_for_flows_is_refused(network):
    spec = "switch:npus=2,rate=100Tbps,delay=1us"
    nodes = [et.coll_node(1, "grads", et.CollectiveCommType.ALL_REDUCE, MIB)]
    expected = r"\[topology\]: switch.* a link of 100Tbps, npu 0 - switch 0; expected at most 60Tbps with flows"
    with pytest.raises(ConfigError, match=expected):
        nadi.simulate(topology=spec, workload=et.table_of(et.metadata(), nodes), network=network)
