"""Times against published measurements, kernels of serving frameworks, and scripts/profile_gpu.py on this CPU."""

from statistics import geometric_mean

import numpy as np
import pytest

from nadi.workload import compute
from nadi.workload.compute.gemm import trtllm_rows
from nadi.workload.compute.gpu import FITTED_GPUS, SPREAD
from nadi.workload.compute.measured_times import Measurement
from nadi.workload.compute.times import roofline_ps
from tests.nonempty import nonempty


def tflops(text, gpu):
    (operator,) = compute.parse_operators(text)
    return operator.flops / roofline_ps(operator, compute.find_gpu(gpu), compute.Efficiencies())


def attention(gpu, sequence, dim, causal=0, kind="attention", dtype="bf16"):
    heads = 2048 // dim
    batch = 16384 // sequence
    return tflops(f"{kind} {batch}x{heads}x{heads}x{sequence}x{sequence}x{dim}x{dim}x{causal} {dtype}", gpu)


@pytest.mark.parametrize(
    ("gpu", "shape", "dtype", "measured", "tolerance"),
    [
        ("a100", "8192x8192x8192", "bf16", 265, 0.06),  # 250 to 280 by clock and driver
        ("a100", "1024x10240x5120", "bf16", 271.2, 0.05),  # efficiency: S. Bekman, ml-engineering, as all below
        ("h100", "2048x2048x13312", "bf16", 794.5, 0.05),  # sustained
        ("h100", "4224x2048x8192", "bf16", 780.2, 0.05),  # H. He, "H100 peak matmul FLOPS"
        ("h100", "1024x9216x14336", "fp8", 1402.6, 0.15),
        ("b200", "1792x16128x3072", "bf16", 1745.0, 0.07),  # sustained
    ],
)
def test_products(gpu, shape, dtype, measured, tolerance):
    assert tflops(f"gemm {shape} {dtype}", gpu) == pytest.approx(measured, rel=tolerance)


@pytest.mark.parametrize(("size", "measured_us"), [(3072, 24.5), (4096, 51.5)])
def test_casts_that_write_a_transposed_copy(size, measured_us):
    """FP16 to FP8 on an H100 (Transformer Engine, pull request 101), of which their rate is the mean."""
    (cast,) = compute.parse_operators(f"quantise {size * size}x1x1x1 fp8")
    found = {name: roofline_ps(cast, compute.find_gpu(name), compute.Efficiencies()) for name in ("h100", "h200")}
    assert found["h100"] / 1e6 == pytest.approx(measured_us, rel=0.13)
    # The same chip beside faster memory
    assert found["h200"] == pytest.approx(found["h100"], rel=1e-9)


def test_half_of_the_casts_of_experts_move_twice_as_many_sectors():
    def cast_ps(kind, reads, gpu):
        (cast,) = compute.parse_operators(f"{kind} {4096 * 2048}x{reads}x1x1 fp8")
        return roofline_ps(cast, compute.find_gpu(gpu), compute.Efficiencies())

    overhead_ps = 2.52e6
    of_experts, others = (cast_ps(kind, 1, "h100") - overhead_ps for kind in ("expert-quantise", "quantise"))
    assert of_experts / others == pytest.approx(1.5)
    # The pass that finds the maximum is as fast as memory
    maximum_ps = cast_ps("expert-quantise", 2, "h100") - cast_ps("expert-quantise", 1, "h100") - 3 * 2.25e6
    assert maximum_ps == pytest.approx(2 * 4096 * 2048 / compute.find_gpu("h100").streaming_Bps(0.87) * 1e12)
    # Without transposed copies both are alike
    assert cast_ps("expert-quantise", 2, "b200") == cast_ps("quantise", 2, "b200")


def test_flash_attention_2_on_a100():
    assert attention("a100", 16384, 128) == pytest.approx(225, rel=0.03)  # what the efficiency is from
    assert attention("a100", 16384, 64) == pytest.approx(190, rel=0.05)
    assert attention("a100", 16384, 128, kind="attention-backward") == pytest.approx(0.63 * 312, rel=0.03)  # and this


@pytest.mark.parametrize(
    ("batch", "length", "masked", "whole"), [(1, 4096, 156.27, 184.04), (16, 1024, 143.70, 179.11)]
)
def test_sms_wait_for_the_longest_blocks_of_flash_attention_2(batch, length, masked, whole):
    """TFLOP/s with and without a causal mask, 32 heads of 128: github.com/liangan1/GPU_travel (performance)."""
    causal, full = (tflops(f"attention {batch}x32x32x{length}x{length}x128x128x{c} bf16", "a100") for c in (1, 0))
    assert causal / full == pytest.approx(masked / whole, rel=0.03)


