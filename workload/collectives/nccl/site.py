"""What may differ between sites with equal machines: factors on the cited times and rates of NCCL's kernels and hosts.

`nadi calibrate` finds them from measurements of a site. They change how long NCCL's steps take, never what it chooses:
NCCL decides by its own constants, whatever the site.
"""

from typing import NamedTuple

from nadi.workload.collectives.nccl.generations import Generation

FACTOR_RANGE = (0.2, 5.0)  # a site whose constants differ by more has another machine, or a defect


class SiteFactors(NamedTuple):
    """Factors on cited constants; 1 is the cited value, and a factor on a time above 1 is slower, on a rate faster."""

    launch: float = 1.0  # time from the launch of a kernel until its first step
    hop: float = 1.0  # time of a step inside a host beside its data: notices between GPUs, waits of loops, peers
    block: float = 1.0  # rate at which a thread block moves data
    nvlink: float = 1.0  # rate that kernels reach on NVLink
    nic: float = 1.0  # time of a step between hosts beside its data: NIC, network, and the CPU's thread of the GPU


CITED = SiteFactors()


def at_site(generation: Generation, site: SiteFactors) -> Generation:
    """Return the constants of a generation of GPUs with a site's factors on its kernels.

    Args:
        generation: The cited constants.
        site: The factors of the site.
    """
    kernel = generation.kernel
    if kernel is not None:
        low_launch, simple_launch = kernel.message_us
        kernel = kernel.model_copy(
            update={
                "launch_us": tuple(time_us * site.launch for time_us in kernel.launch_us),
                "nvls_launch_us": kernel.nvls_launch_us * site.launch,
                "message_us": (low_launch * site.launch, simple_launch * site.launch),
                "hop_us": tuple(time_us * site.hop for time_us in kernel.hop_us),
                "flight_us": kernel.flight_us * site.hop,
                "nvls_loop_us": kernel.nvls_loop_us * site.hop,
                "peer_us": kernel.peer_us * site.hop,
                "ll_block_gb_per_s": kernel.ll_block_gb_per_s * site.block,
                "block_gb_per_s": kernel.block_gb_per_s * site.block,
                "ll_wire": kernel.ll_wire * site.nvlink,
                "message_wire": kernel.message_wire * site.nvlink,
            }
        )
    rate_gb_per_s = generation.message_block_gb_per_s * site.block
    return generation.model_copy(update={"kernel": kernel, "message_block_gb_per_s": rate_gb_per_s})
