"""NVIDIA's measured kernel times: a package made for the test, with the columns that aiconfigurator-core has."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nadi.workload.compute import ComputeTimes, Efficiencies, find_gpu, nvidia, parse_operators
from nadi.workload.compute.times import roofline_ps, rooflines_ps

H100 = find_gpu("h100")


def op(text):
    return parse_operators(text)[0]


@pytest.fixture
def package(tmp_path, monkeypatch):
    monkeypatch.setattr(nvidia, "folder", lambda: tmp_path)

    def write(operator_class, framework, version, file, system="h100_sxm", **columns):
        folder = tmp_path / system / operator_class / framework / version
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), folder / f"{file}.parquet")

    return write


def gemm(package, framework, version, dtype, latency):
    rows = {"gemm_dtype": [dtype] * 2, "m": [1024, 4096], "n": [4096] * 2, "k": [8192] * 2, "latency": latency}
    package("gemm", framework, version, "gemm_perf", **rows)


def test_without_the_package_times_are_those_of_the_roofline(monkeypatch):
    monkeypatch.setattr(nvidia, "folder", lambda: None)
    assert ComputeTimes(H100).find(op("gemm 1024x4096x8192 bf16")).how == "roofline"


def test_the_fastest_framework_counts_in_its_newest_version(package):
    gemm(package, "vllm", "0.9.0", "bfloat16", [0.001, 0.001])
    gemm(package, "vllm", "0.24.0", "bfloat16", [0.2, 0.4])
    gemm(package, "trtllm", "1.3.0rc20", "bfloat16", [0.1, 0.5])
    gemm(package, "trtllm", "1.3.0rc9", "bfloat16", [0.001, 0.001])
    times = ComputeTimes(H100)
    assert times.find(op("gemm 1024x4096x8192 bf16")) == (100_000_000, "measured")
    assert times.find(op("gemm 4096x4096x8192 bf16")) == (400_000_000, "measured")
    assert times.find(op("gemm 2048x4096x8192 bf16")).how == "interpolated"
    assert times.find(op("gemm 8192x4096x8192 bf16")).how == "roofline"
    assert Counter(times.sources().values()) == {"measured": 2, "interpolated": 1, "roofline": 1}


def test_a_gpu_without_tables_and_vendor_tables_off(package):
    gemm(package, "vllm", "0.24.0", "bfloat16", [0.2, 0.4])
    assert ComputeTimes(find_gpu("b200")).find(op("gemm 1024x4096x8192 bf16")).how == "roofline"
    assert ComputeTimes(H100, vendor_tables=False).find(op("gemm 1024x4096x8192 bf16")).how == "roofline"


def test_products_in_fp8_leave_out_the_quantisation_of_their_operand(package):
    gemm(package, "trtllm", "1.3.0rc20", "fp8", [0.1, 0.3])
    gemm(package, "vllm", "0.24.0", "fp8", [0.01, 0.01])
    for file, time_ms in (("computescale_perf", 0.02), ("scale_matrix_perf", 0.01)):
        columns = {"quant_dtype": ["fp8"], "m": [1024], "k": [8192], "latency": [time_ms]}
        package("quantize", "trtllm", "1.3.0rc20", file, **columns)
    times = ComputeTimes(H100)  # the scales' product takes 1.4 us more
    assert times.time_ps(op("gemm 1024x4096x8192 fp8")) == pytest.approx(68_600_000)
    columns = {"quant_dtype": ["fp8"], "m": [1024], "k": [8192], "latency": [0.05]}
    package("quantize", "trtllm", "1.3.0rc20", "scale_matrix_perf", **columns)
    nvidia._read.cache_clear()
    found = ComputeTimes(H100).find(op("gemm 1024x4096x8192 fp8"))
    assert found.how == "roofline"  # less than a third of the row is the product


def test_attention_of_prompts_and_of_single_tokens(package):
    columns = {
        "batch_size": [2, 2, 2],
        "num_heads": [32] * 3,
        "num_key_value_heads": [8, 8, 0],
        "isl": [1024, 1024, 1024],
        "step": [0, 0, 0],
        "head_dim": [128] * 3,
        "window_size": [0, 128, 0],
        "kernel_source": ["fa3"] * 3,
        "attn_dtype": ["bfloat16"] * 3,
        "kv_cache_dtype": ["bfloat16"] * 3,
        "latency": [0.1, 0.05, 0.3],
    }
    package("attention", "vllm", "0.24.0", "context_attention_perf", **columns)
    columns |= {"isl": [1, 1, 1], "step": [1023, 1023, 1023]}
    package("attention", "vllm", "0.24.0", "generation_attention_perf", **columns)
    times = ComputeTimes(H100)
    for text, values, row_ps in (
        ("attention 2x32x8x1024x1024x128x128x1 bf16", 2 * 1024 * 8 * 256, 100_000_000),
        ("attention 2x32x32x1024x1024x128x128x1 bf16", 2 * 1024 * 32 * 256, 300_000_000),
        ("attention 2x32x8x1x1024x128x128x1 bf16", 2 * 8 * 256, 100_000_000),
    ):
        others = (op(f"elementwise {values}x1x1 bf16"), op("elementwise 1x1x1 bf16"))  # cache and schedule
        alone_ps, *others_ps = (roofline_ps(each, H100, Efficiencies()) for each in (op(text), *others))
        assert times.time_ps(op(text)) == pytest.approx(row_ps * alone_ps / (alone_ps + sum(others_ps)), rel=1e-6)


def test_attention_that_one_of_two_frameworks_measured_or_triton_does_not_count(package):
    columns = {
        "batch_size": [2, 4],
        "num_heads": [32, 32],
        "num_key_value_heads": [8, 8],
        "isl": [1024, 1024],
        "step": [0, 0],
        "head_dim": [128, 128],
        "kernel_source": ["fa3", "fa3"],
        "attn_dtype": ["bfloat16"] * 2,
        "kv_cache_dtype": ["bfloat16"] * 2,
        "latency": [0.1, 0.2],
    }
    package("attention", "vllm", "0.24.0", "context_attention_perf", **columns)
    columns |= {"kernel_source": ["fa3", "triton"]}
    package("attention", "sglang", "0.5.14", "context_attention_perf", **columns)
    times = ComputeTimes(H100)
    assert times.find(op("attention 2x32x8x1024x1024x128x128x1 bf16")).how == "measured"
    assert times.find(op("attention 4x32x8x1024x1024x128x128x1 bf16")).how == "roofline"


def test_a_table_that_reads_faster_than_memory_does_not_count(package):
    """TensorRT-LLM's decoding on A100; on other GPUs it counts."""
    columns = {"batch_size": [8], "num_heads": [32], "num_key_value_heads": [8], "isl": [1], "step": [1023]}
    columns |= {"head_dim": [128], "kernel_source": ["x"], "attn_dtype": ["bfloat16"], "kv_cache_dtype": ["bfloat16"]}
    for system in ("a100_sxm", "h100_sxm"):
        for framework, time_ms in (("trtllm", 0.01), ("vllm", 0.2), ("sglang", 0.4)):
            package("attention", framework, "1.0.0", "generation_attention_perf", system, latency=[time_ms], **columns)
    decoding = op("attention 8x32x8x1x1024x128x128x1 bf16")
    times = {name: ComputeTimes(find_gpu(name)).time_ps(decoding) for name in ("a100", "h100")}
    assert times["a100"] > 1.5e8
    assert times["h100"] < 1e7


