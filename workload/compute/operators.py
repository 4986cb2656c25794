"""Operators: single computations of an accelerator, described by kind, shape and data type.

A compute node of a generated trace lists its sequential operators in its attribute `operators`:

    gemm 2048x4608x12288 bf16; norm 2048x12288 bf16

so that their time can be computed for any GPU. `quantise` writes `copies` copies in the operator's data type, with
their scales, and `transposes` further ones that only GPUs need whose products accept one layout (`Gpu.any_layout`).
Entries of shapes, in order:

| kind | shape | operation |
| --- | --- | --- |
| gemm | m, n, k | (m x k) times (k x n) |
| early-gemm | m, n, k | the same by the libraries of May 2025 (CUDA 12.9), see `Gpu.early_products` |
| batched-gemm | batch, m, n, k | `batch` independent products |
| expert-gemm | experts, m, n, k | one product after another, by the kernels of gemm |
| fused-expert-gemm | experts, m, n, k | products of all experts in one kernel with what is between them, in training |
| grouped-gemm | groups, m, n, k | m rows divided over groups (experts), each with its own (k x n), in one kernel |
| attention, attention-backward | batch, heads, kv_heads, queries, keys, head_dim, value_dim, causal (1 or 0) | fused |
| flash-1-attention, triton-attention, and backward | as attention | by FlashAttention of 2022, by its Triton version |
| flash-2-attention, and backward | as attention | by FlashAttention-2, also on later GPUs |
| window-attention, and backward | as attention, window for causal | a query sees the last `window` keys up to its own |
| latent-attention | batch, heads, queries, keys, rank, rope_dim | fused, on compressed keys that also are the values |
| softmax, softmax-backward | rows, columns | scale, mask and softmax in one |
| norm, norm-backward | rows, columns | RMSNorm or LayerNorm |
| elementwise | values, reads, writes | each value is read `reads` times and written `writes` times |
| unvectorised | values, passes | `passes` elementwise kernels that load and write their values one by one |
| dropout | values, reads, writes | elementwise with a mask of one byte per value, written forward and read backward |
| embedding, embedding-backward | tokens, hidden | table look-up of rows, or addition of gradients to them |
| cross-entropy | tokens, columns | loss over logits, forward and backward in one |
| routing | tokens, experts, top_k | scores to the experts of each token |
| permute | tokens, hidden | reordering of rows |
| quantise | values, reads, copies, transposes | casts of 16-bit values that are read `reads` times, see below |
| expert-quantise | values, reads, copies, transposes | the same of one expert's tokens, 16 times a random number |
| transpose | values | a transposed copy of operands of products, where the GPU's products need one |
| copies | count, values | `count` copies of `values` values, each with its own launch |
| optimizer | parameters, bytes | a step that reads and writes `bytes` bytes per parameter |
| launches | count | no work: the host launches the other operators of the node one by one, `count` of them |
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from nadi.workload.errors import WorkloadError

DTYPE_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "fp4": 0.5}
"""Bytes per value by data type. tf32 is stored as fp32."""
_BACKWARD_ATTENTION_FLOPS = 2.5
"""Operations over those of the forward pass: five products to two, as scores are recomputed (FlashAttention-2, 3.1)."""

UNQUANTISED_BYTES = 2  # Bytes per value that a quantisation reads
_SCALE_BYTES = {"fp8": 1 / 32, "fp4": 1 / 16}
"""Bytes of scales per quantised value: MXFP8 has one of a byte for 32 values, NVFP4 one for 16."""
_MASK_VALUES = 0.5  # Size of a dropout mask's byte in 16-bit values


class _Kind(NamedTuple):
    """Work and memory traffic of a kind of operator."""

    shape: tuple[str, ...]  # Names of the shape's entries
    flops: Callable[..., float]  # Function from the entries to floating-point operations
    values: Callable[..., float]  # Function from the entries to the minimum of values that memory reads or writes


def _score_pairs(queries: int, keys: int, causal: int) -> float:
    """Return the number of query-key pairs; with a causal mask, a query only sees keys up to its own position."""
    if not causal:
        return float(queries * keys)
    longest = min(queries, keys)
    return longest * (keys - longest) + longest * (longest + 1) / 2


def _window_pairs(queries: int, keys: int, window: int) -> float:
    """Return the number of query-key pairs if a query only sees the last `window` keys up to its own position."""
    hidden = max(keys - window, 0)  # from the last query, and one key less from each before it
    count = min(queries, hidden)
    return _score_pairs(queries, keys, 1) - count * (2 * hidden - count + 1) / 2


def _window_flops(b: int, h: int, _kv: int, q: int, k: int, d: int, dv: int, window: int) -> float:
    return 2.0 * b * h * _window_pairs(q, k, window) * (d + dv)


def _attention_flops(b: int, h: int, _kv: int, q: int, k: int, d: int, dv: int, causal: int) -> float:
    return 2.0 * b * h * _score_pairs(q, k, causal) * (d + dv)


def _attention_values(b: int, h: int, kv: int, q: int, k: int, d: int, dv: int, _causal: int) -> float:
    return float(b * (h * q * (d + dv) + kv * k * (d + dv)))


def _backward_flops(*shape: int) -> float:
    return _BACKWARD_ATTENTION_FLOPS * _attention_flops(*shape)


def _backward_values(*shape: int) -> float:
    return 2.0 * _attention_values(*shape)


FUSED_PRODUCT = "fused-expert-gemm"  # Kind of products of experts in one kernel with what is between them
LAUNCHES = "launches"  # Kind that marks a node whose operators the host launches one by one
OLD_ATTENTION = ("flash-1", "flash-2", "triton")
"""Prefixes of kinds of fused attention by an old algorithm, whatever the GPU's libraries have."""
EARLY_PRODUCT = "early-gemm"
EXPERT_CAST = "expert-quantise"
WINDOW_ATTENTION = "window-attention"
_ATTENTION_SHAPE = ("batch", "heads", "kv_heads", "queries", "keys", "head_dim", "value_dim", "causal")
_WINDOW_SHAPE = (*_ATTENTION_SHAPE[:-1], "window")
KINDS: dict[str, _Kind] = {
    "gemm": _Kind(("m", "n", "k"), lambda m, n, k: 2.0 * m * n * k, lambda m, n, k: m * k + k * n + m * n),
    EARLY_PRODUCT: _Kind(("m", "n", "k"), lambda m, n, k: 2.0 * m * n * k, lambda m, n, k: m * k + k * n + m * n),
    "batched-gemm": _Kind(
        ("batch", "m", "n", "k"), lambda b, m, n, k: 2.0 * b * m * n * k, lambda b, m, n, k: b * (m * k + k * n + m * n)
    ),
    **{
        name: _Kind(
            ("experts", "m", "n", "k"),
            lambda e, m, n, k: 2.0 * e * m * n * k,
            lambda e, m, n, k: e * (m * k + k * n + m * n),
        )
        for name in ("expert-gemm", FUSED_PRODUCT)
    },
    "grouped-gemm": _Kind(
        ("groups", "m", "n", "k"),
        lambda _g, m, n, k: 2.0 * m * n * k,
        lambda g, m, n, k: m * k + min(g, max(m, 1)) * k * n + m * n,
    ),
    "attention": _Kind(_ATTENTION_SHAPE, _attention_flops, _attention_values),
    "attention-backward": _Kind(_ATTENTION_SHAPE, _backward_flops, _backward_values),
    WINDOW_ATTENTION: _Kind(_WINDOW_SHAPE, _window_flops, _attention_values),
    f"{WINDOW_ATTENTION}-backward": _Kind(
        _WINDOW_SHAPE, lambda *shape: _BACKWARD_ATTENTION_FLOPS * _window_flops(*shape), _backward_values
    ),
    **{f"{name}-attention": _Kind(_ATTENTION_SHAPE, _attention_flops, _attention_values) for name in OLD_ATTENTION},
    **{
        f"{name}-attention-backward": _Kind(_ATTENTION_SHAPE, _backward_flops, _backward_values)
        for name in OLD_ATTENTION
    },
    "latent-attention": _Kind(
        ("batch", "heads", "queries", "keys", "rank", "rope_dim"),
        lambda b, h, q, k, rank, rope: 2.0 * b * h * q * k * (2 * rank + rope),
        lambda b, h, q, k, rank, rope: b * (h * q * (2 * rank + rope) + k * (rank + rope)),
    ),
    "softmax": _Kind(("rows", "columns"), lambda r, c: 5.0 * r * c, lambda r, c: 2.0 * r * c),
    "softmax-backward": _Kind(("rows", "columns"), lambda r, c: 4.0 * r * c, lambda r, c: 3.0 * r * c),
    "norm": _Kind(("rows", "columns"), lambda r, c: 7.0 * r * c, lambda r, c: 2.0 * r * c),
    "norm-backward": _Kind(("rows", "columns"), lambda r, c: 12.0 * r * c, lambda r, c: 3.0 * r * c),
    "elementwise": _Kind(
        ("values", "reads", "writes"), lambda v, r, w: float(v * (r + w)), lambda v, r, w: float(v * (r + w))
    ),
    "unvectorised": _Kind(("values", "passes"), lambda v, n: float(v * n), lambda v, n: 2.0 * v * n),
    "dropout": _Kind(
        ("values", "reads", "writes"), lambda v, r, w: float(v * (r + w)), lambda v, r, w: v * (r + w + _MASK_VALUES)
    ),
    "embedding": _Kind(("tokens", "hidden"), lambda _t, _h: 0.0, lambda t, h: 2.0 * t * h),
    "embedding-backward": _Kind(("tokens", "hidden"), lambda t, h: float(t * h), lambda t, h: 3.0 * t * h),
    "cross-entropy": _Kind(("tokens", "columns"), lambda t, c: 6.0 * t * c, lambda t, c: 3.0 * t * c),
    "routing": _Kind(
        ("tokens", "experts", "top_k"), lambda t, e, k: 5.0 * t * e + t * k * e, lambda t, e, k: t * (2.0 * e + 2 * k)
    ),
    "permute": _Kind(("tokens", "hidden"), lambda _t, _h: 0.0, lambda t, h: 2.0 * t * h),
    # The values that a quantisation reads have another data type (`Operator.bytes`)
    **{
        name: _Kind(
            ("values", "reads", "copies", "transposes"),
            lambda v, r, _c, _t: float(v * r),
            lambda v, _r, c, t: v * (c + t),
        )
        for name in ("quantise", EXPERT_CAST)
    },
    "transpose": _Kind(("values",), lambda _v: 0.0, lambda v: 2.0 * v),
    "copies": _Kind(("count", "values"), lambda _n, _v: 0.0, lambda n, v: 2.0 * n * v),
    "optimizer": _Kind(("parameters", "bytes"), lambda p, _b: 12.0 * p, lambda p, b: float(p * b)),
    LAUNCHES: _Kind(("count",), lambda _n: 0.0, lambda _n: 0.0),
}
"""All kinds of operators."""

