"""Measure the operators of language models on this machine's GPU and write a table that Nadi reads.

    python3 scripts/profile_gpu.py -o h100.csv            # a GPU, about five minutes
    python3 scripts/profile_gpu.py -o cpu.csv --device cpu --tiny

The script only needs PyTorch and imports no module of this project, so it can be copied to a bare machine. Each row is
the median of several launches after a warm-up; CUDA events time each launch around as many calls as take a millisecond
or more. Without --flush, L2 is not flushed between launches, because in a model, too, an operator finds the output of
the previous operator in L2 as far as it fits. The table is rewritten after each family, so that an interrupted run
keeps its rows. Operators that a build of PyTorch lacks (fp8, grouped products) are skipped and listed.

Columns: gpu, operator, shape, dtype, time_ps, source, date; and for information: least_ps, most_ps (over the launches),
tflops, gbps. workload/compute/operators.py defines kinds and shapes of operators.
"""

import argparse
import csv
import datetime as dt
import functools
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as nnf

NAMES = ("V100", "A100", "H100", "H200", "H800", "B200")  # GPUs of Nadi, as parts of their devices' names
COLUMNS = ("gpu", "operator", "shape", "dtype", "time_ps", "source", "date", "least_ps", "most_ps", "tflops", "gbps")
LAUNCHES = 7  # number of timed launches per operator
TARGET_S = 0.004  # minimum duration of one launch of several calls in seconds
MAX_CALLS = 400  # maximum number of calls per launch
WARM_S = 0.02  # duration of the warm-up in seconds
SMALL_S = 30e-6  # operators below this many seconds run in a CUDA graph, because the host takes about 10 us per launch
CALLS_PER_GRAPH = 100
MIN_HOST_RATIO = 1.1
"""Minimum device time over host time; below, the device waits for the host and the operator runs in a CUDA graph."""
MAX_RESERVED_BYTES = 40 << 30  # reserved memory in bytes above which PyTorch's cache is emptied
FLUSH_BYTES = 256 << 20  # bytes that --flush writes to evict L2; several times its size


class Case(NamedTuple):
    """One operator to measure."""

    kind: str  # kind of the operator
    shape: tuple[int, ...]  # shape of the operator
    dtype: str  # data type of the operator
    make: Callable[[], Callable[[], Any]]  # function that creates the tensors and returns the call to time
    flops: float = 0.0  # floating-point operations of one call, for the column
    moved_bytes: float = 0.0  # memory traffic of one call in bytes, for the column
    # name and factory of the contexts in which the operator is created and called; the fastest counts, and its name is
    # part of `source`
    contexts: tuple[tuple[str, Callable[[], AbstractContextManager[Any]]], ...] = (("", nullcontext),)


class HostBoundError(RuntimeError):
    """The device waited for the host, so the time is not the operator's."""


