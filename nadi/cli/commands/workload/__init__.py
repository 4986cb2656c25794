"""`nadi workload`: generate Chakra traces of models and traffic patterns."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from nadi.cli.commands.workload import generation
from nadi.cli.options import AsJson, Force, TracesOut, model_names, named_path
from nadi.cli.output import print_document, print_json, print_table
from nadi.inputs.units import PS_PER_NS, PS_PER_US, parse_bytes_within
from nadi.terminal import FittedTable, facts, name_column, say, size_text

if TYPE_CHECKING:
    from nadi.workload.compute import Gpu

_MEMORY = "Memory of a GPU; exit code 1 if the plan does not fit."
_SEQUENCE_PARALLEL = "Norms process their share of the tokens."
_GPU = "GPU to show with its sources: a name or a TOML file."


def register(app: typer.Typer) -> None:
    """Add the group of commands.

    Args:
        app: The application of typer.
    """
    group = typer.Typer(help="Generate Chakra traces of a model.", callback=_group)
    group.command()(transformer)
    group.command()(models)
    group.command()(gpus)
    group.command("operator-times")(operator_times)
    generation.add_to(group)
    generation.add_traffic(group)
    group.command()(memory)
    app.add_typer(group, name="workload")


def _group() -> None:
    """Do nothing: typer keeps a group of a single command only if the group has a callback."""


def models(
    name: str | None = typer.Argument(None, metavar="[MODEL]", help="Model to show in full: a name or a file."),
    as_json: AsJson = False,
) -> None:
    """List the models of the library with sizes and sources, or show one in full."""
    from nadi.reports.text.models import document, one, table
    from nadi.workload.generators.models import find, names

    if name:
        model = find(name)
        print_document(document(model) if as_json else model, one, as_json=as_json)
    else:
        known = [find(each) for each in names()]
        print_document([document(model) for model in known], lambda _: table(known), as_json=as_json)


def memory(
    model: str = typer.Option(
        ..., metavar="MODEL", help="Name in `nadi workload models`, or file.", autocompletion=model_names
    ),
    plan: str = typer.Option(..., metavar="PLAN", help="Parallel plan, such as tp8,pp4,dp32,sp,zero1,recompute=full."),
    framework: str = typer.Option("megatron", help="Framework: megatron, deepspeed or fsdp."),
    gpu_memory: str = typer.Option("80GiB", metavar="SIZE", help=_MEMORY),
    as_json: AsJson = False,
) -> None:
    """Print the peak memory of a training step per pipeline stage, and whether it fits."""
    from nadi.inputs.limits import MAX_BYTES
    from nadi.reports.text.models import frameworks, memory_document, memory_table
    from nadi.workload.generators.memory import does_not_fit, estimate
    from nadi.workload.generators.models import find
    from nadi.workload.generators.training import parallel_plan

    known, chosen, own = find(model), parallel_plan(plan), frameworks(framework)
    memory_bytes = parse_bytes_within(gpu_memory, MAX_BYTES)
    stages = estimate(known, chosen, own)
    warning = does_not_fit(known, chosen, memory_bytes, own)
    if as_json:
        print_json(memory_document(stages, warning))
    else:
        print_table(memory_table(f"{known.name}, {chosen}: GiB on each GPU", stages))
        say(warning or f"fits into {gpu_memory}")
    if warning:
        raise typer.Exit(1)


def transformer(
    out: TracesOut,
    prefix: str = typer.Option("transformer", help="Prefix of the file names PREFIX.<npu>.et."),
    npus: int = typer.Option(8, help="Number of data-parallel replicas."),
    layers: int = typer.Option(12, help="Number of layers."),
    hidden: int = typer.Option(768, help="Hidden size."),
    heads: int = typer.Option(12, help="Number of attention heads."),
    vocab: int = typer.Option(50_304, help="Vocabulary size."),
    seq: int = typer.Option(1024, help="Tokens per sequence."),
    micro_batch: int = typer.Option(8, help="Sequences per NPU and iteration."),
    dtype_bytes: int = typer.Option(2, help="Bytes per weight, activation or gradient."),
    bucket_bytes: str = typer.Option("25MiB", help="Bytes of gradients per all-reduce."),
    iterations: int = typer.Option(1, help="Number of optimizer steps."),
    recompute: bool = typer.Option(False, "--recompute", help="Recompute the forward pass in the backward pass."),
    force: Force = False,
) -> None:
    """Generate data-parallel training of a GPT-like transformer; gradient buckets overlap the backward pass."""
    from nadi.inputs.documents import checked
    from nadi.inputs.limits import MAX_BYTES
    from nadi.simulation.assembly.resource_checks import check_trace
    from nadi.workload import WorkloadError, expand
    from nadi.workload.generators.models import Model, parameters, training_flops
    from nadi.workload.generators.training import generator

    sizes = {"layers": layers, "hidden": hidden, "heads": heads, "vocab": vocab, "sequence": seq}
    model = checked(Model, {"name": "transformer", **sizes}, "transformer", WorkloadError)
    bucket = parse_bytes_within(bucket_bytes, MAX_BYTES)
    plan = generator.data_parallel_plan(npus, micro_batch, dtype_bytes, bucket, iterations, recompute=recompute)
    nodes = generator.nodes_at_most(model, plan)
    check_trace(nodes, node_bytes=generator.NODE_BYTES, force=force)
    traces = generator.generate_for_all(model, plan)
    # data parallel: all NPUs have the same trace
    (trace,) = traces.traces
    flops = training_flops(model, micro_batch, recompute=plan.recompute)
    summed_bytes = trace.comm_size[trace.comm_type >= 0]
    written = expand(traces, out, prefix)
    say(
        f"{written}.<npu>.et: {npus} traces, {parameters(model):,} parameters, {flops:.3g} FLOPs per NPU and "
        f"iteration, {len(summed_bytes)} all-reduces of {summed_bytes.sum() / 1e6:,.1f} MB in all"
    )


def gpus(gpu: str | None = typer.Argument(None, metavar="[GPU]", help=_GPU), as_json: AsJson = False) -> None:
    """List the GPUs for [compute] gpu and the tables of measured times."""
    from nadi.workload.compute import find_gpu, gpu_names

    known = [find_gpu(name) for name in (gpu_names() if gpu is None else (gpu,))]
    if as_json:
        documents = [each.model_dump() for each in known]
        print_json(documents if gpu is None else documents[0])
    elif gpu is None:
        _show_all(known)
    else:
        _show_one(known[0])


def operator_times(
    file: Path = typer.Argument(metavar="FILE", parser=named_path, help="AICB's text file of measured times."),
    out: Path = typer.Option(..., "-o", "--out", metavar="FILE.csv", parser=named_path, help="Table to write."),
    gpu: str = typer.Option(..., help="GPU of the measurement, as `nadi workload gpus` names it."),
    hidden: int = typer.Option(..., help="Hidden size that AIOB was run with; the same for the options below."),
    heads: int = typer.Option(..., help="Number of attention heads."),
    vocab: int = typer.Option(..., help="Padded vocabulary size."),
    seq: int = typer.Option(..., help="Tokens per sequence."),
    micro_batch: int = typer.Option(1, help="Sequences per micro-batch."),
    ffn: int = typer.Option(0, help="Width of the MLP; 0 = four times the hidden size."),
    tp: int = typer.Option(1, help="Number of tensor-parallel GPUs."),
    parameters: int = typer.Option(0, help="Number of parameters of the model; 0 leaves out param_time."),
    sequence_parallel: bool = typer.Option(False, "--sequence-parallel", help=_SEQUENCE_PARALLEL),
    gated: bool = typer.Option(False, "--gated", help="The MLP has a third matrix (SwiGLU)."),
    dtype: str = typer.Option("bf16", help="Data type."),
) -> None:
    """Convert AICB's measured times, which lack shapes, to a table for [compute] tables."""
    from nadi.workload.compute import AicbModel, read_aicb, write_table

    sizes: dict[str, Any] = {"hidden": hidden, "heads": heads, "vocab": vocab, "sequence": seq, "ffn": ffn, "tp": tp}
    sizes |= {"micro_batch": micro_batch, "parameters": parameters}
    model = AicbModel(**sizes, sequence_parallel=sequence_parallel, gated=gated, dtype=dtype)
    rows, left_out = read_aicb(file, gpu, model)
    write_table(out, rows)
    without = f"; left out: {', '.join(left_out)}" if left_out else ""
    say(f"{out}: {len(rows)} operators of {gpu}{without}")


