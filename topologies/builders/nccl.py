"""NCCL's or RCCL's topology XML: GPUs, NVLinks or xGMI, PCIe switches, CPUs and NICs of a server, full or partial.

    <system version="1">
      <cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="143" modelid="49">
        <pci busid="0000:05:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">
          <pci busid="0000:07:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
            <gpu dev="0" sm="80" rank="0"><nvlink target="0000:c7:00.0" count="2" tclass="0x068000"/></gpu>

NCCL_TOPO_DUMP_FILE is full: it has `gpu` and `net` elements. NCCL_TOPO_FILE may have bare `pci` elements of GPUs (class
0x03) and NICs (0x02), which NCCL completes from the machine; here `accelerator` names their model. As in NCCL, all
NVSwitches are one, CPUs of a host are joined pairwise, missing speeds are those of PCIe 3.0 x16, and the two levels
of Broadcom's switches are one. PCIe and CPU links have NCCL's rates, NVLinks and xGMI those of the hardware. GPUs of
AMD have class 0x12 or 0x0380, `gcn` in place of a compute capability, and `xgmi` in place of `nvlink`.

Source: NVIDIA/nccl, src/graph/topo.cc and topo.h; ROCm/rccl, the same files and tools/topo_expl/models.
"""

import string
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from pydantic import Field

from nadi import inputs
from nadi.inputs.limits import LINK_RATE_BPS
from nadi.inputs.units import GBPS
from nadi.topologies.graph import Graph, TopologyError
from nadi.topologies.hosts import (
    AMD_GENERATIONS,
    GENERATIONS,
    GpuGeneration,
    HostArguments,
    HostPlan,
    generation_of,
    graph_of,
)
from nadi.topologies.parameters import FilePath, Name, Rate

FILES = ("nccl-topology",)
_EXPECTED = "NCCL's topology (XML with system)"
_MBPS = 10**6
_DEEPEST = 64  # elements within each other
_LANE_BPS = {"2.5": 1.5, "5": 3.0, "8": 6.0, "16": 12.0, "32": 24.0, "64": 48.0}  # Gb/s by GT/s
_NVLINK_GBPS = {60: 160, 70: 200, 80: 200, 86: 113, 90: 200, 100: 400}  # by compute capability, from which on
_SYS_GBPS = {"arm64": 48, "ppc64": 256, "CentaurHauls": 48, "  Shanghai  ": 48}
_ACCELERATOR_OF = {70: "v100", 80: "a100", 90: "h100", 100: "b200"}
_MODEL_OF_GCN = {"906": "mi50", "908": "mi100", "90a": "mi250x", "910": "mi250x", "94": "mi300x", "95": "mi355x"}
_GPU, _NIC, _PCI, _OTHER = "gpu", "nic", "pci", "other"
_KNOWN = {**GENERATIONS, **AMD_GENERATIONS}
_NO_SWITCH = ("0x03", "0x12", "0x068001")  # classes of ends that are no NVSwitch: GPUs, and bridges to CPUs
_READ = {"system", "cpu", "pci", "gpu", "nic", "net", "nvlink", "xgmi"}


class Arguments(HostArguments):
    """Parameters of servers of NCCL's topology XML."""

    path: FilePath = Field(description="path of the file")
    accelerator: Name | None = Field(
        None, description=f"GPUs of a partial file: {', '.join(_KNOWN)}; default: by their PCIe"
    )
    nic_rate: Rate | None = Field(None, description="rate of NICs of a partial file; default: as usual with the GPUs")


class _Device(NamedTuple):
    """A device of the PCIe tree, and those below it."""

    kind: str
    element: ET.Element
    rate_bps: int
    children: "list[_Device]"


class _Gpu(NamedTuple):
    """A GPU on a node of the tree."""

    bus: str
    element: ET.Element | None  # its `gpu`, None in a partial file
    host: int
    parent: int  # index of a part
    rate_bps: int
    is_amd: bool


