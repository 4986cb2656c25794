"""GPU specifications, a TOML file per GPU with the source of every number, and times scaled to another GPU.

`find_gpu("h100")` reads a file of the library, `find_gpu("mine.toml")` a user's file.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from nadi.inputs import plug_ins, units
from nadi.inputs.documents import checked, read_toml
from nadi.inputs.limits import MEMORY_RATE_BPS
from nadi.workload.compute.operators import DTYPE_BYTES, PRODUCTS, Operator
from nadi.workload.errors import WorkloadError

_KIND = "GPU"
_MAX_LATENCY_PS = 10**9
_MAX_MEMORY_BYTES = 1 << 50
_CLOCK = {"GHz": 1e9, "MHz": 1e6}


def _clock_hz(value: object) -> float:
    """Return hertz, from "1.41GHz"; ValueError for other forms or beyond 1 MHz to 100 GHz."""
    text = value.strip() if isinstance(value, str) and len(value) < 20 else ""
    number, unit = text[:-3].strip(), text[-3:]
    try:
        hertz = float(number) * _CLOCK[unit]
    except (ValueError, KeyError):
        hertz = 0.0
    if not 1e6 <= hertz <= 1e11:
        raise ValueError(f"{units.short(value)} is not a clock rate; expected 1MHz to 100GHz, such as 1.41GHz")
    return hertz


def _memory_bytes(value: object) -> int:
    """Return the bytes of a memory, from "80GB"; ValueError for other forms or beyond 1 B to 1 PiB."""
    size_bytes = units.parse_bytes(value)
    if not 1 <= size_bytes <= _MAX_MEMORY_BYTES:
        raise ValueError(f"{units.short(value)}; expected 1 B to 1 PiB")
    return size_bytes


def _rate_Bps(value: object) -> float:  # noqa: N802 - bytes, not bits
    return units.parse_rate_within(value, MEMORY_RATE_BPS) / units.BITS_PER_BYTE


def _latency_ps(value: object) -> int:
    return units.parse_time_within(value, _MAX_LATENCY_PS)


def _as(parse: Callable[[object], object]) -> BeforeValidator:
    """Return a validator that parses a value with its unit."""
    return BeforeValidator(parse)


_UNITS = ("_bytes", "_Bps", "_hz", "_ps")


def _key(name: str) -> str:
    """Return the key of a field in a file, where values carry their units."""
    return name.rsplit("_", 1)[0] if name.endswith(_UNITS) else name


class Gpu(BaseModel):
    """A kind of GPU. Keys of its file are these names without their units.

    Attributes:
        peak_flops: Dense floating-point operations per second by data type; those of fp32 are vector operations.
        memory_bandwidth_Bps: Bandwidth of HBM in bytes per second.
        sustained: Share of the peak that large dense matrix products reach, relative to A100 (1).
        in_a_row: Further share by data type that is left in long sequences of products, as in a training step, relative
            to A100 (1); 1 for data types that are not named.
        product_memory: Share of the bandwidth of streaming operators that the operands of matrix products reach.
        small_tiles: Efficiency of matrix products' tiles of 64 rows and columns over that of tiles of 128.
        split_latencies: Time that a product takes to write, read and add its partial sums if its loop is split, beyond
            their bytes and a launch, in memory latencies.
        exposed_write: Share of the writing of a matrix product's tiles that the next tiles do not hide.
        host_link_Bps: Bandwidth to the host in bytes per second, one direction.
        latent_attention: Kernel of its libraries for latent attention, one of attention_kernels.LATENT.
        experts: Kernel of its libraries for grouped products, see workload/compute/gemm.py.
        attention: Fused attention algorithm of its libraries, one of attention_kernels.ALGORITHMS.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=_key)

    name: str  # Name of the GPU in the file
    peak_flops: dict[str, Annotated[float, _as(units.parse_flops)]]
    memory_bytes: Annotated[int, _as(_memory_bytes)]  # Capacity of HBM in bytes
    memory_bandwidth_Bps: Annotated[float, _as(_rate_Bps)]  # noqa: N815 - bytes, not bits
    l2_bytes: Annotated[int, _as(_memory_bytes)]  # Capacity of the last-level cache in bytes
    sms: Annotated[int, Field(ge=1, le=1 << 20, strict=True)]  # Number of streaming multiprocessors
    clock_hz: Annotated[float, _as(_clock_hz)]  # Clock rate in Hz at which peak_flops hold
    sustained: Annotated[float, Field(gt=0, le=1.5)] = 1.0
    in_a_row: dict[str, Annotated[float, Field(gt=0, le=1.5)]] = {}
    product_memory: Annotated[float, Field(gt=0, le=1.5)] = 1.0
    small_tiles: Annotated[float, Field(gt=0, le=1.5)] = 1.0
    split_latencies: Annotated[float, Field(ge=0, le=100)] = 3.0
    exposed_write: Annotated[float, Field(ge=0, le=1.5)] = 1.0
    special_functions: Annotated[int, Field(ge=1, le=1024, strict=True)] = 16  # Exponentials per SM and clock
    memory_latency_ps: Annotated[int, _as(_latency_ps)]  # Latency of an HBM read in ps
    launch_overhead_ps: Annotated[int, _as(_latency_ps)]  # Time in ps between consecutive kernel launches
    host_link_Bps: Annotated[float, _as(_rate_Bps)]  # noqa: N815 - the same
    attention: Literal["flash-attention-1", "flash-attention-2", "flash-attention-3", "flash-attention-4", "splash"]
    latent_attention: Literal["flash-mla", "fmha-v2", "trtllm"] = "flash-mla"
    experts: Literal["tiles", "triton", "trtllm"] = "tiles"
    nvidia_tables: str = ""  # Name of the GPU's system in NVIDIA's tables (workload.compute.nvidia), "" = none
    sources: dict[str, str] = {}  # Source of the numbers, by key

    @field_validator("peak_flops", "in_a_row")
    @classmethod
    def _known_types(cls, value: dict[str, float], info: ValidationInfo) -> dict[str, float]:
        """Check the data types of a table by data type."""
        unknown = [dtype for dtype in value if dtype not in DTYPE_BYTES]
        if unknown:
            raise ValueError(f"data type {unknown[0]!r}; expected some of {', '.join(DTYPE_BYTES)}")
        if info.field_name == "peak_flops" and "fp32" not in value:
            raise ValueError("no fp32; expected it among the data types, as norms and softmax count in it")
        return value

    def peak_of(self, dtype: str) -> float:
        """Return the operations per second of matrix products of a data type. WorkloadError: it has no rate.

        Args:
            dtype: The data type, a key of operators.DTYPE_BYTES.
        """
        peak = self.peak_flops.get(dtype)
        if peak is None:
            raise WorkloadError(
                f"GPU {self.name}: no rate for {dtype}; expected one of {', '.join(self.peak_flops)}, "
                f"or {dtype} in its peak_flops"
            )
        return peak


