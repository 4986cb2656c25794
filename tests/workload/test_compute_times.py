"""Measured tables, scaling, GPUs from files, what memory bounds, and which of them a time is from."""

import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

from nadi.workload import WorkloadError, compute
from nadi.workload.compute.gpu import bound_of, scaled_ps
from nadi.workload.compute.operators import KINDS, LAUNCHES, PRODUCTS
from nadi.workload.compute.times import roofline_ps
from tests.budgets import bounded
from tests.nonempty import nonempty

A100, H100 = compute.find_gpu("a100"), compute.find_gpu("h100")


def op(text):
    return compute.parse_operators(text)[0]


def rows(*texts_and_times, gpu="a100"):
    return [compute.Measurement(gpu, op(text), time_ps) for text, time_ps in texts_and_times]


def roofline(text, gpu=A100):
    return roofline_ps(op(text), gpu, compute.Efficiencies())


# Measured tables


def test_a_measured_shape_has_its_measured_time_and_the_last_row_counts():
    times = compute.ComputeTimes(A100, rows(("gemm 64x64x64 bf16", 1), ("gemm 64x64x64 bf16", 12_345_678)))
    assert times.find(op("gemm 64x64x64 bf16")) == (12_345_678, "measured")
    assert times.find(op("gemm 64x64x64 fp16")).how == "roofline"
    assert compute.ComputeTimes(H100, rows(("gemm 64x64x64 bf16", 1))).find(op("gemm 64x64x64 bf16")).how == "roofline"


def test_between_shapes_the_roofline_is_corrected_as_around_it():
    """Halfway in the logarithm: the geometric mean of both factors, 1.2 and 1.8."""
    low, high, between = (f"norm {r}x4096 bf16" for r in (2048, 8192, 4096))
    times = compute.ComputeTimes(A100, rows((low, round(roofline(low) * 1.2)), (high, round(roofline(high) * 1.8))))
    found = times.find(op(between))
    assert found.how == "interpolated"
    assert found.time_ps == pytest.approx(roofline(between) * math.sqrt(1.2 * 1.8), rel=1e-6)


def test_nearer_shapes_weigh_more():
    """A quarter of the way: distances 1 and 3, so weights 1 and 1/9."""
    low, high, between = (f"norm {r}x4096 bf16" for r in (1024, 16384, 2048))
    times = compute.ComputeTimes(A100, rows((low, round(roofline(low) * 2)), (high, round(roofline(high)))))
    assert times.time_ps(op(between)) == pytest.approx(roofline(between) * 2 ** (1 / (1 + 1 / 9)), rel=1e-6)


@pytest.mark.parametrize(
    "text",
    [
        "norm 1024x4096 bf16",  # fewer rows than were measured
        "norm 16384x4096 bf16",  # more
        "norm 4096x4095 bf16",  # the other entry
        "norm 4096x4096 fp16",
        "softmax 4096x4096 bf16",
        "norm 0x4096 bf16",
    ],
)
def test_nothing_is_extrapolated(text):
    table = rows(("norm 2048x4096 bf16", 10**8), ("norm 8192x4096 bf16", 4 * 10**8))
    assert compute.ComputeTimes(A100, table).find(op(text)) == (round(roofline(text)), "roofline")


def test_a_shape_that_is_far_from_all_that_were_measured_is_not_between_them():
    table = rows(("norm 64x4096 bf16", 10**7), ("norm 65536x4096 bf16", 10**9))
    assert compute.ComputeTimes(A100, table).find(op("norm 2048x4096 bf16")).how == "roofline"
    assert compute.ComputeTimes(A100, table).find(op("norm 256x4096 bf16")).how == "interpolated"


def test_entries_that_are_no_sizes_must_be_the_same():
    table = rows(*((f"attention 1x8x8x{s}x{s}x128x128x1 bf16", 10**9) for s in (1024, 4096)))
    times = compute.ComputeTimes(A100, table)
    assert times.find(op("attention 1x8x8x2048x2048x128x128x1 bf16")).how == "interpolated"
    assert times.find(op("attention 1x8x8x2048x2048x128x128x0 bf16")).how == "roofline"
    assert times.find(op("attention 1x8x8x2048x2048x64x64x1 bf16")).how == "roofline"


