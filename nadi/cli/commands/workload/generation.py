"""`nadi workload megatron`, `deepspeed`, `fsdp` and `inference`: generate traces of training and serving models."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nadi.cli.options import Force, Prefix, Quiet, TracesOut, cluster_names, model_names, named_path
from nadi.configuration import MAX_SEED, MAX_SEQUENCES, MAX_TOKENS
from nadi.errors import ConfigError
from nadi.launching.ending import unwound
from nadi.terminal import say

if TYPE_CHECKING:
    from nadi.workload import TraceSet
    from nadi.workload.generators.training.rules import Framework

_MODEL = "Model of `nadi workload models`, TOML file, or config.json of Hugging Face."
_PLAN = "Parallel plan, such as tp8,pp4,dp32,vpp2,mb1,gb1536,zero1,recompute=full."

Name = Annotated[str, typer.Option("--model", metavar="MODEL", help=_MODEL, autocompletion=model_names)]
Plan = Annotated[str, typer.Option("--plan", metavar="PLAN", help=_PLAN)]
Expand = Annotated[bool, typer.Option("--expand", help="Write a trace per NPU and groups.json, for other tools.")]


_FRAMEWORKS: "dict[Framework, str]" = {
    "megatron": "Megatron-LM: tensor, sequence, pipeline, context, expert and data parallelism.",
    "deepspeed": "DeepSpeed: ZeRO 0 to 3, pipelines, Ulysses.",
    "fsdp": "PyTorch's FSDP: layers are gathered before use, gradients reduce-scattered.",
}
_REQUESTS = "Number of requests; 0 = as many as all replicas run concurrently."
_FILE = "File of requests with columns arrival_s,prompt,generate."
_SOFTWARE = "Serving software: docs/explanation/inference.md lists it; or other numbers, as vllm-v1:iteration_us=500."
_CHUNK = "Tokens per iteration with chunked prefill; 0 = prompts run first. Default: the software's."
_PROMPTS = "Maximum tokens of whole prompts in an iteration. Default: the software's."
_CLUSTER = "Cluster whose network and GPU determine the scheduler's clock."
_GPU = "GPU for the clock without network times, and for cache memory: h100, file."
_CACHE = "Cache capacity of a replica; 0 = the GPU's remaining memory."
_LENGTHS = "1024, uniform:128-2048 or lognormal:512,0.8 (median and sigma)."


def add_to(group: typer.Typer) -> None:
    """Add a command per framework of training, and that of serving.

    Args:
        group: The group that gets the commands.
    """
    for framework, contents in _FRAMEWORKS.items():
        group.command(framework, help=f"Generate training steps of {contents}")(_command(framework))
    group.command()(inference)


def _command(framework: "Framework") -> Callable[..., None]:
    """Return the command that generates the traces of a model and plan, and writes them."""

    def command(
        model: Name, plan: Plan, out: TracesOut, expand: Expand = False, prefix: Prefix = "trace", force: Force = False
    ) -> None:
        from nadi.simulation.assembly.resource_checks import check_trace
        from nadi.workload.generators.models import find
        from nadi.workload.generators.training import parallel_plan
        from nadi.workload.generators.training.generator import NODE_BYTES, generate, nodes_at_most

        known, chosen = find(model), parallel_plan(plan)
        nodes = nodes_at_most(known, chosen, framework)
        check_trace(nodes, fewer="micro-batches or steps", node_bytes=NODE_BYTES, force=force)
        with unwound():
            description = write_traces(generate(known, chosen, framework), out, prefix, expand=expand)
        say(description)

    return command


def write_traces(traces: "TraceSet", out: Path, prefix: str, *, expand: bool) -> str:
    """Write a trace set; return a description of the result.

    Args:
        traces: Traces to write.
        out: Folder to write to.
        prefix: Beginning of the names of the files.
        expand: Whether to write a trace per NPU instead of a trace set.
    """
    from nadi.workload import expand as expanded
    from nadi.workload import write_set

    if expand:
        written = expanded(traces, out, prefix)
        groups = f', groups = "{written.parent / "groups.json"}"' if traces.families else ""
    else:
        written, groups = write_set(out, traces, prefix), ""
    count = sum(len(trace) for trace in traces.traces)
    return (
        f"{traces.npus} NPUs, {len(traces.traces)} distinct traces of {count:,} nodes in all; "
        f'in a run file: [workload] traces = "{written}"{groups}'
    )


def inference(
    model: Name,
    out: TracesOut,
    plan: str = typer.Option("", metavar="PLAN", help="Parallel plan, such as tp8,pp2,dp2,ep16,fp8."),
    batch: int = typer.Option(1, min=1, max=MAX_SEQUENCES, help="Number of concurrent sequences per replica."),
    prompt: str = typer.Option("1024", metavar="TOKENS", help=f"Tokens of a request's prompt: {_LENGTHS}"),
    generate: str = typer.Option("128", metavar="TOKENS", help=f"Output tokens of a request: {_LENGTHS}"),
    requests: int = typer.Option(0, min=0, max=MAX_SEQUENCES, help=_REQUESTS),
    rate: float = typer.Option(0.0, help="Arrivals per second (Poisson); 0 = all arrive at once."),
    requests_file: Path | None = typer.Option(None, metavar="CSV", parser=named_path, help=_FILE),
    software: str = typer.Option("vllm-v1", metavar="NAME", help=_SOFTWARE),
    chunk: int | None = typer.Option(None, min=0, max=MAX_TOKENS, metavar="TOKENS", help=_CHUNK),
    prompt_tokens: int | None = typer.Option(None, min=1, max=MAX_TOKENS, metavar="TOKENS", help=_PROMPTS),
    cluster: str = typer.Option("", metavar="CLUSTER", help=_CLUSTER, autocompletion=cluster_names),
    gpu: str = typer.Option("", metavar="GPU", help=_GPU),
    kv_tokens: int = typer.Option(0, min=0, max=MAX_TOKENS, metavar="TOKENS", help=_CACHE),
    prefill_plan: str = typer.Option("", metavar="PLAN", help="Plan of separate GPUs for the prompts."),
    decode_plan: str = typer.Option("", metavar="PLAN", help="Plan of the GPUs for decoding, instead of --plan."),
    kv_transfer: str = typer.Option("layer", help="Transfer of keys and values: layer by layer (layer), or whole."),
    seed: int = typer.Option(1, min=0, max=MAX_SEED, help="Seed of lengths and arrivals."),
    expand: Expand = False,
    prefix: Prefix = "trace",
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Generate serving of a model: prompts and decoding in continuous batches, on one set of GPUs or on two."""
    from nadi.cli.commands.workload.serving_network import network
    from nadi.launching.progress import progress
    from nadi.simulation.assembly.resource_checks import check_trace
    from nadi.topologies.clusters import find as find_cluster
    from nadi.workload.compute import find_gpu
    from nadi.workload.generators.inference import (
        Lengths,
        RequestStream,
        Serving,
        engines,
        nodes_at_least,
        nodes_at_most,
        requests_of,
        traces_of,
    )
    from nadi.workload.generators.models import find
    from nadi.workload.generators.training import parallel_plan
    from nadi.workload.generators.training.generator import NODE_BYTES

    if bool(prefill_plan) != bool(decode_plan) or bool(plan) == bool(decode_plan):
        raise ConfigError("expected --plan, or both --prefill-plan and --decode-plan")
    if kv_transfer not in {"layer", "whole"}:
        raise ConfigError(f"--kv-transfer: found {kv_transfer!r}; expected layer or whole")
    own, before = parallel_plan(decode_plan or plan), parallel_plan(prefill_plan) if prefill_plan else None
    gpu = gpu or (find_cluster(cluster).gpu if cluster else "")
    serving = Serving(
        model=find(model),
        plan=own,
        batch=batch,
        chunk=chunk,
        prompt_tokens=prompt_tokens,
        gpu=find_gpu(gpu) if gpu else None,
        kv_tokens=kv_tokens,
        network=network(cluster, own.gpus + (before.gpus if before else 0)) if cluster else None,
        prefill_plan=before,
        transfer="whole" if kv_transfer == "whole" else "layer",
        software=software,
    )
    # by default, one full batch for each replica
    count = requests or batch * serving.plan.dp
    stream = RequestStream(count, Lengths.parse(prompt, "--prompt"), Lengths.parse(generate, "--generate"), rate, seed)
    fewer = "requests or tokens"
    with unwound(), progress(quiet=quiet) as shown:
        arriving = requests_of(requests_file or stream)
        # by a lower bound first, since the schedules take long to compute
        check_trace(nodes_at_least(serving, arriving), fewer=fewer, node_bytes=NODE_BYTES, force=force)
        made = engines(serving, arriving, shown.begin)
        check_trace(nodes_at_most(serving, made), fewer=fewer, node_bytes=NODE_BYTES, force=force)
        description = write_traces(traces_of(serving, made, shown.begin), out, prefix, expand=expand)
    iterations = " and ".join(f"{max(len(own) for own in engine.schedule.iterations):,}" for engine in made)
    say(f"{len(arriving):,} requests, {iterations} iterations; {description}")
