import pytest


def test_each_stage_is_shown_and_that_it_fits(nadi):
    outcome = nadi("workload", "memory", "--model", "megatron-145.6b", "--plan", "tp8,pp8,dp24,gb2304,recompute=full")
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert lines[0] == "megatron-145.6b, tp8,pp8,dp24,gb2304,recompute=full: GiB on each GPU"
    assert lines[-1] == "fits into 80GiB"
    first = next(line for line in lines if line.split()[:1] == ["0"])
    assert float(first.split()[-1]) == pytest.approx(46.6, abs=0.1)
    parts = [float(cell) for cell in first.split()[1:]]
    assert sum(parts[:-1]) == pytest.approx(parts[-1], abs=0.05)


def test_what_does_not_fit_ends_with_exit_code_1_and_the_nearest_that_does(nadi):
    arguments = ("--model", "llama3-70b", "--plan", "tp8,pp2,dp4")
    outcome = nadi("workload", "memory", *arguments)
    assert outcome.code == 1
    assert "does not fit: stage 0 needs 132.9 GiB of 80.0" in outcome.out
    assert outcome.out.splitlines()[-1].endswith("nearest that fits: tp8,pp2,dp4,zero1,sp")
    document = nadi("workload", "memory", *arguments, "--json").document
    assert document["fits"] is False
    assert [stage["stage"] for stage in document["stages"]] == [0, 1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--model", "llama3-70b", "--plan", "tp6"), "tp is 6, expected a divisor of the 64 heads; nearest 4 and 8"),
        (("--model", "llama3-70b", "--plan", "tp8", "--framework", "jax"), "expected one of megatron, deepspeed, fsdp"),
        (("--model", "llama3-70b", "--plan", "tp8", "--gpu-memory", "much"), "much"),
    ],
)
def test_what_is_wrong_is_one_line(nadi, arguments, words):
    outcome = nadi("workload", "memory", *arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    assert words in outcome.err
    assert outcome.err.count("\n") == 1
