"""NVIDIA's measured kernel times: the tables of the package `aiconfigurator-core` (PyPI, Apache-2.0, NVIDIA).

The package has tables of matrix products, fused attention, latent attention and mixture-of-experts layers for some
systems (`systems/data/SYSTEM/CLASS/FRAMEWORK/VERSION/*.parquet`), measured with TensorRT-LLM, vLLM and SGLang. A GPU
file names its system (`nvidia_tables`). Of each framework the newest version counts, and of each shape the fastest
framework: all of them run kernels of the same vendor libraries, and the slower ones add work of their own. Attention
and experts count only if two frameworks measured the shape (or just one framework has any): single ones are often the
fallback of a framework without a kernel for it, up to 20 times slower. Kernels of attention in Triton do not count, nor
does a table whose rows would read faster than the memory's peak (`_IMPOSSIBLE`).

How rows become operators:

- gemm: m, n, k. FP8 rows include the quantisation of the left operand from BF16 (a maximum, then the scaled copy),
  which TensorRT-LLM's tables also have alone (`quantize`), and a small kernel that multiplies the scales; the product
  is the difference, so only TensorRT-LLM counts. Rows in which the product takes less than a third do not count: both
  measurements are uncertain by 3 %, so their difference by more than 10 %. FP4 rows include a quantisation, too, which
  no table has alone: it has the roofline's time.
- context and generation attention (causal, no window): queries = `isl`, keys = `isl` + `step`. The collector captures
  one call of a framework's attention in a CUDA graph, which begins with a kernel that stores keys and values in the
  cache and one that schedules blocks. Attention has the share of the time that its roofline has of all.
- generation MLA: latent attention with rank 512 and 64 rotary dimensions (DeepSeek-V2, arXiv 2405.04434, section 2.1),
  after a kernel that stores keys; context MLA: attention with heads of 192 (keys) and 128 (values).
- mixture of experts: a row has the time of a whole layer with balanced routing. Its two grouped products share it in
  proportion to their rooflines; the sorting of rows by expert (as routing), the activation between the products and
  the sum over experts (as a permutation) have the roofline's time. Rows of expert parallelism do not count: they do not
  contain which share of the tokens a GPU gets. Nor do those of Nemotron 3, whose layers have no gate.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from importlib import metadata, util
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nadi.inputs.arrays import numpy_column
from nadi.inputs.units import PS_PER_S
from nadi.workload.compute.measured_times import MeasuredTimes, Row
from nadi.workload.compute.operators import Operator
from nadi.workload.errors import WorkloadError

PACKAGE = "aiconfigurator-core"
INSTALL = "pip install 'aiconfigurator-core<0.13'"  # as the extra "measured" of pyproject.toml
_MODULE = "aiconfigurator_core"
Rooflines = Callable[[Sequence[Operator]], NDArray[np.float64]]
"""Function from operators of one kind and data type to their times in ps by the roofline."""
Measured = tuple[str, Operator, float]  # A framework, an operator and its measured time in ps
Columns = dict[str, NDArray[np.generic]]  # Columns of a table by name
_PS_PER_MS = PS_PER_S // 1000
_DTYPES = {"bf16": "bfloat16", "fp16": "bfloat16", "fp8": "fp8", "fp4": "nvfp4", "int8": "int8"}
"""Data types of the tables by ours; products of fp16 run as fast as those of bf16."""
_WITH_QUANTISATION = "trtllm"  # Framework whose FP8 rows are the sum of its quantisation and cuBLAS's product
_HOPPER = ("h100", "h200")  # Beginnings of the names of Hopper's systems
_HOPPER_SCALES_MS, _SCALES_MS = 0.0014, 0.0022
"""Time in ms of the product of the scales in FP8 rows of Hopper and of later GPUs; fitted to half of the rows of H100
and of B200 (kernel-tables), as our own measurement of an H100 (tables/h100.csv) has products without it."""
_MIN_PRODUCT = 1 / 3  # Minimum share of the product in an FP8 row
_UNGATED_TOP_K, _UNGATED_HIDDEN = 22, 2688
"""Experts per token of Nemotron 3 Super and Ultra, and hidden size of Nano, whose layers have no gate (`relu2` in their
config.json): B200 would read the matrices of a gated Nano faster than its memory's peak."""
_MAX_HEAD_DIM = 256  # Largest head of FlashAttention
_IMPOSSIBLE = {("a100_sxm", "trtllm", "generation_attention_perf")}
"""Tables that do not count, by system, framework and file: TensorRT-LLM 1.0's decoding on A100 would read up to 1.69
times as fast as the memory's peak (27 % of its rows of more than twice the L2 cache), so it reads less than it says."""
_KEY_DIM, _VALUE_DIM = 192, 128  # of DeepSeek's attention before compression
_RANK, _ROPE_DIM = 512, 64  # of DeepSeek's latent attention


