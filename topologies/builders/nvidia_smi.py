"""The matrix of `nvidia-smi topo -m`: the GPUs and NICs of a server and what joins two of them.

            GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity
    GPU0     X      NV12    PXB     0-63            0
    GPU1    NV12     X      SYS     64-127          1
    NIC0    PXB     SYS      X

NV# is a number of NVLinks. If those to all other GPUs are more than a GPU has, an NVSwitch is between them, and each
GPU has as many to it. PIX, PXB, PHB, NODE and SYS are paths over one PCIe switch, several, a CPU's root, several roots
of a CPU, and several CPUs: devices with a shorter path between them are together below a switch that others share at
the next level. The matrix has no rates; `accelerator` gives those of its generation.
"""

import re
from dataclasses import replace

from pydantic import Field

from nadi import inputs
from nadi.inputs.units import GBPS
from nadi.topologies.graph import Graph, TopologyError
from nadi.topologies.hosts import GENERATIONS, Cable, GpuGeneration, HostArguments, HostPlan, generation_of, graph_of
from nadi.topologies.parameters import FilePath, Name, Rate

FILES = ("nvidia-smi",)
_EXPECTED = "the matrix of `nvidia-smi topo -m`"
_ESCAPES = re.compile(r"\x1b?+\[[\d;]*+m")  # of a terminal; pasted text may lack the first character
_DEVICE = re.compile(r"(?:GPU|NIC)\d{1,6}|mlx\d{1,3}_\w{1,20}")
_LEVELS = {"PIX": 0, "PXB": 1, "PHB": 2, "NODE": 3, "SYS": 4}
_LEVEL_NAMES = ("pcie switch", "pcie switches", "root", "cpu", "system")
_NVLINKS = re.compile(r"NV(\d{1,3})")
_MOST_NVLINKS = 18
_MOST_DEVICES = 1024
_SYS_GBPS = 128  # between CPUs, as NCCL takes it for EPYC of Zen 1 and 2


class Arguments(HostArguments):
    """Parameters of servers of a matrix of nvidia-smi."""

    path: FilePath = Field(description="path of the file")
    accelerator: Name | None = Field(
        None, description=f"GPUs: {', '.join(GENERATIONS)}; default: by the NVLinks of a GPU, a100 without any"
    )
    nic_rate: Rate | None = Field(None, description="rate of a NIC; default: as usual with the GPUs")


def build(arguments: Arguments, name: str) -> Graph:
    """Build the servers of the matrix; TopologyError: the file is unreadable or another one, or a word is unknown.

    Args:
        arguments: The parameters of the network.
        name: The name of the network, with which errors begin.
    """
    devices, words = _matrix(arguments.path, name)
    gpus = {i: None for i, device in enumerate(devices) if device.startswith("GPU")}
    if not gpus:
        raise TopologyError.at(name, "no GPU", "columns GPU0, GPU1, ...")
    levels = {(i, j): _LEVELS[word] for (i, j), word in words.items() if word in _LEVELS}
    links: dict[tuple[int, int], int] = {}
    for (i, j), word in words.items():
        match = _NVLINKS.fullmatch(word) if i in gpus and j in gpus else None
        if match:
            links[i, j] = int(match[1])
        elif word not in _LEVELS and word != "X":
            expected = f"X,{' NV#,' * (i in gpus and j in gpus)} {', '.join(_LEVELS)}"
            raise TopologyError.at(name, f"{devices[i]} to {devices[j]} is {word[:20]!r}", expected)
    # behind an NVSwitch each row says NV18 for each of seven peers: 126, more than the 18 links of a GPU
    total = max((sum(count for (a, _), count in links.items() if a == i) for i in gpus), default=0)
    each = max(links.values(), default=0)
    generation = _generation(arguments, each if total > _MOST_NVLINKS else total, name)
    new = {device: i for i, device in enumerate([*gpus, *(i for i in range(len(devices)) if i not in gpus)])}
    renumbered = {(new[i], new[j]): level for (i, j), level in levels.items()}
    parts, cables = _tree([devices[i] for i in new], len(gpus), renumbered, generation, arguments.pcie_delay)
    nics = dict.fromkeys(range(len(gpus), len(devices)), arguments.nic_rate or generation.nic_bps)
    to_switch: dict[int, int] = {}
    direct: list[Cable] = []
    for (i, j), count in sorted(links.items()):
        if total > _MOST_NVLINKS:
            # all peers share the links to the switch, so the largest number counts, not the sum
            to_switch[new[i]] = max(count * generation.nvlink_bps, to_switch.get(new[i], 0))
        elif i < j and count:
            direct.append((new[i], new[j], count * generation.nvlink_bps, arguments.nvlink_delay))
    plan = HostPlan([0] * len(gpus), parts, to_switch, direct, cables, nics, generation.accelerator)
    graph = graph_of(name, plan, arguments, arguments.servers)
    if arguments.accelerator is not None:
        return graph
    warning = f"{name}: a matrix does not name GPUs; {generation.accelerator} is assumed, accelerator=NAME names others"
    return replace(graph, warnings=(warning,))


