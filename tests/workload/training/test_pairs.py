"""Pairs of passes against the loop of Megatron-Core on two streams, and what must not depend on the order."""

from collections import Counter, defaultdict

import numpy as np
import pytest

from nadi.et import NodeType
from nadi.studies.planner.step import run_closed_form, target_machine
from nadi.topologies import clusters
from nadi.workload.compute import IN_STEPS, ComputeTimes, find_gpu
from nadi.workload.generators.models import find
from nadi.workload.generators.training import parallel_plan, rules
from nadi.workload.generators.training.generator import generate
from nadi.workload.generators.training.stage import Stage
from tests.nonempty import nonempty
from tests.workload.training.small import BALANCED, DEEPSEEK, MIXTRAL, PREDICTING

QWEN = find("qwen3-30b-a3b").model_copy(update={"layers": 5})
_PLAN = "ep8,dp8,mb1,gb{},dispatcher=hybridep,overlap_ep=true,fp8,fused_experts=true,without=host+optimizer+dp"


class Streams:
    """The stream of computations and that of the exchange, and the event of each pass."""

    def __init__(self):
        self.ends = {"computation": 0, "exchange": 0}
        self.events = defaultdict(int)

    def run(self, stream, duration_ps, event=None):
        """Launch a kernel, which waits for its stream and for the event, and records the event."""
        end_ps = max(self.ends[stream], self.events[event] if event else 0) + duration_ps
        self.ends[stream] = end_ps
        if event:
            self.events[event] = end_ps


def megatron_ps(layers, forward, backward):
    """The time of a pair by core/models/common/model_chunk_schedule_plan.py, from ps by layer and part."""
    streams = Streams()
    for layer in range(layers):
        f, b = forward[layer], backward[layers - 1 - layer]
        streams.run("exchange", b["combine"], "b")
        streams.run("computation", f["attention"], "f")
        streams.run("computation", b["experts"], "b")
        streams.run("exchange", f["dispatch"], "f")
        streams.run("computation", b["experts-weights"])
        streams.run("exchange", b["dispatch"], "b")
        streams.run("computation", f["experts"], "f")
        streams.run("exchange", f["combine"], "f")
        streams.run("computation", b["attention"], "b")
        streams.run("computation", b["attention-weights"])
    return max(*streams.ends.values(), *streams.events.values())


def _simulated(plan_text, nvlink_rate="900GB/s"):
    """The first NPU's trace, and begin and end of each of its rows in ps, without slower computation."""
    plan = rules.settle(QWEN, parallel_plan(plan_text))
    times = ComputeTimes(find_gpu("gb200"), pace=IN_STEPS, vendor_tables=False)
    machine = target_machine(clusters.find("gb200-nvl72"), plan.gpus, times, {"nvlink_rate": nvlink_rate})
    _, _, results = run_closed_form(machine, made := generate(QWEN, plan), machine.settings)
    end = int(results.npu_node_ptr[1])
    return made.traces[0], results.node_start_ps[:end], results.node_finish_ps[:end]


def _durations(trace, start_ps, finish_ps, prefix, names):
    """Sums of durations in ps by layer and part of a pass."""
    found = defaultdict(Counter)
    for row, name in enumerate(trace.names):
        if name.startswith(prefix) and (part := names(name.removeprefix(prefix).partition("/")[2])):
            layer = int(name.removeprefix(f"{prefix}layer").partition("/")[0])
            found[layer][part] += int(finish_ps[row] - start_ps[row])
    return found


def _forward_part(name):
    if name.endswith("residual"):
        return ""
    return "dispatch" if name.startswith("router/ep") else name.partition("/ep")[0]


def _backward_part(name):
    exchanges = {"dispatch/ep": "combine", "combine/ep": "dispatch"}  # the way back
    return next((part for word, part in exchanges.items() if name.startswith(word)), name)


