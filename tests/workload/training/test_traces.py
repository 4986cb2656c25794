"""Generated traces: groups, order, lifetimes of activations, and ZeRO's copies and loops counted by hand."""

import re
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given

from nadi import et
from nadi.et.schema import AttributeProto
from nadi.workload import ComputeModel, WorkloadError, build_program
from nadi.workload.compute.operators import PRODUCTS, parse_operators
from nadi.workload.generators.memory.states import layer_activations
from nadi.workload.generators.models import find
from nadi.workload.generators.models.architecture import Experts, Model
from nadi.workload.generators.training import parallel_plan, rules
from nadi.workload.generators.training.generator import generate, nodes_at_most
from nadi.workload.generators.training.parameters import held
from nadi.workload.generators.training.stage import Stage
from nadi.workload.generators.training.stages import Shard, chunks, families, neighbours, pipeline_of, place
from nadi.workload.generators.training.units import units
from tests.budgets import bounded
from tests.et.parents import all_before, names_of_parents, parents_of
from tests.nonempty import nonempty
from tests.workload.training.small import BALANCED, DEEPSEEK, GPT, LLAMA, MIXTRAL, cases

NAME = re.compile(r"step\d+/(?:optimizer|(?:forward|backward|backward-weights)(?:/mb\d+)?)/[a-z0-9:/-]+")
AXES = {"tp", "cp", "ep", "etp", "dp", "pp", "embedding", "world", "memory"}
RECORDED = ComputeModel("trace")


@bounded(40)
@given(cases())
def test_every_send_has_its_receive_and_members_of_groups_agree(case):
    made = generate(*case)
    build_program(
        made.traces, made.trace_of_npu, made.npus, {}, RECORDED, example_npu=made.example_npu, families=made.families
    )
    for trace in nonempty(made.traces):
        assert len(et.topological_order(trace)) == len(trace)  # acyclic


@bounded(15)
@given(cases())
def test_nodes_say_what_they_are_and_do(case):
    """Names are those of docs/explanation/training.md; operations and bytes are the operators'; nodes as estimated."""
    model, plan, framework = case
    made = generate(model, plan, framework)
    assert sum(map(len, made.traces)) <= nodes_at_most(model, plan, framework)
    for trace in nonempty(made.traces):
        for row, name in nonempty(enumerate(trace.names)):
            assert NAME.fullmatch(name), name
            if trace.type[row] != et.NodeType.COMP_NODE:
                assert name.rpartition("/")[2].partition(":")[0] in AXES, name
                continue
            done = parse_operators(trace.operator_lists[trace.operators[row]])
            if (
                name.endswith(("/views", "/take-apart", "/host")) and not done
            ):  # work of the host, without operators of the GPU
                assert (trace.num_ops[row], trace.tensor_size[row]) == (0, 0)
                assert trace.duration_micros[row] > 0
                continue
            assert trace.num_ops[row] == sum(operator.flops for operator in done if operator.kind in PRODUCTS)
            assert trace.tensor_size[row] == sum(operator.bytes for operator in done) > 0


@pytest.mark.parametrize("more", ["", ",dispatcher=deepep,nvlink_domain=4", ",overlap_tp=true"])
def test_layers_with_most_nodes_have_no_more_than_estimated(more):
    plan = parallel_plan(f"tp4,dp2,cp2,ep4,etp2,gb64,sp,recompute=full,context=a2a{more}")
    assert sum(map(len, generate(BALANCED, plan).traces)) <= nodes_at_most(BALANCED, plan)


@bounded(15)
@given(cases())
def test_computations_of_an_npu_are_a_chain(case):
    # The host launches copies beside the optimizer; pairs of passes have a stream for the exchange of tokens
    of_exchange = ("/combine", "/mlp-residual", "/router/host") if case[1].overlap_ep else ()
    beside = ("/copies/host", *of_exchange)
    for trace in nonempty(generate(*case).traces):
        latest = np.full(len(trace), -1)  # the last computation that a row comes after, or is
        expected = -1
        for row in nonempty(et.topological_order(trace).tolist()):
            latest[row] = latest[parents_of(trace, row)].max(initial=-1)
            if trace.names[row].endswith(beside):
                continue
            if trace.type[row] == et.NodeType.COMP_NODE:
                assert latest[row] == expected
                latest[row] = expected = row


