"""`nadi workload megatron`, `deepspeed`, `fsdp`, and their traces run to the end."""

import json

import pytest

_MODEL = """
name = "tiny"
layers = 8
hidden = 64
heads = 4
vocab = 512
sequence = 64
"""
_EXPERTS = """
[experts]
count = 4
top_k = 2
ffn = 64
"""
_PLANS = {
    "megatron": [
        "tp2,pp2,dp2,gb8",
        "tp2,pp2,dp2,gb8,sp,zero1,gpipe,recompute=full",
        "pp2,dp2,vpp2,gb8,cp2,recompute=selective",
        "pp4,dp2,zero-bubble,gb16",
        "pp4,dualpipe,gb16,ep2,dp2",
        "tp2,sp,dp4,ep4,gb16,imbalance=1.5,cp1",
        "cp4,dp2,gb8,context=all-gather,zero1",
    ],
    "deepspeed": [
        "dp8,zero1,gb16",
        "dp4,zero2,gb8,pp1,tp2",
        "dp8,zero3,gb16",
        "pp2,dp4,gb16",
        "cp2,context=a2a,dp4,gb8",
    ],
    "fsdp": ["dp8,gb16", "dp4,tp2,sp,gb8,zero2", "pp2,dp4,gb16,gpipe", "pp2,vpp2,dp4,gb16,ep4,recompute=full"],
}


@pytest.fixture
def tiny(tmp_path):
    """A model file with or without experts."""

    def write(plan):
        path = tmp_path / "tiny.toml"
        path.write_text(_MODEL + (_EXPERTS if "ep" in plan else ""))
        return path

    return write


@pytest.mark.parametrize(("framework", "plan"), [(name, plan) for name, plans in _PLANS.items() for plan in plans])
def test_traces_run_to_the_end(nadi, tiny, tmp_path, framework, plan):
    made = nadi("workload", framework, "--model", tiny(plan), "--plan", plan, "-o", tmp_path / "traces")
    assert made.code == 0, made.err
    run = tmp_path / "run.toml"
    run.write_text(
        f'[topology]\nspec = "dgx-a100:npus=8"\n[workload]\ntraces = "{tmp_path / "traces"}"\n'
        '[compute]\ngpu = "a100"\n[network]\nfidelity = "analytical"\n'
    )
    ran = nadi("run", run, "--json")
    assert ran.code == 0, ran.err
    assert ran.document["finish_time_ps"] > 0


def test_expanded_traces_do_the_same(nadi, tiny, tmp_path):
    plan = "tp2,pp2,dp2,gb8,cp1"
    for folder, more in (("set", ()), ("plain", ("--expand",))):
        assert (
            nadi("workload", "megatron", "--model", tiny(plan), "--plan", plan, "-o", tmp_path / folder, *more).code
            == 0
        )
    assert len(list((tmp_path / "set").glob("*.et"))) == 2
    assert len(list((tmp_path / "plain").glob("*.et"))) == 8
    assert len(json.loads((tmp_path / "plain" / "groups.json").read_text())) > 1
