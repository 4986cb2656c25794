"""What waits for which communication, and what does not."""

import pytest

from nadi import et
from nadi.workload.generators.training import parallel_plan
from nadi.workload.generators.training.generator import generate
from tests.workload.training.small import LLAMA


class Trace:
    """One trace of a step, by names."""

    def __init__(self, plan, framework="megatron", number=0):
        self.table = generate(LLAMA, parallel_plan(plan), framework).traces[number]
        self.names = list(self.table.names)
        self.before = []
        for row in range(len(self.table)):  # rows come after their parents
            own = set(self.table.dep[self.table.dep_ptr[row] : self.table.dep_ptr[row + 1]].tolist())
            self.before.append(own.union(*(self.before[parent] for parent in own)))

    def rows(self, *parts):
        """Of the nodes whose names have all parts."""
        return [row for row, name in enumerate(self.names) if all(part in name for part in parts)]

    def computed(self, *parts):
        """The same of computations."""
        return [row for row in self.rows(*parts) if self.table.type[row] == et.NodeType.COMP_NODE]

    def wait(self, rows, others):
        """How many of the rows wait for any of the others."""
        return sum(bool(self.before[row] & set(others)) for row in rows)


def test_gradients_are_reduced_beside_the_last_backward_pass():
    trace = Trace("dp4,gb16,bucket_bytes=40000")
    reduced = trace.rows("step0/backward/mb3/", "dp:all-reduce")
    assert len(reduced) > 4
    assert not trace.rows("mb2/", "dp:all-reduce")
    assert trace.wait(trace.computed("/backward/"), reduced) == 0
    assert trace.wait(trace.computed("/optimizer/"), reduced) == len(trace.computed("/optimizer/")) > 0
    assert trace.wait(reduced, trace.computed("mb3/layer7")) == len(reduced)
    assert trace.wait(reduced, trace.computed("backward/mb3/layer0")) < len(reduced) / 2
    late = Trace("dp4,gb16,bucket_bytes=40000,overlap_grad_reduce=false")
    reduced = late.rows("dp:all-reduce", "bucket")
    assert all("/optimizer/" in late.names[row] for row in reduced)
    assert late.wait(reduced, late.computed("backward/mb3/embedding")) == len(reduced)


def test_parameters_come_beside_the_first_forward_pass():
    trace = Trace("dp4,gb16,bucket_bytes=40000,zero1,steps=2")
    gathered = trace.rows("step1/forward/", "dp:all-gather")
    assert trace.wait(gathered, trace.computed("step0/optimizer/step")) == len(gathered)
    layers = [trace.computed(f"step1/forward/mb0/layer{layer}/") for layer in range(8)]
    assert [trace.wait(layer, gathered[-1:]) for layer in layers] == [0] * 8
    assert trace.wait(trace.computed("step1/forward/mb0/head"), gathered[-1:]) == 1
    assert trace.wait(layers[0], gathered[:2]) > 0
    late = Trace("dp4,gb16,bucket_bytes=40000,zero1,overlap_param_gather=false")
    gathered = late.rows("dp:all-gather")
    assert late.wait(gathered, late.computed("optimizer/step")) == len(gathered)


@pytest.mark.parametrize("framework", ["fsdp", "deepspeed"])
@pytest.mark.parametrize("prefetch", [1, 3])
def test_layers_are_gathered_ahead(framework, prefetch):
    trace = Trace(f"dp4,gb4,zero3,prefetch={prefetch}", framework)
    for layer in range(8):
        gathered = trace.rows(f"/forward/mb0/layer{layer}/dp:all-gather")
        assert len(gathered) == 1
        assert trace.wait(trace.computed(f"/forward/mb0/layer{layer}/"), gathered) > 0
        if layer >= prefetch:
            assert trace.wait(gathered, trace.computed(f"/forward/mb0/layer{layer - prefetch}/")) == 0
        if layer > prefetch:
            assert trace.wait(gathered, trace.computed(f"/forward/mb0/layer{layer - prefetch - 1}/")) == 1


def test_the_input_is_gathered_again_beside_the_product_for_its_gradient():
    trace = Trace("tp2,sp,gb1")
    gathers = trace.rows("backward/mb0/layer3/mlp/tp:all-gather")
    assert len(gathers) == 2  # of the output's gradient, of the input
    scattered = trace.rows("backward/mb0/layer3/mlp/tp:reduce-scatter")
    products = trace.computed("backward/mb0/layer3/mlp")
    data = [row for row in products if trace.wait([row], gathers[:1]) and not trace.wait([row], gathers[1:])]
    assert trace.wait(data[-1:], gathers[1:]) == 0
    assert trace.wait(scattered, data[-1:]) == 1
    weights = [row for row in products if trace.wait([row], gathers[1:]) and not trace.wait([row], scattered)]
    assert len(weights) == 1


def test_pieces_of_a_product_are_reduced_beside_the_next():
    trace = Trace("tp2,sp,gb1,overlap_tp=true")
    scattered = trace.rows("forward/mb0/layer3/mlp/tp:reduce-scatter")
    products = [row for row in trace.computed("forward/mb0/layer3/mlp") if trace.table.num_ops[row]]
    assert len(scattered) == len(products) == 4
    assert [trace.wait([product], scattered) for product in products] == [0, 0, 0, 0]
    assert [trace.wait(scattered[i : i + 1], products[i : i + 1]) for i in range(4)] == [1, 1, 1, 1]
    assert trace.wait(trace.computed("forward/mb0/layer4/attention"), scattered[3:]) > 0


def test_plain_pipelines_wait_until_messages_are_sent():
    for plan, waits in (("pp2,gb8", True), ("pp2,vpp2,gb8", False)):
        trace = Trace(plan)
        sent = trace.rows("forward/mb0/pp:send")[:1]
        assert (trace.wait(trace.computed("forward/mb1/"), sent) > 0) == waits