@pytest.mark.parametrize(
    ("name", "text"),
    [("llama3-8b", "pp4,dualpipe,dp2,gb16,zero1"), ("deepseek-v2", "pp4,dualpipe,dp4,ep4,gb32,zero1,uneven")],
)
def test_both_stages_of_a_slice_cut_the_same_buckets(name, text):
    """With DualPipe, where the first slice is also the last stage's; large enough for several buckets."""
    made = generate(find(name), parallel_plan(text), "megatron")
    assert "backward/mb" in "".join(made.traces[0].names)
    buckets = {row for row in made.traces[0].names if "-bucket1/dp:reduce-scatter" in row}
    assert buckets
    build_program(
        made.traces, made.trace_of_npu, made.npus, {}, RECORDED, example_npu=made.example_npu, families=made.families
    )


def test_groups_of_the_example_in_megatron():
    """16 GPUs, tp 2, pp 4 (core/parallel_state.py, initialize_model_parallel)."""
    found = families(parallel_plan("tp2,pp4,dp2"))
    assert found["tp"] == tuple((npu, npu + 1) for npu in range(0, 16, 2))
    assert found["dp"] == ((0, 2), (1, 3), (4, 6), (5, 7), (8, 10), (9, 11), (12, 14), (13, 15))
    assert found["model"] == ((0, 1, 4, 5, 8, 9, 12, 13), (2, 3, 6, 7, 10, 11, 14, 15))
    assert found["embedding"] == ((0, 12), (1, 13), (2, 14), (3, 15))
    assert "cp" not in found


def test_context_parallelism_is_between_tensors_and_replicas():
    found = families(parallel_plan("tp2,cp2,dp2"))
    assert found["cp"] == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert found["dp"] == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert neighbours(parallel_plan("tp2,cp4"), 6) == (0, 4)


def test_experts_cut_a_stage_anew():
    plan = parallel_plan("tp2,dp4,pp2,ep2,etp2")
    found = families(plan)
    assert found["etp"] == tuple((npu, npu + 1) for npu in range(0, 16, 2))
    assert found["ep"][:4] == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert found["edp"][:4] == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert [place(plan, npu).ep for npu in range(8)] == [0, 0, 1, 1, 0, 0, 1, 1]


def test_dualpipe_has_each_slice_on_two_stages():
    found = families(parallel_plan("pp4,dp2,dualpipe"))
    assert found["dp"] == found["dp-other"] == ((0, 1, 6, 7), (2, 3, 4, 5))


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


def products(trace, layer):
    """Of its backward pass."""
    own = rows(trace, f"backward/mb0/{layer}/")
    return [row for row in own if "gemm" in trace.operator_lists[trace.operators[row]]]


@pytest.mark.parametrize("prefetch", [0, 1])
def test_a_module_waits_for_its_copies_and_for_the_gradients_above(prefetch):
    trace = table(SMALL, f"gather=list,prefetch={prefetch}")
    waits = all_before(trace)
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


COPIED_LAYERS = GPT.layers
WRAPS = COPIED_LAYERS + 2  # the embedding, each layer, the head
MICRO_BATCHES = 3


def trace_of(model, text, framework="fsdp"):
    plan = parallel_plan(f"dp4,mb1,gb{4 * MICRO_BATCHES},{text}")
    return generate(model, plan, framework).traces[0]


def rows_of_copies(trace, part):
    return [row for row, name in enumerate(trace.names) if part in name]


@pytest.mark.parametrize(("text", "passes"), [("zero3", 2), ("zero2", 1)])
def test_each_gather_has_a_copy_that_waits_for_it(text, passes):
    trace = trace_of(GPT, text)
    copies = rows_of_copies(trace, "/copy-out")
    assert len(copies) == len(rows_of_copies(trace, "dp:all-gather")) == passes * WRAPS * MICRO_BATCHES
    for row in copies:
        layer = trace.names[row].split("/")[-2]
        assert any(name.endswith(f"{layer}/dp:all-gather") for name in names_of_parents(trace, row)), trace.names[row]


