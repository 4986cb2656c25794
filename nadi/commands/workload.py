"""`nadi workload`: from a model to Chakra traces."""

from pathlib import Path

import typer

from nadi.gpus import gpus, kernel_times
from nadi.options import FORCE_HELP, named_path


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(help="Make Chakra traces of a model.")
    group.callback()(_group)
    group.command()(transformer)
    group.command()(gpus)
    group.command("kernel-times")(kernel_times)
    app.add_typer(group, name="workload")


def _group() -> None:
    """With a callback, a group of a single command stays a group."""


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
    from nadi.affordable import check_trace
    from nadi.printing import say
    from topologies.bounds import MOST_BYTES
    from topologies.units import parse_bytes_within
    from workload import transformer as model

    params = model.TransformerParams(
        npus=npus,
        layers=layers,
        hidden=hidden,
        heads=heads,
        vocab=vocab,
        seq=seq,
        micro_batch=micro_batch,
        dtype_bytes=dtype_bytes,
        bucket_bytes=parse_bytes_within(bucket_bytes, MOST_BYTES),
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