FORWARD = {
    (64, 0): {512: 333, 1024: 392, 2048: 460, 4096: 476, 8192: 496, 16384: 497},
    (128, 0): {512: 467, 1024: 565, 2048: 625, 4096: 638, 8192: 646, 16384: 648},
    (128, 1): {512: 292, 1024: 423, 2048: 521, 4096: 579, 8192: 602, 16384: 616},
    (256, 0): {512: 482, 1024: 639, 2048: 707, 4096: 736, 8192: 746, 16384: 756},
}
BACKWARD = {
    64: {512: 272, 1024: 363, 2048: 422, 4096: 453, 8192: 472, 16384: 474},
    128: {512: 316, 1024: 424, 2048: 501, 4096: 542, 8192: 559, 16384: 561},
}
TOLERANCE = {512: 0.25, 1024: 0.12}
"""10 % from 2,048 tokens on; shorter sequences have a share of exposed reading and writing that differs by kernel."""


@pytest.mark.parametrize(("dim", "causal"), FORWARD)
def test_flash_attention_3_on_h100(dim, causal):
    for sequence, measured in nonempty(FORWARD[dim, causal].items()):
        found = attention("h100", sequence, dim, causal)
        assert found == pytest.approx(measured, rel=TOLERANCE.get(sequence, 0.10)), sequence


@pytest.mark.parametrize("dim", BACKWARD)
def test_flash_attention_3_backward_on_h100(dim):
    for sequence, measured in nonempty(BACKWARD[dim].items()):
        found = attention("h100", sequence, dim, kind="attention-backward")
        assert found == pytest.approx(measured, rel=TOLERANCE.get(sequence, 0.10)), sequence


def test_flash_attention_2_on_h100_reaches_its_papers_rate():
    """Up to 335 TFLOP/s, forward and backward (arXiv 2307.08691, section 4.1)."""
    rates = [attention("h100", 16384, 128, 1, kind=f"flash-2-attention{end}") for end in ("", "-backward")]
    assert 3.5 / (1 / rates[0] + 2.5 / rates[1]) == pytest.approx(335, rel=0.03)
    assert attention("a100", 16384, 128, kind="flash-2-attention") == attention("a100", 16384, 128)


def test_flash_attention_3_in_fp8_on_h100():
    assert attention("h100", 16384, 256, dtype="fp8") == pytest.approx(1171, rel=0.10)


def ratios(kind, dtype="bf16", least_flops=0):
    """Time of the roofline over that of the library's table of an H100, of each row of a kind."""
    rows = [row for row in compute.read_table("h100") if (row.operator.kind, row.operator.dtype) == (kind, dtype)]
    gpu = compute.find_gpu("h100")
    found = [row for row in rows if row.operator.flops >= least_flops]
    return [roofline_ps(row.operator, gpu, compute.Efficiencies()) / row.time_ps for row in found]


@pytest.mark.parametrize(
    ("kind", "least_flops", "mean", "error"),
    [
        ("gemm", 0, (0.90, 1.05), 0.15),
        ("gemm", 2e10, (0.85, 1.0), 0.13),  # hot: 640 to 740 TFLOP/s, see docs/explanation/compute.md
        ("grouped-gemm", 0, (0.9, 1.1), 0.16),
        ("batched-gemm", 0, (0.9, 1.1), 0.22),
        ("attention", 0, (0.9, 1.1), 0.12),
        ("attention-backward", 0, (0.8, 1.05), 0.16),
        ("permute", 0, (0.9, 1.25), 0.30),
    ],
)
def test_the_measured_h100(kind, least_flops, mean, error):
    found = ratios(kind, least_flops=least_flops)
    assert mean[0] <= geometric_mean(found) <= mean[1]
    assert sum(abs(ratio - 1) for ratio in found) / len(found) <= error


def test_between_the_measured_shapes_of_an_h100():
    """Each product from the others: a mean error of 8 %, where the roofline alone has 13."""
    rows = [row for row in compute.read_table("h100") if (row.operator.kind, row.operator.dtype) == ("gemm", "bf16")]
    gpu = compute.find_gpu("h100")
    errors = []
    for left_out in rows:
        found = compute.ComputeTimes(gpu, [row for row in rows if row != left_out]).find(left_out.operator)
        if found.how == "interpolated":
            errors.append(abs(found.time_ps / left_out.time_ps - 1))
    assert len(errors) > 150
    assert sum(errors) / len(errors) < 0.08