@pytest.mark.parametrize("model", [GPT, LLAMA, MIXTRAL])
@pytest.mark.parametrize(("dtype", "written"), [("fp32", 4), ("bf16", 2)])
def test_copies_read_and_write_what_is_gathered_and_reduced(model, dtype, written):
    """A gather of 4 shares of 2 bytes is read and written; gradients are read in 2 bytes and written as reduced.

    DeepSpeed's trace has the same computations but for these copies.
    """
    text = f"zero3,grad_dtype={dtype}"
    trace = trace_of(model, text)
    gathered = 4 * int(trace.comm_size[rows_of_copies(trace, "dp:all-gather")].sum())
    reduced = int(trace.comm_size[rows_of_copies(trace, "dp:reduce-scatter")].sum())
    copies = moved(trace) - moved(trace_of(model, text, "deepspeed"))
    assert copies == 2 * gathered + reduced // written * 2 + reduced


def moved(trace):
    """Bytes that the operators of a trace read and write."""
    texts = [trace.operator_lists[row] for row in trace.operators.tolist()]
    return sum(operator.bytes for text in texts for operator in parse_operators(text))


def test_gradients_wait_for_the_reduction_before_whose_buffer_they_take():
    trace = trace_of(GPT, "zero3")
    order = ["head", *(f"layer{number}" for number in reversed(range(COPIED_LAYERS))), "embedding"]
    for micro_batch in range(MICRO_BATCHES):
        for before, layer in pairwise(order):
            (row,) = [
                row for row in rows_of_copies(trace, f"/{layer}/copy-in") if f"mb{micro_batch}/" in trace.names[row]
            ]
            assert any(
                name.endswith(f"mb{micro_batch}/{before}/dp:reduce-scatter") for name in names_of_parents(trace, row)
            ), trace.names[row]


def test_a_backward_pass_ends_with_its_last_reduction():
    trace = trace_of(GPT, "zero3")
    for micro_batch in range(1, MICRO_BATCHES):
        waiting = [
            row for row in rows_of_copies(trace, f"forward/mb{micro_batch}/") if "all-gather" in trace.names[row]
        ]
        first = waiting[0]
        assert f"step0/backward/mb{micro_batch - 1}/embedding/dp:reduce-scatter" in names_of_parents(trace, first)


@pytest.mark.parametrize("framework", ["megatron", "deepspeed"])
def test_other_frameworks_have_no_such_copies(framework):
    trace = trace_of(GPT, "zero1", framework)
    assert not rows_of_copies(trace, "/copy-out")
    assert not rows_of_copies(trace, "/copy-in")


def test_one_replica_copies_nothing():
    trace = generate(GPT, parallel_plan("tp4,dp1,gb2,zero3"), "fsdp").traces[0]
    assert not rows_of_copies(trace, "/copy-")
    assert np.all(trace.comm_size[rows_of_copies(trace, "dp:")] < 0) or not rows_of_copies(trace, "dp:")


def lifetimes(trace):
    """(step and micro-batch, tensor, bytes, whether it is made) in the order of computations."""
    for row, name in nonempty(enumerate(trace.names)):
        if not trace.other[row]:  # most rows have no other attributes
            continue
        for text in nonempty(trace.other_attributes[trace.other[row]]):
            attribute = AttributeProto.FromString(text)
            assert trace.type[row] == et.NodeType.COMP_NODE
            assert attribute.name in {"inputs", "outputs"}
            for value in attribute.string_list.values:
                tensor, size = value.split()
                step, _, micro_batch = name.split("/")[:3]
                yield (step, micro_batch, tensor), int(size), attribute.name == "outputs"


def peak(trace):
    """Most bytes at a time; each tensor is made once and used last once."""
    held, most, seen = {}, 0, Counter()
    for tensor, size, is_made in nonempty(lifetimes(trace)):
        if is_made:
            assert tensor not in held
            held[tensor] = size
            seen[tensor] += 1
            most = max(most, sum(held.values()))
        else:
            assert held.pop(tensor) == size
    assert not held
    assert set(seen.values()) == {1}
    return most


