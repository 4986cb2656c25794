"""InfraGraph, a description of infrastructure: the devices, their components, and the links among them.

Components of the type xpu are the NPUs. A switch that XPUs reach by links whose name begins with nvlink, xgmi, ualink,
ici or xpu_fabric is an NVSwitch, and all of an XPU are one. All other components forward packets. Rates and latencies
are those of the links; links without a rate have that of the parameter for their name.

Source: Keysight/infragraph, infragraph_service.py and the documentation.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field

from nadi.inputs.limits import LINK_RATE_BPS, LONGEST_DELAY_PS, MAX_CABLES, MAX_NODES, MAX_NPUS, beyond
from nadi.inputs.units import GBPS, NS
from nadi.topologies.graph import Graph, TopologyError
from nadi.topologies.hosts import Cable, DelayArguments, HostPlan, graph_of, with_own_nics
from nadi.topologies.infragraph import InfraDevice, InfraFile, Part, read_infragraph
from nadi.topologies.parameters import FilePath, Rate

FILES = ("infragraph",)
_MAX_LISTED = 20
_SCALE_UP = ("nvlink", "xgmi", "ualink", "ici", "xpu_fabric")
_BITS_OF = {"bits": 1.0, "bytes": 8.0, "transfers": 12.0}  # Gb/s of 1 G; a transfer is 16 lanes of PCIe, as in NCCL
_PS_OF = {"ms": 10**9, "us": 10**6, "ns": NS}


class Arguments(DelayArguments):
    """Parameters of a network in InfraGraph, for links that have no rate or latency."""

    path: FilePath = Field(description="path of the file")
    rate: Rate = Field(400 * GBPS, description="rate of a link without one")
    nvlink_rate: Rate = Field(
        200 * GBPS, description="rate of a link named nvlink..., xgmi..., ualink..., ici... or xpu_fabric..."
    )
    pcie_rate: Rate = Field(192 * GBPS, description="rate of a link named pcie...")


def build(arguments: Arguments, name: str) -> Graph:
    """Build the network of the file; TopologyError: it is unreadable, another file, or has a wrong value.

    Args:
        arguments: The parameters of the network.
        name: The name of the network, with which errors begin.
    """
    file = read_infragraph(Path(arguments.path), name)
    _bound(file, name)
    links = list(_links(file, arguments, name))
    kinds = _kinds(file, (end for link in links for end in link[:2]), name)
    parts = [part for part, kind in kinds.items() if kind != "xpu"]
    xpus = [part for part, kind in kinds.items() if kind == "xpu"]
    if not xpus:
        raise TopologyError.at(name, "no component of type xpu", "one in an instance")
    node = {part: i for i, part in enumerate([*xpus, *parts])}
    n = len(xpus)
    nvlinks: dict[int, int] = {}
    direct: list[Cable] = []
    cables: list[Cable] = []
    union = {part: part for part in kinds}  # of XPUs and the switches between them, which make a server

    for a, b, link, rate, delay_ps in links:
        # XPUs are nodes 0 .. n-1: after sorting, ends[0] is an XPU if any end is, and ends[1] only if both are
        ends = sorted((node[a], node[b]))
        if ends[1] < n:
            direct.append((ends[0], ends[1], rate, delay_ps))
        elif ends[0] < n and link.lower().startswith(_SCALE_UP) and kinds[parts[ends[1] - n]] != "cpu":
            # all NVLinks of an XPU lead to the one NVSwitch of its server, so their rates add up
            nvlinks[ends[0]] = nvlinks.get(ends[0], 0) + rate
            first, second = _root(union, a), _root(union, b)
            union[max(first, second)] = min(first, second)
        else:
            cables.append((ends[0], ends[1], rate, delay_ps))
    used = {end for cable in cables for end in cable[:2]}
    kept = [i for i in range(n, n + len(parts)) if i in used]  # without NVSwitches
    number = {old: n + new for new, old in enumerate(kept)} | {i: i for i in range(n)}
    cables = [(number[a], number[b], rate, delay) for a, b, rate, delay in cables]
    names = [f"{parts[i - n][-2]} {'.'.join((*parts[i - n][:-2], parts[i - n][-1]))}" for i in kept]
    # a server is what NVLinks join, perhaps several instances (trays of a rack); without NVLinks, the instance
    groups = [_root(union, xpu) if i in nvlinks else xpu[:2] for i, xpu in enumerate(xpus)]
    first_of = {group: i for i, group in enumerate(dict.fromkeys(groups))}
    nics = {number[node[part]]: 0 for part, kind in kinds.items() if kind == "nic" and node[part] in number}
    for *ends_of, rate, _ in cables:  # of the slower of its two links
        nics.update({nic: min(nics[nic] or rate, rate) for nic in ends_of if nic in nics})
    plan = HostPlan([first_of[group] for group in groups], names, nvlinks, direct, cables, nics)
    graph = graph_of(name, with_own_nics(plan, fewest_gpus=1), arguments)
    listed = ", ".join(key[:60] for key in file.unread[:_MAX_LISTED])
    warnings = (f"{name}: keys that are not read: {listed}",) if listed else ()
    return replace(graph, warnings=warnings)


def _bound(file: InfraFile, label: str) -> None:
    """Refuse a file with too many links or XPUs before they are made."""
    known = [
        (file.devices[file.instances[name]], n)
        for name, n in file.counts.items()
        if file.instances[name] in file.devices
    ]
    if sum(n * len(device.edges) for device, n in known) > MAX_CABLES:
        raise TopologyError.at(label, f"more than {MAX_CABLES} links", "fewer")
    xpus = sum(n * device.counts[name] for device, n in known for name, kind in device.kinds.items() if kind == "xpu")
    if xpus > MAX_NPUS:
        raise TopologyError.at(label, f"{xpus} components of type xpu", f"at most {MAX_NPUS}")


def _root(union: dict[Part, Part], part: Part) -> Part:
    while union[part] != part:
        # path halving: later searches from here take half of the steps
        union[part] = union[union[part]]
        part = union[part]
    return part


def _links(file: InfraFile, arguments: Arguments, label: str) -> Iterator[tuple[Part, Part, str, int, int]]:
    """Yield (end, other end, name, rate in bps, delay in ps) of each link."""
    seen: set[tuple[Part, Part, str]] = set()
    of_instances = ((edge.a, edge.b, edge.link, file.links.get(edge.link, {})) for edge in file.edges)
    inside = (
        ((*instance, *edge.a), (*instance, *edge.b), edge.link, device.links.get(edge.link, {}))
        for instance, device in _instances(file, label)
        for edge in device.edges
    )
    for a, b, link, attributes in (*of_instances, *inside):
        # a file may list a link from both of its ends
        key = (min(a, b), max(a, b), link)
        if key in seen:
            continue
        seen.add(key)
        if len(seen) > MAX_CABLES:
            raise TopologyError.at(label, f"more than {MAX_CABLES} links", "fewer")
        yield a, b, link, *_quantities(link, attributes, arguments, label)


def _instances(file: InfraFile, label: str) -> Iterator[tuple[Part, InfraDevice]]:
    """Yield the name and index of each instance, or of each device within one, and its device."""
    indices: dict[str, set[int]] = {name: set(range(count)) for name, count in file.counts.items()}
    if sum(file.counts.values()) > MAX_NODES:
        raise TopologyError.at(label, f"{sum(file.counts.values())} instances", f"at most {MAX_NODES}")
    for edge in file.edges:
        for end in (edge.a, edge.b):
            indices.setdefault(end[0], set()).add(int(end[1]))
    for name, own in indices.items():
        device = file.devices.get(file.instances[name])
        if device is None and any(name in {edge.a[0], edge.b[0]} for edge in file.edges):
            raise TopologyError.at(label, f"no device {file.instances[name][:60]!r}", "it in a file of the folder")
        for index in sorted(own) if device is not None else ():
            stack: list[tuple[Part, str]] = [((name, str(index)), file.instances[name])]
            while stack:
                part, title = stack.pop()
                yield part, file.devices[title]
                for component, kind in file.devices[title].kinds.items():
                    # 16 names and indices are eight devices within each other: one that contains itself would not end
                    if kind == "device" and component in file.devices and len(part) < 16:
                        count = file.devices[title].counts[component]
                        stack += [((*part, component, str(i)), component) for i in range(count)]


def _kinds(file: InfraFile, ends: Iterator[Part], label: str) -> dict[Part, str]:
    """Return the kind of each component that has a link, or is an XPU, in the order of instances."""
    found: dict[Part, str] = {}
    xpus = 0
    linked: dict[Part, list[Part]] = {}
    for end in dict.fromkeys(ends):
        # the end host.0.nic.1 belongs to the instance host.0, which is all but the last name and index
        linked.setdefault(end[:-2], []).append(end)
    for instance, device in _instances(file, label):
        own = linked.pop(instance, [])
        names = [name for name, kind in device.kinds.items() if kind == "xpu"]
        xpus += sum(device.counts[name] for name in names)
        if xpus > MAX_NPUS or len(found) > MAX_NODES:
            raise TopologyError.at(label, f"{xpus} components of type xpu", f"at most {MAX_NPUS}")
        counted = [(*instance, name, str(i)) for name in names for i in range(device.counts[name])]
        # by number, so that nic.10 comes after nic.9
        for part in sorted({*own, *counted}, key=lambda part: (part[-2], int(part[-1]))):
            if part[-2] not in device.kinds:
                raise TopologyError.at(label, f"{'.'.join(part)[:60]}", "a component of its device")
            found[part] = device.kinds[part[-2]]
    if linked:
        raise TopologyError.at(label, f"{'.'.join(next(iter(linked)))[:60]}", "an instance of the file")
    return found


def _quantities(link: str, attributes: Mapping[str, Any], arguments: Arguments, label: str) -> tuple[int, int]:
    """Return the rate in bps and the delay in ps of a link."""
    title = link.lower()
    if title.startswith(_SCALE_UP):
        rate, delay = arguments.nvlink_rate, arguments.nvlink_delay
    elif title.startswith("pcie"):
        rate, delay = arguments.pcie_rate, arguments.pcie_delay
    else:
        rate, delay = arguments.rate, arguments.delay
    physical = attributes.get("physical")
    source = physical if isinstance(physical, dict) else attributes
    unit, value = _quantity(source, "bandwidth", label)
    if unit:
        bits = next((bits for word, bits in _BITS_OF.items() if word in unit), None)
        rate = round(value * GBPS * bits) if bits and 0 < value < 1e9 else 0
        if beyond(rate, LINK_RATE_BPS):
            raise TopologyError.at(label, f"bandwidth of {link[:40]}: {value:g} {unit[:40]}", "a rate to 1 Pb/s")
    unit, value = _quantity(source, "latency", label)
    if unit:
        if unit not in _PS_OF or not 0 <= value * _PS_OF[unit] <= LONGEST_DELAY_PS:
            raise TopologyError.at(label, f"latency of {link[:40]}: {value:g} {unit[:40]}", "0 to 1 s in ms, us, ns")
        delay = round(value * _PS_OF[unit])
    return rate, delay


def _quantity(source: Mapping[str, Any], key: str, label: str) -> tuple[str, float]:
    """Return the unit and value of a quantity with `choice`; ("", 0) without one."""
    found = source.get(key)
    if not isinstance(found, dict) or not found.get("choice"):
        return "", 0.0
    unit = str(found["choice"])
    try:
        return unit, float(found.get(unit, "none"))
    except (TypeError, ValueError):
        raise TopologyError.at(label, f"{key} of {unit[:40]} {str(found.get(unit))[:40]!r}", "a number") from None
