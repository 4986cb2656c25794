"""The search of `nadi plan`: its lower bound, what it skips, and how it is stopped and continues."""

import itertools
import json
import os
import signal
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nadi.launching.progress import NoProgress
from nadi.studies.planner import search
from nadi.studies.planner.answer import answer_document
from nadi.studies.planner.planning import plan_request, rank_plans
from nadi.studies.planner.quick_bound import QuickBounds
from nadi.studies.planner.search import FILE
from nadi.studies.planner.space import bound_ps
from nadi.studies.planner.step import step_time, target_machine
from nadi.topologies import clusters
from nadi.workload.compute import IN_STEPS, ComputeTimes, find_gpu
from nadi.workload.generators.models import find
from nadi.workload.generators.training import parallel_plan, rules
from nadi.workload.generators.training.stage import Stage
from nadi.workload.kept import KeptResults
from tests.budgets import bounded
from tests.cli.tiny_model import EXPERTS, write_model
from tests.nonempty import nonempty
from tests.samples import each_value
from tests.workload.training.small import BALANCED

_KEYS = {"layers": 6, "hidden": 512, "ffn": 1024, "global_batch": 48, "positions": "rotary"}
_ON = ("--cluster", "small-a100", "--confirm", 0, "--plan", "pp1", "-q", "--json")
"""Without stages of a pipeline few plans are left, of which the search still skips most."""


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path, **_KEYS)


@pytest.fixture
def answer(nadi, model):
    def ask(*more):
        return next(iter(nadi.ok("plan", "--model", model, "--gpus", 4, *_ON, *more).document["answers"].values()))

    return ask


_PLANS = [
    "dp4,zero1,gb64",
    "tp2,sp,dp2,zero1,gb64",
    "tp2,dp2,gb64,overlap_tp=true",
    "cp2,dp2,seq1024,gb64",
    "pp2,dp2,gb64",
    "pp2,dp2,gb8,recompute=full",
    "pp2,dp2,gb64,gpipe",
    "pp2,dp2,gb64,zero-bubble",
    "pp2,dp2,gb64,dualpipe",
    "pp4,gb64,zero-bubble,uneven",
    "pp4,gb64,dualpipe,uneven",
    "pp4,gb16,uneven,recompute=selective",
    "pp4,vpp2,gb64,uneven",
    "pp2,vpp3,dp2,gb64,zero1",
    "tp2,sp,pp2,vpp3,gb64,recompute=full",
    "tp2,pp2,vpp4,gb8,uneven",
    "pp2,dp2,gb64,defer_embedding_wgrad=4",
    "pp2,dp2,gb64,lora=8",
    "pp2,dp2,gb32,offload=activations",
    "pp2,dp2,gb32,host_ms=3",
    "pp2,dp2,gb32,overlap_p2p=false",
]


def _times(model, text, framework):
    """The quick bound, the bound, the step time and the whole step time of a plan, in ps."""
    plan = rules.settle(model, parallel_plan(text), framework)
    rules.check(model, plan, framework)
    gpu = ComputeTimes(find_gpu("a100"), pace=IN_STEPS)
    machine = target_machine(clusters.find("small-a100"), plan.gpus, gpu)
    steps = [step_time(machine, model, plan, framework, exact=exact).step_ps for exact in (False, True)]
    quick_ps = QuickBounds(machine, model, framework).bound_ps(plan)
    return quick_ps, bound_ps(machine, model, plan, framework), *steps


@pytest.mark.parametrize(("text", "experts"), each_value(itertools.product(_PLANS, ["", EXPERTS])))
def test_no_step_is_shorter_than_its_bound(model, text, experts):
    write_model(model.parent, experts, **_KEYS)
    if experts:
        text += ",sp" if "tp2" in text and "sp" not in text.split(",") else ""
        text += "" if "pp4" in text else ",ep2"
    quick_ps, minimum_ps, step_ps, whole_ps = _times(find(str(model)), text, "megatron")
    assert 0.6 * whole_ps < minimum_ps <= whole_ps
    assert minimum_ps <= step_ps
    if "dualpipe" in text:
        assert quick_ps == 0
    else:
        assert 0.6 * minimum_ps < quick_ps <= minimum_ps