class Bench:
    """The device, the timing of operators, and the table."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Query the device that the command's options name, and prepare the table."""
        self.device = torch.device(options.device)
        self.tiny = options.tiny
        self.cuda = self.device.type == "cuda"
        self.out = Path(options.out)
        self.deadline = time.monotonic() + options.seconds
        self.rows: list[dict[str, object]] = []
        self.skipped: list[str] = []
        self.stream = torch.cuda.Stream(self.device) if self.cuda else None
        self.flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device=self.device) if options.flush else None
        self.name = torch.cuda.get_device_name(self.device) if self.cuda else platform.processor() or "cpu"
        short = next((name.lower() for name in NAMES if name in self.name), "gpu" if self.cuda else "cpu")
        self.gpu = options.gpu or short
        self.date = dt.datetime.now(tz=dt.UTC).date().isoformat()
        self.about = self._about(options)

    def _about(self, options: argparse.Namespace) -> dict[str, str]:
        """Return the comments at the top of the table by name: device, software and method."""
        cudnn = torch.backends.cudnn.version() if self.cuda else None
        return {
            "device": self.name,
            "driver": _driver() if self.cuda else "-",
            "pytorch": f"{torch.__version__} (CUDA {torch.version.cuda}, cuDNN {cudnn})",
            "date": self.date,
            "how": f"median of {LAUNCHES} launches, CUDA events" if self.cuda else f"median of {LAUNCHES}, host clock",
            "L2": "flushed before each call" if options.flush else "not flushed",
        }

    def tensor(self, *shape: int, grad: bool = False) -> torch.Tensor:
        """Return normally distributed bf16 values, as in a model: zeros would draw less power and run faster.

        Args:
            shape: The sizes of the dimensions.
            grad: Whether gradients are computed for the values.
        """
        drawn = torch.float32 if math.prod(shape) < 1 << 28 else torch.bfloat16
        return torch.randn(shape, dtype=drawn, device=self.device).to(torch.bfloat16).requires_grad_(grad)

    def integers(self, limit: int, *shape: int) -> torch.Tensor:
        """Return random whole numbers below `limit`.

        Args:
            limit: The number below which all values are.
            shape: The sizes of the dimensions.
        """
        return torch.randint(limit, shape, device=self.device)

    def run(self, family_name: str, cases: Iterator[Case]) -> None:
        """Measure the operators of a family until time is up, and rewrite the table.

        Args:
            family_name: The name of the family of operators.
            cases: The operators to measure, with their shapes.
        """
        start_s = time.monotonic()
        count = len(self.rows)
        for case in cases:
            if time.monotonic() > self.deadline:
                self.skipped.append(f"{family_name}: out of time")
                break
            with torch.cuda.stream(self.stream) if self.stream else nullcontext():
                self._measure(case)
        self.write()
        print(f"{family_name}: {len(self.rows) - count} rows, {time.monotonic() - start_s:.1f} s", flush=True)

    def _measure(self, case: Case) -> None:
        """Measure one operator in each of its contexts (attention backends), and add the fastest to the table."""
        best: tuple[float, list[float], str] | None = None
        errors = []
        for label, context in case.contexts:
            try:
                with context():
                    times = self._times(case.make())
            except (RuntimeError, NotImplementedError, AttributeError, TypeError, ValueError) as error:
                first = (str(error).strip() or repr(error)).splitlines()[0]
                errors.append(f"{label or type(error).__name__}: {first[:120]}")
                continue
            finally:
                if self.cuda and torch.cuda.memory_reserved() > MAX_RESERVED_BYTES:
                    torch.cuda.empty_cache()
            if best is None or statistics.median(times) < best[0]:
                best = statistics.median(times), times, label
        if best is None:
            name = f"{case.kind} {'x'.join(map(str, case.shape))} {case.dtype}"
            self.skipped.append(f"{name}: {'; '.join(errors)}")
        else:
            self._add(case, *best)

    def _add(self, case: Case, seconds: float, launch_times_s: list[float], context_name: str) -> None:
        """Add a row to the table: the time of one operator in seconds, and those of its launches."""
        self.rows.append(
            {
                "gpu": self.gpu,
                "operator": case.kind,
                "shape": "x".join(map(str, case.shape)),
                "dtype": case.dtype,
                "time_ps": max(round(seconds * 1e12), 1),
                "source": "scripts/profile_gpu.py" + (f" {context_name}" if context_name else ""),
                "date": self.date,
                "least_ps": round(min(launch_times_s) * 1e12),
                "most_ps": round(max(launch_times_s) * 1e12),
                "tflops": f"{case.flops / seconds / 1e12:.4g}",
                "gbps": f"{case.moved_bytes / seconds / 1e9:.4g}",
            }
        )

    def _times(self, call: Callable[[], Any]) -> list[float]:
        """Return the time of one call of a function in seconds for each of LAUNCHES launches."""
        call()
        self._wait()
        start_s = time.perf_counter()
        call()
        self._wait()
        call_s = max(time.perf_counter() - start_s, 1e-7)
        if not self.cuda:
            return [self._on_host(call, max(1, min(10, int(0.001 / call_s)))) for _ in range(LAUNCHES)]
        for _ in range(min(MAX_CALLS, int(WARM_S / call_s))):
            call()
        if self.flush is not None:
            return [self._on_device(call, 1)[0] for _ in range(LAUNCHES)]
        calls = max(1, min(MAX_CALLS, int(TARGET_S / call_s)))
        seconds, host_s = self._on_device(call, calls)
        if seconds < SMALL_S or seconds < MIN_HOST_RATIO * host_s:
            return self._in_a_graph(call)
        return [self._on_device(call, calls)[0] for _ in range(LAUNCHES)]

    def _in_a_graph(self, call: Callable[[], Any]) -> list[float]:
        """Return the seconds of one call per launch of a CUDA graph of calls, for operators too short for the host."""
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self.stream):
                for _ in range(CALLS_PER_GRAPH):
                    call()
        except RuntimeError as error:
            raise HostBoundError(f"too short for the host, and no CUDA graph: {str(error).splitlines()[0]}") from None
        graph.replay()
        return [self._on_device(graph.replay, 1)[0] / CALLS_PER_GRAPH for _ in range(LAUNCHES)]

    def _on_device(self, call: Callable[[], Any], calls: int) -> tuple[float, float]:
        """Return the mean time of one of `calls` calls on the device, and the host's time to launch one, in seconds."""
        before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        if self.flush is not None:
            self.flush.zero_()
        before.record()
        start_s = time.perf_counter()
        for _ in range(calls):
            call()
        host_s = time.perf_counter() - start_s
        after.record()
        after.synchronize()
        return before.elapsed_time(after) / 1e3 / calls, host_s / calls

    def _on_host(self, call: Callable[[], Any], calls: int) -> float:
        """Return the mean time of one of `calls` calls on the CPU in seconds."""
        if self.flush is not None:
            self.flush.zero_()
        start_s = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - start_s) / calls

    def _wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def write(self) -> None:
        """Replace the table file."""
        part = self.out.with_name(self.out.name + ".part")
        with part.open("w", newline="", encoding="utf-8") as file:
            file.writelines(f"# {key}: {value}\n" for key, value in self.about.items())
            file.writelines(f"# skipped: {text}\n" for text in self.skipped)
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.rows)
        os.replace(part, self.out)  # noqa: PTH105 - Path.replace is no shorter


