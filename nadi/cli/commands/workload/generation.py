"""Commands of `nadi workload` that write traces: steps of a model, serving, and messages without a model.

A pattern of messages is a function from options to messages; `_traffic` turns it into a command of `nadi workload
traffic` that writes their traces.
"""

import inspect
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nadi.cli.options import Force, Prefix, Quiet, TracesOut, cluster_names, model_names, named_path
from nadi.configuration import MAX_SEED, MAX_SEQUENCES, MAX_TOKENS
from nadi.errors import ConfigError
from nadi.inputs.units import PS_PER_BYTE_AT_1_BPS, parse_rate_within, parse_time_within
from nadi.launching.ending import unwound
from nadi.terminal import amount_text, say

if TYPE_CHECKING:
    from nadi.simulation.closed_forms import Curve
    from nadi.workload import TraceSet
    from nadi.workload.generators.inference import Network
    from nadi.workload.generators.point_to_point import MessageSequence, Sizes
    from nadi.workload.generators.training import GroupCollective, ParallelPlan
    from nadi.workload.generators.training.rules import Framework

    Traffic = tuple[MessageSequence, str]  # messages, and a text for the result line

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
        group.command(framework, help=f"Generate training steps of {contents}")(_training(framework))
    group.command()(inference)


def _training(framework: "Framework") -> Callable[..., None]:
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
    from nadi.workload import expand as expanded, write_set

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
        network=serving_network(cluster, own.gpus + (before.gpus if before else 0)) if cluster else None,
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


def serving_network(cluster_name: str, num_gpus: int) -> "Network":
    """Return communication times of serving on the first GPUs of a cluster, for the scheduler's clock.

    The network is idle, and times are closed forms: a function from a plan and its first NPU to a Link.

    Args:
        cluster_name: Name or file of the cluster.
        num_gpus: Number of GPUs, the first ones of the cluster, that serve.
    """
    import numpy as np

    from nadi import topologies, workload
    from nadi.configuration.sections import NetworkSection
    from nadi.pdes.fidelity import FASTEST
    from nadi.simulation import network_settings
    from nadi.simulation.closed_forms import CollectiveCosts, MessageKeys
    from nadi.topologies.clusters import find
    from nadi.workload.collectives import defaults_on
    from nadi.workload.generators.inference import Link
    from nadi.workload.generators.training import families, stage_size
    from nadi.workload.kinds import ALL_GATHER
    from nadi.workload.program import SendColumns

    cluster = find(cluster_name)
    graph = topologies.build(cluster.topology(num_gpus))
    section = NetworkSection.model_validate({**cluster.network, "fidelity": FASTEST})
    settings = network_settings.fitted(graph, network_settings.network_settings(section, record_flows=False))
    how = workload.CollectiveSettings(defaults_on(graph) | cluster.collectives)
    costs = CollectiveCosts(graph, settings)
    program = workload.collective_program("all-reduce", graph.npus, 1, "ring")
    sends = SendColumns(how, graph, np.arange(graph.npus), {}, {})

    @cache
    def curve(kind: str, members: tuple[int, ...]) -> "Curve":
        return costs.curve(program, kind, how.algorithm_of(kind), np.array(members, np.int64))

    def of_engine(plan: "ParallelPlan", first: int) -> Link:
        groups = {family: tuple(npu + first for npu in own[0]) for family, own in families(plan).items()}
        beside = first + stage_size(plan)

        def collective_ps(item: "GroupCollective") -> float:
            members = groups[item.family]
            # the curve takes the whole buffer, of which an all-gather's item.bytes is one member's part
            whole = item.bytes * (len(members) if item.kind == ALL_GATHER else 1)
            return curve(workload.KINDS[item.kind], members).at(whole).time_ps

        @cache
        def message_ps(size: int) -> float:
            sent = sends.alone(first, beside, size)
            columns = (np.array([value]) for value in (first, beside, sent.wire_bytes, sent.shares, sent.parts))
            return sent.wait_ps + float(costs.of_messages(MessageKeys(*columns)).total_ps[0])

        return Link(collective_ps, message_ps)

    return of_engine


_SIZE = "1MiB"
_STRIDE = "Distance of the NPUs of a pair. Default: half of the NPUs."

FilePrefix = Annotated[str, typer.Option(help="Prefix of the file names PREFIX.<npu>.et.")]
Npus = Annotated[int, typer.Option(help="Number of NPUs.")]
_SIZES = "Size of messages: 1MiB, uniform:64KiB-1MiB, web-search, hadoop, storage, data-mining, or FILE: BYTES PERCENT."
Size = Annotated[str, typer.Option(help=_SIZES)]
Rounds = Annotated[int, typer.Option(min=1, help="Number of consecutive messages to each receiver.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of random choices.")]
First = Annotated[int, typer.Option(min=0, help="Number of the first NPU; DIR may contain traces of lower ones.")]
FanIn = Annotated[int | None, typer.Option(help="Number of senders. Default: all other NPUs.", show_default=False)]
Receiver = Annotated[int, typer.Option(help="NPU that receives.")]
Stride = Annotated[int | None, typer.Option(help=_STRIDE, show_default=False)]
Load = Annotated[float, typer.Option(help="Offered load of each NPU as a share of its rate.")]
Rate = Annotated[str, typer.Option(help="Rate of an NPU's link.")]
Duration = Annotated[str, typer.Option(help="Time span in which messages arrive.")]
_SIGMA = "Shape of the lognormal distribution of the gaps between messages: 1 is bursty, 2 very bursty."
Sigma = Annotated[float, typer.Option(help=_SIGMA)]