@bounded(40)
@given(
    st.lists(st.tuples(st.integers(64, 512), st.integers(64, 512), st.floats(0.5, 3)), min_size=2, max_size=12),
    st.data(),
)
def test_what_lies_between_is_corrected_by_no_more_and_no_less_than_what_is_around(points, data):
    texts = {f"norm {r}x{c} bf16": factor for r, c, factor in points}
    table = rows(*((text, round(roofline(text) * factor)) for text, factor in texts.items()))
    times = compute.ComputeTimes(A100, table)
    assert all(times.time_ps(row.operator) == row.time_ps for row in nonempty(table))
    r = data.draw(st.integers(min(p[0] for p in points), max(p[0] for p in points)))
    c = data.draw(st.integers(min(p[1] for p in points), max(p[1] for p in points)))
    found = times.find(op(f"norm {r}x{c} bf16"))
    factor = found.time_ps / roofline(f"norm {r}x{c} bf16")
    expected = (1.0, 1.0) if found.how == "roofline" else (min(texts.values()), max(texts.values()))
    assert expected[0] * 0.999 <= factor <= expected[1] * 1.001


# Files of tables


def test_tables_are_read_as_they_were_written(tmp_path):
    table = [
        compute.Measurement("mine", op("gemm 1x2x3 fp8"), 17, "me, by hand", "2026-01-02"),
        *rows(("norm 8x8 bf16", 5)),
    ]
    compute.write_table(tmp_path / "t.csv", table)
    assert compute.read_table(tmp_path / "t.csv") == table
    said = (tmp_path / "t.csv").read_text(encoding="utf-8")
    wider = "".join(f"{line},more\n" for line in said.splitlines())
    (tmp_path / "t.csv").write_text("# device: one\n\n" + wider, encoding="utf-8")
    assert compute.read_table(tmp_path / "t.csv") == table
    names = ("gpu", "operator", "shape", "dtype", "time_ps")
    columns = [["mine"], ["gemm"], ["1x2x3"], ["fp8"], [17]]
    pq.write_table(pa.table(dict(zip(names, columns, strict=True))), tmp_path / "t.parquet")
    assert compute.read_table(tmp_path / "t.parquet") == [compute.Measurement("mine", op("gemm 1x2x3 fp8"), 17)]


def test_a_table_that_is_none_is_told(tmp_path):
    (tmp_path / "t.parquet").write_bytes(b"PAR1 no more")
    for name, said in (
        (tmp_path / "t.parquet", "no Parquet"),
        (tmp_path / "missing.csv", "No such file or directory; expected a table of measured times"),
        ("nothing", "table 'nothing': not known; expected one of"),
    ):
        with pytest.raises(WorkloadError, match=said):
            compute.read_table(name)


# Scaling from another GPU


@pytest.mark.parametrize(
    ("text", "bound", "factor"),
    [
        ("gemm 8192x8192x8192 bf16", "compute", 312 / 989.4),
        ("attention 1x16x16x8192x8192x128x128x1 bf16", "compute", 312 / 989.4),
        ("gemm 1x12288x12288 bf16", "memory", 2.039 / 3.35),
        ("norm 16384x12288 bf16", "memory", 2.039 / 3.35),
        ("optimizer 100000000x28 fp32", "memory", 2.039 / 3.35),
        ("norm 16x128 bf16", "latency", 1.0),
    ],
)
def test_what_compute_bounds_goes_with_rates_what_memory_bounds_with_bandwidth(text, bound, factor):
    assert bound_of(op(text), A100) == bound
    assert scaled_ps(10**9, op(text), A100, H100) == pytest.approx(10**9 * factor, rel=1e-12)
    times = compute.ComputeTimes(H100, rows((text, 10**9)), scale_from=A100)
    assert times.find(op(text)) == (round(10**9 * factor), "scaled")


def test_own_rows_go_before_those_of_another_gpu_and_both_before_the_roofline():
    mine, other, neither = "norm 64x64 bf16", "norm 16x128 bf16", "norm 999x999 bf16"
    table = rows((mine, 1), (other, 2)) + rows((mine, 3), gpu="h100")
    times = compute.ComputeTimes(H100, table, scale_from=A100)
    assert [times.find(op(text)) for text in (mine, other)] == [(3, "measured"), (2, "scaled")]
    assert times.find(op(neither)) == (round(roofline(neither, H100)), "roofline")
    assert times.text_ps(f"{mine}; {other}; {mine}") == 3 + 2 + 3
    with pytest.raises(WorkloadError, match="scale_from is v100: the tables have no row of it, expected some"):
        compute.ComputeTimes(H100, table, scale_from=compute.find_gpu("v100"))