@pytest.mark.parametrize("nvlink_rate", ["900GB/s", "400GB/s", "300GB/s", "200GB/s", "100GB/s"])
def test_a_pair_takes_as_long_as_megatrons_loop_on_two_streams(nvlink_rate):
    """From all of the exchange hidden behind computation to all of the computation behind the exchange."""
    trace, start_ps, finish_ps = _simulated(_PLAN.format(24), nvlink_rate)
    forward = _durations(trace, start_ps, finish_ps, "step0/forward/mb2/", _forward_part)
    backward = _durations(trace, start_ps, finish_ps, "step0/backward/mb1/", _backward_part)
    for parts in nonempty(backward.values()):  # rows of the last layer are divided
        of_attention = set(parts) - {"combine", "experts", "experts-weights", "dispatch", "attention-weights"}
        parts["attention"] = sum(parts.pop(name) for name in of_attention)
    rows = {
        kind: [row for row, name in enumerate(trace.names) if name.startswith(f"step0/{kind}") and "layer" in name]
        for kind in ("forward/mb2/", "backward/mb1/")
    }
    begin_ps = min(start_ps[row] for row in rows["backward/mb1/"])
    end_ps = max(finish_ps[row] for both in rows.values() for row in both)
    residuals_ps = [
        finish_ps[row] - start_ps[row] for row in rows["forward/mb2/"] if trace.names[row].endswith("mlp-residual")
    ]
    expected_ps = megatron_ps(QWEN.layers, forward, backward)
    # The loop has the residuals on the stream of the exchange
    assert 0 <= end_ps - begin_ps - expected_ps <= sum(residuals_ps) < expected_ps / 50
    alone_ps = sum(parts.total() for way in (forward, backward) for parts in way.values())
    assert expected_ps < 0.95 * alone_ps


def test_unpaired_backward_passes_hide_their_exchange_behind_gradients_of_weights():
    trace, start_ps, _ = _simulated(_PLAN.format(8))
    names = list(trace.names)
    for layer in range(1, QWEN.layers):
        begin = {
            part: start_ps[names.index(f"step0/backward/mb0/{part}")]
            for part in (
                f"layer{layer}/combine/ep:all-to-all",
                f"layer{layer}/experts-weights",
                f"layer{layer - 1}/dispatch/ep:all-to-all",
                f"layer{layer}/attention-weights",
            )
        }
        dispatch, experts_weights, combine, attention_weights = begin.values()
        assert (dispatch, combine) == (experts_weights, attention_weights)


def test_messages_of_a_pair_go_before_the_last_gradients_of_weights():
    plan = rules.settle(MIXTRAL, parallel_plan("pp2,vpp2,dp4,ep4,mb1,gb32,overlap_ep=true,dispatcher=hybridep"))
    table = Stage(MIXTRAL, plan, "megatron", 0).table()
    names = list(table.names)
    sends = [row for row, name in enumerate(names) if name.endswith("pp:send") and "backward" in name]
    for row in nonempty(sends):
        ancestors, todo = set(), [row]
        while todo:
            parents = table.dep[table.dep_ptr[todo[-1]] : table.dep_ptr[todo.pop() + 1]].tolist()
            todo += [parent for parent in parents if parent not in ancestors]
            ancestors |= set(parents)
        prefix = names[row].removesuffix("pp:send")
        own = {names[each].removeprefix(prefix) for each in ancestors if names[each].startswith(prefix)}
        first = min(int(name[5:].partition("/")[0]) for name in own if name.startswith("layer"))
        assert f"layer{first}/attention" in own
        assert f"layer{first}/attention-weights" not in own
        assert f"layer{first + 1}/attention-weights" in own


@pytest.mark.parametrize("model", [MIXTRAL, DEEPSEEK, PREDICTING, BALANCED], ids=lambda model: model.name)
@pytest.mark.parametrize(
    "plan",
    [
        "dp4,ep4,gb16,dispatcher=hybridep",
        "pp2,vpp2,dp4,ep4,gb32,dispatcher=deepep,nvlink_domain=2",
        "pp2,vpp2,tp2,sp,dp2,ep2,etp2,gb16,zero1",
        "pp2,vpp4,dp2,ep2,gb16,recompute=moe_act+layernorm,imbalance=0.5,overlap_p2p=false",
        "dp2,cp2,ep4,gb16,offload=activations",
    ],
)
def test_pairs_change_the_order_only(model, plan):
    def content(overlaps):
        made = generate(model, parallel_plan(f"{plan},mb1,overlap_ep={overlaps}"))
        found = []
        for trace in made.traces:
            computed = trace.type == NodeType.COMP_NODE
            rows = np.flatnonzero(trace.comm_size >= 0)
            sizes = Counter((trace.names[row], int(trace.comm_size[row])) for row in rows.tolist())
            found.append((int(trace.num_ops[computed].sum()), int(trace.tensor_size[computed].sum()), sizes))
        return found

    assert content("true") == content("false")
