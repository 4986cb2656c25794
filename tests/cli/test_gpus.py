"""`nadi workload gpus` and `operator-times`, and [compute] gpu in a run file."""

import json

import pytest

from nadi import et
from nadi.inputs import plug_ins
from nadi.workload.compute import (
    IN_STEPS,
    ComputeTimes,
    Efficiencies,
    Measurement,
    find_gpu,
    parse_operators,
    write_table,
)

PRODUCT = "gemm 2048x4608x12288 bf16"
OPERATOR = parse_operators(PRODUCT)[0]


@pytest.fixture
def write_compute(write_run):
    """A run of one compute node with these operators on each of 4 NPUs, and a [compute] section."""

    def write(section, text=PRODUCT, pace="alone"):
        node = et.comp_node(1, "op", attrs=[et.attribute("operators", "string", text)])
        return write_run([[node]] * 4, f'[compute]\n{section}\npace = "{pace}"\n[output]\ndir = "out"\n')

    return write


def end_ps(nadi, run):
    ran = nadi("run", run)
    assert ran.code == 0, ran.err
    return json.loads((run.parent / "out" / "summary.json").read_text())["finish_time_ps"]


def test_a_run_takes_as_long_as_its_operators_on_the_gpu(nadi, write_compute):
    assert end_ps(nadi, write_compute('gpu = "a100"')) == ComputeTimes(find_gpu("a100")).time_ps(OPERATOR)
    assert end_ps(nadi, write_compute('gpu = "h100"')) == ComputeTimes(find_gpu("h100")).time_ps(OPERATOR)
    half = ComputeTimes(find_gpu("h100"), efficiencies=Efficiencies(gemm=0.4)).time_ps(OPERATOR)
    assert end_ps(nadi, write_compute('gpu = "h100"\nefficiency = { gemm = 0.4 }')) == half


def test_operators_of_a_step_are_slower_than_alone(nadi, write_compute):
    text = f"{PRODUCT}; norm 2048x12288 bf16"
    product, norm = (ComputeTimes(find_gpu("a100")).time_ps(operator) for operator in parse_operators(text))
    expected = round(product / IN_STEPS.products) + round(norm / IN_STEPS.others)
    assert end_ps(nadi, write_compute('gpu = "a100"', text, "step")) == pytest.approx(expected, abs=2)
    assert end_ps(nadi, write_compute('gpu = "a100"', text)) == product + norm


def test_tables_and_gpus_are_found_from_the_run_file(nadi, write_compute, tmp_path):
    write_table(tmp_path / "mine.csv", [Measurement("a100", OPERATOR, 777_000_000)])
    assert end_ps(nadi, write_compute('gpu = "a100"\ntables = ["mine.csv"]')) == 777_000_000
    scaled = round(777_000_000 * 312 / 989.4)
    assert end_ps(nadi, write_compute('gpu = "h100"\ntables = ["mine.csv"]\nscale_from = "a100"')) == scaled
    (tmp_path / "own.toml").write_text(_text_of("a100").replace('name = "a100"', 'name = "own"'))
    assert end_ps(nadi, write_compute('gpu = "own.toml"')) == ComputeTimes(find_gpu("a100")).time_ps(OPERATOR)


def _text_of(name):

    return plug_ins.own_files("GPU")[name].read_text()


def test_operators_need_a_gpu(nadi, write_compute):
    ran = nadi("run", write_compute('model = "auto"'))
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "trace.0.et: node 1: operators are given but no GPU that does them" in ran.err


def test_times_of_aicb_become_a_table(nadi, tmp_path):
    (tmp_path / "aiob.txt").write_text(
        "train_iter:1\natten_linear:\n    time_gpu_avg: 349\nother:\n    time_gpu_avg: 1\n"
    )
    model = ("--gpu", "a100", "--hidden", 4096, "--heads", 32, "--vocab", 50304, "--seq", 2048)
    made = nadi("workload", "operator-times", tmp_path / "aiob.txt", "-o", tmp_path / "t.csv", *model)
    assert made.out == f"{tmp_path / 't.csv'}: 1 operators of a100; left out: other\n"
    assert "a100,gemm,2048x4096x4096,bf16,349000000,AICB aiob.txt," in (tmp_path / "t.csv").read_text()


def test_the_example_of_aicb_is_read(nadi, tmp_path, shared_data):
    text = shared_data / "simai" / "aiob_kernel_times_example.txt"
    model = ("--gpu", "a100", "--hidden", 4096, "--heads", 32, "--vocab", 50304, "--seq", 2048, "--parameters", 10**9)
    made = nadi("workload", "operator-times", text, "-o", tmp_path / "t.csv", *model)
    assert made.out == f"{tmp_path / 't.csv'}: 10 operators of a100\n"


def test_a_cluster_brings_its_gpu_unless_a_rate_is_given(nadi, write_run):
    node = et.comp_node(1, "op", num_ops=10**12, attrs=[et.attribute("operators", "string", PRODUCT)])
    h100 = ComputeTimes(find_gpu("h100"), pace=IN_STEPS).time_ps(OPERATOR)
    a100 = ComputeTimes(find_gpu("a100"), pace=IN_STEPS).time_ps(OPERATOR)
    for section, expected in (("", h100), ('gpu = "a100"', a100), ('peak_flops = "1TFLOPS"', 10**12)):
        text = f'[compute]\n{section}\n[output]\ndir = "out"\n'
        run = write_run([[node]] * 8, text, 'cluster = "dgx-h100-superpod"\ngpus = 8')
        assert end_ps(nadi, run) == expected
