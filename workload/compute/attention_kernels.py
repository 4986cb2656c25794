"""Kernels of fused attention on each generation of GPUs: their blocks, and what they reach of a GPU's rates.

Rows and keys of blocks are those of FlashAttention-3 (hopper/tile_size.h), and on Blackwell two blocks of 128 queries
at a time, of which only one fits into tensor memory if heads have more than 128 values. All other numbers but
`backward` are fitted to half of the prompts in NVIDIA's tables of A100, H100 and B200 (`decoding`, `decoding_rows`,
`single`, `row_start_ps` and `combine_ps`: of single tokens; scripts/kernel_tables.py).

The reach of FlashAttention-2 and the reach and start of -3 are a compromise between these calls of serving frameworks,
which read keys by pages, and the algorithms' own figures (arXiv 2307.08691, 2407.08608), which are met within 10 % from
1,024 tokens on (tests/workload/test_compute_published.py). Where blocks differ in length (causal masks), SMs wait at
the end. FlashAttention-2 starts blocks in the order of the grid, and two of them share an SM of A100 (heads of 128
values), which then takes twice as long for each: simulated so, SMs wait for 0.95 of a longest block. Fitted is 0.75;
published rates with and without a mask agree. The later algorithms start the longest blocks first: 0.25.

Backward: 2 reaches 63 % of A100's peak (arXiv 2307.08691, section 4.1, heads of 128), where five products and the
exponentials would reach 77 %; 3 reaches 561 TFLOP/s (heads of 128, 16,384 tokens); 4 is assumed, near 3. flash-1 and
triton are the algorithms of old software: 1 reaches 25 to 40 % of A100's peak (arXiv 2307.08691, section 1), triton is
the version of FlashAttention-1 with which MPT was trained, and FlashAttention-2 is 1.3 to 2.5 times as fast (section
4.1). Its backward share of 0.51 makes it 2.2 times as slow, forward and backward together, and is fitted to three
steps: MPT-1B, 7B and 13B on 128 A100 (scripts/validation.py fsdp-2023). splash is that of TPUs, assumed.
"""

import math
from typing import NamedTuple

from nadi.workload.compute.gemm import OVERLAP


class AttentionTile(NamedTuple):
    """Blocks of heads of one size."""

    max_values: float  # Largest head in values
    rows: int  # Query rows of the largest forward block
    keys: int  # Keys that a block reads at a time
    start: float = 1.0  # Share of start_ps
    decoding: float = 1.0  # The same in decoding


class AttentionAlgorithm(NamedTuple):
    """Parameters of a fused attention algorithm."""

    reach: float  # Share of the tensor-core peak that its instructions can reach, 0 to 1
    exposed: float  # Share of the exponentials that its products do not hide, 0 to 1
    start_ps: int  # Time in ps to start and end a forward block
    min_rows: int  # Query rows of the smallest forward block
    tiles: tuple[AttentionTile, ...]  # Blocks by size of the heads, the smallest heads first
    # Rate of the backward pass relative to the forward pass's model: all operands of its five products pass through
    # shared memory.
    backward: float
    setup_ps: int = 0  # Time in ps to set a forward kernel up, beyond the launch
    packs: bool = True  # Whether a block of a prompt may have queries of several heads
    tail: float = 0.0  # Share of the longest block of a causal mask for which the SMs wait at the end
    combine_ps: int = 2_800_000  # Time in ps to start the combination of partial results
    memory: float = 1.0  # Share of the bandwidth of streaming operators that its reads reach
    decoding_rows: int = 64  # Query rows of the smallest block in decoding
    # Share of a block's start in decoding that remains with one query of one head: such kernels use no tensor cores,
    # and several blocks fit on an SM.
    single: float = 0.4
    row_start_ps: int = 0  # Time in ps to read a query row of a decoding block and to write its result
    max_splits: int = 64  # Maximum number of parts into which decoding splits the keys
    # Heads per key in decoding up to which blocks have `few_rows` rows, 0 = no such kernel. Several blocks then read
    # the same keys, each further one `again` of them from memory and the rest from L2.
    few_heads: int = 0
    few_rows: int = 16
    again: float = 0.0
    few_keys: int = 0  # Keys per part up to which such blocks have any number of heads, if they fit on the SMs together
    paired: float = 1.0  # Time of a wave with blocks on both SMs of a TPC over that of a wave with at most one of them
    norm: float = OVERLAP  # Exponent of the norm that adds work and memory
    first_start: float = 0.0  # Share of the first block's start on an SM that memory traffic does not hide