def installed() -> str:
    """Return the name and version of the installed package, "" = not installed."""
    try:
        return f"{PACKAGE} {metadata.version(PACKAGE)}"
    except metadata.PackageNotFoundError:
        return ""


def folder() -> Path | None:
    """Return the folder of the systems of NVIDIA's package aiconfigurator, None = it is not installed."""
    found = util.find_spec(_MODULE)
    if found is None or not found.submodule_search_locations:
        return None
    return Path(found.submodule_search_locations[0]) / "systems" / "data"


def has_tables(system: str) -> bool:
    """Return whether the installed package has tables of a system.

    Args:
        system: The name of a GPU system, such as h100_sxm; "" = none.
    """
    root = folder()
    return bool(root and system and (root / system).is_dir())


def nvidia_times(system: str, rooflines_ps: Rooflines) -> MeasuredTimes | None:
    """Return NVIDIA's measured times of a system; None = the package has no tables of it, or is not installed.

    Args:
        system: The name of a GPU system, such as h100_sxm; "" = none.
        rooflines_ps: A function from operators of one kind and data type to their times in ps by the roofline.
    """
    root = folder()
    if root is None or not has_tables(system):
        return None
    return MeasuredTimes(
        {},
        lambda kind, dtype: rows_of(root / system, kind, dtype, rooflines_ps),
        lambda operator: share_of(operator, rooflines_ps),
    )


def rows_of(system_folder: Path, kind: str, dtype: str, rooflines_ps: Rooflines) -> Iterable[Row]:
    """Return the measured operators of a kind and data type; of several times of one operator, the fastest counts.

    Args:
        system_folder: The folder of the GPU system's tables in the package.
        kind: The kind of operators, a key of operators.KINDS.
        dtype: The data type, a key of operators.DTYPE_BYTES.
        rooflines_ps: A function from operators of one kind and data type to their times in ps by the roofline.
    """
    table_dtype = _DTYPES.get(dtype)
    reader = _READERS.get(kind)
    if table_dtype is None or reader is None:
        return ()
    times_ps: dict[Operator, dict[str, float]] = defaultdict(dict)  # by operator and framework
    for framework, operator, time_ps in reader(system_folder, dtype, table_dtype, rooflines_ps):
        if operator.kind == kind:
            times_ps[operator][framework] = min(times_ps[operator].get(framework, np.inf), time_ps)
    frameworks = {framework for times in times_ps.values() for framework in times}
    # A shape that one framework alone has measured is often its fallback without a kernel (module docstring)
    least = 1 if kind == "gemm" else min(len(frameworks), 2)
    return [(operator, min(times.values())) for operator, times in times_ps.items() if len(times) >= least]


def _gemm(system: Path, dtype: str, table_dtype: str, rooflines_ps: Rooflines) -> Iterator[Measured]:
    """Yield products and their ps from a system's tables; dtype: Nadi's data type, table_dtype: that of the tables."""
    # rooflines_ps: times the quantisation to FP4.
    quantisation_ms = _quantisation_ms(system) if dtype == "fp8" else {}
    scales_ms = _HOPPER_SCALES_MS if system.name.startswith(_HOPPER) else _SCALES_MS
    for framework, table in _tables(system, "gemm", "gemm_perf"):
        if dtype == "fp8" and quantisation_ms and framework != _WITH_QUANTISATION:
            continue
        chosen = table["gemm_dtype"] == table_dtype
        if dtype == "fp4":
            operands = sorted({(m, k) for m, k in _columns(table, chosen, "m", "k")})
            casts_ps = rooflines_ps([Operator("quantise", (m * k, 1, 1, 0), dtype) for m, k in operands])
            quantisation_ms = dict(zip(operands, (casts_ps / _PS_PER_MS).tolist(), strict=True))
        for m, n, k, time_ms in _columns(table, chosen, "m", "n", "k", "latency"):
            other_ms = quantisation_ms.get((m, k), 0.0)
            product_ms = time_ms - other_ms - (scales_ms if other_ms and dtype == "fp8" else 0.0)
            if product_ms >= _MIN_PRODUCT * time_ms:
                yield framework, Operator("gemm", (m, n, k), dtype), product_ms * _PS_PER_MS


