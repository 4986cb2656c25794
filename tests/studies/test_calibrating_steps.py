"""`nadi calibrate --trace`: a host's time and rates that are known are found, and a site as cited is left alone."""

import csv

import numpy as np
import pytest

import nadi
from nadi import et
from nadi.errors import ConfigError
from nadi.studies.calibration import CalibrationRefusedError, calibrate_site, calibrate_steps, read_steps, write_cluster
from nadi.studies.calibration.steps import gpu_with
from nadi.topologies.clusters import find
from nadi.workload.compute import find_gpu
from nadi.workload.generators import models
from nadi.workload.generators.training import parallel_plan, rules
from tests.nonempty import nonempty
from tests.studies.printed_logs import Times, today

CLUSTER = "dgx-h100-superpod"
MODEL = "gpt3-1.3b"
PLANS = [
    *(f"tp2,dp4,gb{batch},mb4" for batch in (16, 32, 64)),
    *(f"dp8,gb{batch},mb2,zero1" for batch in (16, 32, 64)),
    *(f"tp4,pp2,gb{batch},mb4" for batch in (16, 32, 64)),
]
NOISE = 0.005


def step_ms(plan, cluster=f"{CLUSTER}:gpus=8", **compute):
    """Return the milliseconds of a step as `nadi run` has them."""
    sections = {"network": {"fidelity": "closed-form"}, "topology": {"cluster": cluster}}
    run = nadi.simulate(
        workload={"model": MODEL, "plan": plan}, **sections, **({"compute": compute} if compute else {})
    )
    return run.finish_time_ps / 1e9


def table(path, gpu, seed=1):
    """Write the steps of a site with a GPU, and return the path of the table."""
    random = np.random.default_rng(seed)
    rows = [(MODEL, plan, step_ms(plan, gpu=gpu) * np.exp(NOISE * random.standard_normal())) for plan in PLANS]
    with path.open("w", encoding="utf-8") as file:
        csv.writer(file).writerows([("model", "plan", "step_ms"), *rows])
    return path


@pytest.mark.slow
def test_a_known_host_time_is_found_and_runs_have_it(tmp_path):
    """The time of the host comes back within a few per cent, and `nadi run` of the file takes the measured time."""
    path = tmp_path / "own.toml"
    (found,) = calibrate_site(CLUSTER, [], [table(tmp_path / "steps.csv", "h100:step_host=30ms")])
    host = found.constants[0]
    assert host.value == pytest.approx(30, rel=0.05)
    assert abs(host.value - 30) < 3 * host.uncertainty * host.constant.unit_ms
    assert set(found.factors) == {"host"}
    before, after = (found.errors(after=after, held_out=True) for after in (False, True))
    assert before.rows == after.rows == 3
    assert after.mean < before.mean / 2
    write_cluster([found], path)
    cluster = find(str(path))
    assert find_gpu(cluster.gpu).step_host_ps == round(host.value * 1e9)
    assert cluster.calibration["steps"]["factors"] == {"host": host.value}
    for plan in nonempty(PLANS[::4]):
        assert step_ms(plan, f"{path}:gpus=8") == pytest.approx(step_ms(plan, gpu="h100:step_host=30ms"), rel=0.01)
        assert step_ms(plan, f"{path}:gpus=8") > step_ms(plan) + 25


@pytest.mark.slow
def test_a_slower_gpu_is_no_host(tmp_path):
    """Products at 88 % of the cited rate lengthen steps by what they compute, not by a time per step."""
    found = calibrate_steps(CLUSTER, read_steps([table(tmp_path / "steps.csv", gpu_with("h100", {"products": 0.88}))]))
    assert found.factors.keys() == {"products"}
    products = found.constants[1]
    assert abs(np.log(products.value / 0.88)) < 3 * products.uncertainty
    assert products.uncertainty < 0.05


@pytest.mark.slow
def test_a_site_as_cited_is_refused(tmp_path):
    found = calibrate_steps(CLUSTER, read_steps([table(tmp_path / "steps.csv", "h100")]))
    assert found.factors == {}
    with pytest.raises(CalibrationRefusedError, match="not written: the steps bear no constant"):
        write_cluster([found], tmp_path / "own.toml")
    assert not (tmp_path / "own.toml").exists()