def test_both_products_of_experts_share_the_time_of_their_layer(package):
    columns = {
        "kernel_source": ["cutlass", "cutlass_nongated", "cutlass", "cutlass"],
        "moe_dtype": ["bfloat16"] * 4,
        "distribution": ["balanced"] * 4,
        "num_tokens": [4096] * 4,
        "hidden_size": [4096] * 4,
        "inter_size": [14336] * 4,
        "topk": [2, 2, 2, 22],
        "num_experts": [8] * 4,
        "moe_tp_size": [2] * 4,
        "moe_ep_size": [1, 1, 4, 1],
        "latency": [4.0, 0.1, 0.1, 0.1],
    }
    package("moe", "trtllm", "1.3.0rc20", "moe_perf", **columns)
    texts = ("grouped-gemm 8x8192x14336x4096 bf16", "grouped-gemm 8x8192x4096x7168 bf16")
    others = ("routing 4096x8x2 bf16", "elementwise 58720256x2x1 bf16", "permute 8192x4096 bf16")
    alone_ps = [roofline_ps(op(text), H100, Efficiencies()) for text in texts + others]
    times = ComputeTimes(H100)
    for text, time_ps in zip(texts, alone_ps, strict=False):
        assert times.time_ps(op(text)) == pytest.approx(4e9 * time_ps / sum(alone_ps), rel=1e-6)