class _Parts:
    """The parts of a plan as they are found; nodes are indices of `names` until the number of GPUs is known."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.names: list[str] = []
        self.links: list[tuple[int, int, int]] = []
        self.gpus: list[_Gpu] = []
        self.nics: dict[int, int | None] = {}  # rate of a NIC, None in a partial file
        self.cpus: list[tuple[int, int, int]] = []  # host, part and rate to other CPUs

    def add(self, name: str) -> int:
        """Add a part and return its index.

        Args:
            name: The name of the part in the graph.
        """
        self.names.append(name)
        return len(self.names) - 1

    def tree(self, device: _Device, parent: int, host: int) -> None:
        """Add a device and those below it to a parent.

        Args:
            device: The device of the PCIe tree, with those below it.
            parent: The index of the part above the device.
            host: The number of the server.
        """
        bus = device.element.get("busid", "")
        if device.kind == _GPU:
            elements: list[ET.Element | None] = [*device.element.findall("gpu")] or [None]
            is_amd = _is_amd(device.element)
            self.gpus += [_Gpu(bus.lower(), element, host, parent, device.rate_bps, is_amd) for element in elements]
            return
        own = self.add(f"{device.kind} {bus}"[:60])
        self.links.append((parent, own, device.rate_bps))
        if device.kind == _NIC:
            nets = list(device.element.iter("net"))
            self.nics[own] = sum(_net_bps(net, self.label) for net in nets) if nets else None
        for child in device.children:
            self.tree(child, own, host)


def build(arguments: Arguments, name: str) -> Graph:
    """Build the servers of the file; TopologyError: it is unreadable, another file, or has a wrong value.

    Args:
        arguments: The parameters of the network.
        name: The name of the network, with which errors begin.
    """
    parts = _Parts(name)
    hosts: dict[str, int] = {}
    root = _read(arguments.path)
    for cpu in root.findall("cpu"):
        host = hosts.setdefault(cpu.get("host_hash", ""), len(hosts))
        devices = [device for child in cpu for device in _devices(child, name)]
        if devices:
            own = parts.add(f"cpu {cpu.get('numaid', len(parts.cpus))}"[:60])
            parts.cpus.append((host, own, _between_cpus_bps(cpu, name)))
            for device in devices:
                parts.tree(device, own, host)
    if not parts.gpus:
        raise TopologyError.at(name, "no GPU", "pci elements of class 0x03 in cpu elements")
    graph = graph_of(name, _plan(parts, arguments, name), arguments, arguments.servers)
    return replace(graph, warnings=tuple(_warnings(root, parts.gpus, name)))


def _read(path: str) -> ET.Element:
    """Return the element `system` of a file."""
    kind = inputs.kind_of(path)
    if kind is not None and kind.key not in {"nccl-topology", "text", "xml", "empty"}:
        raise TopologyError(inputs.complaint(path, kind, _EXPECTED))
    try:
        root = ET.fromstring(inputs.read_bytes(path))  # noqa: S314 - the user's own file; expat bounds entities
    except OSError as error:
        raise TopologyError.at(path, f"{error.strerror or error}", _EXPECTED) from None
    except (ET.ParseError, ValueError, LookupError) as error:
        raise TopologyError.at(path, f"no XML: {error}", _EXPECTED) from None
    if root.tag != "system":
        raise TopologyError.at(path, f"<{root.tag[:40]}>", "<system>")
    return root


def _devices(element: ET.Element, label: str, depth: int = 0) -> Iterator[_Device]:
    """Yield the device of an element, unless there is neither GPU nor NIC in it."""
    if depth > _DEEPEST:
        raise TopologyError.at(label, f"pci elements within each other more than {_DEEPEST} deep", "fewer")
    if element.tag == "nic":  # without PCIe, as NICs of a cloud's partial file
        yield _Device(_NIC, element, LINK_RATE_BPS.maximum, [])
    if element.tag != "pci":
        return
    kind = _kind(element)
    if kind in {_GPU, _NIC}:
        yield _Device(kind, element, _pcie_bps(element, label), [])
    elif kind == _PCI:
        children = [device for child in element for device in _devices(child, label, depth + 1)]
        # broadcom's PCIe switches look like two levels of switches but have full bandwidth between all ports; NCCL
        # flattens them, too (src/graph/topo.cc, ncclTopoFlattenBcmSwitches)
        if generation := _broadcom(element, 0):
            children = [
                own
                for child in children
                for own in (
                    child.children if child.kind == _PCI and _broadcom(child.element, 1) == generation else [child]
                )
            ]
        if children:
            yield _Device(_PCI, element, _pcie_bps(element, label), children)


def _kind(element: ET.Element) -> str:
    """Return the kind of a `pci` element by its class and what is in it."""
    code = element.get("class", "")
    if element.find("gpu") is not None or code.startswith(("0x03", "0x12")):
        return _GPU
    if element.find("nic") is not None or code.startswith("0x02"):
        return _NIC
    return _OTHER if code in {"0x068000", "0x068001"} else _PCI


def _is_amd(element: ET.Element) -> bool:
    """Return whether the `pci` element of a GPU is of AMD's."""
    gpus = element.findall("gpu")
    return (
        element.get("vendor") == "0x1002"
        or element.get("class", "").startswith("0x12")
        or any(gpu.get("gcn") or gpu.find("xgmi") is not None for gpu in gpus)
    )


