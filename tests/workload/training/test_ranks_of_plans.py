"""Numbers and groups of NPUs are Megatron-LM's ranks and process groups."""

from nadi.workload.generators.training import parallel_plan
from nadi.workload.generators.training.stages import families, neighbours, place


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
