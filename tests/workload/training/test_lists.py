"""ZeRO-3 as DeepSpeed of 2021 gathered, tensor by tensor: what its loops do is counted by hand."""

from collections import Counter

import pytest

from nadi.workload import WorkloadError
from nadi.workload.compute.operators import parse_operators
from nadi.workload.generators.models.architecture import Experts, Model
from nadi.workload.generators.training import parallel_plan, rules
from nadi.workload.generators.training.generator import generate
from tests.nonempty import nonempty

HIDDEN, VOCAB, SEQUENCE, LAYERS, GPUS = 12288, 51200, 2048, 3, 7
LARGE = Model(name="large", layers=LAYERS, hidden=HIDDEN, heads=96, vocab=VOCAB, sequence=SEQUENCE)
SMALL = LARGE.model_copy(update={"name": "small", "hidden": 1024, "heads": 16})
EXPERTS = SMALL.model_copy(update={"name": "experts", "experts": Experts(count=8, top_k=2, ffn=4096)})
VECTORS_OF_LAYER = 8  # two norms of weight and bias, and the biases of four products


def table(model, plan, framework="deepspeed"):
    return generate(model, parallel_plan(f"dp{GPUS},gb{GPUS},zero3,{plan}"), framework).traces[0]


def share(size):
    return -(-size // GPUS)


def rows(trace, *parts):
    return [row for row, name in enumerate(trace.names) if all(part in name for part in parts)]


def gathered(trace):
    """How often each share of so many elements is gathered."""
    found = [row for row in rows(trace, "dp:all-gather") if "persistent" not in trace.names[row]]
    return Counter((trace.comm_size[found] // 2).tolist())


def expected_gathers(h, matrices):
    """matrices: how often those of a layer are: of queries, keys and values; of the output; together, of the MLP."""
    qkv, out, mlp = matrices
    sizes = {3 * h * h: qkv * LAYERS, h * h: out * LAYERS, 4 * h * h: mlp * LAYERS, VOCAB * h: 2, SEQUENCE * h: 2}
    return {share(size): times for size, times in sizes.items()}


@pytest.mark.parametrize("prefetch", [0, 1, 2])
def test_recomputed_layers_are_gathered_three_times_where_a_billion_others_lie_between(prefetch):
    """All but the last matrix, which is used again at once."""
    plan = f"gather=list,prefetch={prefetch}"
    assert gathered(table(LARGE, f"{plan},recompute=full")) == expected_gathers(HIDDEN, (3, 3, 3 + 2))
    assert gathered(table(LARGE, plan)) == expected_gathers(HIDDEN, (2, 2, 2 + 2))
    assert gathered(table(SMALL, f"{plan},recompute=full")) == expected_gathers(1024, (2, 2, 2 + 2))


def test_each_gradient_is_reduced_by_itself_and_vectors_are_gathered_after_the_step():
    trace = table(SMALL, "gather=list")
    reduced = rows(trace, "dp:reduce-scatter")
    assert len(reduced) == LAYERS * (4 + VECTORS_OF_LAYER) + 2 + 2  # embeddings, the last norm
    h = 1024
    vectors = [*[h] * 6, 3 * h, 4 * h] * LAYERS + [h] * 2
    (persistent,) = rows(trace, "persistent/dp:all-gather")
    assert trace.comm_size[persistent] == 2 * sum(share(size) for size in vectors)
    (apart,) = rows(trace, "take-apart")
    assert trace.duration_micros[apart] == round(len(vectors) * GPUS * 6.0)
    whole = table(SMALL, "gather=tensor")
    assert int(trace.comm_size[reduced].sum()) == pytest.approx(
        int(whole.comm_size[rows(whole, "dp:reduce-scatter")].sum()), rel=1e-4
    )


def test_each_list_costs_the_host_a_view_and_the_gpu_a_copy_of_each_entry():
    trace = table(SMALL, "gather=list,prefetch=0")
    collectives = len(rows(trace, "dp:all-gather")) + len(rows(trace, "dp:reduce-scatter"))
    views = rows(trace, "/views")
    assert len(views) == collectives
    assert set(trace.duration_micros[views].tolist()) == {round(GPUS * 1.7)}
    assert all(trace.is_cpu_op[views])
    texts = [trace.operator_lists[trace.operators[row]] for row in range(len(trace))]
    copies = [operator for text in texts for operator in parse_operators(text) if operator.kind == "copies"]
    assert len(copies) == collectives
    assert {operator.shape[0] for operator in copies} == {GPUS}
    of_product = [operator.bytes for operator in copies if operator.shape[1] == share(3 * 1024 * 1024)]
    assert set(of_product) == {2 * 2 * GPUS * share(3 * 1024 * 1024)}  # each value of 2 bytes is read and written


def before(trace):
    """All that each row waits for."""
    found = []
    for row in range(len(trace)):
        own = set(trace.dep[trace.dep_ptr[row] : trace.dep_ptr[row + 1]].tolist())
        found.append(own.union(*(found[parent] for parent in own)))
    return found


def products(trace, layer):
    """Of its backward pass."""
    own = rows(trace, f"backward/mb0/{layer}/")
    return [row for row in own if "gemm" in trace.operator_lists[trace.operators[row]]]


@pytest.mark.parametrize("prefetch", [0, 1])
def test_a_module_waits_for_its_copies_and_for_the_gradients_above(prefetch):
    trace = table(SMALL, f"gather=list,prefetch={prefetch}")
    waits = before(trace)
    unpacked = rows(trace, "backward/mb0/layer0/", "unpack")
    assert len(unpacked) == 4
    assert all(set(unpacked) <= waits[row] for row in nonempty(products(trace, "layer0")))
    reduced = rows(trace, "/layer1/", "dp:reduce-scatter") if prefetch == 0 else rows(trace, "/layer2/", "dp:reduce")
    assert all(set(reduced) <= waits[row] for row in nonempty(products(trace, "layer0")))
    gathers, above = rows(trace, "backward/mb0/layer0/", "dp:all-gather"), set(products(trace, "layer1"))
    assert [bool(above & waits[row]) for row in gathers] == [prefetch == 0] * 4


def test_experts_are_tensors_of_their_own():
    trace = table(EXPERTS, "gather=list")
    assert gathered(trace)[share(4 * 1024 * 1024)] == LAYERS * 2 * 2 * 8


@pytest.mark.parametrize(("plan", "framework"), [("zero3", "fsdp"), ("zero2", "deepspeed"), ("tp1", "megatron")])
def test_others_never_gathered_into_lists(plan, framework):
    with pytest.raises(WorkloadError, match=r"gather is list with .*, expected tensor, or deepspeed and zero 3"):
        rules.check(SMALL, parallel_plan(f"dp{GPUS},gb{GPUS},{plan},gather=list"), framework)
