"""GPU specifications, a TOML file per GPU with the source of every number, and times scaled to another GPU.

`find_gpu("h100")` reads a file of the library, `find_gpu("mine.toml")` a user's file. Parameters change what the file
says: `find_gpu("h100:power=500W,memory=2.4TB/s")`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from nadi.inputs import plug_ins, units
from nadi.inputs.documents import checked, read_toml
from nadi.inputs.limits import MEMORY_RATE_BPS
from nadi.topologies import parse_pairs
from nadi.workload.compute.operators import DTYPE_BYTES, PRODUCTS, Operator
from nadi.workload.errors import WorkloadError

_KIND = "GPU"
_MAX_LATENCY_PS = 10**9
_MAX_STEP_HOST_PS = 10**13  # 10 s, beyond any time of a host in a step
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


def _watts(value: object) -> float:
    """Return watts, from "700W" or "1.4kW"; ValueError for other forms or beyond 1 W to 100 kW."""
    text = value.strip() if isinstance(value, str) and len(value) < 20 else ""
    number, factor = (text[:-2], 1000.0) if text.endswith("kW") else (text.removesuffix("W"), 1.0)
    try:
        watts = float(number) * factor if text.endswith("W") else 0.0
    except ValueError:
        watts = 0.0
    if not 1 <= watts <= 1e5:
        raise ValueError(f"{units.short(value)} is not a power; expected 1W to 100kW, such as 700W")
    return watts


def _rate_Bps(value: object) -> float:  # noqa: N802 - bytes, not bits
    return units.parse_rate_within(value, MEMORY_RATE_BPS) / units.BITS_PER_BYTE


def _latency_ps(value: object) -> int:
    return units.parse_time_within(value, _MAX_LATENCY_PS)


def _step_host_ps(value: object) -> int:
    return units.parse_time_within(value, _MAX_STEP_HOST_PS)


def _as(parse: Callable[[object], object]) -> BeforeValidator:
    """Return a validator that parses a value with its unit."""
    return BeforeValidator(parse)


_UNITS = ("_bytes", "_Bps", "_hz", "_ps", "_watts")


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
        streaming: Share of the bandwidth that memory-bound operators reach, relative to A100 (1).
        early_products: Share by data type of products' rate that libraries of May 2025 (CUDA 12.9) reach; 1 for others.
        product_memory: Share of the bandwidth of streaming operators that the operands of matrix products reach.
        small_tiles: Efficiency of matrix products' tiles of 64 rows and columns over that of tiles of 128.
        split_latencies: Time that a product takes to write, read and add its partial sums if its loop is split, beyond
            their bytes and a launch, in memory latencies.
        any_layout: Whether products in FP8 take their operands in any layout, so that no transposed copies are written.
        exposed_write: Share of the writing of a matrix product's tiles that the next tiles do not hide.
        host_link_Bps: Bandwidth to the host in bytes per second, one direction.
        step_host_ps: Time in ps per training step for which the GPU waits for its host, beside what the software's
            profile describes: `host_ms` of plans that leave it open. `nadi calibrate` fits it to a site; 0 elsewhere.
        latent_attention: Kernel of its libraries for latent attention, one of attention_kernels.LATENT.
        experts: Kernel of its libraries for grouped products, see workload/compute/gemm.py.
        attention: Fused attention algorithm of its libraries, one of attention_kernels.ALGORITHMS.
        training_attention: The same in training, None = that of `attention`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=_key)

    name: str  # Name of the GPU in the file
    peak_flops: dict[str, Annotated[float, _as(units.parse_flops)]]
    memory_bytes: Annotated[int, _as(_memory_bytes)]  # Capacity of HBM in bytes
    memory_bandwidth_Bps: Annotated[float, _as(_rate_Bps)]  # noqa: N815 - bytes, not bits
    l2_bytes: Annotated[int, _as(_memory_bytes)]  # Capacity of the last-level cache in bytes
    sms: Annotated[int, Field(ge=1, le=1 << 20, strict=True)]  # Number of streaming multiprocessors
    clock_hz: Annotated[float, _as(_clock_hz)]  # Clock rate in Hz at which peak_flops hold
    power_watts: Annotated[float | None, _as(_watts)] = None  # Power limit in watts, None = not known
    sustained: Annotated[float, Field(gt=0, le=1.5)] = 1.0
    in_a_row: dict[str, Annotated[float, Field(gt=0, le=1.5)]] = {}
    early_products: dict[str, Annotated[float, Field(gt=0, le=1.5)]] = {}
    streaming: Annotated[float, Field(gt=0, le=1.5)] = 1.0
    product_memory: Annotated[float, Field(gt=0, le=1.5)] = 1.0
    small_tiles: Annotated[float, Field(gt=0, le=1.5)] = 1.0
    split_latencies: Annotated[float, Field(ge=0, le=100)] = 3.0
    exposed_write: Annotated[float, Field(ge=0, le=1.5)] = 1.0
    any_layout: bool = False
    special_functions: Annotated[int, Field(ge=1, le=1024, strict=True)] = 16  # Exponentials per SM and clock
    memory_latency_ps: Annotated[int, _as(_latency_ps)]  # Latency of an HBM read in ps
    launch_overhead_ps: Annotated[int, _as(_latency_ps)]  # Time in ps between consecutive kernel launches
    host_link_Bps: Annotated[float, _as(_rate_Bps)]  # noqa: N815 - the same
    step_host_ps: Annotated[int, _as(_step_host_ps)] = 0
    attention: Literal[
        "flash-attention-1",
        "flash-attention-2",
        "flash-attention-3",
        "flash-attention-4",
        "composable-kernel",
        "splash",
    ]
    training_attention: Literal["cudnn"] | None = None
    latent_attention: Literal["flash-mla", "fmha-v2", "trtllm"] = "flash-mla"
    experts: Literal["tiles", "triton", "trtllm"] = "tiles"
    nvidia_tables: str = ""  # Name of the GPU's system in NVIDIA's tables (workload.compute.nvidia), "" = none
    sources: dict[str, str] = {}  # Source of the numbers, by key

    @field_validator("peak_flops", "in_a_row", "early_products")
    @classmethod
    def _known_types(cls, value: dict[str, float], info: ValidationInfo) -> dict[str, float]:
        """Check the data types of a table by data type."""
        unknown = [dtype for dtype in value if dtype not in DTYPE_BYTES]
        if unknown:
            raise ValueError(f"data type {unknown[0]!r}; expected some of {', '.join(DTYPE_BYTES)}")
        if info.field_name == "peak_flops" and "fp32" not in value:
            raise ValueError("no fp32; expected it among the data types, as norms and softmax count in it")
        return value

    @property
    def has_fused_experts(self) -> bool:
        """Whether Transformer Engine has fused products of experts in FP8 for the GPU: Blackwell and later."""
        return self.attention == "flash-attention-4"

    def for_training(self) -> "Gpu":
        """Return the GPU with the libraries that training runs."""
        return self.model_copy(update={"attention": self.training_attention}) if self.training_attention else self

    def streaming_Bps(self, efficiency: float) -> float:  # noqa: N802 - bytes, not bits
        """Return the bytes per second that memory-bound operators reach.

        Args:
            efficiency: The share of the bandwidth that they reach on A100.
        """
        return self.memory_bandwidth_Bps * self.streaming * efficiency

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
    """Return a GPU. Raises WorkloadError: the name is unknown, the file is no GPU, or a parameter is wrong.

    Args:
        name: The name of a GPU in the library or an installed package, in any case, or the path of a TOML file; both
            with parameters after a colon, if there are any, such as "h100:power=500W,memory=2.4TB/s".
    """
    base, _, parameters = str(name).partition(":")
    base = base.strip()
    known = {each.lower(): each for each in gpu_names()}
    path = plug_ins.toml_file(_KIND, known.get(base.lower(), base), WorkloadError)
    values = read_toml(path, "a GPU in TOML", WorkloadError)
    gpu = checked(Gpu, values, path, WorkloadError)
    return _varied(gpu, values, str(name), parameters) if parameters.strip() else gpu


# Parameters after the name of a GPU. They are keys of its file, and data types with their peak rates; `memory` is a
# capacity or, per second, a bandwidth. Three of them change others, too:
#
# - `sms` and `clock`: rates that are not given change in proportion.
# - `power`: sustained products, `in_a_row`, change with its power of 0.6, up to the rate of single products. A chip at
#   the frequency f takes f V^2, and its voltage V grows with f more or less: the exponent would be 1/3 if V grew as f,
#   and 1 if it did not grow. Pairs of the same chip show 0.61 (MI325X at 1,000 W beside MI300X at 750 W, AMD's maximum
#   achievable rates), 0.4 to 0.5 (GB200 at 1,200 W beside B200 at 1,000 W) and 0.8 to 0.9 (GB300 at 1,400 W beside B300
#   at 1,100 W, both by products of 1e13 operations and more in NVIDIA's tables).
#
# Measured times are those of the GPU as its file has it, so a variant has none, unless only capacity or link differ.

_POWER_EXPONENT = 0.6
_NOT_PARAMETERS = ("name", "nvidia_tables")
_NOT_IN_TIMES = {"memory", "host_link", "step_host"}  # Parameters that leave the times of operators as they are


def _varied(gpu: Gpu, values: Mapping[str, Any], text: str, parameters: str) -> Gpu:
    """Return a GPU with parameters in place of what its file says."""
    # values: content of the file; text: what the user wrote, which begins errors.
    try:
        pairs = parse_pairs(text, parameters, "h100:power=500W,memory=2.4TB/s")
    except ValueError as error:
        raise WorkloadError(str(error)) from None
    changed: dict[str, Any] = {**values, "name": text, "peak_flops": dict(values["peak_flops"])}
    for key, value in pairs.items():
        if key in _NOT_PARAMETERS:
            raise WorkloadError(f"{text}: {key} is no parameter; expected power, memory, a data type or another number")
        if key in DTYPE_BYTES:
            changed["peak_flops"][key] = value
        elif key == "memory" and value.endswith("/s"):
            changed["memory_bandwidth"] = value
        else:
            changed[key] = _scalar(value)
    varied = checked(Gpu, changed, text, WorkloadError)
    in_a_row = varied.in_a_row
    if varied.power_watts != gpu.power_watts:
        if not gpu.power_watts or not varied.power_watts:
            raise WorkloadError(f"{text}: power of a GPU whose file has none; expected no power, or power in its file")
        share = (varied.power_watts / gpu.power_watts) ** _POWER_EXPONENT
        shares = {dtype: in_a_row.get(dtype, 1.0) for dtype in varied.peak_flops}
        in_a_row = {dtype: min(each * share, max(each, 1.0)) for dtype, each in shares.items()}
    size = varied.sms * varied.clock_hz / (gpu.sms * gpu.clock_hz)
    flops = {dtype: rate if dtype in pairs else rate * size for dtype, rate in varied.peak_flops.items()}
    is_as_measured = set(pairs) <= _NOT_IN_TIMES and varied.memory_bandwidth_Bps == gpu.memory_bandwidth_Bps
    tables = gpu.nvidia_tables if is_as_measured else ""
    return varied.model_copy(update={"peak_flops": flops, "in_a_row": in_a_row, "nvidia_tables": tables})


def _scalar(text: str) -> object:
    """Return the number or truth value that a text is, else the text."""
    if text in {"true", "false"}:
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


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
    eager: "SustainedShare | None" = None  # Rates of operators that the host launches one by one, None = the same
    is_training: bool = False  # Whether the libraries are those of training

    def __post_init__(self) -> None:
        """Check the values; WorkloadError if one is out of range."""
        for name in ("products", "others"):
            value = getattr(self, name)
            if not 0 < value <= 1.5:
                raise WorkloadError(f"pace {name} is {value}; expected more than 0, at most 1.5")

    def among(self, gpus: int) -> "SustainedShare":
        """Return the rates in a step of many GPUs, which waits for the slowest of them.

        With speeds that are normally distributed, the slowest of n GPUs is SPREAD m(n) slower than the mean, where m(n)
        is the expected maximum of n normal draws. The rates contain this up to FITTED_GPUS, so fewer change nothing.

        Args:
            gpus: The number of GPUs of the step.
        """
        slower = (1 + SPREAD * _expected_maximum(max(gpus, FITTED_GPUS))) / (
            1 + SPREAD * _expected_maximum(FITTED_GPUS)
        )
        return replace(self, products=self.products / slower, others=self.others / slower)

    def of(self, kind: str) -> float:
        """Return the share for a kind of operator.

        Args:
            kind: The kind of operator, a key of operators.KINDS.
        """
        return self.products if kind in PRODUCTS else self.others


SPREAD = 0.015
"""Standard deviation of the speed of GPUs of one kind: 8 % between the whiskers of box plots over five clusters (Sinha
et al., SC22, arXiv 2208.11035) are 5.4 of them. PRISM (arXiv 2510.15596) reports 9 % on 64,000 GPUs, where m is 4.3."""
FITTED_GPUS = 440  # Geometric mean of the GPUs of the rows to which IN_STEPS is fitted


def _expected_maximum(count: int) -> float:
    """Return the expected maximum of some standard normal draws (Blom, 1958)."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


ALONE = SustainedShare()  # Rates of single operators in benchmarks
IN_STEPS = SustainedShare(products=0.895, others=0.79, in_a_row=True, is_training=True)
"""Rates of training steps, fitted only to the ten rows of Megatron-LM on A100 (megatron-table)."""
IN_SERVING = SustainedShare(in_a_row=True, eager=IN_STEPS)
"""Rates of serving. CUDA graphs leave no gaps between operators. The other operators of a server are the fused ones of
the measured tables (`workload/compute/tables`; scripts/validation.py compares the roofline with them), so they run as
fast as alone. Products of a prompt are consecutive as in a training step and slow down as they do there. Operators that
the host launches one by one follow one another as in a training step."""