def _matrix(path: str, label: str) -> tuple[list[str], dict[tuple[int, int], str]]:
    """Return the names of the devices, and the word of each pair (row, column) of different ones."""
    kind = inputs.kind_of(path)
    if kind is not None and kind.key not in {"nvidia-smi", "text", "csv", "empty"}:
        raise TopologyError(inputs.complaint(path, kind, _EXPECTED))
    try:
        lines = _ESCAPES.sub("", inputs.read_text(path)).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text"
        raise TopologyError(f"{label}: cannot read {path}: {reason}") from None
    rows = [line.split() for line in lines if line.strip()]
    devices: list[str] = []
    for word in rows[0] if rows else ():
        # behind the devices the header goes on with CPU Affinity and NUMA Affinity
        if not _DEVICE.fullmatch(word):
            break
        devices.append(word)
    if not devices or len(devices) > _MOST_DEVICES or len(set(devices)) < len(devices):
        raise TopologyError.at(label, f"{len(devices)} different devices in the first line", _EXPECTED)
    words = {}
    for i, device in enumerate(devices):
        row = rows[i + 1] if len(rows) > i + 1 else []
        if len(row) <= len(devices) or row[0] != device:
            raise TopologyError.at(label, f"row {i + 1} of the matrix", f"{device} and a word for each device")
        words.update({(i, j): word for j, word in enumerate(row[1 : len(devices) + 1]) if i != j})
    return devices, words


def _generation(arguments: Arguments, nvlinks: int, label: str) -> GpuGeneration:
    if arguments.accelerator is not None:
        return generation_of(arguments.accelerator, label)
    if not nvlinks:
        return GENERATIONS["a100"]
    return next((g for g in GENERATIONS.values() if g.nvlinks >= nvlinks), GENERATIONS["h100"])


def _tree(
    devices: list[str], gpus: int, levels: dict[tuple[int, int], int], generation: GpuGeneration, delay_ps: int
) -> tuple[list[str], list[Cable]]:
    """Return the parts of the PCIe tree, NICs first, and its links; devices: GPUs, then NICs."""
    parts = [f"nic {device.removeprefix('NIC')}" for device in devices[gpus:]]
    cables: list[Cable] = []
    top = list(range(len(devices)))  # node at the top of each device's tree so far
    for level, title in enumerate(_LEVEL_NAMES):
        group = list(range(len(devices)))
        # devices join transitively: a NIC at PIX of two GPUs puts all three below one switch
        for i, j in (pair for pair, own in levels.items() if own <= level):
            a, b = group[i], group[j]
            if a != b:
                group = [min(a, b) if g in {a, b} else g for g in group]
        for first in sorted(set(group)):
            tops = sorted({top[i] for i, g in enumerate(group) if g == first})
            # a group that did not grow at this level has one top already, and needs no further switch
            if len(tops) > 1:
                # `parts` begins with the NICs, which are among the devices: the next node is gpus + len(parts)
                own = len(devices) + len(parts) - (len(devices) - gpus)
                parts.append(f"{title} {first}")
                rate = _SYS_GBPS * GBPS if title == "system" else generation.pcie_bps
                cables += [(own, node, rate, delay_ps) for node in tops]
                top = [own if g == first else node for node, g in zip(top, group, strict=True)]
    return parts, cables
