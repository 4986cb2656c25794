"""What `nadi explain` says a change would save, beside real runs with that change, where traffic meets traffic.

`docs/explanation/explain.md` states the error: each gain is within a tenth of the real one or 0.5 % of the run.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from statistics import mean
from types import MappingProxyType
from typing import NamedTuple

import pytest

import nadi as package
from nadi import et
from nadi.insight.explanation import explain
from tests.nonempty import nonempty

MIB = 1 << 20
RELATIVE, OF_RUN = 0.1, 0.005
"""The error that docs/explanation/explain.md states."""
ALL_TO_ALL, ALL_REDUCE = et.CollectiveCommType.ALL_TO_ALL, et.CollectiveCommType.ALL_REDUCE


class Scenario(NamedTuple):
    """A run, and what is made faster in it.

    Attributes:
        work: Name of a function of this file that gives traces; or a model, or the file of MODEL, and a plan.
        fabric: A topology with its parameters.
        changes: For each tier of links: the parameter of the topology that is its rate, and that rate in Gb/s.
        network: Keys of [network].
        factor: How many times as fast each tier is made.
        seeds: Runs whose mean gain counts, where the order of ties alone moves a run by as much as a gain.
    """

    work: str
    fabric: str
    changes: dict[str, tuple[str, int]]
    network: Mapping[str, str] = MappingProxyType({})
    factor: float = 1.1
    seeds: int = 1


LEAF_SPINE = "leaf-spine:npus=8,hosts_per_leaf=4,spines={},rate=100Gbps,uplink_rate={}Gbps"
HOSTS = "rail-fat-tree:npus=16,gpus_per_host=4,rails=1,hosts_per_unit=1,spines={},accelerator=h100"
HOST_RATES = ",rate=400Gbps,uplink_rate=400Gbps,nvlink_rate=3600Gbps"
NIC, SPINE, NVLINK = "leaf and npu", "leaf and spine", "npu and nvswitch"
BOTH = {NIC: ("rate", 100), SPINE: ("uplink_rate", 100)}
FAST_SPINE = {SPINE: ("uplink_rate", 300)}
OF_HOSTS = {NIC: ("rate", 400), SPINE: ("uplink_rate", 400), NVLINK: ("nvlink_rate", 3600)}
MODEL = """
layers = 4
hidden = 768
heads = 12
ffn = 3072
vocab = 8192
sequence = 256
"""
"""A model like gpt3-125m with a quarter of its parameters."""
STEP = "model.toml tp4,sp,dp4,gb16,mb2,zero1"
SCENARIOS = {
    "incast": Scenario("incast", LEAF_SPINE.format(4, 100), BOTH),
    "one spine for four": Scenario("permutation", LEAF_SPINE.format(1, 100), BOTH),
    "ECMP": Scenario("permutation", LEAF_SPINE.format(4, 100), BOTH),
    "spraying": Scenario("permutation", LEAF_SPINE.format(2, 100), BOTH, {"load_balancing": "spray"}, seeds=4),
    "all-to-all": Scenario("all_to_all", LEAF_SPINE.format(2, 100), BOTH),
    "two groups": Scenario("two_groups", LEAF_SPINE.format(1, 100), BOTH),
    "fast spine": Scenario("permutation", LEAF_SPINE.format(1, 300), {NIC: ("rate", 100), **FAST_SPINE}),
    "until the NIC is the bottleneck": Scenario("permutation", LEAF_SPINE.format(1, 300), FAST_SPINE, factor=2.0),
    "step at 2:1": Scenario(STEP, HOSTS.format(2) + HOST_RATES, OF_HOSTS),
    "step at 1:1": Scenario(STEP, HOSTS.format(4) + HOST_RATES, OF_HOSTS, seeds=4),
    "pipeline at 4:1": Scenario("gpt3-125m tp2,dp2,pp4,gb8,mb1,seq256", HOSTS.format(1) + HOST_RATES, OF_HOSTS),
    "half again as fast": Scenario(STEP, HOSTS.format(2) + HOST_RATES, OF_HOSTS, factor=1.5),
}
LONG = {"step at 1:1", "half again as fast"}
"""Scenarios of which `make test` has shorter ones like them: a step at 2:1, several seeds, twice as fast a tier."""


def incast():
    """NPUs 1 to 7 send to NPU 0 at once, which computes first and then again."""
    nodes = [[et.comp_node(9, "first", duration_micros=50)]]
    nodes[0] += [et.recv_node(src, f"get{src}", src, 0, MIB) for src in range(1, 8)]
    nodes[0].append(et.comp_node(10, "last", duration_micros=100, deps=list(range(1, 8))))
    return nodes + [[et.send_node(1, "give", src, 0, MIB)] for src in range(1, 8)]


def permutation():
    """Each NPU computes and sends 4 MiB to the NPU of its place on the other leaf, again and again."""
    nodes = [[] for _ in range(8)]
    for npu, own in enumerate(nodes):
        for turn in range(3):
            first = 3 * turn + 1
            own.append(et.comp_node(first, "work", duration_micros=100, deps=[first - 1, first - 2] if turn else []))
            own.append(et.send_node(first + 1, "give", npu, (npu + 4) % 8, 4 * MIB, turn, deps=[first]))
            own.append(et.recv_node(first + 2, "get", (npu + 4) % 8, npu, 4 * MIB, turn, deps=[first]))
    return nodes


def all_to_all():
    """Turns of computing and an all-to-all of all eight."""
    return _turns(lambda _npu, turn: et.coll_node(2 * turn + 2, "all", ALL_TO_ALL, 8 * MIB, deps=[2 * turn + 1]))


def two_groups():
    """Turns of computing and an all-reduce of the even and one of the odd NPUs, which share a spine."""

    def node(npu, turn):
        return et.coll_node(
            2 * turn + 2, "sum", ALL_REDUCE, 8 * MIB, pg_name=("even", "odd")[npu % 2], deps=[2 * turn + 1]
        )

    return _turns(node)


def _turns(collective):
    nodes = [[] for _ in range(8)]
    for npu, own in enumerate(nodes):
        for turn in range(3):
            own.append(et.comp_node(2 * turn + 1, "work", duration_micros=200, deps=[2 * turn] if turn else []))
            own.append(collective(npu, turn))
    return nodes


def _simulated(scenario, folder, name, fabric, seed):
    if scenario.work in globals():
        for npu, nodes in enumerate(globals()[scenario.work]()):
            et.write_trace(folder / f"trace.{npu}.et", et.metadata(), nodes)
        (folder / "groups.json").write_text('{"even": [0, 2, 4, 6], "odd": [1, 3, 5, 7]}')
        workload = {"traces": str(folder / "trace"), "groups": str(folder / "groups.json")}
        more = {}
    else:
        model, plan = scenario.work.split()
        if model.endswith(".toml"):
            model = folder / model
            model.write_text(MODEL)
        workload, more = {"model": str(model), "plan": plan}, {"compute": {"gpu": "h100"}}
    network = {"mtu": "4KiB", **scenario.network}
    more["engine"] = {"seed": seed}
    return package.simulate(workload=workload, topology={"spec": fabric}, network=network, out=folder / name, **more)


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.full] * (name in LONG)) for name in SCENARIOS])
def test_told_gains_are_those_of_real_runs(name, tmp_path):
    """For each tier of links of each scenario."""
    scenario = SCENARIOS[name]
    told, real = defaultdict(list), defaultdict(list)
    for seed in range(1, scenario.seeds + 1):
        run = _simulated(scenario, tmp_path, f"now {seed}", scenario.fabric, seed)
        document = explain(run, scenario.factor)
        gains = {answer["key"]: answer["gain"] for answer in document["what_if"]}
        for tier, (key, rate) in nonempty(scenario.changes.items()):
            faster = re.sub(rf"\b{key}={rate}Gbps", f"{key}={scenario.factor * rate:g}Gbps", scenario.fabric)
            assert faster != scenario.fabric
            then = _simulated(scenario, tmp_path, f"faster {key} {seed}", faster, seed)
            real[tier].append(1 - then.finish_time_ps / run.finish_time_ps)
            # Tiers that would change nothing are left out of the answer.
            told[tier].append(gains.get(f"tier {tier}", 0.0))
    for tier in nonempty(told):
        assert mean(told[tier]) == pytest.approx(mean(real[tier]), rel=RELATIVE, abs=OF_RUN), tier


def test_the_link_that_is_named_is_the_one_whose_rate_matters(tmp_path):
    """Of the spine that four NPUs share: the explanation says queue, and its tier saves most."""
    scenario = SCENARIOS["one spine for four"]
    document = explain(_simulated(scenario, tmp_path, "now", scenario.fabric, seed=1))
    [message] = [row for row in document["by_what"] if row["what"] == "message"]
    assert re.search(r"others in the way, .*; queue of (leaf \d → spine 0|spine 0 → leaf \d)$", message["bound"])
    assert document["by_bound"][0]["bound"] == "queue"
    links = [answer["key"] for answer in document["what_if"] if answer["key"].startswith("tier ")]
    assert links[0] == "tier leaf and spine"