def _broadcom(element: ET.Element, level: int) -> int:
    """Return the generation of a Broadcom switch whose two levels are one switch, 0 = another part."""
    identity = 0
    for key in ("vendor", "device", "subsystem_vendor", "subsystem_device"):
        text = element.get(key, "0").removeprefix("0x")
        identity = (identity << 16) + (int(text, 16) & 0xFFFF if text and set(text) <= set(string.hexdigits) else 0)
    # 16 bits each for vendor, device, and vendor and device of the subsystem; the last 12 bits differ among models
    if identity & ~0xFFF == 0x1000C0101000A000:
        return 4
    return 5 if identity & ~0xFFF == 0x1000C03010000000 | level * 0x1000 else 0


def _whole(element: ET.Element, key: str, label: str, default: int, most: int) -> int:
    """Return a whole number from 0 of an attribute."""
    text = element.get(key) or str(default)
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 12 else -1
    if not 0 <= number <= most:
        raise TopologyError.at(label, f"{element.tag} {key} {text[:40]!r}", f"a whole number from 0 to {most}")
    return number


def _pcie_bps(element: ET.Element, label: str) -> int:
    """Return the rate of the PCIe link of a `pci` element."""
    lanes = _whole(element, "link_width", label, 0, 32) or 16
    speed = element.get("link_speed", "").split(" ")[0].removesuffix(".0")
    return int(lanes * _LANE_BPS.get(speed, _LANE_BPS["8"]) * GBPS)


def _net_bps(element: ET.Element, label: str) -> int:
    """Return the rate of a `net` element."""
    most = LINK_RATE_BPS.maximum // _MBPS // 64  # RCCL's files have 200 Tb/s for NICs of 200 Gb/s; PCIe limits them
    # NCCL takes 10 Gb/s where a NIC reports no speed (ncclTopoAddNet)
    return min(_whole(element, "speed", label, 0, 10**9) or 10_000, most) * _MBPS


