"""Kernels of experts and of latent attention that serving frameworks run on A100 and B200."""

import numpy as np
import pytest

from nadi.workload.compute import Efficiencies, Operator, find_gpu
from nadi.workload.compute.gemm import trtllm_rows
from nadi.workload.compute.times import roofline_ps

A100, H100, B200 = find_gpu("a100"), find_gpu("h100"), find_gpu("b200")


def experts_us(gpu, groups, rows, n, k):
    """Return the us of groups of `rows` rows each."""
    return roofline_ps(Operator("grouped-gemm", (groups, groups * rows, n, k)), gpu, Efficiencies()) / 1e6


def latent_us(gpu, batch, heads, keys):
    return roofline_ps(Operator("latent-attention", (batch, heads, 1, keys, 512, 64)), gpu, Efficiencies()) / 1e6


def test_rows_of_a_tile_are_the_smallest_candidate_of_flashinfer():
    """FlashInfer's candidates (trtllm_fused_moe_kernel_launcher.cu) are the power of two above a group's rows, the tile
    below it and two above; without tuning it takes the smallest."""
    tiles = [8, 16, 32, 64, 128]

    def smallest(rows):
        at = next(i for i, tile in enumerate(tiles) if tile >= min(rows, tiles[-1]))
        return min(tiles[max(at - 1, 0) : at + 3])

    counts = np.arange(1, 1000)
    assert trtllm_rows(counts.astype(float)).tolist() == [smallest(rows) for rows in counts.tolist()]


def test_a_second_tile_of_rows_reads_a_matrix_again_that_is_larger_than_l2():
    """NVIDIA's table of B200: 8 experts of 14,336 take 403 us with 8 rows each, 708 with 64, and 1,350 with 256."""

    def layer_us(rows):
        return experts_us(B200, 8, rows, 2 * 14336, 4096) + experts_us(B200, 8, rows, 4096, 14336)

    assert layer_us(64) / layer_us(8) == pytest.approx(708 / 403, rel=0.1)
    assert layer_us(256) / layer_us(8) == pytest.approx(1350 / 403, rel=0.1)
    in_l2 = [experts_us(B200, 128, rows, 2 * 768, 2048) for rows in (8, 64)]
    assert in_l2[0] < in_l2[1] < 1.15 * in_l2[0]


def test_experts_without_a_tuned_configuration_fall_to_a_slower_tile_from_nine_rows_on():
    """NVIDIA's table of A100: 256 experts of 2,048 at 7,168 reach 1.73 TB/s of weights with 8 rows, 1.14 with 12."""
    few, more = (experts_us(A100, 256, rows, 2 * 2048, 7168) for rows in (8, 12))
    assert few / more == pytest.approx(1.14 / 1.73, rel=0.2)
    assert experts_us(H100, 256, 12, 4096, 7168) < 1.05 * experts_us(H100, 256, 8, 4096, 7168)
    tuned = [experts_us(A100, 8, rows, 2 * 3584, 4096) for rows in (2, 8)]
    assert tuned[1] < 1.05 * tuned[0]  # Mixtral 8x7B on four A100


def test_experts_of_triton_slow_down_where_activations_exceed_l2():
    """NVIDIA's table of A100, 8 experts of 14,336, two per token: 123 TFLOP/s at 2,048 tokens, 78 at 16,384."""
    rates = []
    for tokens in (2048, 16384):
        rows = tokens * 2 // 8
        time_us = experts_us(A100, 8, rows, 2 * 14336, 4096) + experts_us(A100, 8, rows, 4096, 14336)
        rates.append(6e-6 * tokens * 2 * 14336 * 4096 / time_us)
    assert rates[0] == pytest.approx(123, rel=0.15)
    assert rates[1] == pytest.approx(78, rel=0.15)


def test_one_sm_reads_all_keys_of_a_sequence_on_a100():
    one = latent_us(A100, 1, 16, 8192)
    assert latent_us(A100, 54, 16, 8192) == pytest.approx(one, rel=0.02)  # one SM of each TPC
    assert latent_us(A100, 55, 16, 8192) == pytest.approx(1.41 * one, rel=0.02)
    assert latent_us(A100, 108 + 54, 16, 8192) == pytest.approx(2.41 * one, rel=0.02)
    assert latent_us(A100, 1, 128, 8192) == pytest.approx(one, rel=0.01)  # two blocks of 64 heads
    assert latent_us(H100, 1, 16, 8192) < one / 20


def test_blocks_of_16_heads_read_the_same_keys_on_b200():
    """NVIDIA's table of B200: 32 heads take 1.43 times as long as 16, and 64 heads as long as 16."""
    times = {heads: latent_us(B200, 1024, heads, 16384) for heads in (8, 16, 32, 64, 128)}
    assert times[32] / times[16] == pytest.approx(4665.6 / 3271.0, rel=0.1)
    assert times[64] / times[16] == pytest.approx(3386.5 / 3271.0, rel=0.1)
    assert times[128] / times[16] == pytest.approx(3229.6 / 3271.0, rel=0.1)
    assert times[8] == pytest.approx(times[16], rel=0.02)


@pytest.mark.parametrize("gpu", [A100, B200], ids=["a100", "b200"])
def test_experts_never_get_shorter_with_rows_columns_or_length(gpu):
    sizes = [1, 7, 8, 9, 16, 17, 64, 65, 128, 129, 500, 4096]
    for groups in (8, 256):
        rows = [experts_us(gpu, groups, m, 4096, 2048) for m in sizes]
        assert rows == sorted(rows)
        columns = [experts_us(gpu, groups, 64, n, 2048) for n in (64, 100, 128, 129, 4096)]
        assert columns == sorted(columns)
        lengths = [experts_us(gpu, groups, 64, 2048, k) for k in (64, 100, 128, 129, 4096)]
        assert lengths == sorted(lengths)