# What memory bounds


def test_many_bytes_take_the_bandwidth_and_few_take_the_latencies():
    latencies = 2_850_000 + 330_000
    assert roofline("elementwise 1000000000x1x1 bf16") == pytest.approx(latencies + 4e21 / (2.039e12 * 0.87))
    assert roofline("optimizer 1000000000x28 fp32") == pytest.approx(latencies + 28e21 / (2.039e12 * 0.80))
    assert roofline("elementwise 1x1x1 bf16") == pytest.approx(latencies, rel=1e-3)
    assert roofline("routing 1x8x2 bf16") == pytest.approx(latencies + 3 * 2_850_000, rel=1e-3)
    assert roofline("copies 1000x1 bf16") == pytest.approx(1000 * latencies, rel=1e-3)
    assert roofline("copies 3x1000000000 bf16") == pytest.approx(3 * (latencies + 4e21 / (2.039e12 * 0.87)))


@pytest.mark.parametrize(("values", "published_ms"), [(100 << 20, 0.275), (1 << 30, 2.774), (4 << 30, 11.097)])
def test_kernels_that_load_values_one_by_one_take_as_long_as_published(values, published_ms):
    # torch's conversions from BF16 to FP32 in PaddlePaddle/Paddle#76988
    time_ps = roofline_ps(
        compute.Operator("unvectorised", (values, 1), "bf16"), compute.find_gpu("b200"), compute.Efficiencies()
    )
    assert time_ps / 1e9 == pytest.approx(published_ms, rel=0.03)


def test_passes_of_such_kernels_follow_each_other_and_memory_may_bound_them():
    one, two = (roofline(f"unvectorised 1000000000x{passes} bf16") for passes in (1, 2))
    assert two == pytest.approx(2 * one, rel=1e-4)
    gpu, efficiencies = compute.find_gpu("v100"), compute.Efficiencies()
    bounded_by_memory = [
        roofline_ps(compute.Operator(kind, shape, "fp32"), gpu, efficiencies)
        for kind, shape in (("unvectorised", (10**9, 1)), ("elementwise", (10**9, 1, 1)))
    ]
    assert bounded_by_memory[0] == pytest.approx(bounded_by_memory[1], rel=1e-9)


def test_fused_products_of_experts_have_tiles_of_256():
    def time_ps(n, k):
        return roofline_ps(
            compute.Operator("fused-expert-gemm", (2, 32768, n, k), "fp8"),
            compute.find_gpu("gb200"),
            compute.Efficiencies(),
        )

    # 2,880 columns take the twelve tiles of 3,072, and 2,880 bytes of a row the steps of 2,944
    assert time_ps(2880, 2880) == pytest.approx(time_ps(3072, 2944), rel=0.01)
    assert time_ps(2880, 2880) > 1.05 * time_ps(2816, 2816)


def test_few_rows_are_bounded_by_what_their_sms_have_under_way():
    of_one_row = 64 * 1024 / 330_000  # bytes a picosecond, Little's law
    assert roofline("norm 1x1000000 bf16") == pytest.approx(3_180_000 + 4_000_000 / of_one_row, rel=1e-9)
    assert roofline("norm 2x1000000 bf16") == pytest.approx(roofline("norm 1x1000000 bf16"), rel=1e-9)


STREAMING = sorted(set(KINDS) - {*PRODUCTS, LAUNCHES})


@bounded(100)
@given(st.sampled_from(STREAMING), st.sampled_from(compute.gpu_names()), st.data())
def test_what_memory_bounds_never_gets_shorter_with_size(kind, name, data):
    sizes = [data.draw(st.integers(1, 3000)) for _ in KINDS[kind].shape]
    axis = data.draw(st.integers(0, len(sizes) - 1))
    more = [size + (data.draw(st.integers(1, 3000)) if place == axis else 0) for place, size in enumerate(sizes)]
    gpu, operators = compute.find_gpu(name), [compute.Operator(kind, tuple(s), "fp16") for s in (sizes, more)]
    shorter, longer = (roofline_ps(operator, gpu, compute.Efficiencies()) for operator in operators)
    assert (shorter == 0) == (kind == "transpose" and gpu.any_layout)
    assert shorter <= longer * (1 + 1e-12)  # rounding


# GPUs


