"""The catalogue of causes of slow collectives: one entry each, a change of the cluster that the simulator runs.

A new cause is an entry of CAUSES, and nothing else. A cause has a severity where it can be mild or severe: the share of
a rate that is left, a number of channels, the seed of hashed paths. Severities of a rate are interpolated.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from nadi.inputs.units import PS_PER_US
from nadi.studies.diagnosis.simulating import Cap, Slow, WhatIf


class Cause(NamedTuple):
    """A cause of slow collectives."""

    name: str  # identifier in options and results
    title: str  # phrase for people; {severity} stands for the text of the severity
    severities: Sequence[float]  # severities that are simulated, the mildest first
    what_if: Callable[[float], WhatIf]  # returns the change for a severity
    severity_text: Callable[[float], str]  # returns a severity as text
    look: str  # where to look for it on the cluster
    is_share: bool = True  # whether severities are shares of a rate, between which times are interpolated
    varies: str = ""  # "row" or "test": what has another severity each time, at random; "" = all rows have one
    is_local: bool = False  # whether it is at one place, which tests of fewer GPUs may not have


def _percent(share: float) -> str:
    return f"{share:.0%}"


def _number(value: float) -> str:
    return f"{value:.0f}"


_NO_SEVERITY = (1.0,)
_SHARES = (0.85, 0.5, 0.2)  # shares of a rate that is left
_CAPS = (0.6, 0.4, 0.25, 0.1)  # of connections, of which NCCL has two to four between two NICs
# GPUDirect off: data cross PCIe twice and the memory of the host, and the CPU copies them before the NIC sends
_HOST_COPY_PS = 4 * PS_PER_US  # latency of the two copies; assumed, of the order of a cudaMemcpyAsync
_CPU_PATH_PS = PS_PER_US  # latency of a PCIe path through the root of a CPU, there and back; assumed
_MTUS = (1024.0, 512.0, 256.0)  # payloads in bytes that InfiniBand and RoCE allow below 4096
# thresholds of ECN in kB at 25 Gb/s: those of the papers are 100 times the smallest, at which senders never fill a link
_ECN_KB = (10.0, 2.0)


def _congestion_control(ecn_kb: float) -> WhatIf:
    """Return DCQCN with marks from `ecn_kb` kB of queue on, at 25 Gb/s."""
    keys = (
        'network.congestion_control="dcqcn"',
        'network.switch="shared-buffer"',
        f'network.ecn_kmin="{ecn_kb:g}kB"',
        f'network.ecn_kmax="{4 * ecn_kb:g}kB"',
    )
    return WhatIf(keys, by_packets=True)


CAUSES: Sequence[Cause] = (
    Cause(
        "ecmp-collisions",
        "flows share links by hash collisions (ECMP) instead of adaptive routing or spraying",
        (1.0, 2.0, 3.0, 4.0, 5.0),
        lambda seed: WhatIf(('network.load_balancing="ecmp"',), seed=int(seed)),
        _number,
        "adaptive routing of the switches and NCCL_IB_ADAPTIVE_ROUTING; more queue pairs by NCCL_IB_QPS_PER_CONNECTION",
        is_share=False,
        varies="test",
    ),
    Cause(
        "slow-nic",
        "one NIC, its link or its rail at {severity} of its rate",
        _SHARES,
        lambda share: WhatIf(slow=Slow("one NIC", share)),
        _percent,
        "ibstat and mlxlink of each NIC (rate, symbol errors), ib_write_bw by rail",
        is_local=True,
    ),
    Cause(
        "unused-nics",
        "only {severity} NICs of each host are used",
        (4.0, 2.0),
        lambda nics: WhatIf((f"topology.params.nics_per_host={int(nics)}",)),
        _number,
        "NCCL_IB_HCA, and the NICs after 'NET/IB : Using' of NCCL_DEBUG=INFO",
        is_share=False,
    ),
    Cause(
        "unused-plane",
        "only one port of each NIC is used, so one plane of the network",
        _NO_SEVERITY,
        lambda _: WhatIf(("topology.params.ports=1",)),
        _number,
        "NCCL_IB_MERGE_NICS, bonds, and ibstat of the ports",
        is_share=False,
    ),
    Cause(
        "slow-plane",
        "one plane of the network at {severity} of its rate",
        _SHARES,
        lambda share: WhatIf(slow=Slow("a plane", share)),
        _percent,
        "counters of the switches of each plane, ib_write_bw by port",
    ),
    Cause(
        "nic-path",
        "NICs reach their GPUs through a CPU or another PCIe switch, at {severity} of the rate",
        _SHARES,
        lambda share: WhatIf(nccl=("nic_path=cpu",), slow=Slow("all NICs", share, _CPU_PATH_PS)),
        _percent,
        "nvidia-smi topo -m (PIX or PXB expected), ACS, width and generation of PCIe by lspci -vv",
    ),
    Cause(
        "pxn-off",
        "PXN is off: all-to-alls change rails in the network",
        _NO_SEVERITY,
        lambda _: WhatIf(nccl=("pxn=false",)),
        _number,
        "NCCL_PXN_DISABLE",
        is_share=False,
    ),
    Cause(
        "nvls-off",
        "NVLink SHARP (NVLS) is off",
        _NO_SEVERITY,
        lambda _: WhatIf(nccl=("nvls=false",)),
        _number,
        "NCCL_NVLS_ENABLE, fabric manager and IMEX, 'NVLS multicast support' of NCCL_DEBUG=INFO",
        is_share=False,
    ),
    Cause(
        "few-channels",
        "NCCL uses only {severity} channels",
        (8.0, 4.0, 2.0),
        lambda channels: WhatIf(nccl=(f"channels={int(channels)}",)),
        _number,
        "NCCL_MAX_NCHANNELS, NCCL_MAX_CTAS, and 'coll channels' of NCCL_DEBUG=INFO",
        is_share=False,
    ),
    Cause(
        "gdr-off",
        "GPUDirect RDMA is off: data go through the host's memory, at {severity} of the NICs' rate",
        _SHARES,
        lambda share: WhatIf(slow=Slow("all NICs", share, _HOST_COPY_PS)),
        _percent,
        "module nvidia_peermem or DMA-BUF, NCCL_NET_GDR_LEVEL, 'GDRDMA' of NCCL_DEBUG=INFO",
    ),
    Cause(
        "slow-gpu",
        "the NVLinks of one GPU at {severity} of their rate",
        _SHARES,
        lambda share: WhatIf(slow=Slow("a GPU's NVLinks", share)),
        _percent,
        "nvidia-smi nvlink -s and -e, clocks and power of each GPU, all_reduce_perf in each host alone",
        is_local=True,
    ),
    Cause(
        "slow-host",
        "a host with NVLinks and NICs at {severity} of their rates",
        _SHARES,
        lambda share: WhatIf(slow=Slow("a host", share)),
        _percent,
        "pairs of hosts one by one, power caps and clocks of the hosts",
        is_local=True,
    ),
    Cause(
        "slow-uplink",
        "a link between two switches at {severity} of its rate",
        _SHARES,
        lambda share: WhatIf(slow=Slow("an uplink", share)),
        _percent,
        "error counters and rates of the links between leaves and spines",
        is_local=True,
    ),
    Cause(
        "wrong-mtu",
        "packets of {severity} bytes (MTU) in place of the cluster's",
        _MTUS,
        lambda mtu: WhatIf((f'network.mtu="{int(mtu)}B"',)),
        _number,
        "active_mtu of ibv_devinfo, MTU of the network interfaces and switches",
        is_share=False,
    ),
    Cause(
        "oversubscription",
        "links between switches have {severity} of the rate that the cluster's file says",
        _SHARES,
        lambda share: WhatIf(slow=Slow("all uplinks", share)),
        _percent,
        "number of links that are up between leaves and spines",
    ),
    Cause(
        "busy-neighbour",
        "other jobs take a part of the links between switches, {severity} and more remain",
        _SHARES,
        lambda share: WhatIf(slow=Slow("all uplinks", share)),
        _percent,
        "the same test twice: neighbours come and go; counters of the switches",
        varies="row",
    ),
    Cause(
        "congestion-control",
        "congestion control brakes too early: marks from {severity} kB of queue on, at 25 Gb/s",
        _ECN_KB,
        _congestion_control,
        _number,
        "ECN thresholds of the switches, DCQCN parameters of the NICs, counters of marked packets",
        is_share=False,
    ),
    Cause(
        "connection-cap",
        "each connection of a channel reaches {severity} of a NIC's rate; the fabric is not the limit",
        _CAPS,
        lambda share: WhatIf(cap=Cap(share)),
        _percent,
        "more channels and queue pairs: NCCL_MIN_NCHANNELS, NCCL_NCHANNELS_PER_NET_PEER, NCCL_IB_QPS_PER_CONNECTION",
    ),
    Cause(
        "pair-cap",
        "the connections between two GPUs of different hosts reach {severity} of a NIC's rate together; the fabric is "
        "not the limit",
        _SHARES,
        lambda share: WhatIf(cap=Cap(share, of_pair=True)),
        _percent,
        "ib_write_bw with and without --use_cuda on one rail; cores and clocks of NCCL's proxy threads; ACS and IOMMU",
    ),
)
"""All causes; those that a cluster cannot have, or that its rows cannot show, are left out of a diagnosis."""