def _show_all(gpus: "list[Gpu]") -> None:
    """Print a row per GPU, and which measured tables exist."""
    from nadi.workload.compute import nvidia, table_names

    rates = "16-bit TFLOP/s", ("fp8 TFLOP/s", 2), "memory", "TB/s", ("SMs", 3)
    table = FittedTable("", name_column("GPU"), *rates, name_column("attention", 1))
    for gpu in gpus:
        flops = gpu.peak_flops
        speeds = _teraflops(flops.get("bf16", flops.get("fp16"))), _teraflops(flops.get("fp8"))
        memory = size_text(gpu.memory_bytes), f"{gpu.memory_bandwidth_Bps / 1e12:g}"
        table.add_row(gpu.name, *speeds, *memory, str(gpu.sms), gpu.attention)
    print_table(table)
    say(f"measured tables: {', '.join(table_names()) or 'none'}")
    systems = [gpu.name for gpu in gpus if nvidia.has_tables(gpu.nvidia_tables)]
    of_nvidia = f"{', '.join(systems)} ({nvidia.installed()})" if systems else f"not installed: {nvidia.INSTALL}"
    say(f"NVIDIA's tables: {of_nvidia}")


def _vendor_tables(gpu: "Gpu") -> str:
    """Return which of NVIDIA's measured tables a GPU has, in words."""
    from nadi.workload.compute import nvidia

    if not gpu.nvidia_tables:
        return "none of this GPU"
    if nvidia.has_tables(gpu.nvidia_tables):
        return f"{gpu.nvidia_tables} of {nvidia.installed()}"
    return f"{gpu.nvidia_tables}, not installed: {nvidia.INSTALL}"


