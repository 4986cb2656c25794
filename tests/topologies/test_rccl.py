"""RCCL's topology XML: GPUs of AMD and xGMI; elements that no reader of NCCL's XML uses are named."""

import pytest

from nadi import topologies
from nadi.topologies.graph import TopologyError

GBPS = 10**9
PCI = 'class="0x120000" vendor="0x1002" device="0x74a1" link_speed="32.0 GT/s PCIe" link_width="16"'


def xml(gpus=4, gcn="gfx942", count=1, ring=False, more="", begin=""):
    """Return GPUs in a full mesh, or each joined to the next."""
    text = f'{begin}<system version="2"><cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="1">'
    for gpu in range(gpus):
        others = [(gpu + 1) % gpus, (gpu - 1) % gpus] if ring else [other for other in range(gpus) if other != gpu]
        links = "".join(f'<xgmi target="{other}" count="{count}" tclass="0x120000"/>' for other in others)
        text += f'<pci busid="{gpu}" {PCI}><gpu dev="{gpu}" sm="94" gcn="{gcn}" rank="{gpu}">{links}{more}</gpu></pci>'
    return text + "</cpu></system>"


def built(tmp_path, text, **arguments):
    path = tmp_path / "topo.xml"
    path.write_text(text)
    return topologies.build({"name": "nccl", "path": str(path), **arguments} if arguments else str(path))


def way(graph, src, dst):
    links = topologies.route(graph, src, dst)
    return graph.node_name(graph.link_dst[links[0]]), int(graph.link_rate_bps[links].min()) / GBPS


@pytest.mark.parametrize(
    ("gcn", "model", "gbps"),
    [
        ("gfx942", "mi300x", 512),
        ("940", "mi300x", 512),
        ("gfx950", "mi355x", 614.4),
        ("910", "mi250x", 400),
        ("gfx90a", "mi250x", 400),
        ("908", "mi100", 368),
        ("906", "mi50", 368),
    ],
)
def test_xgmi_joins_pairs_at_the_rate_of_the_generation(tmp_path, gcn, model, gbps):
    graph = built(tmp_path, xml(gcn=gcn))
    assert (graph.npus, graph.accelerator, graph.remarks) == (4, model, ())
    assert sum(name.startswith("xgmi") for name in graph.switch_names) == 6
    assert all(way(graph, a, b) == (f"xgmi {a}-{b}", gbps) for a in range(4) for b in range(a + 1, 4))


def test_several_links_of_a_pair_and_pairs_without(tmp_path):
    graph = built(tmp_path, xml(count=4, ring=True))
    assert way(graph, 0, 1) == ("xgmi 0-1", 2048)
    assert way(graph, 0, 2) == ("pcie port 0", 384)


def test_a_partial_file_is_a_full_mesh_if_the_gpus_have_the_links(tmp_path):
    bare = '<system version="2"><cpu numaid="0">' + "".join(f'<pci busid="{i}" {PCI}/>' for i in range(8))
    graph = built(tmp_path, bare + "</cpu></system>")
    assert (graph.npus, graph.accelerator, way(graph, 2, 7)) == (8, "mi300x", ("xgmi 2-7", 512))
    with pytest.raises(TopologyError, match="mi250x has 3 xGMI links for 7 other GPUs; expected a full file"):
        built(tmp_path, bare + "</cpu></system>", accelerator="mi250x")


def test_a_comment_may_precede_the_system(tmp_path):
    begin = '<?xml version="1.0"?>\n<!--\n - Copyright (c) -> 2022 - of\n -->\n'
    assert built(tmp_path, xml(begin=begin)).npus == 4


def test_an_unknown_gcn_is_refused_unless_the_user_names_the_gpu(tmp_path):
    with pytest.raises(TopologyError, match="gpu gcn 'gfx1201'; expected 906 to 95x, or the parameter accelerator"):
        built(tmp_path, xml(gcn="gfx1201"))
    assert built(tmp_path, xml(gcn="gfx1201"), accelerator="mi300x").accelerator == "mi300x"


def test_elements_and_links_that_are_not_read_are_named(tmp_path):
    graph = built(tmp_path, xml(more='<c2c bw="1"/><xgmi target="9" count="1" tclass="0x120000"/>'))
    path = tmp_path / "topo.xml"
    assert graph.remarks == (
        f"{path}: elements that are not read: <c2c> (4)",
        f"{path}: 4 links to no GPU or NVSwitch of the file are left out, the first to '9'",
    )