@pytest.mark.parametrize("framework", ["deepspeed", "fsdp"])
@pytest.mark.parametrize("text", ["dp4,gb64", "dp4,gb64,recompute=full", "dp4,gb64,zero3", "tp2,dp2,gb16", "cp2,dp2"])
def test_the_bound_holds_with_other_frameworks(model, text, framework):
    text += ",context=a2a" if "cp2" in text else ""
    quick_ps, minimum_ps, step_ps, whole_ps = _times(find(str(model)), text, framework)
    assert 0.5 * whole_ps < minimum_ps <= min(step_ps, whole_ps)
    assert 0.5 * minimum_ps < quick_ps <= minimum_ps


def test_the_bound_has_the_exchange_of_tokens(model):
    """Over two hosts, by both hops of HybridEP and DeepEP: nothing else of these steps takes long."""
    write_model(model.parent, EXPERTS.replace("count = 4", "count = 16"), **_KEYS)
    tiny, times = find(str(model)), ComputeTimes(find_gpu("h100"), pace=IN_STEPS)
    machine = target_machine(clusters.find("dgx-h100-superpod"), 16, times)
    for dispatcher in ("deepep", "hybridep"):
        text = f"ep16,dp16,mb16,gb256,dispatcher={dispatcher},overlap_ep=false,without=optimizer+host"
        plan = rules.settle(tiny, parallel_plan(text), "megatron")
        step_ps = step_time(machine, tiny, plan, "megatron").step_ps
        assert 0.9 * step_ps < bound_ps(machine, tiny, plan, "megatron") <= step_ps


def test_the_bound_has_the_auxiliary_loss_with_its_sums_over_gpus():
    """In a tensor-parallel group; the sums are a quarter of the time that the loss takes."""
    machine = target_machine(clusters.find("dgx-h100-superpod"), 16, ComputeTimes(find_gpu("h100"), pace=IN_STEPS))
    times = []
    for has_loss in (True, False):
        parts = BALANCED.experts.model_copy(update={"auxiliary_loss": has_loss})
        model = BALANCED.model_copy(update={"experts": parts})
        plan = rules.settle(model, parallel_plan("tp2,sp,dp8,ep8,mb1,gb64,without=host"), "megatron")
        step_ps = step_time(machine, model, plan, "megatron").step_ps
        times.append((step_ps, bound_ps(machine, model, plan, "megatron")))
    (step_ps, minimum_ps), (step_without_ps, minimum_without_ps) = times
    assert minimum_ps <= step_ps
    assert minimum_ps - minimum_without_ps > 0.9 * (step_ps - step_without_ps) > 0


_FAR = [
    "ep16,dp16,mb2,gb256,dispatcher=deepep,overlap_ep=false",
    "ep16,dp16,mb2,gb256,dispatcher=all-to-all,overlap_ep=false",
    "ep8,tp2,sp,dp8,mb2,gb256",
    "ep4,pp2,vpp3,tp2,sp,dp4,gb256,overlap_ep=true",
    "ep8,pp2,vpp3,dp8,gb64,overlap_ep=true,dispatcher=hybridep,nvlink_domain=4",
    "ep8,pp2,dp8,gb256,overlap_ep=true,recompute=moe_act",
    "ep4,etp2,pp2,dp8,gb256,recompute=full",
    "ep2,pp8,dp2,gb12,uneven,overlap_ep=true",
    "ep8,pp2,dp8,gb32,zero-bubble",
    "ep16,dp16,mb2,gb64,imbalance=0.5",
]


