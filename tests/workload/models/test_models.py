"""Models of the library: published totals, Megatron's closed forms, and a model that counts matrices one by one."""

import pytest
from hypothesis import given, strategies as st

from nadi.workload import WorkloadError
from nadi.workload.generators.models import Experts, LatentAttention, Model, architecture, find, names, operations
from nadi.workload.generators.training import parallel_plan, rules
from tests.budgets import bounded
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


def test_a_file_of_the_user_is_a_model(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("layers = 2\nhidden = 8\nheads = 2\nvocab = 10\n")
    assert find(str(path)).name == "mine"


gpts = st.builds(
    lambda heads, width, **rest: Model(name="gpt", heads=heads, hidden=heads * width, **rest),
    heads=st.integers(1, 8),
    width=st.integers(1, 16),
    layers=st.integers(1, 6),
    vocab=st.integers(1, 1000),
    sequence=st.integers(1, 100),
)


@bounded(40)
@given(gpts, st.integers(1, 50))
def test_a_gpt_has_the_parameters_and_operations_of_the_paper(model, batch):
    l, h, s, v = model.layers, model.hidden, model.sequence, model.vocab  # noqa: E741 - the paper's letters
    final_norm = 2 * h  # the paper leaves it out
    assert architecture.parameters(model) == 12 * l * h * h + 13 * l * h + (v + s) * h + final_norm
    again = 96 * batch * s * l * h * h + 16 * batch * s * s * l * h + 6 * batch * s * h * v
    assert operations.training_flops(model, batch, recompute="full") == again
    assert again == pytest.approx(96 * batch * s * l * h**2 * (1 + s / (6 * h) + v / (16 * l * h)))
    once = 72 * batch * s * l * h**2 * (1 + s / (6 * h) + v / (12 * l * h))
    assert operations.training_flops(model, batch) == pytest.approx(once, rel=1e-12)
    selective = operations.training_flops(model, batch, recompute="selective") - operations.training_flops(model, batch)
    assert selective == 4 * batch * s * s * l * h  # arXiv 2205.05198, appendix A


@pytest.mark.parametrize("name", [name for name in names() if name.startswith("megatron")])
def test_the_models_of_megatron_have_its_parameters(name):
    model = find(name)
    published = {"1t": 1008.0}.get(name.removeprefix("megatron-")) or float(name[9:-1])
    h, l = model.hidden, model.layers  # noqa: E741 - the paper's letters
    formula = 12 * l * h**2 * (1 + 13 / (12 * h) + (51200 + 2048) / (12 * l * h))
    assert architecture.parameters(model) - 2 * h == pytest.approx(formula, rel=1e-12)
    assert formula / 1e9 == pytest.approx(published, abs=0.05)


def naive_parameters(model):
    """All shapes written out."""
    h, d = model.hidden, model.query_dim
    if model.latent is None:
        attention = [(h, model.heads * d), (h, model.key_value_heads * d), (h, model.key_value_heads * d)]
        attention += [(model.heads * d, h)]
        vectors = 0
    else:
        kept = model.latent
        up = model.heads * (kept.nope_dim + kept.rope_dim)
        attention = [(h, kept.query_rank), (kept.query_rank, up)] if kept.query_rank else [(h, up)]
        attention += [(h, kept.key_value_rank), (h, kept.rope_dim), (kept.key_value_rank, model.heads * kept.nope_dim)]
        attention += [(kept.key_value_rank, model.heads * kept.value_dim), (model.heads * kept.value_dim, h)]
        vectors = kept.query_rank + kept.key_value_rank
    mlp = [(h, model.ffn_width), (h, model.ffn_width), (model.ffn_width, h)]
    count = 2 * model.vocab * h + h
    active = count
    for layer in range(model.layers):
        common = sum(m * n for m, n in attention) + vectors + 2 * h + (2 * d if model.qk_norm else 0)
        count += common
        active += common
        if not model.has_experts(layer):
            count += sum(m * n for m, n in mlp)
            active += sum(m * n for m, n in mlp)
            continue
        experts = model.experts
        shared = 3 * h * experts.shared * experts.ffn + h * experts.count
        count += experts.count * 3 * h * experts.ffn + shared
        active += experts.top_k * 3 * h * experts.ffn + shared
    return count, active


@st.composite
def llamas(draw):
    kv_heads, times = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    small = st.integers(1, 9)
    latent = st.builds(
        LatentAttention, query_rank=st.integers(0, 9), key_value_rank=small, nope_dim=small, rope_dim=small,
        value_dim=small,
    )  # fmt: skip
    experts = st.builds(
        Experts, count=st.integers(4, 9), top_k=st.integers(1, 4), ffn=small, shared=st.integers(0, 2),
        first_dense=st.integers(0, 3), every=st.integers(1, 3),
    )  # fmt: skip
    has_latent = draw(st.booleans())
    return Model(
        name="llama", layers=draw(st.integers(1, 6)), hidden=draw(small) * kv_heads * times, heads=kv_heads * times,
        kv_heads=0 if has_latent else kv_heads, head_dim=draw(st.integers(0, 9)), ffn=draw(small),
        vocab=draw(st.integers(1, 99)), norm="rmsnorm", activation="swiglu", positions="rotary", bias=False,
        qk_norm=not has_latent and draw(st.booleans()), tied_embeddings=False,
        latent=draw(latent) if has_latent else None, experts=draw(st.none() | experts),
    )  # fmt: skip


@bounded(80)
@given(llamas(), st.integers(1, 40))
def test_counts_are_those_of_matrices_one_by_one(model, sequence):
    count, active = naive_parameters(model)
    assert architecture.parameters(model) == count
    assert architecture.active_parameters(model) == active
    vectors = sum(architecture.active(model, each) for each in architecture.all_weights(model) if not each.is_matrix)
    core = sum(2 * model.heads * (model.query_dim + model.value_dim) for _ in range(sequence) for _ in range(sequence))
    expected = 2 * sequence * (active - vectors) + model.layers * core
    assert operations.training_flops(model, 1, sequence) // 3 == expected
    causal = operations.training_flops(model, 1, sequence, causal=True) // 3
    assert expected - causal == model.layers * core * (sequence - 1) // (2 * sequence)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"groups": 4}, "groups is 4 and group_top_k 0; expected both, or neither"),
        ({"group_top_k": 2}, "groups is 0 and group_top_k 2; expected both, or neither"),
        ({"groups": 3, "group_top_k": 2}, "groups is 3; expected a divisor of count (8)"),
        ({"groups": 2, "group_top_k": 3}, "group_top_k is 3; expected at most groups (2) and top_k (3)"),
        ({"groups": 8, "group_top_k": 4}, "group_top_k is 4; expected at most groups (8) and top_k (3)"),
        ({"groups": 4, "group_top_k": 1}, "top_k is 3; expected at most the 2 experts of group_top_k groups"),
    ],
)
def test_impossible_groups_of_experts_are_refused(tmp_path, keys, message):
    values = "".join(f"{key} = {value}\n" for key, value in {"count": 8, "top_k": 3, "ffn": 8, **keys}.items())
    path = tmp_path / "model.toml"
    path.write_text(f"layers = 2\nhidden = 8\nheads = 2\nvocab = 8\n[experts]\n{values}")
    text = refused(WorkloadError, find, str(path))
    assert message in text
    assert "\n" not in text