@pytest.mark.parametrize("model", [GPT, MIXTRAL, DEEPSEEK], ids=lambda model: model.name)
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zero-bubble", "interleaved,vpp2"])
def test_stages_hold_as_many_activations_as_their_schedule_says(model, recompute, schedule):
    plan = rules.settle(model, parallel_plan(f"tp2,sp,pp4,gb8,{schedule},recompute={recompute}"))
    made = generate(model, plan)
    for stage, own in nonempty(enumerate(chunks(model, plan))):
        kept = [
            sum(layer_activations(model, plan, has_experts=model.has_experts(n)).kept(recompute) for n in chunk.layers)
            for chunk in own
        ]
        in_flight = sum(pipeline_of(plan).in_flight(stage))
        found = peak(made.traces[stage])
        if len(set(kept)) == 1:
            assert found == in_flight * kept[0]
        else:
            assert min(kept) * in_flight <= found <= max(kept) * in_flight


CASES = [
    ("gpt3-175b", "tp8,pp8,dp2"),
    ("gpt3-13b", "tp4,pp2,vpp2,dp2"),
    ("megatron-1.7b", "dp4"),
    ("llama3-8b", "tp16,pp2,dp2,sp"),
    ("llama3-405b", "tp8,pp16,vpp8,uneven,dp2"),
    ("mixtral-8x7b", "tp2,ep4,etp2,dp8,pp2,sp"),
    ("qwen3-30b-a3b", "ep8,dp8,pp4"),
    ("qwen3-8b", "tp4,pp2"),
    ("deepseek-v2", "tp4,pp4,ep8,dp8,sp,uneven"),
    ("deepseek-v3", "pp4,ep8,dp8,uneven"),
]


@pytest.mark.parametrize(("name", "text"), CASES)
def test_units_have_the_parameters_that_a_stage_holds(name, text):
    model = find(name)
    plan = rules.settle(model, parallel_plan(text))
    assert rules.first_broken(model, plan) == ""
    shard = Shard(model, plan)
    for stage, own in nonempty(enumerate(chunks(model, plan))):
        has_embedding = any(chunk.is_first for chunk in own)
        tensors = [
            tensor
            for chunk in own
            for unit in units(shard, chunk, has_embedding=has_embedding)
            for tensor in unit.tensors
        ]
        expected = held(model, plan, stage)
        assert sum(tensor.size for tensor in tensors if tensor.is_expert) == expected.experts
        assert sum(tensor.size for tensor in tensors if not tensor.is_expert) == expected.dense


def test_layers_with_a_window_attend_to_it():
    """GPT-OSS: every second layer has a window of 128 tokens; a sequence that several GPUs share has none."""
    model = find("gpt-oss-20b").model_copy(update={"layers": 4, "window": 96})

    def attentions(text):
        table = Stage(model, rules.settle(model, parallel_plan(text), "megatron"), "megatron", 0).table()
        found = [parse_operators(table.operator_lists[number]) for number in table.operators]
        names = [table.names[row] for row in range(len(table))]
        return {
            name.split("/")[1] + " " + name.split("/")[3]: operator.kind + f" {operator.shape[-1]}"
            for name, operators in zip(names, found, strict=True)
            for operator in operators
            if "attention" in operator.kind
        }

    windowed = {
        f"{way} layer{number}": f"{'window-' * (number % 2 == 0)}attention{'-backward' * (way == 'backward')} "
        f"{96 if number % 2 == 0 else 1}"
        for way in ("forward", "backward")
        for number in range(4)
    }
    assert attentions("gb1,seq512") == windowed
    assert attentions("cp2,context=a2a,gb1,seq512") == windowed
    assert {kind.split()[0] for kind in attentions("cp2,gb1,seq512").values()} == {"attention", "attention-backward"}
    assert {kind.split()[0] for kind in attentions("gb1,seq96").values()} == {"attention", "attention-backward"}