@pytest.mark.parametrize("number", range(len(_FAR)))
def test_the_quick_bound_does_not_exceed_the_precise_one_over_two_hosts(model, number):
    """Where experts exchange tokens over the network, also in pairs of passes; asked for after all other plans."""
    write_model(model.parent, EXPERTS.replace("count = 4", "count = 16"), **_KEYS | {"layers": 7})
    tiny, times = find(str(model)), ComputeTimes(find_gpu("h100"), pace=IN_STEPS)
    machine = target_machine(clusters.find("dgx-h100-superpod"), 16, times)
    plans = [rules.settle(tiny, parallel_plan(text), "megatron") for text in _FAR]
    quick = QuickBounds(machine, tiny, "megatron")
    for plan in plans[number + 1 :] + plans[: number + 1]:
        quick_ps = quick.bound_ps(plan)
    assert quick_ps == QuickBounds(machine, tiny, "megatron").bound_ps(plan)
    if plan.imbalance:
        assert quick_ps == 0
    else:
        assert 0.5 * (minimum_ps := bound_ps(machine, tiny, plan, "megatron")) < quick_ps <= minimum_ps


def _same(one, other):
    return (one.step_ps, *one.share_ps, *one.use.npu_ps) == (other.step_ps, *other.share_ps, *other.use.npu_ps)


@pytest.mark.parametrize("turn", [1, -1])
def test_steps_and_bounds_are_those_that_a_machine_finds_that_keeps_nothing(model, turn):
    """On two hosts of NVSwitches, with plans whose groups have equal schedules; each machine is asked for all."""
    tiny, times = find(str(model)), ComputeTimes(find_gpu("h100"), pace=IN_STEPS)
    texts = ("dp16,gb64", "tp8,dp2,gb64,sp", "tp2,pp2,dp4,gb64,vpp3", "pp2,dp8,gb64,defer_embedding_wgrad=4")
    plans = [rules.settle(tiny, parallel_plan(text), "megatron") for text in texts]
    machine, forgetful = (target_machine(clusters.find("dgx-h100-superpod"), 16, times) for _ in range(2))
    forgetful.costs.kept = KeptResults(0)
    for plan in nonempty(plans[::turn]):
        assert _same(step_time(machine, tiny, plan, "megatron"), step_time(forgetful, tiny, plan, "megatron"))
        assert bound_ps(machine, tiny, plan, "megatron") == bound_ps(forgetful, tiny, plan, "megatron")
    assert machine.costs.kept.bytes > 0 == forgetful.costs.kept.bytes


def _listed(column):
    return column if column is None or isinstance(column, int | str | dict) else list(column)


@pytest.mark.parametrize("text", _PLANS)
def test_a_stage_with_other_batches_is_that_of_a_plan_with_these(model, text):
    """The blocks of a stage serve steps of fewer and of more micro-batches, in any order."""
    tiny = find(str(model))
    plan = rules.settle(tiny, parallel_plan(text), "megatron")
    unit, last = plan.dp * plan.micro_batch * plan.pp, plan.gpus - 1
    stage = Stage(tiny, plan, "megatron", last)
    few = unit if plan.defer_embedding_wgrad else 2 * unit  # fewer micro-batches than the plan defers gradients of
    for batch in (few, 4 * unit, few, None):
        changed = plan if batch is None else plan.model_copy(update={"global_batch": batch})
        found, wanted = (vars(table) for table in (stage.table(batch), Stage(tiny, changed, "megatron", last).table()))
        for name, column in nonempty(found.items()):
            is_array = isinstance(column, np.ndarray)
            same = np.array_equal(column, wanted[name]) if is_array else _listed(column) == _listed(wanted[name])
            assert same, name


def test_the_bound_has_the_bubble_of_the_pipeline(model):
    """One micro-batch through four stages: all but one stage idle at any time, so the bound is the sum of all."""
    tiny = find(str(model))
    alone = _times(tiny, "gb1,without=optimizer", "megatron")
    piped = _times(tiny, "pp3,gb1,without=optimizer", "megatron")
    assert piped[:2] == pytest.approx(alone[:2], rel=1e-9)


