"""`nadi plan`: every valid plan is ranked by its step, which is what `nadi run` says; the best are sent by packets."""

import itertools
import json

import pytest
from hypothesis import given, strategies as st

from nadi.reports.pages import Plot
from nadi.studies.planner.report import plan_page
from nadi.studies.planner.space import DEFAULT_RESERVE, MemoryReserve, PlanSpace, candidates
from nadi.studies.planner.step import step_time, target_machine
from nadi.topologies import clusters
from nadi.workload import WorkloadError
from nadi.workload.compute import IN_STEPS, ComputeTimes, find_gpu
from nadi.workload.generators.memory import estimate, peak_bytes
from nadi.workload.generators.models import find
from nadi.workload.generators.training import ParallelPlan, parallel_plan, rules
from tests.budgets import bounded
from tests.cli.tiny_model import EXPERTS, write_model
from tests.nonempty import nonempty

_ON = ("--cluster", "small-a100", "--gpus", 4, "--confirm", 0)


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path)


@pytest.fixture
def rows(nadi, model):
    """The rows that a plan finds, of all plans that fit unless it asks for fewer."""

    def answer(*more):
        found = nadi.ok("plan", "--model", model, *_ON, "--top", 999, "--json", *more)
        return next(iter(found.document["answers"].values()))["rows"]

    return answer


def test_a_plan_of_one_gpu_computes_only_and_takes_what_its_run_takes(nadi, model):
    on = ("--model", model, "--cluster", "small-a100")
    found = nadi.ok("plan", *on, "--gpus", 1, "--plan", "gb8,without=host", "--json", "-q")
    rows = next(iter(found.document["answers"].values()))["rows"]
    assert {row["shares"]["compute"] for row in rows} == {1.0}
    assert rows[0]["packets_step_s"] == rows[0]["step_s"]
    run = nadi("run", *on, "--plan", rows[0]["plan"], "--fidelity", "closed-form", "--json", "-q").document
    assert run["npus"] == 1
    assert rows[0]["step_s"] == pytest.approx(run["finish_time_ps"] * 1e-12, rel=1e-9)


@pytest.mark.parametrize("experts", ["", EXPERTS])
def test_candidates_are_all_plans_that_keep_the_rules(model, experts):
    """Against every tuple of sizes up to the number of GPUs."""
    write_model(model.parent, experts)
    tiny, gpus = find(str(model)), 4
    found = {_sizes(one.plan) for one in candidates(tiny, PlanSpace(gpus, 8, 80 * 10**9, ParallelPlan()))}
    sizes = range(1, gpus + 1)
    expected = set()
    for tp, pp, dp, ep, vpp, micro_batch in itertools.product(sizes, sizes, sizes, (1, 2, 4), sizes, (1, 2, 4, 8, 16)):
        if tp * pp * dp != gpus:
            continue
        uneven = tiny.layers % (pp * vpp) > 0
        sizes_of_plan = {"tp": tp, "pp": pp, "dp": dp, "ep": ep, "vpp": vpp, "micro_batch": micro_batch}
        plan = ParallelPlan(**sizes_of_plan, uneven=uneven, sequence_parallel=tp > 1, zero=int(dp > 1))
        if not rules.first_broken(tiny, rules.settle(tiny, plan)):
            expected.add(_sizes(plan))
    assert found == expected
    assert len(found) > 12


def test_layers_that_no_stages_divide_are_interleaved_unevenly():
    """The 94 layers of Qwen3 235B: every number of stages has interleaved plans; without `uneven` only two stages."""
    qwen = find("qwen3-235b-a22b")
    for text, expected in (("gb1024", {1, 2, 4, 8}), ("gb1024,uneven=false", {1, 2})):
        base = parallel_plan(f"{text},tp4,ep8,mb1,recompute=full")
        found = [one.plan for one in candidates(qwen, PlanSpace(64, 8, 80 * 2**30, base))]
        assert {plan.pp for plan in found if plan.pp <= 8} == expected
    chunks = {pp: [plan.vpp for plan in found if plan.pp == pp] for pp in (1, 2)}
    assert chunks == {1: [1], 2: [1]}
    base = parallel_plan("gb1024,tp4,ep8,mb1,pp8,recompute=full")
    found = [one.plan for one in candidates(qwen, PlanSpace(64, 8, 80 * 2**30, base))]
    assert [(plan.vpp, plan.uneven) for plan in found] == [(vpp, True) for vpp in range(1, 9)]