def _quantisation_ms(system: Path) -> dict[tuple[int, int], float]:
    """Return the time in ms to quantise an m x k operand to FP8, by (m, k); empty if no table has it."""
    total_ms: dict[tuple[int, int], float] = defaultdict(float)
    for file in ("computescale_perf", "scale_matrix_perf"):
        for framework, table in _tables(system, "quantize", file):
            if framework == _WITH_QUANTISATION:
                for m, k, time_ms in _columns(table, table["quant_dtype"] == "fp8", "m", "k", "latency"):
                    total_ms[m, k] += time_ms
    return total_ms


def _attention(system: Path, dtype: str, table_dtype: str, _rooflines_ps: Rooflines) -> Iterator[Measured]:
    """Yield attentions and their ps from a system's tables; dtype: Nadi's data type, table_dtype: the tables'."""
    names = ("batch_size", "num_heads", "num_key_value_heads", "isl", "step", "head_dim", "latency")
    for file in ("context_attention_perf", "generation_attention_perf"):
        for framework, table in _tables(system, "attention", file):
            if (system.name, framework, file) in _IMPOSSIBLE:
                continue
            chosen = (table["attn_dtype"] == table_dtype) & (table["kv_cache_dtype"] == table_dtype)
            chosen &= (table["kernel_source"] != "triton") & ((table["isl"] != 1) | (table["step"] != 0))
            chosen &= table["head_dim"].astype(np.int64) <= _MAX_HEAD_DIM
            if "window_size" in table:
                chosen &= table["window_size"] == 0
            for batch, heads, kv_heads, queries, step, head_dim, time_ms in _columns(table, chosen, *names):
                shape = (batch, heads, kv_heads or heads, queries, queries + step, head_dim, head_dim, 1)
                yield framework, Operator("attention", shape, dtype), time_ms * _PS_PER_MS
    for framework, batch, heads, queries, step, context_ms in _mla(system, "context_mla_perf", table_dtype):
        if queries == 1 and step == 0:
            continue
        shape = (batch, heads, heads, queries, queries + step, _KEY_DIM, _VALUE_DIM, 1)
        yield framework, Operator("attention", shape, dtype), context_ms * _PS_PER_MS


def share_of(operator: Operator, rooflines_ps: Rooflines) -> float:
    """Return an operator's share of its row's time: all but storing keys and values, and scheduling.

    Args:
        operator: The operator: its kind, shape and data type.
        rooflines_ps: A function from operators of one kind and data type to their times in ps by the roofline.
    """
    if operator.kind == "attention":
        batch, _, kv_heads, queries, _, head_dim, value_dim, _ = operator.shape
        copied = [batch * queries * kv_heads * (head_dim + value_dim), 1]
    elif operator.kind == "latent-attention":
        batch, _, queries, _, rank, rope_dim = operator.shape
        copied = [batch * queries * (rank + rope_dim)]
    else:
        return 1.0
    others = [Operator("elementwise", (values, 1, 1), operator.dtype) for values in copied]
    alone_ps = float(rooflines_ps([operator])[0])
    return alone_ps / (alone_ps + float(rooflines_ps(others).sum()))


def _latent_attention(system: Path, dtype: str, table_dtype: str, _rooflines_ps: Rooflines) -> Iterator[Measured]:
    """Yield latent attentions and their ps from a system's tables; dtype: Nadi's data type, table_dtype: theirs."""
    for framework, batch, heads, queries, step, time_ms in _mla(system, "generation_mla_perf", table_dtype):
        shape = (batch, heads, queries, queries + step, _RANK, _ROPE_DIM)
        yield framework, Operator("latent-attention", shape, dtype), time_ms * _PS_PER_MS


def _mla(system: Path, file: str, table_dtype: str) -> Iterator[tuple[str, int, int, int, int, float]]:
    """Yield framework, batch, heads, queries, keys before them and ms of a table (file) of latent attention."""
    for framework, table in _tables(system, "mla", file):
        chosen = (table["mla_dtype"] == table_dtype) & (table["kv_cache_dtype"] == table_dtype)
        for row in _columns(table, chosen, "batch_size", "num_heads", "isl", "step", "latency"):
            yield framework, *row  # type: ignore[misc]