@pytest.mark.slow
@bounded(8)
@given(
    st.sampled_from(
        ["tp2,mb2", "pp2,mb4", "pp4,gb16", "dp2,mb1", "vpp2,mb2", "mb4,pp1", "gb16,mb2", "recompute=full,mb4,tp2"]
    ),
    st.sampled_from(["megatron", "megatron", "deepspeed", "fsdp"]),
    st.sampled_from(["", EXPERTS]),
    st.integers(1, 12),
)
def test_skipping_finds_the_same_plans(tmp_path_factory, text, framework, experts, top):
    """Of all plans, the search for the best few finds these, and says how many others it has left out."""
    path = write_model(tmp_path_factory.mktemp("model"), experts, **_KEYS)
    framework = "megatron" if "pp" in text else framework
    request = replace(plan_request(str(path), "small-a100", 4, text, framework, ""), confirm=0)
    some, every = (answer_document(rank_plans(replace(request, top=n), NoProgress())) for n in (top, 9999))
    assert some["rows"][:top] == every["rows"][:top]
    last = every["rows"][:top][-1]
    limit = last["step_s"] / last["tokens"] if len(every["rows"]) >= top else float("inf")
    assert some["rows"] == [row for row in every["rows"] if row["bound_s"] / row["tokens"] <= limit]
    assert (some["skipped"], every["skipped"]) == (len(every["rows"]) - len(some["rows"]), 0)
    for row in nonempty(every["rows"]):
        assert row["bound_s"] <= row["step_s"]


def test_plans_of_unequal_batches_are_ranked_by_time_per_token(model, answer):
    """Without a global batch, the plan with the smallest batch has the shortest step, and wastes GPUs."""
    write_model(model.parent, **_KEYS | {"global_batch": None})
    rows = answer("--top", 999)["rows"]
    assert len({row["tokens"] for row in rows}) > 1
    rates = [row["tokens_per_s"] for row in rows]
    assert rates == sorted(rates, reverse=True)
    assert rows[0]["step_s"] > min(row["step_s"] for row in rows)
    first = rows[0]
    for row in nonempty(rows):
        assert row["gpu_hours_per_trillion_tokens"] == pytest.approx(4 * 1e12 / row["tokens_per_s"] / 3600)
        assert row["usd_per_trillion_tokens"] == pytest.approx(1e6 * row["usd_per_million_tokens"])
        assert row["gpu_hours_per_trillion_tokens"] >= first["gpu_hours_per_trillion_tokens"]


def test_two_fabrics_are_compared_in_money(nadi, model, tmp_path):
    """NICs and switches of twice the rate cost twice as much; the plan's dollars have the network's share."""
    table = tmp_path / "own.toml"
    ports = "".join(f"[{row}]\nusd = 1000.0\n" for row in ("nic", "switch_port", "transceiver"))
    table.write_text(f"{ports}[network_life]\nyears = 4.0\n")
    options = ("plan", "--model", model, "--gpus", 16, *_ON, "--plan", "dp16,mb1", "--energy-table", table)
    answers = nadi(*options, "--sweep", "rate=200Gbps,400Gbps").document["answers"]
    slow, fast = (answers[f"rate={rate}"]["rows"][0] for rate in ("200Gbps", "400Gbps"))
    assert fast["network_price_usd"] == pytest.approx(2 * slow["network_price_usd"])
    for row in (slow, fast):
        hours = row["step_s"] / 3600
        assert row["network_usd"] == pytest.approx(row["network_price_usd"] * hours / (4 * 8766))
        assert row["cost_usd"] == pytest.approx(16 * hours * 1.79 + row["network_usd"])
    text = nadi(*(word for word in options if word != "--json")).out
    assert "network of the first plan: $" in text


@pytest.mark.slow
def test_workers_and_shards_skip_the_same(nadi, answer, tmp_path):
    expected = answer("--top", 3)
    assert expected["skipped"] > 0
    assert answer("--top", 3, "--workers", 2) == expected
    for shard in range(3):
        part = answer("--top", 3, "--shard", f"{shard}/3", "--out", tmp_path / str(shard))
        assert 0 < len(part["rows"]) + part["skipped"] < len(expected["rows"]) + expected["skipped"]
    merged = nadi("plan", "--json", *(word for shard in range(3) for word in ("--merge", tmp_path / str(shard))))
    [found] = merged.document["answers"].values()
    assert {key: found[key] for key in ("rows", "skipped", "left")} == {
        key: expected[key] for key in ("rows", "skipped", "left")
    }
    answer("--top", 4, "--shard", "0/3", "--out", tmp_path / "0")
    other = nadi("plan", "--merge", tmp_path / "0", "--merge", tmp_path / "1")
    assert (other.code, other.err) == (2, "nadi: error: --merge: wanted is 4 in the first and 3 in number 2\n")