def _between_cpus_bps(element: ET.Element, label: str) -> int:
    """Return the rate of the link from a CPU to another."""
    arch, vendor = element.get("arch", ""), element.get("vendor", "")
    # rates are NCCL's in GB/s times 8 (src/graph/topo.cc, ncclTopoGetInterCpuBw)
    family, model = (_whole(element, key, label, 0, 2**31) for key in ("familyid", "modelid"))
    if arch in _SYS_GBPS:
        return _SYS_GBPS[arch] * GBPS
    if arch == "x86_64" and vendor == "GenuineIntel":
        newest = model >= 0xCF or model in {0xAD, 0xAE, 0xAF}
        gbps = 320 if newest else 176 if model >= 0x8F else 80 if model >= 0x55 else 48
        return (gbps if family == 6 else 48) * GBPS
    if arch == "x86_64" and vendor == "AuthenticAMD":
        return {0xBF: 256, 26: 256, 0xAF: 192, 25: 192}.get(family, 128) * GBPS
    if family == 7 and model == 0x5B and vendor in _SYS_GBPS:
        return 72 * GBPS
    return _SYS_GBPS.get(vendor, 40_000) * GBPS


def _plan(parts: _Parts, arguments: Arguments, label: str) -> HostPlan:
    """Return the plan of the parts, with what a partial file leaves out."""
    keys = [_order(gpu, label) for gpu in parts.gpus]
    # rank order if every GPU has a rank or device number, else the order of the file: a mixture has no common order
    order = sorted(range(len(keys)), key=lambda i: (keys[i], i)) if None not in keys else range(len(keys))
    gpus = [parts.gpus[i] for i in order]
    generation = _generation(gpus, arguments, label)
    n = len(gpus)
    pairs, to_switch = _nvlinks(gpus, generation, label)
    direct = [(a, b, rate, arguments.nvlink_delay) for (a, b), rate in pairs.items()]
    links = [(n + a, n + b, rate) for a, b, rate in parts.links]
    links += [(g, n + gpu.parent, gpu.rate_bps) for g, gpu in enumerate(gpus)]
    for i, (host, own, rate) in enumerate(parts.cpus):
        links += [(n + own, n + other, rate) for other_host, other, _ in parts.cpus[i + 1 :] if other_host == host]
    cables = [(*link, arguments.pcie_delay) for link in links]
    default = arguments.nic_rate or generation.nic_bps
    nics = {n + part: default if rate is None else rate for part, rate in parts.nics.items()}
    first = {host: i for i, host in enumerate(dict.fromkeys(gpu.host for gpu in gpus))}
    hosts = [0 if to_switch else first[gpu.host] for gpu in gpus]  # NCCL takes an NVLink domain as one host
    name = "xgmi" if generation.accelerator in AMD_GENERATIONS else "nvlink"
    return HostPlan(hosts, parts.names, to_switch, direct, cables, nics, generation.accelerator, name)


def _order(gpu: _Gpu, label: str) -> int | None:
    """Return the number by which GPUs are sorted: its rank, else its device; None without them."""
    if gpu.element is None:
        return None
    key = "rank" if gpu.element.get("rank") else "dev"
    return _whole(gpu.element, key, label, 0, 2**31) if gpu.element.get(key) else None


def _generation(gpus: list[_Gpu], arguments: Arguments, label: str) -> GpuGeneration:
    """Return what a file leaves out: by `accelerator`, else the compute capability, else the PCIe of the GPUs."""
    if arguments.accelerator is not None:
        return generation_of(arguments.accelerator, label, _KNOWN)
    fastest = max(gpu.rate_bps for gpu in gpus)
    if any(gpu.is_amd for gpu in gpus):
        gcn = next((gpu.element.get("gcn", "") for gpu in gpus if gpu.element is not None), "")
        default = "mi300x" if fastest > AMD_GENERATIONS["mi250x"].pcie_bps else "mi250x"
        model = next(
            (model for begin, model in _MODEL_OF_GCN.items() if gcn.removeprefix("gfx").startswith(begin)),
            "" if gcn else default,
        )
        if not model:
            raise TopologyError.at(label, f"gpu gcn {gcn[:40]!r}", "906 to 95x, or the parameter accelerator")
        return AMD_GENERATIONS[model]
    sm = next((_sm(gpu.element, label) for gpu in gpus if gpu.element is not None), 0)
    if sm:
        # the newest model that is not newer than the GPU: 86 and 89 count as 80, an A100
        known = [model for least, model in _ACCELERATOR_OF.items() if least <= sm]
        return GENERATIONS[known[-1] if known else "v100"]
    return next((g for g in GENERATIONS.values() if g.pcie_bps >= fastest), GENERATIONS["b200"])