PUBLISHED = [  # model, GPUs, framework, constraints without the sizes, published plan, valid plans with even stages
    ("llama3-405b", 16384, "fsdp", "gb2048,zero2", "tp8,pp16,vpp8,dp128,uneven", 6),  # arXiv 2407.21783, table 4
    ("deepseek-v3", 2048, "megatron", "gb15360,seq4096,fp8,dualpipe,ep64", "pp16,dp128,ep64,uneven", 0),
]


@pytest.mark.parametrize(("name", "gpus", "framework", "text", "published", "even"), PUBLISHED)
def test_published_plans_with_uneven_stages_are_among_the_candidates(name, gpus, framework, text, published, even):
    base, expected = parallel_plan(text), parallel_plan(published)
    found = [one.plan for one in candidates(find(name), PlanSpace(gpus, 8, 80 * 2**30, base, framework))]
    assert [_sizes(plan) for plan in found if plan.uneven].count(_sizes(expected)) == 1
    assert sum(not plan.uneven for plan in found) == even
    assert len(found) > 50


@pytest.mark.parametrize(
    ("name", "framework", "memory_gib", "modes"),
    [
        ("llama3-70b", "megatron", 60, ("none", "selective", "full")),
        ("llama3-70b", "fsdp", 70, ("none", "selective", "per-op", "full")),
        ("mixtral-8x7b", "megatron", 50, ("none", "moe_act+layernorm", "selective", "full")),
        ("deepseek-v3", "megatron", 280, ("none", "moe_act+layernorm+mla_up_proj", "selective", "full")),
    ],
)
def test_the_first_recomputation_that_fits_is_taken(name, framework, memory_gib, modes):
    model, base = find(name), parallel_plan("tp4,pp4,mb1,gb256,overlap_ep=false")
    space = PlanSpace(64, 8, memory_gib * 2**30, base, framework)
    chosen = nonempty(list(candidates(model, space)))
    for candidate in chosen:
        peaks = [peak_bytes(model, candidate.plan.model_copy(update={"recompute": mode}), framework) for mode in modes]
        fitting = [mode for mode, peak in zip(modes, peaks, strict=True) if peak <= space.memory_bytes]
        assert candidate.plan.recompute == (fitting or ["full"])[0]
    assert any(candidate.plan.recompute != "none" for candidate in chosen)


def _sizes(plan):
    return plan.tp, plan.pp, plan.dp, plan.ep, plan.vpp, plan.micro_batch


@st.composite
def constraints(draw):
    """What a user may fix, as the text of --plan; the same fields as a dictionary."""
    possible = {
        "tp": st.sampled_from([1, 2, 4, 8]),
        "pp": st.sampled_from([1, 2, 3, 4]),
        "dp": st.sampled_from([1, 2, 4]),
        "cp": st.sampled_from([1, 2]),
        "ep": st.sampled_from([1, 2, 4]),
        "vpp": st.sampled_from([1, 2]),
        "micro_batch": st.sampled_from([1, 2, 3, 4]),
        "global_batch": st.sampled_from([8, 12, 64]),
        "sequence": st.sampled_from([256, 512]),
        "zero": st.integers(0, 3),
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "sequence_parallel": st.sampled_from(["true", "false"]),
        "schedule": st.sampled_from(["1f1b", "gpipe", "interleaved"]),
        "attention": st.sampled_from(["flash", "unfused"]),
    }
    fields = draw(st.lists(st.sampled_from(sorted(possible)), max_size=5, unique=True))
    return ",".join(f"{field}={draw(possible[field])}" for field in fields)


def _values(text):
    """Of the text of a plan; strings, without ParallelPlan's own reading."""
    return dict(part.split("=") for part in text.split(",") if part)


@bounded(60)
@given(constraints(), st.sampled_from(["megatron", "deepspeed", "fsdp"]), st.sampled_from(["", EXPERTS]))
def test_every_plan_has_what_the_user_fixed(tmp_path_factory, text, framework, experts):
    """And of the plans of the open search, those that have it are all found."""
    path = write_model(tmp_path_factory.mktemp("model"), experts)
    tiny, fixed = find(str(path)), parallel_plan(text)
    open_plans = [one.plan for one in candidates(tiny, PlanSpace(4, 8, 80 * 10**9, ParallelPlan(), framework))]
    found, said = [], None
    try:
        found = [one.plan for one in candidates(tiny, PlanSpace(4, 8, 80 * 10**9, fixed, framework))]
    except WorkloadError as error:
        said = str(error)
    assert said is None or ("no plan is valid; " in said and "\n" not in said)
    for plan in found:
        assert plan.gpus == 4
        for field, value in _values(text).items():
            assert str(getattr(plan, field)).lower() == value
    if {"global_batch", "sequence", "recompute", "attention"}.isdisjoint(_values(text)):
        # The open search has only one value of those four.
        has = [all(str(getattr(plan, f)).lower() == v for f, v in _values(text).items()) for plan in open_plans]
        assert {str(plan) for plan, keeps in zip(open_plans, has, strict=True) if keeps} <= set(map(str, found))


