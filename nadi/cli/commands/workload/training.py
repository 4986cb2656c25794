"""`nadi workload megatron`, `deepspeed` and `fsdp`: generate traces of training steps."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nadi.cli.completion import model_names
from nadi.cli.options import Force, Prefix, TracesOut
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


def add_to(group: typer.Typer) -> None:
    """Add a command per framework.

    Args:
        group: The group that gets the commands.
    """
    for framework, contents in _FRAMEWORKS.items():
        group.command(framework, help=f"Generate training steps of {contents}")(_command(framework))


def _command(framework: "Framework") -> Callable[..., None]:
    """Return the command that generates the traces of a model and plan, and writes them."""

    def command(
        model: Name, plan: Plan, out: TracesOut, expand: Expand = False, prefix: Prefix = "trace", force: Force = False
    ) -> None:
        from nadi.simulation.wiring.resource_checks import check_trace
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
