"""What logs of benchmarks hold beside rows: lines and variables of NCCL, figures of perftest, paths of NICs.

Each function takes what was read so far and one line, and returns the same with what the line adds.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple


@dataclass(frozen=True)
class HostEvidence:
    """What perftest and `nvidia-smi topo -m` print in the file of a log: evidence about hosts and network."""

    verbs_Bps: float = 0.0  # noqa: N815 - largest average of perftest between memories of hosts, bytes per second; 0 = none
    gpu_verbs_Bps: float = 0.0  # noqa: N815 - the same between memories of GPUs
    devices: frozenset[str] = frozenset()  # names of the network devices that perftest used
    near_nics: bool | None = None  # whether each GPU has a NIC behind its PCIe switch; None = no matrix is printed
    unit_Bps: float = 0.0  # noqa: N815 - unit of the table of perftest that is being read; 0 = none is
    is_of_gpu: bool = False  # whether that table is of buffers on GPUs
    uses_gpu: bool = False  # whether the next table is
    columns: tuple[str, ...] = ()  # columns of the matrix of paths that is being read


class Nic(NamedTuple):
    """A network device that NCCL uses."""

    name: str  # such as "mlx5_0"
    port: int  # number of the device's port; 0 = none is printed
    protocol: str  # "IB", "RoCE", or the name of NCCL's network, such as "Socket"


@dataclass(frozen=True)
class NcclInfo:
    """What NCCL_DEBUG=INFO printed, and variables NCCL_* of command lines; None = not printed."""

    version: str | None = None  # such as "2.21.5"
    channels: int | None = None  # number of channels of collectives
    nvls: bool | None = None  # whether NVLink SHARP is available
    pxn: bool | None = None  # whether a rank sends through another rank's NIC; None also where no network is used
    gpu_direct: bool | None = None  # whether all connections over NICs use GPUDirect RDMA
    rings: bool = False  # whether "Connected all rings" was printed
    trees: bool = False  # whether "Connected all trees" was printed
    network: str | None = None  # name of NCCL's network, such as "IB", "Socket" or "AWS Libfabric"
    nics: tuple[Nic, ...] = ()  # NICs of the first host that printed them
    settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))  # variables NCCL_* by name
    ranks: int | None = None  # number of ranks of the communicator
    nodes: int | None = None  # number of hosts of the communicator


_VERSION = re.compile(r"NCCL version ([0-9]++\.[0-9]++(?:\.[0-9]++)?+)")
_LIBRARY = re.compile(r"nccl-library=([0-9]{5})\b")
_RING = re.compile(r"Channel [0-9]++/([0-9]++)\s*+:\s++[0-9]++(?=\s|$)")  # followed by the ranks of the ring
_COUNTS = re.compile(r"\b([0-9]{1,4}) coll channels")
_NVLS_CHANNELS = re.compile(r"\b([0-9]{1,4}) nvls channels")
_CONNECTION = re.compile(r"via NET/[^/\s]++/[0-9]++(\([0-9]++\))?+(\S*+)")
_USING = re.compile(r"NET/(\w{1,40}) {0,9}: Using (.*)")
_DEVICE = re.compile(r"\[[0-9]{1,3}\]([\w.-]{1,80}):(?:([0-9]{1,3})/(\w{1,20}))?")
_NETWORK = re.compile(r"Using network (\S.*)")
_SETTING = re.compile(r"\b(NCCL_[A-Z0-9_]++)(?: set by environment to |=)([^\s;]++)")
_RANKS = re.compile(r"(?:nRanks|nranks) ([0-9]{1,9})\b")
_NODES = re.compile(r"nNodes ([0-9]{1,9})\b")


def with_nccl_line(info: NcclInfo, line: str) -> NcclInfo:
    """Return what NCCL has printed, with one more line.

    Args:
        info: What earlier lines of the log have said about NCCL.
        line: A line with "NCCL" in it.
    """
    found: dict[str, object] = {}
    for name, pattern in (("channels", _COUNTS), ("channels", _RING), ("ranks", _RANKS), ("nodes", _NODES)):
        if match := pattern.search(line):
            found[name] = int(match[1])
    if match := _VERSION.search(line):
        found["version"] = match[1]
    if match := _NETWORK.search(line):
        found["network"] = match[1].strip()
    found |= {name: True for name in ("rings", "trees") if f"Connected all {name}" in line}
    if "NVLS multicast support is" in line:
        found["nvls"] = "not available" not in line
    elif match := _NVLS_CHANNELS.search(line):
        found["nvls"] = int(match[1]) > 0
    if match := _CONNECTION.search(line):
        found["gpu_direct"] = "GDRDMA" in match[2] and info.gpu_direct is not False
        found["pxn"] = bool(match[1]) or bool(info.pxn)
    if (match := _USING.search(line)) and not info.nics:
        found["nics"] = tuple(
            Nic(name, int(port or 0), protocol or match[1]) for name, port, protocol in _DEVICE.findall(match[2])
        )
    settings = dict(_SETTING.findall(line))
    if settings:
        found["settings"] = MappingProxyType({**info.settings, **settings})
    return replace(info, **found)  # type: ignore[arg-type]


_PERFTEST_HEADING = re.compile(r"BW average\[(Gb|MB|GB)/sec\]")
_UNITS_BPS = {"Gb": 1e9 / 8, "MB": float(1 << 20), "GB": 1e9}  # bytes per second; perftest's MB has 2^20 bytes
_PERFTEST_ROW = re.compile(r"\s*+[0-9]++\s++[0-9]++\s++[0-9.]++\s++([0-9]{1,9}\.[0-9]{1,9})\s++[0-9.]++\s*+")
_PERFTEST_DEVICE = re.compile(r"\bDevice\s*+: (\w{1,40})")
_GPU_BUFFERS = re.compile(r"initializing CUDA|GPU buffer|--use_cuda|--use_rocm")
_NIC_COLUMN = re.compile(r"NIC[0-9]++|mlx5_\w++|bnxt_re\w++|efa\w*+")
_NEAR_PATHS = frozenset({"PIX", "PXB"})  # paths that no CPU is on


def with_host_line(evidence: HostEvidence, line: str) -> HostEvidence:
    """Return what perftest and nvidia-smi have printed, with one more line.

    Args:
        evidence: What earlier lines of the log have said about hosts and network.
        line: A line of the log.
    """
    words = line.split() or [""]
    if "GPU0" in words and any(map(_NIC_COLUMN.fullmatch, words)) and "X" not in words:
        return replace(evidence, columns=tuple(words))
    if evidence.columns and re.fullmatch(r"GPU[0-9]++", words[0]) and "X" in words:
        paths = {path for name, path in zip(evidence.columns, words[1:], strict=False) if _NIC_COLUMN.fullmatch(name)}
        return replace(evidence, near_nics=bool(paths & _NEAR_PATHS) and evidence.near_nics is not False)
    return _with_perftest_line(evidence, line)


def _with_perftest_line(evidence: HostEvidence, line: str) -> HostEvidence:
    """Return what perftest has printed, with one more line."""
    if _GPU_BUFFERS.search(line):
        return replace(evidence, uses_gpu=True)
    if match := _PERFTEST_DEVICE.search(line):
        return replace(evidence, devices=evidence.devices | {match[1]})
    if match := _PERFTEST_HEADING.search(line):
        return replace(evidence, unit_Bps=_UNITS_BPS[match[1]], is_of_gpu=evidence.uses_gpu, uses_gpu=False)
    if evidence.unit_Bps and (match := _PERFTEST_ROW.fullmatch(line)):
        name = "gpu_verbs_Bps" if evidence.is_of_gpu else "verbs_Bps"
        rate_Bps = float(match[1]) * evidence.unit_Bps  # noqa: N806 - bytes
        return replace(evidence, **{name: max(getattr(evidence, name), rate_Bps)})  # type: ignore[arg-type]
    return evidence
