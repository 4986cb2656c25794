"""`nadi workload megatron`, `deepspeed` and `fsdp`: generate traces of training steps."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nadi.cli.options import Force, Prefix, TracesOut
from nadi.launching.ending import unwound
from nadi.terminal.printing import say

if TYPE_CHECKING:
    from workload import TraceSet
    from workload.generators.training.rules import Framework

_MODEL = "Model of `nadi workload models`, TOML file, or config.json of Hugging Face."
_PLAN = "Parallel plan, such as tp8,pp4,dp32,vpp2,mb1,gb1536,zero1,recompute=full."

Name = Annotated[str, typer.Option("--model", metavar="MODEL", help=_MODEL)]
Plan = Annotated[str, typer.Option("--plan", metavar="PLAN", help=_PLAN)]
Expand = Annotated[bool, typer.Option("--expand", help="Write a trace per NPU and groups.json, for other tools.")]


def add_to(group: typer.Typer) -> None:
    """Add the commands."""
    group.command()(megatron)
    group.command()(deepspeed)
    group.command()(fsdp)


def megatron(
    model: Name, plan: Plan, out: TracesOut, expand: Expand = False, prefix: Prefix = "trace", force: Force = False
) -> None:
    """Generate training steps of Megatron-LM: tensor, sequence, pipeline, context, expert and data parallelism."""
    _write("megatron", model, plan, out, prefix, expand=expand, force=force)


def deepspeed(
    model: Name, plan: Plan, out: TracesOut, expand: Expand = False, prefix: Prefix = "trace", force: Force = False
) -> None:
    """Generate training steps of DeepSpeed: ZeRO 0 to 3, pipelines, Ulysses."""
    _write("deepspeed", model, plan, out, prefix, expand=expand, force=force)


def fsdp(
    model: Name, plan: Plan, out: TracesOut, expand: Expand = False, prefix: Prefix = "trace", force: Force = False
) -> None:
    """Generate training steps of PyTorch's FSDP: layers are gathered before use, gradients reduce-scattered."""
    _write("fsdp", model, plan, out, prefix, expand=expand, force=force)


def _write(
    framework: "Framework", model_name: str, plan_text: str, out: Path, prefix: str, *, expand: bool, force: bool
) -> None:
    """Generate the traces of a model and plan, and write them as a trace set, or a trace per NPU if `expand`."""
    from nadi.simulation.wiring.affordable import check_trace
    from workload.generators.models import find
    from workload.generators.training import parallel_plan
    from workload.generators.training.generator import NODE_BYTES, generate, nodes_at_most

    model, plan = find(model_name), parallel_plan(plan_text)
    check_trace(
        nodes_at_most(model, plan, framework), fewer="micro-batches or steps", node_bytes=NODE_BYTES, force=force
    )
    with unwound():
        description = write_traces(generate(model, plan, framework), out, prefix, expand=expand)
    say(description)


def write_traces(traces: "TraceSet", out: Path, prefix: str, *, expand: bool) -> str:
    """Write a trace set into `out`, or if `expand`, a trace per NPU; return a description of the result."""
    from workload import expand as expanded
    from workload import write_set

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