def test_constraints_of_the_command_hold(rows):
    """Also values that are the defaults, which say as much."""
    for row in nonempty(rows("--plan", "tp2,recompute=full,mb4,gb32,dp2")):
        plan = parallel_plan(row["plan"])
        assert (plan.tp, plan.dp, plan.pp, plan.micro_batch, plan.global_batch) == (2, 2, 1, 4, 32)
        assert row["recompute"] == plan.recompute == "full"
    for row in nonempty(rows("--plan", "dp1,recompute=none,gb16,mb1")):
        assert (parallel_plan(row["plan"]).dp, row["recompute"]) == (1, "none")
    assert {parallel_plan(row["plan"]).dp for row in rows("--framework", "fsdp", "--plan", "gb16,mb1")} == {1, 2, 4}


def test_the_least_recomputation_that_fits_is_taken(model):
    tiny = find(str(model))
    [whole] = [one for one in _candidates(tiny, 80 * 10**9) if _sizes(one.plan) == (1, 2, 4, 1, 1, 8)]
    assert (whole.plan.recompute, whole.fits) == ("none", True)
    needs = {
        how: _peak(tiny, whole.plan.model_copy(update={"recompute": how})) for how in ("none", "selective", "full")
    }
    assert whole.peak_bytes == needs["none"] > needs["full"]
    [tight] = [one for one in _candidates(tiny, needs["full"]) if _sizes(one.plan) == _sizes(whole.plan)]
    assert (tight.plan.recompute, tight.peak_bytes, tight.fits) == ("full", needs["full"], True)
    [too_large] = [one for one in _candidates(tiny, needs["full"] - 1) if _sizes(one.plan) == _sizes(whole.plan)]
    assert not too_large.fits


def _candidates(model, memory_bytes):
    return candidates(model, PlanSpace(8, 8, memory_bytes, ParallelPlan()))


def _peak(model, plan):
    return max(stage.total for stage in estimate(model, plan))


def test_a_reserve_stays_free(nadi, model, tmp_path):
    """What fits without it is left out, or works out again what it would keep; output, plan.json and page say it."""
    options = ("--model", model, "--cluster", "small-a100", "--gpus", 2, "--confirm", 0, "--top", 999, "--json")

    def answer(*more):
        [found] = nadi("plan", *options, *more).document["answers"].values()
        return found, {_without_recompute(row): row for row in found["rows"]}

    whole, free = answer("--reserve", "0")
    tight, kept = answer("--reserve", "97.5%", "--out", tmp_path / "out")
    gpu_bytes = find_gpu("a100").memory_bytes
    left_bytes = 2 * 2**30
    assert (whole["reserve_bytes"], whole["too_large"]) == (0, 0)
    assert (tight["reserve_bytes"], tight["too_large"]) == (gpu_bytes - left_bytes, len(free) - len(kept))
    for name, row in free.items():
        plans = {how: parallel_plan(f"{name},recompute={how}") for how in ("none", "selective", "full")}
        peaks = {how: _peak(find(str(model)), plan) for how, plan in plans.items()}
        how = next((how for how, peak in peaks.items() if peak <= left_bytes), None)
        assert row["memory_bytes"] == peaks["none"]
        assert (name in kept) == (how is not None)
        assert how is None or (kept[name]["recompute"], kept[name]["memory_bytes"]) == (how, peaks[how])
    assert 0 < len(kept) < len(free)
    assert {row["recompute"] for row in kept.values()} == {"none", "full"}
    parts = [part for section in plan_page({"": tight}).sections for part in section.parts if isinstance(part, Plot)]
    [over_memory] = (part for part in parts if part.title == "step time over memory")
    assert over_memory.figure.layout.yaxis.rangemode == "normal"  # the axis of time begins at the data
    assert not over_memory.figure.layout.annotations  # names of plans are in the legend, where they do not cross
    fastest = [f"{place}. {row['axes']}" for place, row in enumerate(tight["rows"][:3], 1)]
    assert [series.name for series in over_memory.figure.data][1:] == fastest
    said = "80.0 GiB minus 78.0 GiB in reserve"
    assert said in nadi("plan", "--merge", tmp_path / "out").out
    assert said in (tmp_path / "out" / "plan.html").read_text()
    assert json.loads((tmp_path / "out" / "plan.json").read_text())["answers"][tight["model"]] == tight


