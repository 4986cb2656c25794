"""Constants of NCCL by GPU generation: a TOML file each, with the fields of `Generation`."""

import functools
import math
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from nadi.inputs.documents import checked, read_toml
from nadi.inputs.units import parse_bytes, parse_link_rate
from nadi.workload.errors import WorkloadError

Triple = tuple[float, float, float]
ROUND = ("all-reduce", "all-gather", "reduce-scatter")  # kinds whose chunks go round a ring


class _Constants(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class KernelTimes(_Constants):
    """Times and rates of NCCL's kernels among the GPUs of one NVLink domain, which NCCL's tuning model does not hold.

    Nadi fits them to NVIDIA's measurements (package aiconfigurator-core, systems A100 with NCCL 2.27.3, H100 and B200
    with 2.29.2, in a row; group nccl-tables): those of rings to the rows of 2 and 8 GPUs, all others to those of 8;
    docs/explanation/nccl.md says to which rows. Rows of 2 and 4 A100 decided between two explanations of
    `message_part`. Triples are for LL, LL128 and Simple.
    """

    launch_us: Triple  # time per operation of a ring before its first step
    hop_us: Triple  # time of a ring's step beside its data
    # Simple: time from the send of a slice until its receiver can send it on, which other slices of the chunk hide
    flight_us: float
    ll_block_gb_per_s: float  # rate on the wire of a block with LL that sums; half of it if it also keeps a copy
    block_gb_per_s: float  # rate on the wire of a block with LL128
    ll_wire: float  # fraction of the payload rate of NVLinks that LL reaches, with stores of 16 bytes
    # Simple: time of a loop's last step, which is in the own memory, in steps over NVLink, by kind of ROUND. Those of
    # A100 are those of 8 GPUs alone, which its other measurements agree with (nccl-one-host of the validation).
    local_step: Triple
    nvls_launch_us: float  # time per operation of NVLS before its first loop
    nvls_loop_us: float  # time of a loop of NVLS beside its data: the members notify each other
    message_us: tuple[float, float]  # time of an empty message with LL and with Simple, launch included
    peer_us: float  # the same per peer, as each is a send and a receive to prepare
    message_wire: float  # fraction of the payload rate of NVLinks that messages to all peers reach
    # time in which a receiver empties the buffers of a connection, in times that NVLink takes to fill them
    drain: float
    # maximum bytes per channel of a message before it uses more channels than its share of all
    message_part_bytes: Annotated[int, BeforeValidator(parse_bytes), Field(alias="message_part")]
    message_channels: int  # channels that the messages to all peers share at first, at most those of the communicator


class Generation(_Constants):
    """Constants of NCCL's graph search (src/graph/search.cc, topo.h, topo.cc) and tuning model (src/graph/tuning.cc).

    Bandwidths are in GB/s; triples are for 1, 2 and more hosts.
    """

    name: str  # name that users write
    compute_capability: int  # CUDA compute capability; 80 is 8.0
    # rate per direction of a flagship GPU's NVLinks, by which AUTO finds the generation
    nvlink_bps: Annotated[int, BeforeValidator(parse_link_rate), Field(alias="nvlink_rate")]
    # fraction of an NVLink's rate that the search counts, with equal load in both directions:
    # SM70_NVLINK_BW 20.0 of 25, SM90_NVLINK_BW 20.6 of 25, SM100_NVLINK_BW 40.1 of 50
    nvlink_payload: float
    nvlink_line: float  # rate of one NVLink per direction: 25, Blackwell 50
    pcie: float  # bandwidth between a NIC and its GPU that the search counts: 16 lanes of the generation's PCIe
    # channel speeds in GB/s that the search tries, in this order, without NICs and with NICs (speedArrayIntra and
    # speedArrayInter of search.cc)
    inside_speeds: tuple[float, ...]
    between_speeds: tuple[float, ...]
    cpu: str  # CPU vendor of the usual hosts, "intel" or "amd"
    ll: float  # maximum of LL in one host, over all channels
    ring_ll128: Triple  # maximum of LL128 in a ring, per channel
    message_block_gb_per_s: float  # maximum rate of a block with all warps (perChMaxRingLL128Bws), for messages
    tree_ll128: Triple  # maximum of LL128 in a tree, per channel
    tree: Triple  # maximum of Simple in a tree, per channel
    nvls_tree: Triple  # maximum of an NVLS tree, per channel
    nvls_efficiency: float  # fraction of the planned speed that NVLS reaches; 0 = no NVLS
    nvls_channels: tuple[int, int]  # number of blocks that run NVLS, in one host and in several
    in_grains: bool  # whether the NCCL of its time distributes LL128 in whole grains (nccl.ways.CHUNKS)
    plateau: float  # factor on the latency of a ring with Simple if the buffer's pieces have 64 bytes or more
    kernel: KernelTimes | None = None  # times in one NVLink domain; None = those of NCCL's tuning model


AUTO = "auto"  # value of a generation's name: the fabric's own


@functools.cache
def generations() -> dict[str, Generation]:
    """Return NCCL's constants of each generation of GPUs, by the generation's name."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("*.toml")):
        constants = read_toml(path, "constants of NCCL", WorkloadError)
        found[path.stem] = checked(Generation, {"name": path.stem, **constants}, path, WorkloadError)
    return found


def generation_of(generation_name: str, accelerator: str, inside_bps: int) -> Generation:
    """Return the generation of a name.

    With AUTO it is the accelerator's, else the one whose NVLinks have the nearest rate; without NVLink "a100".

    Args:
        generation_name: The name of a generation, or AUTO.
        accelerator: The name of the NPU type on the fabric; "" = unknown.
        inside_bps: The rate from a member to another of its host in bits per second; 0 = one member per host.
    """
    known = generations()
    wanted_name = accelerator if generation_name == AUTO else generation_name
    if wanted_name in known:
        return known[wanted_name]
    if not inside_bps:
        return known["a100"]
    return min(known.values(), key=lambda candidate: abs(math.log(inside_bps / candidate.nvlink_bps)))