def test_every_gpu_of_the_library_has_its_sources_and_peaks_that_its_clock_gives():
    for name in nonempty(compute.gpu_names()):
        gpu = compute.find_gpu(name)
        assert gpu.name == name
        assert gpu.sources
        products = gpu.peak_flops.get("fp16") or gpu.peak_flops["bf16"]  # TPUs know no fp16
        fused = products / gpu.sms / gpu.clock_hz
        assert fused == pytest.approx(
            2 ** round(math.log2(fused)), rel=0.01
        )  # of tensor cores: 1024, 2048, ... a clock


def test_public_data_sheets():
    assert (A100.peak_of("bf16"), A100.memory_bandwidth_Bps) == (312e12, 2.039e12)
    assert H100.peak_of("bf16") == pytest.approx(989e12, rel=1e-3)
    assert (H100.memory_bandwidth_Bps, compute.find_gpu("H200").memory_bandwidth_Bps) == (3.35e12, 4.8e12)
    assert (compute.find_gpu("b200").peak_of("bf16"), compute.find_gpu("b200").memory_bandwidth_Bps) == (2250e12, 8e12)


MINE = """
name = "mine"
memory = "1GiB"
memory_bandwidth = "1TB/s"
l2 = "1MiB"
sms = 10
clock = "1GHz"
memory_latency = "300ns"
launch_overhead = "1us"
host_link = "10GB/s"
attention = "flash-attention-2"
[peak_flops]
fp16 = "10TFLOPS"
fp32 = "1TFLOPS"
"""


def test_a_gpu_of_ones_own(tmp_path):
    (tmp_path / "mine.toml").write_text(MINE, encoding="utf-8")
    gpu = compute.find_gpu(tmp_path / "mine.toml")
    assert (gpu.name, gpu.sms, gpu.memory_bytes, gpu.clock_hz, gpu.launch_overhead_ps) == (
        "mine",
        10,
        2**30,
        1e9,
        10**6,
    )
    whole_waves = "gemm 2560x1280x8192 fp16"
    assert roofline(whole_waves, gpu) == pytest.approx(op(whole_waves).flops / (10 * 0.87), rel=0.01)


def test_efficiencies_are_shares():
    with pytest.raises(WorkloadError, match=r"efficiency gemm is 0\.0; expected more than 0, at most 1\.5"):
        compute.Efficiencies(gemm=0.0)
    slow = compute.ComputeTimes(A100, efficiencies=compute.Efficiencies(gemm=0.44))
    big = op("gemm 27648x4096x65536 bf16")
    assert slow.time_ps(big) == pytest.approx(2 * compute.ComputeTimes(A100).time_ps(big), rel=0.01)


# AICB


AIOB = """train_iter:10
Emb:
    time_gpu_max: 9
    time_gpu_min: 7
    time_gpu_avg: 8
layernorm:
    time_gpu_avg: 60
layernorm2:
    time_gpu_avg: 61.0
mlp_linear_1:
    time_gpu_avg: 1.5e3
strange:
    time_gpu_avg: 3
"""


def test_times_of_aicb_get_the_shapes_of_their_model(tmp_path):
    (tmp_path / "aiob.txt").write_text(AIOB, encoding="utf-8")
    model = compute.AicbModel(
        hidden=1024, heads=8, vocab=51200, sequence=2048, micro_batch=2, tp=4, sequence_parallel=True
    )
    found, left_out = compute.read_aicb(tmp_path / "aiob.txt", "a100", model)
    assert [(str(row.operator), row.time_ps) for row in found] == [
        ("embedding 4096x1024 bf16", 8_000_000),
        ("norm 1024x1024 bf16", 60_500_000),
        ("gemm 4096x1024x1024 bf16", 1_500_000_000),
    ]
    assert left_out == ["strange"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: expected train_iter:N"),
        ("train_iter:1\nEmb:\n    time: 3\n", "line 3: 'time: 3'; expected a name or its time_gpu_avg"),
    ],
)
def test_other_texts_are_none_of_aicb(tmp_path, text, said):
    (tmp_path / "aiob.txt").write_text(text, encoding="utf-8")
    with pytest.raises(WorkloadError, match=said):
        compute.read_aicb(tmp_path / "aiob.txt", "a100", compute.AicbModel(64, 8, 64, 64))


def test_a_model_that_cannot_be_shared_out_is_refused():
    with pytest.raises(WorkloadError, match=r"heads is 6; expected a multiple of tp \(4\)"):
        compute.AicbModel(hidden=96, heads=6, vocab=64, sequence=64, tp=4)