def add_traffic(app: typer.Typer) -> None:
    """Add the group of commands to the application.

    Args:
        app: The application of typer.
    """
    group = typer.Typer(help="Generate traces of messages without a model.")
    for pattern in (incast, permutation, pairs, poisson, bursty, all_to_all):
        group.command()(_traffic(pattern))
    app.add_typer(group, name="traffic")


def incast(
    npus: Npus = 8,
    fan_in: FanIn = None,
    receiver: Receiver = 0,
    size: Size = _SIZE,
    messages: Rounds = 1,
    seed: Seed = 1,
) -> "Traffic":
    """Generate incast: many NPUs send to one."""
    from nadi.workload.generators import point_to_point

    senders = npus - 1 if fan_in is None else fan_in
    return point_to_point.incast(npus, senders, messages, _sizes(size), seed, receiver), ""


def permutation(npus: Npus = 8, size: Size = _SIZE, messages: Rounds = 1, seed: Seed = 1) -> "Traffic":
    """Generate a permutation: each NPU sends to one random NPU and receives from one."""
    # Returns the traces, and a note for the user, "" = none.
    from nadi.workload.generators import point_to_point

    return point_to_point.permutation(npus, messages, _sizes(size), seed), ""


def pairs(npus: Npus = 8, stride: Stride = None, size: Size = _SIZE, messages: Rounds = 1, seed: Seed = 1) -> "Traffic":
    """Generate pairs: NPUs i and i + stride send to each other."""
    from nadi.workload.generators import point_to_point

    return point_to_point.pairs(npus, npus // 2 if stride is None else stride, messages, _sizes(size), seed), ""


def all_to_all(npus: Npus = 8, size: Size = _SIZE, messages: Rounds = 1, seed: Seed = 1) -> "Traffic":
    """Generate an all-to-all: each NPU sends to all others sequentially, the next NPU first."""
    from nadi.workload.generators import point_to_point

    return point_to_point.all_to_all(npus, messages, _sizes(size), seed), ""


def poisson(
    npus: Npus = 8,
    load: Load = 0.5,
    rate: Rate = "400Gbps",
    duration: Duration = "1ms",
    size: Size = _SIZE,
    seed: Seed = 1,
) -> "Traffic":
    """Generate background traffic: messages to random NPUs at the times of a Poisson process."""
    return _random("poisson", npus, load, rate, duration, size, seed)


def bursty(
    npus: Npus = 8,
    load: Load = 0.5,
    rate: Rate = "400Gbps",
    duration: Duration = "1ms",
    sigma: Sigma = 2.0,
    size: Size = _SIZE,
    seed: Seed = 1,
) -> "Traffic":
    """Generate background traffic in bursts: messages to random NPUs, with gaps of a lognormal distribution."""
    return _random(f"lognormal:sigma={sigma:g}", npus, load, rate, duration, size, seed)


def _random(process: str, npus: int, load: float, rate: str, duration: str, size: str, seed: int) -> "Traffic":
    """Return messages to random NPUs at the times of an arrival process, and the load that they offer."""
    from nadi.inputs.limits import LONGEST_PS, MEMORY_RATE_BPS
    from nadi.workload.generators import point_to_point

    rate_bps, duration_ps = parse_rate_within(rate, MEMORY_RATE_BPS), parse_time_within(duration, LONGEST_PS)
    times = point_to_point.arrivals(process)
    made = point_to_point.random_messages(npus, load, rate_bps, duration_ps, _sizes(size), seed, times)
    offered = made.bytes.sum() * PS_PER_BYTE_AT_1_BPS / (npus * rate_bps * duration_ps)
    return made, f", {offered:.3g} of {npus} x {rate} in {duration}"


def _sizes(text: str) -> "Sizes":
    """Parse the distribution of message sizes that an option gives."""
    from nadi.workload.generators.point_to_point import message_sizes

    return message_sizes(text)


def _traffic(pattern: Callable[..., "Traffic"]) -> Callable[..., None]:
    """Return a command with a pattern's options and the options of the files."""

    def command(
        out: TracesOut, prefix: FilePrefix = "traffic", first_npu: First = 0, force: Force = False, **own: object
    ) -> None:
        made, more = pattern(**own)
        from nadi.simulation.assembly.resource_checks import check_trace
        from nadi.workload.generators.point_to_point import NODE_BYTES, write

        check_trace(made.nodes, fewer="NPUs or messages", node_bytes=NODE_BYTES, force=force)
        files = write(made, out, prefix, first_npu)
        amount = amount_text(float(made.bytes.sum()))
        say(f"{out / prefix}.<npu>.et: {files} traces, {len(made.src):,} messages, {amount}{more}")

    of_files = inspect.signature(command).parameters
    before, after = [of_files[name] for name in ("out", "prefix")], [of_files[name] for name in ("first_npu", "force")]
    options = [*before, *inspect.signature(pattern).parameters.values(), *after]
    command.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]  # what typer reads
    command.__annotations__ = {option.name: option.annotation for option in options}
    command.__name__, command.__doc__ = pattern.__name__, pattern.__doc__
    return command
