"""The end of a step: what GPUs and hosts do after the last backward pass and before the first forward pass."""

import numpy as np
import pytest

from nadi.et import TraceTable
from nadi.workload import WorkloadError
from nadi.workload.generators.models.architecture import layer
from nadi.workload.generators.training import parallel_plan
from nadi.workload.generators.training.generator import generate
from nadi.workload.generators.training.item_lists import READ_MICROS, RESTART_MICROS
from nadi.workload.generators.training.parameters import held
from nadi.workload.generators.training.rules import check, settle
from nadi.workload.generators.training.software import profile, profile_names
from tests.et.parents import names_of_parents
from tests.nonempty import nonempty
from tests.refusals import refused
from tests.workload.training.small import GPT, LLAMA

_TENSORS_OF_A_LAYER = 12
"""Of GPT: two norms, the matrices of queries, keys and values, of the output, and two of the MLP, each with a bias."""


def _trace(plan: str, framework: str = "megatron", model=GPT, stage: int = 0) -> TraceTable:
    return generate(model, parallel_plan(plan), framework).traces[stage]


def _rows(trace: TraceTable, end: str) -> list[int]:
    return [row for row, name in enumerate(trace.names) if name.endswith(end)]


def _row(trace: TraceTable, end: str) -> int:
    (row,) = _rows(trace, end)
    return row


def test_a_host_that_reads_the_norm_holds_the_optimizer_up_by_its_work_per_tensor():
    host = profile("megatron-core", "megatron").host
    trace = _trace("dp2")
    tensors = GPT.layers * _TENSORS_OF_A_LAYER + 2 + 2  # words and positions; scale and bias of the last norm
    read, copies = _row(trace, "optimizer/grad-norm/host"), _row(trace, "optimizer/copies/host")
    assert trace.duration_micros[read] == READ_MICROS + tensors * host.optimizer_ns // 1000
    assert trace.duration_micros[copies] == tensors * host.copies_ns // 1000
    assert trace.is_cpu_op[[read, copies]].all()


def test_the_host_launches_what_follows_beside_the_optimizer():
    trace = _trace("dp2")
    read, step = "step0/optimizer/grad-norm/host", "step0/optimizer/step"
    assert names_of_parents(trace, _row(trace, "optimizer/step")) == {read}
    assert names_of_parents(trace, _row(trace, "optimizer/copies/host")) == {read}
    assert names_of_parents(trace, _row(trace, "optimizer/host")) == {step, "step0/optimizer/copies/host"}


def test_numbers_that_the_host_reads_are_summed_over_the_model():
    names = _trace("tp2,dp2").names
    assert [name for name in names if "statistics" in name] == [
        f"step0/optimizer/statistics{number}/{what}" for number in range(2) for what in ("world:all-reduce", "host")
    ]
    assert not any("statistics" in name for name in _trace("dp4").names)


def test_gradients_are_set_to_zero_before_the_first_forward_pass():
    plan = settle(LLAMA, parallel_plan("tp2,pp2,dp2,zero1,steps=2"))
    for stage in range(plan.pp):
        trace = _trace("tp2,pp2,dp2,zero1,steps=2", model=LLAMA, stage=stage)
        zeros = _rows(trace, "forward/zero-gradients")
        assert trace.tensor_size[zeros].tolist() == [4 * held(LLAMA, plan, stage).total] * 2
        assert all(trace.names[row].startswith(f"step{step}/") for step, row in enumerate(zeros))
    assert not _rows(_trace("dp2", "fsdp"), "zero-gradients")


def test_the_first_gather_of_parameters_waits_until_gradients_are_zero():
    trace = _trace("dp2,zero1", model=LLAMA)
    first = _rows(trace, "/dp:all-gather")[0]
    assert names_of_parents(trace, first) == {"step0/forward/zero-gradients"}