@pytest.fixture
def stopping(monkeypatch):
    """Raise a signal during the timing of the n-th plan of a search, and count the plans that are timed."""
    usual, timed = search.evaluate, []

    def stop(number, how):
        def evaluate(search, bounded):
            if len(timed) == number:
                how()
            timed.append(str(bounded.candidate.plan))
            return usual(search, bounded)

        timed.clear()
        monkeypatch.setattr(search, "evaluate", evaluate)
        return timed

    return stop


def _interrupt():
    raise KeyboardInterrupt


def _terminate():
    os.kill(os.getpid(), signal.SIGTERM)


def _never():
    raise AssertionError


@pytest.mark.parametrize(("how", "code"), [(_interrupt, 130), (_terminate, 143)])
def test_a_stopped_search_shows_what_it_found_and_continues(nadi, model, answer, stopping, tmp_path, how, code):
    expected, out = answer("--top", 3), tmp_path / "out"
    options = ("plan", "--model", model, "--gpus", 4, *_ON, "--top", 3, "--out", out)
    stopping(2, how)
    stopped = nadi(*options)
    assert stopped.code == code
    [found] = stopped.document["answers"].values()
    assert len(found["rows"]) == 2
    assert found["left"] > 0
    said = f"the search was not finished: {found['left']} plans are left; the same command continues from {out}"
    assert stopped.err.splitlines()[-1] == f"nadi: error: {said}"
    assert json.loads((out / "plan.json").read_text()) == stopped.document
    assert f"{found['left']} plans are left, which may be better" in nadi("plan", "--merge", out).out
    first = json.loads((out / FILE).read_text())
    timed = stopping(-1, _never)
    continued = nadi.ok(*(word for word in options if word != "-q"))
    assert "the search continues, with 2 of" in continued.err
    assert [*continued.document["answers"].values()] == [expected]
    assert not (out / FILE).exists()
    assert not set(timed) & {plan for found in first.values() for plan in found["steps"]}


@pytest.mark.parametrize(
    "change", [("--plan", "pp1,gb24"), ("--reserve", "50%"), ("--framework", "fsdp"), ("--shard", "0/2")]
)
def test_a_changed_request_does_not_continue(nadi, model, stopping, tmp_path, change):
    options = ("plan", "--model", model, "--gpus", 2, *_ON[:-2], "--top", 2, "--json", "--out", tmp_path / "out")
    stopping(1, _interrupt)
    assert nadi(*options).code == 130
    timed = stopping(-1, _never)
    changed = nadi.ok(*options, *change)
    assert "of another request or version; the search begins anew" in changed.err
    assert changed.document == nadi(*options[:-2], *change).document
    assert len(timed) == 2 * len(set(timed))


def test_without_a_folder_a_stopped_search_shows_what_it_found(nadi, model, stopping):
    stopping(2, _interrupt)
    stopped = nadi("plan", "--model", model, "--gpus", 4, *_ON)
    assert (stopped.code, len(stopped.document["answers"]["tiny"]["rows"])) == (130, 2)
    assert stopped.err.endswith("plans are left; with -o DIR, a second run would continue\n")
    stopping(0, _interrupt)
    nothing = nadi("plan", "--model", model, "--gpus", 4, *_ON)
    assert (nothing.code, nothing.out, nothing.err) == (130, "", "nadi: error: interrupted\n")


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"a": 1}', '{"a": {"bounds_ps": {"dp4": -1}, "steps": {}}}', '{"a": {"bounds_ps": {}}}']
)
def test_a_damaged_search_is_one_line(nadi, model, tmp_path, text):
    (tmp_path / FILE).write_text(text)
    assert f"{FILE}: " in nadi.refuse("plan", "--model", model, "--gpus", 4, *_ON, "--out", tmp_path).err
    assert (tmp_path / FILE).read_text() == text