PRODUCTS = (
    *("gemm", EARLY_PRODUCT, "batched-gemm", "expert-gemm", FUSED_PRODUCT, "grouped-gemm"),
    *("attention", "attention-backward", "latent-attention"),
    *(WINDOW_ATTENTION, f"{WINDOW_ATTENTION}-backward"),
    *(f"{name}-attention{backward}" for name in OLD_ATTENTION for backward in ("", "-backward")),
)
"""Kinds that run on tensor cores."""


class Operator(NamedTuple):
    """One computation of an accelerator."""

    kind: str  # Key of KINDS
    shape: tuple[int, ...]  # Entries of the shape, see the table above
    dtype: str = "bf16"  # Key of DTYPE_BYTES

    @property
    def flops(self) -> int:
        """Number of floating-point operations; exact for PRODUCTS."""
        return round(KINDS[self.kind].flops(*self.shape))

    @property
    def bytes(self) -> int:
        """Memory traffic in bytes, assuming that values that are used twice stay on the chip."""
        values = KINDS[self.kind].values(*self.shape)
        if self.kind == "optimizer":
            return round(values)
        if self.kind in {"quantise", EXPERT_CAST}:
            read_bytes = self.shape[0] * self.shape[1] * UNQUANTISED_BYTES
            return round(read_bytes + values * (DTYPE_BYTES[self.dtype] + _SCALE_BYTES.get(self.dtype, 0)))
        return round(values * DTYPE_BYTES[self.dtype])

    def __str__(self) -> str:
        return f"{self.kind} {'x'.join(map(str, self.shape))} {self.dtype}"


