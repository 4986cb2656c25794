"""Parallel NVSwitches, NVLinks and NICs of a GPU have the rate of all together, however a file divides it."""

import numpy as np
import pytest

from nadi import topologies
from nadi.topologies.graph import NVSWITCH, TopologyError

GBPS = 10**9
SAME = ("node_kind", "link_src", "link_dst", "link_rate_bps", "link_delay_ps", "host")


def built(tmp_path, text, file="net.txt", **arguments):
    path = tmp_path / file
    path.write_text(text)
    return topologies.build({"path": str(path), **arguments}) if arguments else topologies.build(str(path))


def simai(*rates, delay="0.000025ms"):
    """Return four GPUs on as many NVSwitches as there are rates."""
    switches = range(4, 4 + len(rates))
    lines = [f"{4 + len(rates)} 4 {len(rates)} 0 {4 * len(rates)} H100", " ".join(map(str, switches))]
    lines += [f"{gpu} {nv} {rate}Gbps {delay} 0" for nv, rate in zip(switches, rates, strict=True) for gpu in range(4)]
    return "\n".join(lines)


def toml(*blocks, kind="nvswitch", switches=2):
    """Return four NPUs and switches; a block is rate, count and cables."""
    named = "".join(f'[[switches]]\nname = "s{i}"\nkind = "{kind}"\n' for i in range(switches))
    links = "".join(
        f'[[links]]\nrate = "{rate}Gbps"\ndelay = "25ns"\ncount = {count}\ncables = {cables}\n'
        for rate, count, cables in blocks
    )
    return f"npus = 4\nhost = [0, 0, 0, 0]\n{named}{links}"


def to(switch, npus=range(4)):
    return [[npu, switch] for npu in npus]


def alike(one, other):
    assert all(np.array_equal(getattr(one, key), getattr(other, key)) for key in SAME)


@pytest.mark.parametrize("rates", [(900, 900, 900, 900), (1000, 800, 800, 1000), (3000, 600)])
def test_nvswitches_of_one_host_are_one_in_simais_files(tmp_path, rates):
    alike(built(tmp_path, simai(*rates)), built(tmp_path, simai(3600)))


def test_parallel_nvswitches_and_nvlinks_are_one_in_toml(tmp_path):
    one = built(tmp_path, toml((3600, 1, to(4)), switches=1), "one.toml")
    alike(built(tmp_path, toml((200, 18, to(4)), switches=1), "count.toml"), one)
    alike(built(tmp_path, toml((200, 10, to(4)), (1600, 1, to(5))), "two.toml"), one)


def test_direct_nvlinks_of_a_pair_are_one_in_infragraph(tmp_path):
    edges = "".join(
        f"      - {{ep1: {{component: 'gpu[0]'}}, ep2: {{component: 'gpu[1]'}}, scheme: one2one, link: {link}}}\n"
        for link in ("nvlink_a", "nvlink_b")
    )
    text = f"""name: pair
devices:
  - name: server
    components: [{{name: gpu, choice: xpu, count: 2}}]
    links: [{{name: nvlink_a}}, {{name: nvlink_b}}]
    edges:
{edges}instances: [{{name: server, device: server, count: 1}}]
"""
    graph = built(tmp_path, text, "pair.yaml")
    assert (graph.nodes, graph.links) == (3, 4)
    assert set(graph.link_rate_bps.tolist()) == {400 * GBPS}  # twice the rate of a link without one


def test_other_nvswitches_and_their_cables_to_switches_stay(tmp_path):
    halves = toml((400, 1, [*to(4, (0, 1)), *to(5, (2, 3)), [4, 5]]))
    assert (built(tmp_path, halves, "halves.toml").node_kind == NVSWITCH).sum() == 2
    leaf = toml((400, 1, to(4)), (100, 3, [[4, 5]])).replace('name = "s1"\nkind = "nvswitch"', 'name = "s1"')
    assert (built(tmp_path, leaf, "leaf.toml").link_rate_bps == 100 * GBPS).sum() == 6


def test_ethernet_stays_as_it_is(tmp_path):
    graph = built(tmp_path, toml((100, 2, to(4)), (100, 1, to(5)), kind="switch"), "leaves.toml")
    assert (graph.nodes, graph.links) == (6, 24)


def test_the_slowest_switch_and_the_longest_cable_count(tmp_path):
    text = toml((100, 1, to(4)), (100, 1, to(5))).replace('kind = "nvswitch"', 'kind = "nvswitch"\nlatency = "9ns"', 1)
    first, _, last = text.rpartition('delay = "25ns"')
    text = f'{first}delay = "30ns"{last}'
    graph = built(tmp_path, text, "slow.toml")
    assert graph.node_latency_ps.tolist() == [0, 0, 0, 0, 9_000]
    assert set(graph.link_delay_ps.tolist()) == {30_000}


def test_a_sum_beyond_what_links_may_have_is_refused(tmp_path):
    with pytest.raises(TopologyError, match=r"s0 has a rate of \d+ bps; expected"):
        built(tmp_path, toml((900_000, 2, to(4)), switches=1), "fast.toml")


def nccl(*gbps):
    """Return two GPUs, each with NICs of these rates behind a PCIe switch of its own."""
    link = 'link_speed="32.0 GT/s PCIe" link_width="16"'
    text = '<system version="1"><cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="25" modelid="1">'
    for gpu in range(2):
        text += f'<pci busid="{gpu}" class="0x060400" {link}>'
        text += f'<pci busid="{gpu}g" class="0x030200" {link}><gpu dev="{gpu}" sm="90" rank="{gpu}"/></pci>'
        for nic, rate in enumerate(gbps):
            text += f'<pci busid="{gpu}n{nic}" class="0x020700" {link}><nic><net speed="{rate * 1000}"/></nic></pci>'
        text += "</pci>"
    return text + "</cpu></system>"


@pytest.mark.parametrize("gbps", [(100, 100), (150, 50), (100, 60, 40)])
def test_nics_at_one_place_are_one(tmp_path, gbps):
    graph = built(tmp_path, nccl(*gbps), "net.xml", name="nccl", servers=2)
    assert [name for name in graph.switch_names if name.startswith("rail")] == ["rail 0", "rail 1"]
    assert sum(name.startswith("nic") for name in graph.switch_names) == 4
    path = topologies.route(graph, 0, 2)
    assert graph.link_rate_bps[path].min() == 200 * GBPS


def test_unequal_nics_that_gpus_share_are_one_for_both(tmp_path):
    text = nccl(300, 100)
    begin, end = text.index('<pci busid="0"'), text.index('<pci busid="1"')
    first, second = text[begin:end], text[end:].partition("</cpu>")[0]
    gpu = second[second.index('<pci busid="1g"') :].partition("</pci>")[0] + "</pci>"
    shared = text.replace(second, "").replace(first, first.removesuffix("</pci>") + gpu + "</pci>")
    graph = built(tmp_path, shared, "net.xml", name="nccl", servers=2)
    assert [name for name in graph.switch_names if name.startswith("rail")] == ["rail 0"]
    for gpu in (0, 1):
        assert graph.link_rate_bps[topologies.route(graph, gpu, gpu + 2)].min() == 384 * GBPS  # of PCIe 5.0
