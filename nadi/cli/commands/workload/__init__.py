"""`nadi workload`: from a model to Chakra traces."""

import json
from pathlib import Path

import typer

from nadi.cli.commands.workload import inference, traffic, training
from nadi.cli.commands.workload.gpus import gpus, operator_times
from nadi.cli.options import FORCE_HELP, named_path


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(help="Make Chakra traces of a model.", callback=_group)
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
    """With a callback, a group of a single command stays a group."""


def models(
    name: str | None = typer.Argument(None, metavar="[MODEL]", help="Only this one, in full: a name or a file."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """The models of the library with their sizes and sources, or one in full."""
    from nadi.reports.text.models import document, one, table
    from nadi.terminal.tables import console
    from workload.generators.models import find, names

    found = [find(each) for each in ([name] if name else names())]
    if as_json:
        documents = [document(model) for model in found]
        typer.echo(json.dumps(documents[0] if name else documents, indent=2))
    else:
        console().print(one(found[0]) if name else table(found))


def memory(
    model: str = typer.Option(..., metavar="MODEL", help="A name of `nadi workload models`, or a file."),
    plan: str = typer.Option(..., metavar="PLAN", help="As tp8,pp4,dp32,sp,zero1,recompute=full."),
    framework: str = typer.Option("megatron", help="megatron, deepspeed or fsdp."),
    gpu_memory: str = typer.Option("80GiB", metavar="SIZE", help="Of a GPU; exit code 1 where the plan does not fit."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Peak memory of a training step, for each stage of the pipeline, and whether it fits."""
    from nadi.reports.text.memory import document, frameworks, table
    from nadi.terminal.printing import say
    from nadi.terminal.tables import console
    from topologies.bounds import MAX_BYTES
    from topologies.units import parse_bytes_within
    from workload.generators.memory import does_not_fit, estimate
    from workload.generators.models import find
    from workload.generators.training import parallel_plan

    known, chosen, own = find(model), parallel_plan(plan), frameworks(framework)
    memory_bytes = parse_bytes_within(gpu_memory, MAX_BYTES)
    stages = estimate(known, chosen, own)
    complaint = does_not_fit(known, chosen, memory_bytes, own)
    if as_json:
        typer.echo(json.dumps(document(stages, complaint), indent=2))
    else:
        console().print(table(f"{known.name}, {chosen}: GiB on each GPU", stages))
        say(complaint or f"fits into {gpu_memory}")
    if complaint:
        raise typer.Exit(1)


def transformer(
    out: Path = typer.Option(..., "-o", "--out", metavar="DIR", parser=named_path, help="Folder for the traces."),
    prefix: str = typer.Option("transformer", help="Beginning of the files' names: PREFIX.<npu>.et."),
    npus: int = typer.Option(8, help="Data-parallel copies."),
    layers: int = typer.Option(12, help="Layers."),
    hidden: int = typer.Option(768, help="Hidden size."),
    heads: int = typer.Option(12, help="Attention heads."),
    vocab: int = typer.Option(50_304, help="Vocabulary."),
    seq: int = typer.Option(1024, help="Tokens of a sequence."),
    micro_batch: int = typer.Option(8, help="Sequences for each NPU and iteration."),
    dtype_bytes: int = typer.Option(2, help="Bytes of a weight, activation or gradient."),
    bucket_bytes: str = typer.Option("25MiB", help="Gradients of an all-reduce."),
    iterations: int = typer.Option(1, help="Optimizer steps."),
    recompute: bool = typer.Option(False, "--recompute", help="The backward pass does the forward pass again."),
    force: bool = typer.Option(False, "--force", help=FORCE_HELP),
) -> None:
    """Data-parallel training of a GPT-like transformer, gradient buckets overlapping the backward pass."""
    from nadi.simulation.wiring.affordable import check_trace
    from nadi.terminal.printing import say
    from topologies.bounds import MAX_BYTES
    from topologies.units import parse_bytes_within
    from workload.generators import transformer as model

    params = model.TransformerParams(
        npus=npus,
        layers=layers,
        hidden=hidden,
        heads=heads,
        vocab=vocab,
        seq=seq,
        micro_batch=micro_batch,
        dtype_bytes=dtype_bytes,
        bucket_bytes=parse_bytes_within(bucket_bytes, MAX_BYTES),
        iterations=iterations,
        recompute=recompute,
    )
    check_trace(params.nodes(), force=force)
    traces = model.write(params, out, prefix)
    buckets = model.buckets(params)
    say(
        f"{traces}.<npu>.et: {npus} traces, {params.parameters():,} parameters, {params.flops():.3g} FLOPs per NPU and "
        f"iteration, {len(buckets)} all-reduces of {sum(bucket.bytes for bucket in buckets) / 1e6:,.1f} MB in all"
    )
