"""Small deployments, and what their traces have in all."""

from collections import Counter

import numpy as np

from nadi.et import NodeType
from nadi.workload import ComputeModel, build_program
from nadi.workload.compute.operators import PRODUCTS, parse_operators
from nadi.workload.generators.inference import Lengths, Request, RequestStream, Serving, generate
from nadi.workload.generators.training import parallel_plan
from tests.workload.training.small import DEEPSEEK, GPT, LLAMA, MIXTRAL, copies

SMALL = LLAMA.model_copy(update={"vocab": 1024})
LATENT = DEEPSEEK.model_copy(update={"vocab": 1024})
LONG = GPT.model_copy(update={"sequence": 4096})
MIXED = MIXTRAL.model_copy(update={"vocab": 1024})


def fixed(count, prompt, answer):
    return [Request(number, 0, prompt, answer) for number in range(count)]


def stream(count, prompt="uniform:3-40", answer="uniform:1-9", **more):
    return RequestStream(count, Lengths.parse(prompt, "prompt"), Lengths.parse(answer, "generate"), **more)


def served(model, plan, requests, **more):
    """The trace set, by default of a host that takes no time."""
    more.setdefault("software", "none")
    before = more.pop("prefill_plan", None)
    prefill = parallel_plan(before) if before else None
    return generate(Serving(model, parallel_plan(plan), prefill_plan=prefill, **more), requests)


def operators(made, word):
    """Operators of all NPUs in passes with a name, each as often as it is done."""
    found = Counter()
    for count, trace in zip(copies(made), made.traces, strict=True):
        names = list(trace.names)
        for row in np.flatnonzero(trace.operators > 0).tolist():
            if f"/{word}/" in names[row]:
                for operator in parse_operators(trace.operator_lists[trace.operators[row]]):
                    found[operator] += count
    return found


def flops(made, word):
    """Operations of products of all NPUs in passes with a name."""
    return sum(count * each.flops for each, count in operators(made, word).items() if each.kind in PRODUCTS)


def messages(made, what):
    return sum(
        count * int(trace.comm_size[row])
        for count, trace in zip(copies(made), made.traces, strict=True)
        for row, name in enumerate(trace.names)
        if trace.type[row] == NodeType.COMM_SEND_NODE and name.endswith(what)
    )


def check(made):
    """Every send has its receive, and members of groups agree."""
    build_program(
        made.traces, made.trace_of_npu, made.npus, {}, ComputeModel("trace"),
        example_npu=made.example_npu, families=made.families,
    )  # fmt: skip