def _experts(system: Path, dtype: str, table_dtype: str, rooflines_ps: Rooflines) -> Iterator[Measured]:
    """Yield the two grouped products of each layer with balanced routing and all experts on one GPU, and their ps."""
    # dtype: Nadi's data type; table_dtype: that of the tables; rooflines_ps: divides a layer's time between its
    # products.
    names = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "latency")
    layers: list[
        tuple[str, int, int, int, int, int, float]
    ] = []  # framework, tokens, experts, top k, width, hidden, ps
    for framework, table in _tables(system, "moe", "moe_perf"):
        chosen = (table["moe_dtype"] == table_dtype) & (table["distribution"] == "balanced")
        chosen &= ~np.char.endswith(table["kernel_source"].astype(str), "nongated") & (table["moe_ep_size"] == 1)
        for tokens, hidden, inner, top_k, experts, tp, time_ms in _columns(table, chosen, *names):
            if inner >= tp and top_k != _UNGATED_TOP_K and hidden != _UNGATED_HIDDEN:
                layers.append((framework, tokens, experts, top_k, inner // tp, hidden, time_ms * _PS_PER_MS))
    if not layers:
        return

    def products(shape: Callable[[int, int], tuple[int, int]]) -> list[Operator]:
        """Return the product of each layer with the n and k that `shape` makes of its width and hidden size."""
        return [
            Operator("grouped-gemm", (experts, tokens * top_k, *shape(width, hidden)), dtype)
            for _, tokens, experts, top_k, width, hidden, _ in layers
        ]

    both = products(lambda width, hidden: (2 * width, hidden)), products(lambda width, hidden: (hidden, width))
    sorts = [Operator("routing", (tokens, experts, top_k), "bf16") for _, tokens, experts, top_k, _, _, _ in layers]
    acts = [Operator("elementwise", (tokens * k * width, 2, 1), "bf16") for _, tokens, _, k, width, _, _ in layers]
    sums = [Operator("permute", (tokens * k, hidden), "bf16") for _, tokens, _, k, _, hidden, _ in layers]
    alone_ps = [rooflines_ps(operators) for operators in both]
    layer_ps = sum(alone_ps) + rooflines_ps(sorts) + rooflines_ps(acts) + rooflines_ps(sums)
    shares = np.array([layer[-1] for layer in layers]) / layer_ps
    for operators, times_ps in zip(both, alone_ps, strict=True):
        for layer, operator, time_ps in zip(layers, operators, (shares * times_ps).tolist(), strict=True):
            yield layer[0], operator, time_ps


_READERS: dict[str, Callable[[Path, str, str, Rooflines], Iterator[Measured]]] = {
    "gemm": _gemm,
    "attention": _attention,
    "latent-attention": _latent_attention,
    "grouped-gemm": _experts,
}
"""Reader of the tables by kind of operator."""


def _tables(system: Path, operator_class: str, file: str) -> Iterator[tuple[str, Columns]]:
    """Yield each framework that has a class's table (file), with the table's columns in its newest version."""
    from packaging.version import Version  # noqa: PLC0415 - installed with the package that has the tables

    for framework in sorted((system / operator_class).glob("*")):
        versions = sorted(framework.glob(f"*/{file}.parquet"), key=lambda path: Version(path.parent.name))
        if versions:
            yield framework.name, _read(versions[-1])


@lru_cache(maxsize=4)
def _read(path: Path) -> Columns:
    """Return the columns of a table; names of data types as NumPy strings."""
    # Raises WorkloadError: the file is no table.
    import pyarrow.parquet as pq  # noqa: PLC0415 - half a second, only if NVIDIA's tables are used

    try:
        table = pq.ParquetFile(path).read()
    except (OSError, ValueError) as error:
        raise WorkloadError(f"{path}: {str(error).splitlines()[0]}; expected a table of {PACKAGE}") from None
    return {name: numpy_column(table[name]) for name in table.column_names}


def _columns(table: Columns, chosen: NDArray[np.generic], *names: str) -> Iterator[tuple[int, ...]]:
    """Yield the entries of the named columns of each chosen row."""
    return zip(*(table[name][chosen].tolist() for name in names), strict=True)
