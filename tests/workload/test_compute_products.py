"""Times of matrix products and attention: closed forms, a naive model of tiles and waves, and what may not fall."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from nadi.workload.compute import ComputeTimes, Efficiencies, Operator, find_gpu, gpu_names
from nadi.workload.compute.attention import ALGORITHMS, attention_ps
from nadi.workload.compute.gemm import GROUP_TILES, SPLITS, TILES, product_ps, products_ps
from nadi.workload.compute.gpu import ALONE
from nadi.workload.compute.times import roofline_ps
from tests.budgets import bounded

TRAINED_ALONE = replace(ALONE, is_training=True)
NONE_LOST = Efficiencies(1.0, 1.0, 1.0, 1.0)
A100, H100, B200 = find_gpu("a100"), find_gpu("h100"), find_gpu("b200")
WITHOUT_LATENCIES = {"memory_latency_ps": 0, "launch_overhead_ps": 0}
IDEAL = A100.model_copy(update=WITHOUT_LATENCIES | {"small_tiles": 1.0, "exposed_write": 0.0})
FAST_MEMORY = IDEAL.model_copy(update={"memory_bandwidth_Bps": 1e18})


def product(*shape, gpu=IDEAL, dtype="bf16", efficiencies=NONE_LOST):
    kind = {3: "gemm", 4: "batched-gemm"}[len(shape)]
    return product_ps(Operator(kind, shape, dtype), gpu, efficiencies)


def test_a_product_that_fills_its_waves_takes_its_operations_at_the_peak():
    m, n = 256 * 108, 128 * 4
    assert product(m, n, 4096, gpu=FAST_MEMORY) == pytest.approx(2e12 * m * n * 4096 / 312e12, rel=1e-9)


def test_one_tile_more_than_a_wave_takes_two_waves():
    # k is 64, so that the sums of a split would take longer
    gpu = FAST_MEMORY.model_copy(update={"launch_overhead_ps": 10**9})
    tile_ps = 2e12 * 64 * 64 * 64 / (312e12 / 108)
    assert product(64 * 108, 64, 64, gpu=gpu) == pytest.approx(10**9 + tile_ps)
    assert product(64 * 108 + 1, 64, 64, gpu=gpu) == pytest.approx(10**9 + 2 * tile_ps)


def test_a_product_with_one_row_takes_the_reading_of_its_matrix():
    gpu = IDEAL.model_copy(update={"peak_flops": {"bf16": 1e20}})
    moved_bytes = 2 * (12288**2 + 2 * 12288)
    assert product(1, 12288, 12288, gpu=gpu) == pytest.approx(1e12 * moved_bytes / (gpu.product_memory * 2.039e12))


def test_a_product_of_few_tiles_splits_its_loop():
    whole = 2e12 * 128 * 128 * 65536 / (312e12 / 108)
    assert product(128, 128, 65536) < whole / 8


def test_tiles_are_written_at_an_sms_share_of_the_bandwidth_as_far_as_they_are_exposed():
    shape, half = (128 * 108, 128, 4096), IDEAL.model_copy(update={"exposed_write": 0.5})
    memory_ps = 1e12 * 2 * (shape[0] * 4096 + 128 * 4096 + shape[0] * 128) / (IDEAL.product_memory * 2.039e12)
    works = [(product(*shape, gpu=gpu) ** 3 - memory_ps**3) ** (1 / 3) for gpu in (IDEAL, half)]
    write_ps = 1e12 * 2 * shape[0] * 128 / (IDEAL.product_memory * 2.039e12)
    assert works[1] - works[0] == pytest.approx(write_ps / 2, rel=1e-6)


def test_products_in_8_bits_write_16_bits():
    gpu = H100.model_copy(update=WITHOUT_LATENCIES | {"peak_flops": {"fp8": 1e20}, "exposed_write": 0.0})
    m, n, k = 8192, 8192, 64
    expected = 1e12 * (m * k + k * n + 2 * m * n) / (gpu.memory_bandwidth_Bps * gpu.product_memory)
    assert product(m, n, k, gpu=gpu, dtype="fp8") == pytest.approx(expected)


def naive_product_ps(batch, m, n, k, gpu, efficiencies, bytes_of_value, *, grouped=False):
    """Every tile is dealt to the SM that has the fewest; the busiest SM ends the product."""
    best = math.inf
    memory_Bps = gpu.memory_bandwidth_Bps * efficiencies.memory  # noqa: N806 - bytes, not bits
    memory_Bps *= 1 if grouped else gpu.product_memory  # noqa: N806 - the same
    for rows, columns in GROUP_TILES if grouped else TILES:
        for splits in (1,) if grouped else SPLITS:
            busy = [0] * gpu.sms
            count = 0
            for _ in range(batch * splits):
                for _ in range(0, m, rows):
                    for _ in range(0, n, columns):
                        busy[count % gpu.sms] += 1
                        count += 1
            steps = math.ceil(k / splits / 64)
            flops = gpu.peak_flops["bf16"] * gpu.sustained * efficiencies.gemm / gpu.sms
            flops *= (0.72 if grouped else 1) * (1 if rows >= 128 else gpu.small_tiles)
            writing = min(count, gpu.sms)
            write = bytes_of_value * min(rows, m) * min(columns, n) / (memory_Bps / writing) * gpu.exposed_write
            time = max(busy) * (steps * 2 * rows * columns * 64 / flops + 1e-12 * gpu.memory_latency_ps + write)
            if splits > 1:
                time += 8 * splits * batch * m * n / memory_Bps
                time += gpu.launch_overhead_ps * 1e-12 + gpu.split_latencies * 1e-12 * gpu.memory_latency_ps
            best = min(best, time)
    moved = bytes_of_value * batch * (m * k + k * n + m * n)
    memory = moved / memory_Bps + gpu.memory_latency_ps * 1e-12
    return 1e12 * (best**3 + memory**3) ** (1 / 3) + gpu.launch_overhead_ps


@pytest.mark.parametrize("gpu", [A100, H100, B200], ids=["a100", "h100", "b200"])
@pytest.mark.parametrize(
    "shape", [(1, 2048, 4608, 12288), (1, 1000, 700, 300), (1, 1, 4096, 4096), (7, 130, 257, 65), (1, 128, 128, 65536)]
)
def test_products_are_as_a_naive_model_of_tiles_says(gpu, shape):
    found = product_ps(Operator("batched-gemm", shape), gpu, Efficiencies())
    assert found == pytest.approx(naive_product_ps(*shape, gpu, Efficiencies(), 2), rel=1e-9)


def test_many_products_at_a_time_take_what_each_takes_alone():
    shapes = [(1, 2048, 4608, 12288), (3, 1000, 700, 300), (0, 1, 1, 1), (7, 130, 257, 65), (1, 128, 128, 65536)]
    operators = [Operator("batched-gemm", shape) for shape in shapes]
    alone = [product_ps(operator, H100, Efficiencies()) for operator in operators]
    assert products_ps(operators, H100, Efficiencies()).tolist() == alone
    assert alone[2] == 0


@pytest.mark.parametrize("shape", [(8, 1024, 512, 256), (64, 2, 512, 256), (5, 999, 200, 130)])
def test_groups_are_products_of_their_share_of_rows(shape):
    groups, m, n, k = shape
    found = product_ps(Operator("grouped-gemm", shape), H100, Efficiencies())
    groups = min(groups, m)
    expected = naive_product_ps(groups, -(-m // groups), n, k, H100, Efficiencies(), 2, grouped=True)
    assert found == pytest.approx(expected, rel=1e-3)  # the naive model moves whole groups


def attention(*shape, gpu=IDEAL, backward=False):
    return attention_ps(Operator("attention-backward" if backward else "attention", shape), gpu, NONE_LOST)


FLASH_2 = ALGORITHMS["flash-attention-2"]


def test_attention_is_products_and_exponentials_of_its_pairs_and_starts_of_its_blocks():
    pairs = 27 * 4 * 4096 * 4096  # 27 * 4 heads of 32 blocks on 108 SMs: 32 whole waves
    exponentials = 16 * 1.41e9 * 108
    pair = (4 * 128 / (FLASH_2.reach * 312e12) + FLASH_2.exposed / exponentials) * 1e12  # on all SMs
    expected = pairs * pair
    starts = 32 * FLASH_2.start_ps
    assert attention(27, 4, 4, 4096, 4096, 128, 128, 0, gpu=FAST_MEMORY) == pytest.approx(expected + starts, rel=1e-9)
    on_and_below_the_diagonal = sum(-(-128 * block // 64) for block in range(1, 33)) / (32 * 64)
    masked = attention(27, 4, 4, 4096, 4096, 128, 128, 1, gpu=FAST_MEMORY)
    end = FLASH_2.tail * 128 * 4096 * pair * 108  # one SM has a share of a longest block left
    assert FLASH_2.tail > 0
    assert masked == pytest.approx(expected * on_and_below_the_diagonal + end + starts, rel=1e-9)
    one_block = attention(1, 1, 1, 128, 4096, 128, 128, 1, gpu=FAST_MEMORY)
    assert one_block == pytest.approx(128 * 4096 * pair * 108 + FLASH_2.start_ps, rel=1e-9)


@pytest.mark.parametrize(("head", "rows", "keys"), [(64, 128, 128), (128, 128, 128), (256, 128, 80)])
def test_blocks_of_hopper_depend_on_the_head(head, rows, keys):
    """FlashAttention-3 reads 128 keys at a time, and 80 with heads of 256 values; one key more takes as many again."""
    flash_3 = ALGORITHMS["flash-attention-3"]
    gpu = FAST_MEMORY.model_copy(update={"attention": "flash-attention-3"})
    pair = (4 * head / (flash_3.reach * 312e12) + flash_3.exposed / (16 * 1.41e9 * 108)) * 108e12  # on one SM
    starts = [attention(1, 1, 1, rows, k, head, head, 0, gpu=gpu) - rows * k * pair for k in (keys, 2 * keys)]
    assert starts[0] == pytest.approx(starts[1], rel=1e-6)
    assert attention(1, 1, 1, rows, keys + 1, head, head, 0, gpu=gpu) == pytest.approx(
        attention(1, 1, 1, rows, 2 * keys, head, head, 0, gpu=gpu), rel=1e-9
    )


def test_short_prompts_have_blocks_of_few_rows_or_of_several_heads():
    def work(queries, heads, kv_heads):
        return attention(108, heads, kv_heads, queries, 128, 128, 128, 0, gpu=FAST_MEMORY) - FLASH_2.start_ps

    assert work(16, 1, 1) == pytest.approx(work(128, 1, 1) / 2, rel=1e-9)  # 64 rows at least
    assert work(100, 1, 1) == work(128, 1, 1)
    assert work(16, 8, 1) == pytest.approx(work(128, 1, 1), rel=1e-9)  # eight heads in a block


def test_decoding_takes_the_reading_of_keys_and_values():
    shape = (64, 64, 8, 1, 8192, 128, 128, 0)
    gpu = IDEAL.model_copy(update={"peak_flops": {"bf16": 1e20}, "special_functions": 1024})
    read_ps = Operator("attention", shape).bytes / (FLASH_2.memory * 2.039e12) * 1e12
    assert attention(*shape, gpu=gpu) == pytest.approx(read_ps, rel=0.01)


def test_backward_is_five_products_and_an_exponential():
    shape = (27, 4, 4, 4096, 4096, 128, 128, 0)
    pairs, values = 27 * 4 * 4096 * 4096, 27 * 4 * 4096 * 128
    pair = (5 * 2 * 128 / (FLASH_2.reach * 312e12) + FLASH_2.exposed / (16 * 1.41e9 * 108)) / FLASH_2.backward
    around = values * (4 + 4 + 2 + 2 + 2) / 2.039e12
    assert attention(*shape, backward=True) == pytest.approx(1e12 * (pairs * pair + around), rel=1e-4)


SIZES = st.integers(1, 20_000)


def sixteen_bits(gpu):
    return "fp16" if "fp16" in gpu.peak_flops else "bf16"


@pytest.mark.parametrize(
    ("queries", "keys", "window"), [(7, 7, 3), (5, 9, 4), (9, 9, 9), (9, 5, 2), (6, 6, 20), (1, 8, 3)]
)
def test_a_windows_pairs_are_those_of_the_last_keys_of_each_query(queries, keys, window):
    pairs = sum(
        keys - queries - window < key - query <= keys - queries for query in range(queries) for key in range(keys)
    )
    assert Operator("window-attention", (2, 3, 1, queries, keys, 8, 4, window)).flops == 2 * 2 * 3 * pairs * (8 + 4)


@pytest.mark.parametrize("gpu", [A100, H100, B200], ids=["a100", "h100", "b200"])
@pytest.mark.parametrize("backward", ["", "-backward"])
def test_a_window_takes_the_time_of_its_blocks(gpu, backward):
    """Twice the tokens take twice as long, and a window of all tokens as long as a causal mask."""

    def ps(tokens, window=None):
        kind, mask = ("attention", 1) if window is None else ("window-attention", window)
        return attention_ps(Operator(kind + backward, (4, 64, 8, tokens, tokens, 64, 64, mask)), gpu, NONE_LOST)

    assert ps(32768, 128) == pytest.approx(2 * ps(16384, 128), rel=0.02)
    assert ps(4096, 4096) == ps(4096)
    assert ps(4096, 128) < ps(4096, 1024) < ps(4096)


def test_in_8_bits_the_backward_pass_computes_all_pairs_of_a_window():
    shape = (4, 64, 8, 4096, 4096, 64, 64)
    window = attention_ps(Operator("window-attention-backward", (*shape, 128), "fp8"), B200, NONE_LOST)
    assert window == attention_ps(Operator("attention-backward", (*shape, 1), "fp8"), B200, NONE_LOST)


def test_training_has_libraries_of_its_own():
    """On Blackwell cuDNN's forward pass, faster than a server's prompts with paged keys; elsewhere the same."""
    forward = Operator("attention", (1, 64, 8, 8192, 8192, 128, 128, 1))
    for gpu in (A100, H100, B200):
        served, trained = (ComputeTimes(gpu, pace=pace).time_ps(forward) for pace in (ALONE, TRAINED_ALONE))
        assert trained < served if gpu is B200 else trained == served


@bounded(60)
@given(st.sampled_from(gpu_names()), SIZES, SIZES, SIZES, st.integers(1, 64), st.integers(0, 3), st.integers(1, 5000))
def test_products_never_get_shorter_with_size(name, m, n, k, batch, axis, more):
    gpu = find_gpu(name)
    small = [batch, m, n, k]
    large = list(small)
    large[axis] += more
    shorter, longer = (
        roofline_ps(Operator("batched-gemm", tuple(s), sixteen_bits(gpu)), gpu, Efficiencies()) for s in (small, large)
    )
    assert shorter <= longer


@bounded(60)
@given(
    st.sampled_from(gpu_names()),
    st.tuples(st.integers(1, 8), st.integers(1, 32), st.integers(1, 4), st.integers(1, 3000), st.integers(1, 9000)),
    st.sampled_from([64, 128, 256]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0, 1, 4, 5]),
    st.integers(1, 3000),
)
def test_attention_never_gets_shorter_with_batch_heads_keys_or_dimension(
    name, sizes, dim, causal, backward, axis, more
):
    """With queries it may: of keys that a mask hides from them, and of rows that share a block with their group."""
    batch, kv_heads, group, queries, keys = sizes
    small = [batch, kv_heads * group, kv_heads, queries, keys, dim, dim, int(causal)]
    large = list(small)
    if axis == 1:
        large[1], large[2] = small[1] * 2, small[2] * 2
    else:
        large[axis] += more
    kind = "attention-backward" if backward else "attention"
    gpu = find_gpu(name)
    shorter, longer = (
        roofline_ps(Operator(kind, tuple(s), sixteen_bits(gpu)), gpu, Efficiencies()) for s in (small, large)
    )
    assert shorter <= longer


@bounded(60)
@given(st.sampled_from(gpu_names()), st.integers(1, 4), st.integers(1, 16), st.integers(1, 4000), st.integers(1, 2000))
def test_attention_without_a_mask_never_gets_shorter_with_queries(name, batch, heads, queries, more):
    shapes = [(batch, heads, heads, q, 2048, 128, 128, 0) for q in (queries, queries + more)]
    shorter, longer = (
        roofline_ps(Operator("attention", s, sixteen_bits(find_gpu(name))), find_gpu(name), Efficiencies())
        for s in shapes
    )
    assert shorter <= longer


@pytest.mark.parametrize("kind", ["gemm", "attention"])
def test_nothing_to_do_takes_no_time(kind):
    shape = (0, 4, 4) if kind == "gemm" else (1, 1, 1, 0, 5, 64, 64, 0)
    assert roofline_ps(Operator(kind, shape), A100, Efficiencies()) == 0