def test_what_is_left_of_products_in_a_row_is_what_was_measured():
    """The H100's share in 16 bits is the geometric mean of its products that run as long as a step's, to two digits."""
    found = ratios("gemm", "bf16", least_flops=3e11)
    assert len(found) > 30
    assert compute.find_gpu("h100").in_a_row["bf16"] == pytest.approx(geometric_mean(found), abs=0.01)


def test_what_steps_leave_of_products_in_fp8_is_at_most_what_was_measured():
    """Single products have 0.88 left; the share of MLPerf's steps, to which the number is fitted, is below."""
    found = geometric_mean(ratios("gemm", "fp8", least_flops=3e11))
    assert found - 0.06 < compute.find_gpu("h100").in_a_row["fp8"] < found


@pytest.mark.parametrize(
    ("gpu", "power", "tflops"), [("mi300x", 750, (708, 654, 1273)), ("mi325x", 1000, (831, 787, 1409))]
)
def test_the_best_products_of_cdna_3_at_their_power(gpu, power, tflops):
    """AMD, Measuring Max-Achievable FLOPs, part 2, and Understanding TAF; 8 bits of MI300X follow from 16 bits."""
    times = compute.ComputeTimes(compute.find_gpu(gpu), pace=compute.IN_SERVING, vendor_tables=False)
    assert compute.find_gpu(gpu).power_watts == power
    for dtype, published in zip(("bf16", "fp16", "fp8"), tflops, strict=True):
        operator = compute.Operator("gemm", (4096, 4864, 32896), dtype)
        assert operator.flops / times.time_ps(operator) == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize(
    ("dtype", "published", "error"), [("fp16", 606, 0.17), ("bf16", 616, 0.21), ("fp8", 1143, 0.05)]
)
def test_the_products_of_deepseek_v3_on_mi325x_are_slower_than_those_of_the_roofline(dtype, published, error):
    """AMD, Understanding TAF Alongside Peak FLOPs and MAF, October 2026, whose products nothing is fitted to."""
    times = compute.ComputeTimes(compute.find_gpu("mi325x"), pace=compute.IN_SERVING, vendor_tables=False)
    sizes = ((2112, 7168), (3072, 1536), (7168, 2048), (4608, 7168), (7168, 256))
    operators = [compute.Operator("gemm", (m, n, k), dtype) for m in (32, 32768) for n, k in sizes]
    tflops = sum(each.flops for each in operators) / sum(map(times.time_ps, operators))
    assert tflops / published - 1 == pytest.approx(error, abs=0.02)


def test_large_products_of_a_step_stay_below_those_of_eight_seconds():
    """An H100 at 700 W did 660 TFLOP/s of 8192^3 products after 8 s without gaps (docs/explanation/compute.md)."""
    operator = compute.Operator("gemm", (8192, 8192, 8192), "bf16")
    in_a_step = compute.ComputeTimes(compute.find_gpu("h100"), pace=compute.IN_STEPS).time_ps(operator)
    assert 0.9 * 660 < operator.flops / in_a_step < 660
    measured = [Measurement("h100", operator, 1_600_000_000)]
    found = compute.ComputeTimes(compute.find_gpu("h100"), measured, pace=compute.IN_STEPS)
    assert found.time_ps(operator) == round(1_600_000_000 / compute.IN_STEPS.products)


A100, H100, B200 = compute.find_gpu("a100"), compute.find_gpu("h100"), compute.find_gpu("b200")


def experts_us(gpu, groups, rows, n, k):
    """Return the us of groups of `rows` rows each."""
    return (
        roofline_ps(compute.Operator("grouped-gemm", (groups, groups * rows, n, k)), gpu, compute.Efficiencies()) / 1e6
    )


def latent_us(gpu, batch, heads, keys):
    return (
        roofline_ps(compute.Operator("latent-attention", (batch, heads, 1, keys, 512, 64)), gpu, compute.Efficiencies())
        / 1e6
    )


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


def test_a_step_waits_for_the_slowest_of_many_gpus():
    """Against normal draws; 440 GPUs are the reference."""
    draws = np.random.default_rng(1).standard_normal((1500, 10_752)).max(axis=1).mean()
    reference = np.random.default_rng(2).standard_normal((4000, FITTED_GPUS)).max(axis=1).mean()
    slower = compute.IN_STEPS.products / compute.IN_STEPS.among(10_752).products
    assert slower == pytest.approx((1 + SPREAD * draws) / (1 + SPREAD * reference), abs=2e-4)
    assert compute.IN_STEPS.others / compute.IN_STEPS.among(10_752).others == pytest.approx(slower)
    assert compute.IN_STEPS.among(8) == compute.IN_STEPS.among(FITTED_GPUS) == compute.IN_STEPS
