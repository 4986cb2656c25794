import json

import pytest


def test_all_models_are_listed_with_their_sources(nadi):
    out = nadi("workload", "models").out
    line = next(line for line in out.splitlines() if "mixtral-8x7b" in line and "simai" not in line)
    assert line.split()[:12] == ["mixtral-8x7b", "46.7", "B", "12.9", "B", "32", "4096", "32", "8", "2", "of", "8"]
    assert "arXiv 2401.04088" in line
    documents = nadi("workload", "models", "--json").document
    assert len(documents) == len({model["name"] for model in documents}) >= 40
    assert all(model["source"] for model in documents)


def test_one_model_is_shown_in_full(nadi):
    out = nadi("workload", "models", "Llama3_70B").out
    assert "70,553,706,496 (70.6 B)" in out
    assert "kv_heads" in out
    found = nadi("workload", "models", "deepseek-v3", "--json").document
    assert found["parameters"] == sum(found["parameters_by_part"].values()) - found["mtp_parameters"]


def test_a_file_of_the_user_is_shown_too(nadi, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps(
            {"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 16, "vocab_size": 100}
            | {"activation_function": "gelu", "memory_slots": 3}
        )
    )
    out = nadi("workload", "models", path).out
    assert "memory_slots = 3" in out


@pytest.mark.parametrize("arguments", [("llama3-71b",), ("no/such.toml", "--json")])
def test_an_unknown_model_is_one_line(nadi, arguments):
    outcome = nadi("workload", "models", *arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.count("\n") == 1
    assert arguments[0] in outcome.err
