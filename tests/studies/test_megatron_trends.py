"""Signs of the trends that Megatron-LM published, on small models and clusters (docs/explanation/studies.md)."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "predictions.py"


@pytest.fixture(scope="module")
def predictions():
    spec = importlib.util.spec_from_file_location("predictions", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def rates(predictions):
    """TFLOP/s of plans for 32 GPUs, each in the manner of a published trend; network: keys of [network]."""

    def of(manner, *plans, hidden=4096, framework="megatron", network=()):
        changes = {"layers": 16, "hidden": hidden, "heads": 32}
        shared = {"manner": manner, "framework": framework, "changes": changes, "network": dict(network)}
        runs = [predictions.Run("", "megatron-145.6b", plan, "selene", **shared) for plan in plans]
        return [predictions.predicted(run).tflops for run in runs]

    return of


def test_interleaving_gains_most_at_small_batches(rates):
    """The bubble is (p - 1) / m, and a fourth of it with four chunks."""
    plans = [f"tp8,pp4{chunks},mb1,gb{batch}" for batch in (4, 32) for chunks in ("", ",vpp4")]
    few, few_chunks, many, many_chunks = rates("pipelined", *plans, hidden=8192)  # as wide as the paper's models
    assert few_chunks / few > 1.1
    assert few_chunks / few > many_chunks / many > 1


def test_scatter_and_gather_gain_with_interleaving(rates):
    """A stage's whole output from each of eight GPUs, or an eighth from each."""
    plan = "tp8,pp4,vpp4,mb1,gb16"
    (slow,), (fast,) = rates("sc21", f"{plan},scatter_gather=false"), rates("pipelined", plan)
    assert 1.02 < fast / slow < 1.2


def test_scatter_and_gather_gain_more_where_two_gpus_send_over_one_nic(predictions, rates):
    """Messages take twice as long on the wire; what NCCL takes to launch them and to begin stays as it is."""
    plan, network = "tp8,pp4,vpp4,mb1,gb16", predictions.LISTS["scatter-gather"][0].network
    gain = [
        rates("pipelined", plan, network=keys)[0] / rates("sc21", f"{plan},scatter_gather=false", network=keys)[0] - 1
        for keys in ({}, network)
    ]
    assert 1.5 < gain[1] / gain[0] < 2


def test_tensor_parallelism_is_best_in_a_host(rates):
    plans = [f"tp{32 // stages},pp{stages},mb1,gb32" for stages in (2, 4, 8, 16)]
    found = rates("pipelined", *plans, hidden=16384)
    assert max(found) == found[1]


def test_micro_batches_have_a_best_size(rates):
    """Small ones are slow on a GPU, large ones leave the pipeline idle."""
    found = rates("pipelined", *(f"tp8,pp4,mb{size},gb64" for size in (1, 2, 4, 8, 16)))
    best = found.index(max(found))
    assert 0 < best < 4
    assert found[:best] == sorted(found[:best])
    assert found[best:] == sorted(found[best:], reverse=True)


@pytest.mark.slow
def test_sharded_parameters_cost_more_the_fewer_sequences_a_gpu_has(predictions, rates):
    """ZeRO-3 with 32, 16 and 8 sequences for each GPU; tensor and pipeline parallelism do not mind."""
    plans = [f"dp32,mb{size},gb{32 * size}" for size in (4, 2, 1)]
    sharded = rates("zero3", *plans, hidden=1024, framework="deepspeed")
    assert sharded == sorted(sharded, reverse=True)
    both = rates("pipelined", *(f"tp8,pp2,dp2,mb1,gb{32 * size}" for size in (4, 2, 1)), hidden=1024)
    assert sharded[-1] / sharded[0] < both[-1] / both[0]
    manner = predictions.MANNERS["zero3"].replace("gather=list", "gather=tensor")
    of_layers = rates("", *(f"{plan},{manner}" for plan in plans), hidden=1024, framework="deepspeed")
    assert sharded[-1] / sharded[0] < of_layers[-1] / of_layers[0] < 1
