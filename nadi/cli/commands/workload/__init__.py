"""`nadi workload`: generate Chakra traces of models and traffic patterns."""

import typer

from nadi.cli.commands.workload import inference, traffic, training
from nadi.cli.commands.workload.gpus import gpus, operator_times
from nadi.cli.completion import model_names
from nadi.cli.options import AsJson, Force, TracesOut
from nadi.cli.output import print_document, print_json, print_table
from nadi.terminal import say

_MEMORY = "Memory of a GPU; exit code 1 if the plan does not fit."


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
    training.add_to(group)
    inference.add_to(group)
    traffic.add_to(group)
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
    from nadi.inputs.units import parse_bytes_within
    from nadi.reports.text.models import frameworks, memory_document, memory_table
    from nadi.workload.generators.memory import does_not_fit, estimate
    from nadi.workload.generators.models import find
    from nadi.workload.generators.training import parallel_plan

    known, chosen, own = find(model), parallel_plan(plan), frameworks(framework)
    memory_bytes = parse_bytes_within(gpu_memory, MAX_BYTES)
    stages = estimate(known, chosen, own)
    complaint = does_not_fit(known, chosen, memory_bytes, own)
    if as_json:
        print_json(memory_document(stages, complaint))
    else:
        print_table(memory_table(f"{known.name}, {chosen}: GiB on each GPU", stages))
        say(complaint or f"fits into {gpu_memory}")
    if complaint:
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
    from nadi.inputs.units import parse_bytes_within
    from nadi.simulation.wiring.resource_checks import check_trace
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