def gpu_names() -> tuple[str, ...]:
    """Return the names of the library's GPUs and of those of installed packages."""
    return tuple(plug_ins.names(_KIND))


def find_gpu(name: str | Path) -> Gpu:
    """Return a GPU. Raises WorkloadError: the name is unknown, or the file is no GPU.

    Args:
        name: The name of a GPU in the library or an installed package, in any case, or the path of a TOML file.
    """
    known = {each.lower(): each for each in gpu_names()}
    path = plug_ins.toml_file(_KIND, known.get(str(name).lower(), str(name)), WorkloadError)
    return checked(Gpu, read_toml(path, "a GPU in TOML", WorkloadError), path, WorkloadError)


# Scaling of a measured time from one GPU to another, by the resource that bounds the operator (SimAI, NSDI 2025, 4.2).
#
# Compute-bound operators scale with the peak rate of their data type, memory-bound ones with the bandwidth; operators
# that consist of launch and latency keep their time.


def bound_of(operator: Operator, gpu: Gpu) -> str:
    """Return an operator's bound at full rates: "compute", "memory" or "latency". Raises WorkloadError: no peak rate.

    Args:
        operator: The operator: its kind, shape and data type.
        gpu: The GPU that runs the work.
    """
    count = operator.shape[0] if operator.kind == "copies" else 1
    times = {
        "compute": operator.flops / gpu.peak_of(_rate_of(operator)) * units.PS_PER_S,
        "memory": operator.bytes / gpu.memory_bandwidth_Bps * units.PS_PER_S,
        "latency": float(count * (gpu.launch_overhead_ps + gpu.memory_latency_ps)),
    }
    return max(times, key=lambda bound: times[bound])