def format_operators(operators: Sequence[Operator]) -> str:
    """Return the text of an `operators` attribute.

    Args:
        operators: The operators that a compute node runs, in order.
    """
    return "; ".join(map(str, operators))


def parse_operators(text: str) -> tuple[Operator, ...]:
    """Return the operators in the text of an `operators` attribute. Raises WorkloadError: a part of it is wrong.

    Args:
        text: Operators separated by ";", each KIND SHAPE DTYPE as "gemm 128x64x32 bf16"; "" = no operators.
    """
    return tuple(_parse(part) for part in text.split(";")) if text.strip() else ()


def _parse(text: str) -> Operator:
    """Return the operator of a text such as "gemm 128x64x32 bf16"; WorkloadError for other forms."""
    words = text.split()
    kind = KINDS.get(words[0]) if len(words) == 3 else None
    if kind is None:
        raise WorkloadError(
            f"operator {text.strip()!r}: expected KIND SHAPE DTYPE, as 'gemm 128x64x32 bf16'; kinds: {', '.join(KINDS)}"
        )
    entries = words[1].split("x")
    is_shape = len(entries) == len(kind.shape) and all(e.isdecimal() and len(e) < 19 for e in entries)
    if not is_shape:
        raise WorkloadError(f"operator {text.strip()!r}: shape {words[1]!r}, expected {'x'.join(kind.shape)}")
    if words[2] not in DTYPE_BYTES:
        raise WorkloadError(
            f"operator {text.strip()!r}: data type {words[2]!r}, expected one of {', '.join(DTYPE_BYTES)}"
        )
    return Operator(words[0], tuple(map(int, entries)), words[2])