def test_plans_leave_a_twentieth_free_by_default(nadi, model):
    """Also of Python's Wish; `--reserve 0` takes all."""
    options = ("--model", model, *_ON, "--plan", "tp4,mb1", "--json")
    reserves = {}
    for text in ("", "5%", "0"):
        [found] = nadi("plan", *options, *(("--reserve", text) if text else ())).document["answers"].values()
        reserves[text] = found["reserve_bytes"]
    assert reserves == {"": 4 * 2**30, "5%": 4 * 2**30, "0": 0}
    assert DEFAULT_RESERVE.bytes_of(80 * 2**30, "a100") == 4 * 2**30


def _without_recompute(row):
    return ",".join(part for part in row["plan"].split(",") if not part.startswith("recompute="))


def test_shares_and_sizes_of_a_reserve_agree():
    gpu = find_gpu("a100")
    for share, size in (("5%", "4GiB"), ("0%", "0"), (" 12.5 % ", "10GiB")):
        shared, sized = (MemoryReserve.parse(text).bytes_of(gpu.memory_bytes, gpu.name) for text in (share, size))
        assert shared == sized
    assert MemoryReserve.parse("33.3%").bytes_of(10, "tiny") == 4, "rounded up: so much stays free at least"


@pytest.mark.slow
def test_plans_are_ranked_by_what_runs_take(nadi, model, rows, tmp_path):
    found = rows("--plan", "gb16")
    assert [row["step_s"] for row in found] == sorted(row["step_s"] for row in found)
    whole = [row for row in found if row["whole"]]
    for row in (whole[0], whole[-1]):
        out = tmp_path / "out"
        options = ("--cluster", "small-a100", "--gpus", 4, "--fidelity", "closed-form", "--out", out, "-q")
        nadi.ok("run", "--model", model, "--plan", row["plan"], *options)
        summary = json.loads((out / "summary.json").read_text())
        assert row["step_s"] == pytest.approx(summary["finish_time_ps"] / 1e12, rel=1e-9)
        for key in ("mfu", "mfu_all_pairs"):
            assert row[key] == pytest.approx(summary["step"][key], rel=1e-9)
        assert sum(row["shares"].values()) == pytest.approx(1)
        bill = nadi("energy", out, "--json").document
        assert bill["gpu"] == "a100"
        assert row["energy_J"] == pytest.approx(bill["step"]["energy_J"], rel=1e-9)
        assert row["cost_usd"] == pytest.approx(bill["step"]["cost_usd"], rel=1e-9)
        assert row["usd_per_million_tokens"] == pytest.approx(bill["million_tokens"]["cost_usd"], rel=1e-9)
        assert row["energy_parts_J"] == pytest.approx({part["part"]: part["J"] for part in bill["parts"]}, rel=1e-9)


@pytest.mark.parametrize("text", ["pp4,dp2,gb64", "tp2,sp,pp2,vpp2,dp2,gb64,zero1", "pp2,dp4,gb128,recompute=full"])
def test_long_steps_stand_on_the_line_through_short_ones(model, text):
    tiny, cluster = find(str(model)), clusters.find("small-a100")
    plan = rules.settle(tiny, parallel_plan(text))
    where = target_machine(cluster, 8, ComputeTimes(find_gpu("a100"), pace=IN_STEPS))
    short, exact = (step_time(where, tiny, plan, "megatron", exact=exact) for exact in (False, True))
    assert (short.is_whole, exact.is_whole) == (False, True)
    assert short.step_ps == pytest.approx(exact.step_ps, rel=0.002)
    assert short.share_ps == pytest.approx(exact.share_ps, abs=0.005 * exact.step_ps)
    assert short.use.npu_ps == pytest.approx(exact.use.npu_ps, abs=0.005 * 8 * exact.step_ps)
    assert short.use.npu_ps.sum() == pytest.approx(8 * short.step_ps)
    assert short.use.ports.keys() == exact.use.ports.keys()
    for sort, ports in nonempty(exact.use.ports.items()):
        assert short.use.ports[sort][:2] == ports[:2]
        assert short.use.ports[sort].tx_bytes == pytest.approx(ports.tx_bytes, rel=1e-6)


