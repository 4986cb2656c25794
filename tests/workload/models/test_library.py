import pytest

from nadi.workload import WorkloadError
from nadi.workload.generators.models import architecture, find, names
from nadi.workload.generators.training import parallel_plan, rules
from tests.refusals import refused

PUBLISHED = {
    "megatron-1.7b": (1.7, None),
    "gpt3-125m": (0.125, None),
    "gpt3-350m": (0.356, None),
    "gpt3-760m": (0.760, None),
    "gpt3-2.7b": (2.65, None),
    "gpt3-175b": (174.6, None),
    "llama-7b": (6.738, None),
    "llama-65b": (65.286, None),
    "llama2-7b": (6.738, None),
    "llama2-13b": (13.016, None),
    "llama2-70b": (68.977, None),
    "llama3-8b": (8.03, None),
    "llama3-70b": (70.6, None),
    "llama3-405b": (405.9, None),
    "mixtral-8x7b": (46.7, 12.9),
    "mixtral-8x22b": (140.6, 39.1),
    "deepseek-v2": (236, 21.4),
    "deepseek-v3": (671, 37.5),
    "qwen3-8b": (8.19, None),
    "qwen3-32b": (32.76, None),
    "qwen3-30b-a3b": (30.53, 3.35),
    "qwen3-235b-a22b": (235, 22.19),
}
"""Billions of parameters, of all and of those that a token uses: reports, model cards, sums of published files."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_published(name):
    total, active = PUBLISHED[name]
    model = find(name)
    tolerance = 0.03 if name == "megatron-1.7b" else 0.005  # the table has one digit behind the point
    assert architecture.parameters(model) / 1e9 == pytest.approx(total, rel=tolerance)
    if active is not None:
        assert architecture.active_parameters(model) / 1e9 == pytest.approx(active, rel=0.005)
    assert sum(architecture.by_part(model).values()) == architecture.parameters(model) + architecture.mtp_parameters(
        model
    )


def test_deepseek_counts_as_its_readme_does():
    model = find("deepseek-v3")
    embedding = architecture.total(architecture.embedding(model))
    assert (architecture.active_parameters(model) - embedding) / 1e9 == pytest.approx(36.6, rel=0.005)
    assert architecture.mtp_parameters(model) / 1e9 == pytest.approx(11.5, rel=0.015)
    assert embedding / 1e9 == pytest.approx(0.9, rel=0.04)


def test_every_model_has_a_source_and_plans_that_the_rules_pass():
    assert len(names()) >= 40
    for name in names():
        model = find(name)
        assert model.name == name
        assert model.source
        for text in model.plans:
            plan = parallel_plan(text)
            framework = "megatron" if plan.zero < 2 else "fsdp" if plan.pp > 1 else "deepspeed"
            assert rules.first_broken(model, plan, framework) == ""


@pytest.mark.parametrize("said", ["llama3-70b", "Llama3_70B", "LLAMA3 70b", "llama3-70B"])
def test_names_are_found_however_they_are_written(said):
    assert find(said).name == "llama3-70b"


def test_points_in_names_count():
    assert find("gpt3-1.3b").layers == 24
    assert find("gpt3-13b").layers == 40


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("llama3-71b", "nearest llama3-70b"),
        ("foo", "known: bloom-176b, deepseek-v2, deepseek-v3, gpt3-125m"),
        ("no/such.toml", "no/such.toml: No such file or directory"),
    ],
)
def test_what_is_no_model_is_named(said, words):
    assert words in refused(WorkloadError, find, said)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("layers = 2\nhidden = 8\nheads = 2", "vocab: missing"),
        ("layers = 2\nhidden = 8\nheads = 2\nvocab = 10\nexpert = 3", "expert: unknown key; nearest known key: ex"),
        ("layers = 2\nhidden = 9\nheads = 2\nvocab = 10", "hidden is 9; expected a multiple of heads (2), or head_dim"),
        ("layers = 0\nhidden = 8\nheads = 2\nvocab = 10", "layers: found 0; expected 1 to "),
        ("layers = ", "no TOML"),
        ("layers=1\nhidden=8\nheads=2\nvocab=9\n[experts]\ncount=4\ntop_k=5\nffn=8", "top_k is 5; expected at most"),
    ],
)
def test_a_file_of_the_user_is_read_or_refused_in_one_line(tmp_path, text, words):
    path = tmp_path / "mine.toml"
    path.write_text("layers = 2\nhidden = 8\nheads = 2\nvocab = 10\n")
    assert find(str(path)).name == "mine"
    path.write_text(text)
    line = refused(WorkloadError, find, str(path))
    assert str(path) in line
    assert words in line