_ALL_HEADS = (AttentionTile(math.inf, 128, 64),)
_FLASH_1 = AttentionAlgorithm(0.56, 1.0, 2_000_000, 128, _ALL_HEADS, 0.76)
ALGORITHMS = {
    "flash-1": _FLASH_1,
    "triton": _FLASH_1._replace(backward=0.51),
    "splash": AttentionAlgorithm(0.90, 0.6, 0, 128, _ALL_HEADS, 0.83),
    "flash-attention-1": _FLASH_1,
    "flash-attention-2": AttentionAlgorithm(
        *(0.90, 0.6, 2_500_000, 64),
        (AttentionTile(math.inf, 128, 64, 1.0, 1.24),),
        0.83,
        tail=0.75,
        combine_ps=8_900_000,
        memory=0.85,
        single=0.67,
    ),
    "flash-attention-3": AttentionAlgorithm(
        *(0.95, 0.6, 3_000_000, 64),
        (AttentionTile(128, 128, 128, 1.0, 0.8), AttentionTile(math.inf, 128, 80, 1.4, 1.2)),
        *(0.77, 0, True, 0.25),
        combine_ps=1_900_000,
        single=0.25,
    ),
    "flash-attention-4": AttentionAlgorithm(
        *(1.0, 0.8, 3_000_000, 64),
        (AttentionTile(128, 256, 128, 1.0, 0.44), AttentionTile(math.inf, 128, 128, 1.0, 0.76)),
        *(0.82, 1_200_000, False, 0.25),
        combine_ps=1_300_000,
        decoding_rows=16,
        single=1.0,
        row_start_ps=28_000,
        few_heads=32,
        again=0.5,
    ),
}
"""Fused attention algorithms: 2 on Ampere, 3 on Hopper, 4 on Blackwell."""


def _latent(name: str, reach: float, start_ps: int, keys: int, memory: float) -> AttentionAlgorithm:
    """Return a kernel of latent attention, whose heads are 4 times as large, beside a fused algorithm (name)."""
    return ALGORITHMS[name]._replace(
        reach=reach,
        start_ps=start_ps,
        tiles=(AttentionTile(math.inf, 64, keys),),
        setup_ps=0,
        memory=memory,
        decoding_rows=64,
        single=1.0,
        row_start_ps=0,
        norm=5.0,
        first_start=1.0,
    )


LATENT = {
    "flash-mla": _latent("flash-attention-3", 0.90, 6_000_000, 64, 1.06),
    "fmha-v2": _latent("flash-attention-2", 0.468, 1_700_000, 64, 0.85)._replace(max_splits=1, paired=1.41),
    "trtllm": _latent("flash-attention-4", 1.2, 6_100_000, 128, 0.82)._replace(few_keys=1024),
}
"""Kernels of latent attention, fitted to half of the rows of single tokens in NVIDIA's tables of H100, A100 and B200.
flash-mla: FlashMLA, blocks of 64 heads. fmha-v2: TensorRT-LLM 1.0 on Ampere, which gives all keys of a sequence and 64
heads to one block; a block takes 1.41 times as long if the other SM of its TPC has one, too, for an unknown reason.
trtllm: TensorRT-LLM on Blackwell, blocks of 16 heads up to 32 heads, and with more while each part of the keys has at
most 1,024 (`selectMlaGenerationKernel` in trtllmGenKernels/fmha/fmhaKernels.h)."""