def scaled_ps(time_ps: float, operator: Operator, known: Gpu, new: Gpu) -> float:
    """Return the ps of an operator on a GPU, from its time on another one. WorkloadError: one lacks its type.

    Args:
        time_ps: The time of the operator on the GPU `known` in ps.
        operator: The operator: its kind, shape and data type.
        known: The GPU on which the time was measured.
        new: The GPU to which the time is scaled.
    """
    bound = bound_of(operator, known)
    if bound == "compute":
        rate = _rate_of(operator)
        return time_ps * known.peak_of(rate) / new.peak_of(rate)
    if bound == "memory":
        return time_ps * known.memory_bandwidth_Bps / new.memory_bandwidth_Bps
    return time_ps


def _rate_of(operator: Operator) -> str:
    """Return the data type whose peak rate applies: all operators except products compute in fp32."""
    return operator.dtype if operator.kind in PRODUCTS else "fp32"


# Efficiencies: shares of a GPU's peak that its libraries reach, one number per class of operators, defined only here.
#
# They multiply the rate that the mechanisms of `gemm`, `attention` and `streaming` leave of the peak. The mechanisms
# model losses to tiles, waves, exponentials and latency; the efficiencies cover the rest: clocks under the power limit,
# pipelines that are not always full, and memory refreshes.
#
# | class | efficiency | source |
# | --- | --- | --- |
# | gemm | 0.88 | A100's products in NVIDIA's tables [1]; 271.2 TFLOP/s on 1024x10240x5120 [2] are met within 5 % |
# | attention | 0.88 | prompts on A100, H100, B200 in NVIDIA's tables [1], with the numbers of `attention.ALGORITHMS` |
# | memory | 0.87 | about 1.78 TB/s of A100's 2.04, BabelStream's triad (m) |
# | optimizer | 0.80 | assumed: a fused Adam step reads and writes five arrays of two data types |
#
# [1] aiconfigurator-core 0.12.0, half of the rows (scripts/kernel_tables.py compares the other half). [2] S. Bekman,
# ml-engineering, table of maximum achievable matmul FLOPS.
# (m): from memory.
#
# Uncertainty of one operator: its mean error in NVIDIA's tables (docs/explanation/validation.md, kernel-tables):
# products 9 to 10 %, attention 3 to 11 %, experts 7 to 11 %; memory-bound operators 15 % above 16 MB and 50 % below,
# where L2 and launches dominate.


@dataclass(frozen=True)
class Efficiencies:
    """One efficiency per class of operators, above 0 to 1.5; 1 is the rate that the mechanisms leave of the peak."""

    gemm: float = 0.88  # Efficiency of tensor cores in matrix products
    attention: float = 0.88  # Efficiency of tensor cores in the products of fused attention
    memory: float = 0.87  # Efficiency of HBM bandwidth in all other operators, including the reads of products
    optimizer: float = 0.80  # Efficiency of HBM bandwidth in the optimizer's step

    def __post_init__(self) -> None:
        """Check the values; WorkloadError if one is out of range."""
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 < value <= 1.5:
                raise WorkloadError(f"efficiency {field.name} is {value}; expected more than 0, at most 1.5")


@dataclass(frozen=True)
class SustainedShare:
    """Rates in a simulated workload as shares of the rates that operators reach alone in a benchmark.

    In a training step, a GPU runs at its power limit for seconds, there are gaps between operators, and memory-bound
    operators are less fused than they could be.

    Raises WorkloadError: a share is not above 0, or above 1.5.
    """

    products: float = 1.0  # Share of the rate of operators on tensor cores
    others: float = 1.0  # Share of the rate of all other operators
    in_a_row: bool = False  # Whether consecutive products slow down by `Gpu.in_a_row`, unless their time is measured

    def __post_init__(self) -> None:
        """Check the values; WorkloadError if one is out of range."""
        for name in ("products", "others"):
            value = getattr(self, name)
            if not 0 < value <= 1.5:
                raise WorkloadError(f"pace {name} is {value}; expected more than 0, at most 1.5")

    def of(self, kind: str) -> float:
        """Return the share for a kind of operator.

        Args:
            kind: The kind of operator, a key of operators.KINDS.
        """
        return self.products if kind in PRODUCTS else self.others


ALONE = SustainedShare()  # Rates of single operators in benchmarks
IN_SERVING = SustainedShare(in_a_row=True)
"""Rates of serving. Servers replay CUDA graphs, which leave no gaps between operators. Their other operators are the
fused ones of the measured tables (`workload/compute/tables`; scripts/validation.py compares the roofline with them), so
they run as fast as alone. Products of a prompt are consecutive as in a training step and slow down as they do there."""
IN_STEPS = SustainedShare(products=0.895, others=0.79, in_a_row=True)
"""Rates of training steps, fitted only to the ten rows of Megatron-LM on A100 (megatron-table)."""