def _driver() -> str:
    """Return driver version, maximum clock and power limit of the GPU."""
    command = ["nvidia-smi", "--query-gpu=driver_version,clocks.max.sm,power.limit", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def gemms(bench: Bench) -> Iterator[Case]:
    """Yield products of models' layers by tokens (forward, gradients of inputs and weights), then a grid of sizes.

    Args:
        bench: The device, and the table that measurements fill.
    """
    shapes: list[tuple[int, int, int]] = []
    layers = ((4608, 12288), (12288, 1536), (6144, 12288), (12288, 6144), (1280, 8192), (8192, 1024), (7168, 8192))
    layers += ((8192, 3584), (3072, 4096), (4096, 4096), (14336, 4096), (4096, 14336), (2304, 2304), (9216, 2304))
    for n, k in layers:
        for m in (2048, 8192):
            shapes += [(m, n, k), (m, k, n), (n, k, m)]
    sizes = (128, 512, 2048, 8192)
    shapes += [(m, n, k) for m in (*sizes, 32768) for n in sizes for k in sizes]
    shapes += [(m, n, k) for m in (1, 16, 64) for n, k in ((4608, 12288), (8192, 8192), (28672, 8192))]
    shapes += [(s, s, s) for s in (256, 1024, 4096, 6144, 12288, 16384)]
    shapes += [(4096, 51200, 4096), (4096, 16032, 8192), (2048, 6400, 12288), (1024, 10240, 5120), (2048, 2048, 13312)]
    if bench.tiny:
        shapes = [(16, 32, 64), (64, 32, 16), (1, 64, 64)]
    for m, n, k in dict.fromkeys(shapes):
        make = functools.partial(_gemm, bench, m, n, k)
        yield Case("gemm", (m, n, k), "bf16", make, 2.0 * m * n * k, 2.0 * (m * k + k * n + m * n))


def _gemm(bench: Bench, m: int, n: int, k: int) -> Callable[[], Any]:
    """Return a call that multiplies bf16 matrices [m, k] and [k, n]."""
    a, b = bench.tensor(m, k), bench.tensor(n, k)
    out = torch.empty(m, n, dtype=torch.bfloat16, device=bench.device)
    return lambda: torch.mm(a, b.t(), out=out)


def fp8_gemms(bench: Bench) -> Iterator[Case]:
    """Yield fp8 products with one scale per matrix, where PyTorch and the GPU support them.

    Args:
        bench: The device, and the table that measurements fill.
    """
    sizes = (512, 2048, 4096, 8192)
    shapes = [(m, n, k) for m in (2048, 8192) for n in sizes for k in sizes]
    shapes += [(2048, 4608, 12288), (2048, 12288, 1536), (8192, 14336, 4096), (8192, 4096, 14336)]
    shapes += [(12288, 12288, 12288)]
    for m, n, k in [(16, 32, 64)] if bench.tiny else dict.fromkeys(shapes):
        make = functools.partial(_fp8_gemm, bench, m, n, k)
        yield Case("gemm", (m, n, k), "fp8", make, 2.0 * m * n * k, m * k + k * n + 2.0 * m * n)


def _fp8_gemm(bench: Bench, m: int, n: int, k: int) -> Callable[[], Any]:
    """Return a call that multiplies fp8 matrices [m, k] and [k, n], each with one scale."""
    a = bench.tensor(m, k).to(torch.float8_e4m3fn)
    b = bench.tensor(n, k).to(torch.float8_e4m3fn).t()
    scale = torch.ones((), device=bench.device)
    return lambda: torch._scaled_mm(a, b, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)  # noqa: SLF001


def batched_gemms(bench: Bench) -> Iterator[Case]:
    """Yield the batched products of unfused attention: scores, then values.

    Args:
        bench: The device, and the table that measurements fill.
    """
    shapes = [(batch, s, s, d) for batch in (8, 32, 128) for s in (512, 2048) for d in (64, 128)]
    shapes += [(batch, s, d, s) for batch in (8, 32, 128) for s in (512, 2048) for d in (64, 128)]
    for batch, m, n, k in [(2, 16, 16, 8)] if bench.tiny else shapes:

        def make(batch: int = batch, m: int = m, n: int = n, k: int = k) -> Callable[[], Any]:
            a, b = bench.tensor(batch, m, k), bench.tensor(batch, k, n)
            return lambda: torch.bmm(a, b)

        moved = 2.0 * batch * (m * k + k * n + m * n)
        yield Case("batched-gemm", (batch, m, n, k), "bf16", make, 2.0 * batch * m * n * k, moved)


def grouped_gemms(bench: Bench) -> Iterator[Case]:
    """Yield products of experts with evenly divided rows.

    Args:
        bench: The device, and the table that measurements fill.
    """
    shapes = [(g, m, n, k) for g in (8, 32) for m in (2048, 8192, 32768) for n, k in ((2048, 2048), (4096, 2048))]
    shapes += [(g, m, n, k) for g in (8, 32) for m in (2048, 8192, 32768) for n, k in ((7168, 2048), (4096, 7168))]
    for groups, m, n, k in [(2, 32, 32, 16)] if bench.tiny else shapes:

        def make(groups: int = groups, m: int = m, n: int = n, k: int = k) -> Callable[[], Any]:
            a, b = bench.tensor(m, k), bench.tensor(groups, n, k)
            ends = torch.arange(1, groups + 1, device=bench.device, dtype=torch.int32) * (m // groups)
            grouped = getattr(torch, "_grouped_mm", None) or nnf.grouped_mm
            return lambda: grouped(a, b.transpose(-2, -1), offs=ends)

        moved = 2.0 * (m * k + groups * k * n + m * n)
        yield Case("grouped-gemm", (groups, m, n, k), "bf16", make, 2.0 * m * n * k, moved)


def expert_gemms(bench: Bench) -> Iterator[Case]:
    """Yield products of experts that run one after another, as training does without a grouped kernel.

    Args:
        bench: The device, and the table that measurements fill.
    """
    shapes = [(e, m, n, k) for e in (4, 16) for m in (512, 4096) for n, k in ((1536, 2048), (4096, 7168))]
    for experts, m, n, k in [(2, 16, 32, 16)] if bench.tiny else shapes:

        def make(experts: int = experts, m: int = m, n: int = n, k: int = k) -> Callable[[], Any]:
            products = [_gemm(bench, m, n, k) for _ in range(experts)]
            return lambda: [product() for product in products]

        moved = 2.0 * experts * (m * k + k * n + m * n)
        yield Case("expert-gemm", (experts, m, n, k), "bf16", make, 2.0 * experts * m * n * k, moved)


def attentions(bench: Bench) -> Iterator[Case]:
    """Yield fused attention, forward and backward: shapes of papers, of models, and of decoding.

    Args:
        bench: The device, and the table that measurements fill.
    """
    shapes = [
        (16384 // s, 2048 // d, 2048 // d, s, s, d) for s in (512, 1024, 2048, 4096, 8192, 16384) for d in (64, 128)
    ]
    shapes += [(1, heads, kv, s, s, 128) for heads, kv in ((8, 1), (8, 8), (32, 8), (12, 12)) for s in (2048, 8192)]
    if bench.tiny:
        shapes = [(1, 2, 1, 32, 32, 16)]
    for batch, heads, kv_heads, queries, keys, dim in shapes:
        for causal in (1, 0):
            yield from _attention(bench, (batch, heads, kv_heads, queries, keys, dim, dim, causal))
    contexts = _backends(bench)
    for batch in (1, 16, 64):
        for keys in (2048, 8192):
            if not bench.tiny:
                shape = (batch, 64, 8, 1, keys, 128, 128, 0)
                decode = functools.partial(_forward, bench, shape)
                yield Case("attention", shape, "bf16", decode, *_amounts(shape), contexts)


def _amounts(shape: tuple[int, ...]) -> tuple[float, float]:
    """Return floating-point operations and memory traffic in bytes of an attention; its shape is batch, heads, ..."""
    batch, heads, kv_heads, queries, keys, dim, value_dim, causal = shape
    pairs = queries * (queries + 1) / 2 if causal else queries * keys
    moved = 2.0 * batch * (dim + value_dim) * (heads * queries + kv_heads * keys)
    return 2.0 * batch * heads * pairs * (dim + value_dim), moved


def _backends(bench: Bench) -> tuple[tuple[str, Callable[[], AbstractContextManager[Any]]], ...]:
    """Return PyTorch's fused attention backends; the fastest depends on the GPU."""
    if not bench.cuda:
        return (("", nullcontext),)
    from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: PLC0415 - not in every PyTorch that has a CPU

    backends = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
    return tuple((name, functools.partial(sdpa_kernel, [backend])) for name, backend in backends.items())


def _attention(bench: Bench, shape: tuple[int, ...]) -> Iterator[Case]:
    """Yield forward and backward of one attention, whose shape is that of `_fused`."""
    flops, moved = _amounts(shape)
    contexts = _backends(bench)
    yield Case("attention", shape, "bf16", functools.partial(_forward, bench, shape), flops, moved, contexts)
    backward = functools.partial(_backward, bench, shape)
    yield Case("attention-backward", shape, "bf16", backward, 2.5 * flops, 2 * moved, contexts)


def _fused(
    bench: Bench, shape: tuple[int, ...], *, grad: bool
) -> tuple[list[torch.Tensor], Callable[[], torch.Tensor]]:
    """Return query, key and value, and a call of fused attention on them; grad: whether gradients are needed."""
    batch, heads, kv_heads, queries, keys, dim, value_dim, causal = shape
    q = bench.tensor(batch, heads, queries, dim, grad=grad)
    k = bench.tensor(batch, kv_heads, keys, dim, grad=grad)
    v = bench.tensor(batch, kv_heads, keys, value_dim, grad=grad)

    def call() -> torch.Tensor:
        return nnf.scaled_dot_product_attention(q, k, v, is_causal=bool(causal), enable_gqa=heads != kv_heads)

    return [q, k, v], call


def _forward(bench: Bench, shape: tuple[int, ...]) -> Callable[[], Any]:
    """Return a call of fused attention without gradients; the shape is that of `_fused`."""
    _, call = _fused(bench, shape, grad=False)
    return torch.no_grad()(call)


def _backward(bench: Bench, shape: tuple[int, ...]) -> Callable[[], Any]:
    """Return a call that computes the gradients of one fused attention; the shape is that of `_fused`."""
    inputs, call = _fused(bench, shape, grad=True)
    out = call()
    gradient = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, inputs, gradient, retain_graph=True)


def latent_attentions(bench: Bench) -> Iterator[Case]:
    """Yield decoding on compressed keys that also are the values and that all heads share (DeepSeek-V2).

    Args:
        bench: The device, and the table that measurements fill.
    """
    shapes = [(batch, heads, 1, keys, 512, 64) for batch in (1, 16, 64) for heads in (16, 128) for keys in (2048, 8192)]
    for shape in [(1, 2, 1, 16, 8, 4)] if bench.tiny else shapes:
        batch, heads, queries, keys, rank, rope = shape
        flops = 2.0 * batch * heads * queries * keys * (2 * rank + rope)
        moved = 2.0 * batch * (heads * queries * (2 * rank + rope) + keys * (rank + rope))
        yield Case("latent-attention", shape, "bf16", functools.partial(_latent, bench, shape), flops, moved)


def _latent(bench: Bench, shape: tuple[int, ...]) -> Callable[[], Any]:
    """Return a call of attention of all heads on one compressed cache."""
    batch, heads, queries, keys, rank, rope = shape
    q = bench.tensor(batch, heads * queries, rank + rope)
    cache = bench.tensor(batch, keys, rank + rope)

    def call() -> torch.Tensor:
        with torch.no_grad():
            return nnf.scaled_dot_product_attention(q, cache, cache[..., :rank])

    return call


def copies(bench: Bench) -> Iterator[Case]:
    """Yield sequential copies of tensors, one launch each.

    Args:
        bench: The device, and the table that measurements fill.
    """
    shapes = [(count, values) for count in (16, 256) for values in (1 << 14, 1 << 18, 1 << 22)]
    for count, values in [(2, 32)] if bench.tiny else shapes:
        make = functools.partial(_copies, bench, count, values)
        yield Case("copies", (count, values), "bf16", make, 0, 4.0 * count * values)


def _copies(bench: Bench, count: int, values_per_tensor: int) -> Callable[[], Any]:
    """Return a call that copies `count` tensors one after the other."""
    source, target = bench.tensor(count, values_per_tensor), bench.tensor(count, values_per_tensor)
    pairs = list(zip(target.unbind(), source.unbind(), strict=True))

    def call() -> None:
        for to, of in pairs:
            to.copy_(of)

    return call


def rows_of_values(bench: Bench) -> Iterator[Case]:
    """Yield norms and softmax, forward and backward.

    Args:
        bench: The device, and the table that measurements fill.
    """
    columns = (1024, 4096, 8192, 16384)
    shapes = [(rows, c) for rows in (256, 2048, 16384) for c in columns] + [(2048, 12288), (16, 8192), (65536, 2048)]
    kinds = {"norm": (_norm, 2), "norm-backward": (_norm_backward, 3)}
    kinds |= {"softmax": (_softmax, 2), "softmax-backward": (_softmax_backward, 3)}
    for rows, width in [(8, 32)] if bench.tiny else shapes:
        for kind, (make, times) in kinds.items():
            moved = 2.0 * times * rows * width
            yield Case(kind, (rows, width), "bf16", functools.partial(make, bench, rows, width), 0, moved)


def _norm(bench: Bench, rows: int, columns: int) -> Callable[[], Any]:
    x, weight, bias = bench.tensor(rows, columns), bench.tensor(columns), bench.tensor(columns)
    return lambda: nnf.layer_norm(x, (columns,), weight, bias)


def _norm_backward(bench: Bench, rows: int, columns: int) -> Callable[[], Any]:
    """Return a call that computes the gradients of a layer norm of `rows` rows."""
    x, weight, bias = (bench.tensor(*shape, grad=True) for shape in ((rows, columns), (columns,), (columns,)))
    out = nnf.layer_norm(x, (columns,), weight, bias)
    gradient = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, [x, weight, bias], gradient, retain_graph=True)


def _softmax(bench: Bench, rows: int, columns: int) -> Callable[[], Any]:
    x = bench.tensor(rows, columns)
    return lambda: torch.softmax(x, -1)


def _softmax_backward(bench: Bench, rows: int, columns: int) -> Callable[[], Any]:
    out, gradient = torch.softmax(bench.tensor(rows, columns), -1), bench.tensor(rows, columns)
    return lambda: torch._softmax_backward_data(gradient, out, -1, out.dtype)  # noqa: SLF001


def elementwise(bench: Bench) -> Iterator[Case]:
    """Yield one read and one write (activation), two reads and one write (residual), dropout, and loads one by one.

    Args:
        bench: The device, and the table that measurements fill.
    """
    sizes = (1, 1 << 10, 1 << 16, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28)
    for values in (1, 256) if bench.tiny else sizes:

        def activation(values: int = values) -> Callable[[], Any]:
            x, out = bench.tensor(values), bench.tensor(values)
            return lambda: torch.sigmoid(x, out=out)

        def converted(values: int = values) -> Callable[[], Any]:
            # The result has another data type, so that the kernel converts each value that it stores
            x, out = bench.tensor(values), bench.tensor(values).float()
            return lambda: torch.sigmoid(x, out=out)

        def residual(values: int = values) -> Callable[[], Any]:
            x, y, out = bench.tensor(values), bench.tensor(values), bench.tensor(values)
            return lambda: torch.add(x, y, out=out)

        def dropout(values: int = values) -> Callable[[], Any]:
            x = bench.tensor(values)
            return lambda: torch.native_dropout(x, 0.1, True)

        yield Case("dropout", (values, 1, 1), "bf16", dropout, 0, 5.0 * values)
        yield Case("elementwise", (values, 1, 1), "bf16", activation, 0, 4.0 * values)
        yield Case("elementwise", (values, 2, 1), "bf16", residual, 0, 6.0 * values)
        yield Case("unvectorised", (values, 1), "bf16", converted, 0, 6.0 * values)


def casts(bench: Bench) -> Iterator[Case]:
    """Yield casts to fp8 with a scale that is known, one copy of each value, and transpositions of fp8 matrices.

    Args:
        bench: The device, and the table that measurements fill.
    """
    for rows in (16,) if bench.tiny else (1 << 10, 1 << 12, 1 << 14):
        values = rows * rows

        def cast(rows: int = rows) -> Callable[[], Any]:
            x = bench.tensor(rows, rows)
            out = torch.empty(rows, rows, dtype=torch.float8_e4m3fn, device=bench.device)
            return lambda: out.copy_(x)

        def transposition(rows: int = rows) -> Callable[[], Any]:
            x = bench.integers(256, rows, rows).to(torch.uint8)
            out = torch.empty_like(x)
            return lambda: out.copy_(x.t())

        yield Case("quantise", (values, 1, 1, 0), "fp8", cast, 0, 3.0 * values)
        yield Case("transpose", (values,), "fp8", transposition, 0, 2.0 * values)


def lookups(bench: Bench) -> Iterator[Case]:
    """Yield embedding forward and backward, permutation of rows, and routing.

    Args:
        bench: The device, and the table that measurements fill.
    """
    vocab = 64 if bench.tiny else 32000
    tokens_and_hidden = [(t, h) for t in (2048, 16384) for h in (2048, 4096, 8192, 12288)]
    kinds = {"embedding": (_embedding, 2), "embedding-backward": (_embedding_backward, 3), "permute": (_permute, 2)}
    for tokens, hidden in [(8, 16)] if bench.tiny else tokens_and_hidden:
        for kind, (make, times) in kinds.items():
            moved = 2.0 * times * tokens * hidden
            yield Case(kind, (tokens, hidden), "bf16", functools.partial(make, bench, vocab, tokens, hidden), 0, moved)
    routes = [(t, e, k) for t in (2048, 16384) for e, k in ((8, 2), (64, 6), (128, 8), (256, 8))]
    for tokens, experts, top_k in [(8, 4, 2)] if bench.tiny else routes:
        shape = (tokens, experts, top_k)
        yield Case("routing", shape, "bf16", functools.partial(_routing, bench, *shape), 0, 4.0 * tokens * experts)


def _embedding(bench: Bench, vocab: int, tokens: int, hidden: int) -> Callable[[], Any]:
    table, ids = bench.tensor(vocab, hidden), bench.integers(vocab, tokens)
    return lambda: nnf.embedding(ids, table)


def _embedding_backward(bench: Bench, vocab: int, tokens: int, hidden: int) -> Callable[[], Any]:
    """Return a call that adds gradients to an existing buffer, as frameworks with one gradient buffer do."""
    # vocabulary, tokens, hidden: rows of the buffer, rows that are added, and width.
    total, ids, gradient = (bench.tensor(vocab, hidden), bench.integers(vocab, tokens), bench.tensor(tokens, hidden))
    return lambda: total.index_add_(0, ids, gradient)


def _permute(bench: Bench, _vocab: int, tokens: int, hidden: int) -> Callable[[], Any]:
    x, order = bench.tensor(tokens, hidden), torch.randperm(tokens, device=bench.device)
    return lambda: x.index_select(0, order)


def _routing(bench: Bench, tokens: int, experts: int, top_k: int) -> Callable[[], Any]:
    """Return a call that chooses top_k experts for each token, and counts the tokens of each expert."""
    scores = bench.tensor(tokens, experts)

    def call() -> tuple[torch.Tensor, torch.Tensor]:
        """Return the weights of the chosen experts, [tokens, top_k], and int64[experts], their tokens."""
        weights, chosen = torch.topk(torch.softmax(scores, -1, dtype=torch.float32), top_k, -1)
        places = torch.zeros(tokens, experts, dtype=torch.int32, device=bench.device).scatter_(1, chosen, 1)
        return weights, places.sum(0)

    return call


def losses(bench: Bench) -> Iterator[Case]:
    """Yield cross-entropy, forward and backward in one call, as in PyTorch.

    Args:
        bench: The device, and the table that measurements fill.
    """
    shapes = [(t, v) for t in (2048, 8192) for v in (4000, 16032, 32000, 50304)]
    for tokens, columns in [(8, 32)] if bench.tiny else shapes:

        def make(tokens: int = tokens, columns: int = columns) -> Callable[[], Any]:
            logits, ids = bench.tensor(tokens, columns, grad=True), bench.integers(columns, tokens)
            return lambda: torch.autograd.grad(nnf.cross_entropy(logits, ids), logits)

        yield Case("cross-entropy", (tokens, columns), "bf16", make, 0, 6.0 * tokens * columns)


def optimizers(bench: Bench) -> Iterator[Case]:
    """Yield fused fp32 Adam steps: 16 bytes read (weight, gradient, two moments), 12 written per parameter.

    Args:
        bench: The device, and the table that measurements fill.
    """
    for parameters in (256,) if bench.tiny else (1 << 20, 1 << 24, 1 << 26, 1 << 28, 1 << 30):

        def make(parameters: int = parameters) -> Callable[[], Any]:
            weight = torch.zeros(parameters, device=bench.device, requires_grad=True)
            weight.grad = torch.full_like(weight, 1e-3)
            return torch.optim.Adam([weight], fused=True, capturable=bench.cuda).step

        yield Case("optimizer", (parameters, 28), "fp32", make, 12.0 * parameters, 28.0 * parameters)


FAMILIES = {
    "gemm": gemms,
    "attention": attentions,
    "rows": rows_of_values,
    "elementwise": elementwise,
    "lookups": lookups,
    "loss": losses,
    "optimizer": optimizers,
    "fp8": fp8_gemms,
    "batched": batched_gemms,
    "grouped": grouped_gemms,
    "experts": expert_gemms,
    "casts": casts,
    "latent": latent_attentions,
    "copies": copies,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the families of operators that the command line chooses; return the exit code.

    Args:
        arguments: The words of the command line; None means those of the process.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--out", required=True, metavar="FILE.csv", help="file for the table")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cuda, cuda:1 or cpu")
    parser.add_argument("--gpu", help="name of the GPU in the table; default: from the device's name")
    parser.add_argument("--families", default=",".join(FAMILIES), help="families in order; default: %(default)s")
    parser.add_argument("--tiny", action="store_true", help="measure a few small shapes per family, to test the script")
    parser.add_argument("--flush", action="store_true", help="write 256 MiB between launches to evict L2")
    parser.add_argument(
        "--seconds", type=float, default=330, help="time limit in seconds after which no operator starts"
    )
    options = parser.parse_args(arguments)
    unknown = [family for family in options.families.split(",") if family not in FAMILIES]
    if unknown:
        parser.error(f"family {unknown[0]!r}; expected some of {', '.join(FAMILIES)}")
    bench = Bench(options)
    for family in options.families.split(","):
        bench.run(family, FAMILIES[family](bench))
    for text in bench.skipped:
        print(f"skipped: {text}")
    print(f"{options.out}: {len(bench.rows)} rows of {bench.gpu} ({bench.name})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