def _teraflops(rate: float | None) -> str:
    return "-" if rate is None else f"{rate / 1e12:,.4g}"


def _show_one(gpu: "Gpu") -> None:
    """Print all figures of a GPU with their sources."""
    rates = ", ".join(f"{dtype} {rate / 1e12:g}" for dtype, rate in gpu.peak_flops.items())
    shown = {
        "GPU": gpu.name,
        "TFLOP/s": rates,
        "memory": f"{size_text(gpu.memory_bytes)}, {gpu.memory_bandwidth_Bps / 1e12:g} TB/s",
        "L2": size_text(gpu.l2_bytes),
        "SMs": f"{gpu.sms} at {gpu.clock_hz / 1e9:g} GHz",
        "power": f"{gpu.power_watts:g} W" if gpu.power_watts else "not known",
        "sustained": f"{gpu.sustained:g} of the peak in large matrix products",
        "in a row": ", ".join(f"{dtype} {share:.3g}" for dtype, share in gpu.in_a_row.items()) or "as alone",
        "latencies": f"memory {gpu.memory_latency_ps / PS_PER_NS:g} ns, "
        f"launch {gpu.launch_overhead_ps / PS_PER_US:g} µs",
        "host link": f"{gpu.host_link_Bps / 1e9:g} GB/s",
        "attention": gpu.attention,
        "NVIDIA's tables": _vendor_tables(gpu),
    }
    shown |= {f"source of {key}": text for key, text in gpu.sources.items()}
    print_table(facts("", tuple(shown.items())))