def test_a_training_costs_its_steps(nadi, model, tmp_path):
    """With powers of a user's, merged out of shards as in one; rent alone is what it costs."""
    (tmp_path / "own.toml").write_text("[gpus.a100]\nusd_per_hour = 3.6\n[host]\nW_per_gpu = 0.0\n")
    on = ("--cluster", "small-a100", "--gpus", 2, "--confirm", 0)
    options = ("--model", model, *on, "--plan", "gb64", "--tokens", 1e9, "--energy-table", tmp_path / "own.toml")
    for shard in range(2):
        nadi.ok("plan", *options, "--shard", f"{shard}/2", "-q", "--out", tmp_path / str(shard))
    merged = nadi("plan", "--json", *(word for shard in range(2) for word in ("--merge", tmp_path / str(shard))))
    [found] = merged.document["answers"].values()
    best, whole = found["rows"][0], found["training"]
    assert best["cost_usd"] == pytest.approx(2 * best["step_s"] * 1e-3)
    assert best["energy_parts_J"]["hosts"] == 0
    assert whole["steps"] == pytest.approx(1e9 / (64 * 512))
    assert whole["days"] == pytest.approx(whole["steps"] * best["step_s"] / 86400)
    assert whole["cost_usd"] == pytest.approx(2 * 24 * whole["days"] * 3.6)
    assert whole["energy_J"] == pytest.approx(whole["steps"] * best["energy_J"])
    listed = nadi("plan", "--merge", tmp_path / "0")
    assert "own.toml over the default table" in listed.out
    assert "1e+09 tokens with the first plan" in listed.out
    assert whole["gpu_hours"] == pytest.approx(2 * 24 * whole["days"])
    assert whole["gpu_hours"] == pytest.approx(best["gpu_hours_per_trillion_tokens"] / 1000)
    assert f" {whole['days']:,.4g} " in next(line for line in listed.out.splitlines() if line.startswith("    1 "))


@pytest.mark.slow
def test_the_best_are_sent_by_packets(nadi, model, tmp_path):
    """Sixteen GPUs of two hosts, all NICs of a host on one switch or on eight."""
    options = ("--cluster", "small-a100", "--gpus", 16, "--plan", "gb64", "--confirm", 2, "--shard", "1/20")
    found = nadi.ok("plan", "--model", model, *options, "--sweep", "rails=1,8", "--json", "--out", tmp_path / "out")
    assert set(found.document["answers"]) == {"rails=1", "rails=8"}
    for answer in nonempty(found.document["answers"].values()):
        assert ["packets_step_s" in row for row in answer["rows"][:3]] == [True, True, False]
        for row in nonempty(answer["rows"][:2]):
            assert all(0.9 < ratio < 1.3 for ratio in nonempty(row["packets_over_closed_form"].values()))
            assert row["packets_step_s"] == pytest.approx(row["step_s"], rel=0.05)
    assert json.loads((tmp_path / "out" / "plan.json").read_text()) == found.document
    listed = nadi("plan", "--merge", tmp_path / "out", "--top", 3)
    assert "packet step" in listed.out
    assert "longer" in listed.out


@pytest.mark.slow
def test_flows_time_and_rank_whole_steps(nadi, model):
    """With all NICs of a host on one oversubscribed switch, plans that communicate between hosts lose their rank."""
    options = ("--cluster", "small-a100", "--gpus", 16, "--plan", "gb64", "--shard", "0/20", "--confirm-by", "flow")
    found = nadi.ok("plan", "--model", model, *options, "--confirm", 99, "--json")
    rows = nonempty(found.document["answers"]["tiny"]["rows"])
    steps = [row["flows_step_s"] for row in rows]
    assert steps == sorted(steps)
    for row in rows:
        assert 0.98 < row["flows_step_s"] / row["step_s"] < 1.5


def test_a_batch_script_plans_in_shards(nadi, model):
    script = nadi("plan", "--model", model, *_ON[:4], "--reserve", "5%", "--slurm", 4, "--out", "plans").out
    assert " --reserve 5% " in script
    assert "--array=0-3" in script
    assert '--shard "$SLURM_ARRAY_TASK_ID/4" --out plans/$SLURM_ARRAY_TASK_ID' in script