def _sm(element: ET.Element, label: str) -> int:
    return _whole(element, "sm", label, 0, 10_000)


def _nvlinks(
    gpus: list[_Gpu], generation: GpuGeneration, label: str
) -> tuple[dict[tuple[int, int], int], dict[int, int]]:
    """Return the rates of NVLinks or xGMI between two GPUs, and the rates of NVLinks to the NVSwitch by GPU."""
    is_amd = generation.accelerator in AMD_GENERATIONS
    if all(gpu.element is None for gpu in gpus):
        if is_amd:
            return _full_mesh(gpus, generation, label), {}
        return {}, dict.fromkeys(range(len(gpus)), generation.nvlink_bps * generation.nvlinks)
    number_of = {gpu.bus: i for i, gpu in enumerate(gpus)}
    pairs: dict[tuple[int, int], int] = {}
    to_switch: dict[int, int] = {}
    for i, gpu in enumerate(gpus):
        for link in _links(gpu):
            sm = _sm(gpu.element, label) if gpu.element is not None else 0
            gbps = [rate for least, rate in _NVLINK_GBPS.items() if least <= sm] or [160]
            rate_bps = generation.nvlink_bps if link.tag == "xgmi" else gbps[-1] * GBPS
            rate = _whole(link, "count", label, 1, 1000) * rate_bps
            target, code = number_of.get(link.get("target", "").lower()), link.get("tclass", "")
            if not rate:
                continue
            if target is not None and target != i:
                pair = min(i, target), max(i, target)
                # both GPUs list the same links, so that adding them up would double the rate; a link may also be listed
                # on one side only
                pairs[pair] = max(rate, pairs.get(pair, 0))
            elif not code.startswith(_NO_SWITCH):
                to_switch[i] = to_switch.get(i, 0) + rate
    return pairs, to_switch


def _links(gpu: _Gpu) -> list[ET.Element]:
    """Return the elements of the NVLinks and xGMI links of a GPU."""
    return [link for link in gpu.element if link.tag in {"nvlink", "xgmi"}] if gpu.element is not None else []


def _full_mesh(gpus: list[_Gpu], generation: GpuGeneration, label: str) -> dict[tuple[int, int], int]:
    """Return a link between every two GPUs of a host; TopologyError if a GPU has too few for that."""
    pairs = [(i, j) for j, other in enumerate(gpus) for i, gpu in enumerate(gpus[:j]) if gpu.host == other.host]
    most = max(Counter(i for pair in pairs for i in pair).values(), default=0)
    if most > generation.nvlinks:
        raise TopologyError(
            f"{label}: no gpu elements, and {generation.accelerator} has {generation.nvlinks} xGMI links for "
            f"{most} other GPUs; expected a full file, with xgmi elements"
        )
    return dict.fromkeys(pairs, generation.nvlink_bps)


def _warnings(root: ET.Element, gpus: list[_Gpu], label: str) -> Iterator[str]:
    """Yield sentences about elements of a file that are not read, and links to nothing in it."""
    unread = Counter(element.tag for element in root.iter() if element.tag not in _READ)
    if unread:
        tags = ", ".join(f"<{tag[:40]}> ({count})" for tag, count in sorted(unread.items()))
        yield f"{label}: elements that are not read: {tags}"
    buses = {gpu.bus for gpu in gpus}
    lost = [
        link
        for gpu in gpus
        for link in _links(gpu)
        if link.get("target", "").lower() not in buses and link.get("tclass", "").startswith(_NO_SWITCH)
    ]
    if lost:
        first = lost[0].get("target", "")[:40]
        yield f"{label}: {len(lost)} links to no GPU or NVSwitch of the file are left out, the first to {first!r}"