def test_a_damaged_table_is_refused_in_one_line(package, tmp_path):
    gemm(package, "vllm", "0.24.0", "bfloat16", [0.2, 0.4])
    (tmp_path / "h100_sxm/gemm/vllm/0.24.0/gemm_perf.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"gemm_perf\.parquet") as caught:
        ComputeTimes(H100).time_ps(op("gemm 1024x4096x8192 bf16"))
    assert "\n" not in str(caught.value)


def test_products_in_fp4_leave_out_the_quantisation_of_their_operand(package):
    b200 = find_gpu("b200")
    rows = {"gemm_dtype": ["nvfp4"], "m": [4096], "n": [4096], "k": [8192], "latency": [0.1]}
    package("gemm", "vllm", "0.24.0", "gemm_perf", system="b200_sxm", **rows)
    cast_ps = roofline_ps(op(f"quantise {4096 * 8192}x1x1x0 fp4"), b200, Efficiencies())
    assert 10e6 < cast_ps < 20e6  # 2.5625 bytes a value
    assert ComputeTimes(b200).time_ps(op("gemm 4096x4096x8192 fp4")) == pytest.approx(100e6 - cast_ps, abs=1)


@pytest.mark.skipif(not nvidia.installed(), reason="needs aiconfigurator-core")
@pytest.mark.parametrize("name", ["h100", "b200", "gb200", "b300", "gb300"])
@pytest.mark.parametrize("dtype", ["bf16", "fp8", "fp4"])
def test_what_is_left_in_a_row_is_what_long_products_keep(name, dtype):
    """TensorRT-LLM's products of 1e13 operations and more, whose operands are random (docs/explanation/compute.md)."""
    gpu = find_gpu(name)
    if (dtype == "fp4" and name in {"h100", "b300", "gb300"}) or (name, dtype) == ("h100", "fp8"):
        pytest.skip("has no such products, or a share from elsewhere, as its file says")

    def alone_ps(operators):
        return rooflines_ps(operators, gpu, Efficiencies())

    root, table_dtype = nvidia.folder() / gpu.nvidia_tables, {"bf16": "bfloat16", "fp4": "nvfp4"}.get(dtype, dtype)
    rows = nvidia._gemm(root, dtype, table_dtype, alone_ps)
    kept = [
        (operator, time_ps)
        for framework, operator, time_ps in rows
        if framework == "trtllm" and operator.flops >= 1e13 and min(operator.shape) >= 4096
    ]
    shares = alone_ps([operator for operator, _ in kept]) / np.array([time_ps for _, time_ps in kept])
    assert len(kept) == 76
    assert gpu.in_a_row[dtype] == pytest.approx(np.exp(np.log(shares).mean()), abs=0.01)


@pytest.mark.skipif(not nvidia.installed(), reason="needs aiconfigurator-core")
def test_the_installed_package_has_the_gpus_that_name_a_system():
    times = ComputeTimes(H100)
    assert times.find(op("gemm 4096x4096x4096 bf16")).how == "measured"
    assert times.find(op("attention 2x32x8x2048x2048x128x128x1 bf16")).how == "measured"


def test_a_run_names_the_sources_of_its_operator_times(package, monkeypatch):
    monkeypatch.setattr(nvidia, "installed", lambda: "aiconfigurator-core 0.12.0")
    gemm(package, "vllm", "0.24.0", "bfloat16", [0.2, 0.4])
    times = ComputeTimes(H100)
    times.text_ps("gemm 1024x4096x8192 bf16; norm 1024x4096 bf16")
    assert times.sources() == {op("gemm 1024x4096x8192 bf16"): "measured", op("norm 1024x4096 bf16"): "roofline"}
    assert times.vendor_tables == "aiconfigurator-core 0.12.0"
    assert ComputeTimes(H100, vendor_tables=False).vendor_tables == ""
