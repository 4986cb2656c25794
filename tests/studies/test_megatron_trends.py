"""Signs of the trends that Megatron-LM published, on small models and clusters (docs/explanation/studies.md)."""

import importlib.util
from pathlib import Path

import pytest

from nadi.studies.planner.step import site
from topologies import clusters
from workload.compute import IN_STEPS, ComputeTimes, find_gpu

SCRIPT = Path(__file__).parents[2] / "scripts" / "megatron_trends.py"


@pytest.fixture(scope="module")
def trends():
    """The script."""
    spec = importlib.util.spec_from_file_location("megatron_trends", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def rates(trends):
    """TFLOP/s of plans for 32 GPUs, each in the manner of a published trend; network: keys of [network]."""
    times, sites = ComputeTimes(find_gpu("a100"), pace=IN_STEPS), {}

    def of(manner, *plans, hidden=4096, framework="megatron", network=()):
        key = tuple(network)
        if key not in sites:
            sites[key] = site(clusters.find("selene"), 32, times, network_keys=dict(network))
        where = sites[key]
        trend = trends.Trend("", trends.gpt(16, hidden, 32), (), framework)
        return [trends.point(where, trend, trends.Case("", f"{plan},{manner}")).tflops for plan in plans]

    return of


def test_interleaving_gains_most_at_small_batches(trends, rates):
    """The bubble is (p - 1) / m, and a fourth of it with four chunks."""
    plans = [f"tp8,pp4{chunks},mb1,gb{batch}" for batch in (4, 32) for chunks in ("", ",vpp4")]
    few, few_chunks, many, many_chunks = rates(trends.SCATTER, *plans, hidden=8192)  # as wide as the paper's models
    assert few_chunks / few > 1.1
    assert few_chunks / few > many_chunks / many > 1


def test_scatter_and_gather_gain_with_interleaving(trends, rates):
    """A stage's whole output from each of eight GPUs, or an eighth from each."""
    plan = "tp8,pp4,vpp4,mb1,gb16"
    (slow,), (fast,) = rates(f"{trends.CODE},scatter_gather=false", plan), rates(trends.SCATTER, plan)
    assert 1.02 < fast / slow < 1.2


def test_scatter_and_gather_gain_more_where_two_gpus_send_over_one_nic(trends, rates):
    """Messages take twice as long on the wire; what NCCL takes to launch them and to begin stays as it is."""
    plan, network = "tp8,pp4,vpp4,mb1,gb16", trends.NETWORK.items()
    manners = f"{trends.CODE},scatter_gather=false", trends.SCATTER
    gain = [
        rates(manners[1], plan, network=keys)[0] / rates(manners[0], plan, network=keys)[0] - 1
        for keys in ((), network)
    ]
    assert 1.5 < gain[1] / gain[0] < 2


def test_tensor_parallelism_is_best_in_a_host(trends, rates):
    plans = [f"tp{32 // stages},pp{stages},mb1,gb32" for stages in (2, 4, 8, 16)]
    found = rates(trends.SCATTER, *plans, hidden=16384)
    assert max(found) == found[1]


def test_micro_batches_have_a_best_size(trends, rates):
    """Small ones are slow on a GPU, large ones leave the pipeline idle."""
    found = rates(trends.SCATTER, *(f"tp8,pp4,mb{size},gb64" for size in (1, 2, 4, 8, 16)))
    best = found.index(max(found))
    assert 0 < best < 4
    assert found[:best] == sorted(found[:best])
    assert found[best:] == sorted(found[best:], reverse=True)


def test_sharded_parameters_cost_more_the_fewer_sequences_a_gpu_has(trends, rates):
    """ZeRO-3 with 32, 16 and 8 sequences for each GPU; tensor and pipeline parallelism do not mind."""
    plans = [f"dp32,mb{size},gb{32 * size}" for size in (4, 2, 1)]
    sharded = rates(trends.ZERO, *plans, hidden=1024, framework="deepspeed")
    assert sharded == sorted(sharded, reverse=True)
    both = rates(trends.SCATTER, *(f"tp8,pp2,dp2,mb1,gb{32 * size}" for size in (4, 2, 1)), hidden=1024)
    assert sharded[-1] / sharded[0] < both[-1] / both[0]
    of_layers = rates(trends.ZERO.replace("gather=list", "gather=tensor"), *plans, hidden=1024, framework="deepspeed")
    assert sharded[-1] / sharded[0] < of_layers[-1] / of_layers[0] < 1