@pytest.mark.slow
def test_plans_take_the_hosts_time_of_their_gpu():
    """A plan that leaves host_ms open takes that of the GPU; its user's, and that of its profile, stay."""
    machine = rules.TrainingMachine(gpu=find_gpu("h100:step_host=3.25ms"))

    def host_ms(plan, framework="megatron", on=machine):
        settled = rules.settle(models.find(MODEL), parallel_plan(plan), framework)
        return rules.on_machine(models.find(MODEL), settled, framework, on).host_ms

    assert host_ms("dp8") == 3.25
    assert host_ms("dp8,host_ms=1") == 1
    assert host_ms("dp8,host_ms=0") == 0
    assert host_ms("dp8,software=fsdp-2023", "fsdp") == 100
    assert host_ms("dp8", on=rules.TrainingMachine(gpu=find_gpu("h100"))) == 0
    assert str(parallel_plan("dp8,host_ms=3.25")) == "dp8,host_ms=3.25"
    assert step_ms("dp8,gb16,mb2", gpu="h100:step_host=3.25ms") == pytest.approx(step_ms("dp8,gb16,mb2,host_ms=3.25"))


def test_gpus_have_a_sites_constants():
    assert gpu_with("h100", {}) == "h100"
    assert gpu_with("h100:memory=96GB,sustained=0.5", {"host": 2.5, "memory": 0.9}) == (
        "h100:memory=96GB,step_host=2.5ms,streaming=0.9"
    )
    assert find_gpu(gpu_with("h100", {"products": 0.9})).sustained == pytest.approx(0.9 * find_gpu("h100").sustained)


def test_traces_give_the_median_span_of_ranks(tmp_path):
    """A step lasts from the first start to the last end; the median over ranks, per step of the plan."""
    for rank, late in enumerate((0, 40, 300)):
        nodes = [et.comp_node(1, "a", duration_micros=500), et.comp_node(2, "b", duration_micros=200 + late)]
        nodes[0].start_time_micros, nodes[1].start_time_micros = 7_000 + rank, 7_700 + rank
        et.write_trace(tmp_path / f"step.{rank}.et", et.metadata(), nodes)
    lines = ["model,plan,traces", *(f'{MODEL},"dp3,gb{3 * n},steps=2",step' for n in range(1, 7))]
    (tmp_path / "steps.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    steps = read_steps([tmp_path / "steps.csv"])
    assert steps.measured_us == [(700 + 200 + 40) / 2] * 6
    assert steps.is_held_out == (False, True, False, False, True, False)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["model,steps"], r"found model, steps; expected the columns model, plan, and step_ms or traces"),
        (["model,plan,step_ms", "gpt3-1.3b,dp8"], r":2: found 2 cells; expected 3, as in the header"),
        (["model,plan,step_ms", "gpt3-1.3b,dp8,fast"], r":2: step_ms: found fast; expected milliseconds above 0"),
        (["model,plan,step_ms", "gpt3-1.3b,dp8,-1"], r":2: step_ms: found -1; expected milliseconds above 0"),
        (["model,plan,step_ms", "gpt3-1.3b,dq8,1"], r":2: plan: 'dq8', expected a number after one of"),
        (["model,plan,step_ms,traces", "gpt3-1.3b,dp8,,"], r":2: found neither of step_ms and traces; expected one"),
        (
            ["model,plan,framework,step_ms", "gpt3-1.3b,dp8,jax,5"],
            r":2: framework: found jax; expected one of megatron",
        ),
        (["model,plan,step_ms", "gpt3-1.3b,dp8,5"], r"found 1 steps; expected 6 or more to fit a host's time"),
    ],
)
def test_wrong_tables_are_refused(lines, message, tmp_path):
    path = tmp_path / "steps.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        read_steps([path])


def test_without_measurements_nothing_is_fitted():
    with pytest.raises(ConfigError, match="found no measurements; expected --log with nccl-tests' output, or --trace"):
        calibrate_site(CLUSTER, [], [])


@pytest.mark.slow
def test_steps_are_fitted_after_collectives_and_refusals_are_apart(tmp_path):
    """Logs that bear nothing leave collectives as cited, and the file then has the constants of steps alone."""
    sizes = [1 << power for power in range(10, 26)]
    row = nadi.collective("all-gather", "dgx-h100:npus=8", ",".join(map(str, sizes)), fidelity="closed-form")["rows"]
    times = [Times(each["bytes"], each["time_ps"] / 1e6, each["time_ps"] / 1e6) for each in row]
    log = tmp_path / "all_gather.log"
    log.write_text("\n".join(today(times, "all-gather", 8, 1)) + "\n", encoding="utf-8")
    table(tmp_path / "steps.csv", "h100:step_host=30ms")
    found = nadi.calibrate("dgx-h100:npus=8", [log], tmp_path / "own.toml", traces=[tmp_path / "steps.csv"])
    assert found["collectives"]["refusal"]
    assert not found["steps"]["refusal"]
    assert find(str(tmp_path / "own.toml")).gpu.startswith("h100:step_host=")