def test_parameters_of_products_are_gathered_in_one_byte():
    """Those of the embedding, the output layer and norms have two bytes."""
    plan = "dp2,zero1,bucket_bytes=50000"
    wide, narrow, other = (
        _trace(f"{plan},{keys}", model=LLAMA) for keys in ("fp8", "fp8,fp8_gather=true", "dtype=bf16")
    )
    sizes = [int(trace.comm_size[_rows(trace, "/dp:all-gather")].sum()) for trace in (wide, narrow, other)]
    matrices = sum(part.size for number in range(LLAMA.layers) for part in layer(LLAMA, number) if part.is_matrix)
    assert sizes[0] == sizes[2]
    assert sizes[0] - sizes[1] == matrices // 2


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        ("fp8", "quantise"),
        ("fp8,fp8_gather=true", "transpose"),
        ("fp4", "quantise"),
        ("fp4,fp8_gather=true", "quantise"),
    ],
)
def test_matrices_are_quantised_once_per_step(keys, kind):
    def casts(micro_batch: int, keys: str) -> int:
        trace = _trace(f"dp2,zero1,gb8{keys}", model=LLAMA)
        rows = [row for row, name in enumerate(trace.names) if f"forward/mb{micro_batch}/" in name]
        return sum(trace.operator_lists[trace.operators[row]].count(f"{kind} ") for row in nonempty(rows))

    assert casts(0, f",{keys}") == 2 * LLAMA.layers  # those of attention and of the MLP
    assert casts(1, f",{keys}") == casts(0, "") == 0


@pytest.mark.parametrize(("keys", "passes"), [("check_gradients=true", 1), ("scale_gradients=true", 2)])
def test_each_bucket_is_checked_and_scaled_before_its_reduction(keys, passes):
    trace = _trace(f"dp2,bucket_bytes=50000,{keys}")
    reductions = _rows(trace, "/dp:all-reduce")
    buckets = [row for row in reductions if "bucket" in trace.names[row]]
    kernels = _rows(trace, f"{keys.partition('_')[0]}-gradients")
    beside = 3 * GPT.sequence * GPT.hidden * 2  # the row of the last bucket has the embedding's gradients as well
    assert trace.tensor_size[kernels].sum() == passes * trace.comm_size[buckets].sum() + beside
    assert len(kernels) == len(buckets) > 1
    hosts = _rows(trace, "check-gradients/host")
    assert trace.duration_micros[hosts].tolist() == [READ_MICROS + RESTART_MICROS] * len(hosts)
    assert len(hosts) == (len(buckets) if passes == 1 else 0)


@pytest.mark.parametrize(("report", "sums", "reads"), [("step", 1, 0), ("micro-batch", 4, 0), ("checked", 4, 4)])
def test_losses_are_averaged_once_or_after_each_micro_batch(report, sums, reads):
    trace = _trace(f"pp2,dp2,gb8,report_loss={report}", stage=1)
    assert len(_rows(trace, "loss/dp:all-reduce")) == sums
    assert len(_rows(trace, "loss/host")) == reads
    assert not _rows(_trace(f"pp2,dp2,gb8,report_loss={report}"), "loss/dp:all-reduce")


@pytest.mark.parametrize("name", profile_names())
def test_a_step_without_hosts_has_no_work_of_theirs(name):
    framework = profile(name, "").framework
    keys = f"dp2,software={name},without=host" + (",zero=3" if framework == "deepspeed" else "")
    trace = _trace(keys, framework, LLAMA)
    loops = {"views", "take-apart"}  # of DeepSpeed's lists
    assert not [
        trace.names[row] for row in np.flatnonzero(trace.is_cpu_op) if trace.names[row].split("/")[-1] not in loops
    ]


def test_fp8_parameters_and_lightning_make_the_host_slower():
    today, mlperf = (profile(name, "megatron").host for name in ("megatron-core", "megatron-mlperf"))
    assert mlperf.copies_ns > today.copies_ns
    assert mlperf.loop_us > today.loop_us
    for name in nonempty(profile_names()):
        host = profile(name, "").host
        assert host.reads_norm or not host.optimizer_ns, f"{name}: no work follows a norm that nobody reads"


@pytest.mark.parametrize(
    "keys",
    ["check_gradients=true", "scale_gradients=true", "report_loss=checked", "fp8_gather=true", "leaves_sms=false"],
)
def test_only_megatron_has_these_keys(keys):
    words = f"{keys.partition('=')[0]} is set with fsdp, expected"
    assert words in refused(WorkloadError, check, GPT, parallel_plan(f"dp2,{keys}"), "fsdp")
