"""config.json files as their models have them, against the library and published totals."""

import json

import pytest

from nadi.workload import WorkloadError
from nadi.workload.generators.models import architecture, find
from nadi.workload.generators.models.library import model_of
from tests.nonempty import nonempty

LLAMA3_8B = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 128000,
    "eos_token_id": 128001, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "llama",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1,
    "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0, "rope_type": "llama3"}, "rope_theta": 500000.0,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.43.0", "use_cache": True,
    "vocab_size": 128256,
}  # fmt: skip
MIXTRAL = {
    **LLAMA3_8B, "model_type": "mixtral", "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2,
    "output_router_logits": False, "router_aux_loss_coef": 0.02, "sliding_window": None,
}  # fmt: skip
DEEPSEEK_V3 = {
    "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": False, "aux_loss_alpha": 0.001,
    "ep_size": 1, "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168, "intermediate_size": 18432,
    "kv_lora_rank": 512, "max_position_embeddings": 163840, "model_type": "deepseek_v3", "moe_intermediate_size": 2048,
    "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": True,
    "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1, "pretraining_tp": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "seq_aux": True,
    "tie_word_embeddings": False, "topk_group": 4, "topk_method": "noaux_tc", "v_head_dim": 128, "vocab_size": 129280,
}  # fmt: skip
QWEN3_30B = {
    "attention_bias": False, "decoder_sparse_step": 1, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048,
    "intermediate_size": 6144, "max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": [],
    "model_type": "qwen3_moe", "moe_intermediate_size": 768, "norm_topk_prob": True, "num_attention_heads": 32,
    "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4,
    "sliding_window": None, "tie_word_embeddings": False, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
QWEN2_7B = {
    "hidden_act": "silu", "hidden_size": 3584, "intermediate_size": 18944, "max_position_embeddings": 131072,
    "max_window_layers": 28, "model_type": "qwen2", "num_attention_heads": 28, "num_hidden_layers": 28,
    "num_key_value_heads": 4, "sliding_window": 131072, "tie_word_embeddings": False, "use_sliding_window": False,
    "vocab_size": 152064,
}  # fmt: skip
QWEN2_57B = {
    "decoder_sparse_step": 1, "hidden_act": "silu", "hidden_size": 3584, "intermediate_size": 18944,
    "max_position_embeddings": 32768, "model_type": "qwen2_moe", "moe_intermediate_size": 2560,
    "num_attention_heads": 28, "num_experts": 64, "num_experts_per_tok": 8, "num_hidden_layers": 28,
    "num_key_value_heads": 4, "shared_expert_intermediate_size": 20480, "tie_word_embeddings": False,
    "vocab_size": 151936,
}  # fmt: skip
GPT2 = {
    "activation_function": "gelu_new", "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12,
    "n_positions": 1024, "vocab_size": 50257, "attn_pdrop": 0.1, "layer_norm_epsilon": 1e-05,
}  # fmt: skip
NEOX_20B = {
    "hidden_act": "gelu_fast", "hidden_size": 6144, "intermediate_size": 24576, "max_position_embeddings": 2048,
    "model_type": "gpt_neox", "num_attention_heads": 64, "num_hidden_layers": 44, "rotary_pct": 0.25,
    "tie_word_embeddings": False, "use_parallel_residual": True, "vocab_size": 50432,
}  # fmt: skip
GEMMA_7B = {
    "head_dim": 256, "hidden_act": "gelu", "hidden_size": 3072, "intermediate_size": 24576,
    "max_position_embeddings": 8192, "model_type": "gemma", "num_attention_heads": 16, "num_hidden_layers": 28,
    "num_key_value_heads": 16, "vocab_size": 256000,
}  # fmt: skip
PHI3_MINI = {
    "hidden_act": "silu", "hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 4096,
    "model_type": "phi3", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
    "tie_word_embeddings": False, "vocab_size": 32064, "sliding_window": 2047,
}  # fmt: skip
_FROM_THE_FILE = {"name", "source", "sequence", "global_batch", "plans", "left_out", "kv_heads"}
GPT_OSS_20B = {
    "attention_bias": True, "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880,
    "initial_context_length": 4096, "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12, "max_position_embeddings": 131072,
    "model_type": "gpt_oss", "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 24,
    "num_key_value_heads": 8, "num_local_experts": 32, "router_aux_loss_coef": 0.9, "sliding_window": 128,
    "swiglu_limit": 7.0, "tie_word_embeddings": False, "vocab_size": 201088,
}  # fmt: skip


@pytest.fixture
def read(tmp_path):
    def one(config):
        folder = tmp_path / "some-model"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
        return find(str(folder / "config.json"))

    return one


@pytest.mark.parametrize(
    ("config", "name"),
    [(LLAMA3_8B, "llama3-8b"), (MIXTRAL, "mixtral-8x7b"), (DEEPSEEK_V3, "deepseek-v3"), (QWEN3_30B, "qwen3-30b-a3b")],
)
def test_a_config_is_the_model_of_the_library(read, config, name):
    found, known = read(config), find(name)
    assert found.model_dump(exclude=_FROM_THE_FILE) == known.model_dump(exclude=_FROM_THE_FILE)
    assert found.name == "some-model"
    assert found.sequence == 4096
    assert found.left_out == ""


@pytest.mark.parametrize(
    ("keys", "groups", "biased"),
    [
        ({"n_group": 8, "topk_group": 3, "topk_method": "group_limited_greedy"}, (8, 3), False),
        ({"n_group": 8, "topk_group": 4, "topk_method": "greedy"}, (0, 0), False),
        ({"n_group": 1, "topk_group": 1}, (0, 0), True),
        ({"n_group": None, "topk_group": None, "topk_method": None, "model_type": "deepseek_v2"}, (0, 0), False),
    ],
)
def test_groups_of_experts_are_those_of_the_file(read, keys, groups, biased):
    experts = read({**DEEPSEEK_V3, **keys}).experts
    assert (experts.groups, experts.group_top_k) == groups
    assert experts.expert_bias == biased
    assert not read({**DEEPSEEK_V3, "aux_loss_alpha": 0}).experts.auxiliary_loss


@pytest.mark.parametrize(
    "layers", [["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"], 7, [7]]
)
def test_full_attention_at_unequal_distances_is_refused(read, layers):
    with pytest.raises(WorkloadError, match="layer_types, expected full_attention at equal distances"):
        read({**GPT_OSS_20B, "layer_types": layers})


def test_windows_biases_and_the_clamp_of_gpt_oss_are_read(read):
    model, known = read(GPT_OSS_20B), find("gpt-oss-20b")
    for field in ("window", "full_every", "bias", "clamped_activation", "head_dim", "activation"):
        assert getattr(model, field) == getattr(known, field)
    assert not read({**GPT_OSS_20B, "swiglu_limit": None}).clamped_activation
    assert read({**GPT_OSS_20B, "layer_types": ["sliding_attention"] * 24}).full_every == 0


@pytest.mark.parametrize(
    ("config", "billions"),
    [
        (QWEN2_7B, 7.6156),
        (QWEN2_57B, 57.41),
        (GPT2, 0.12444),
        (NEOX_20B, 20.554),
        (GEMMA_7B, 8.5377),
        (PHI3_MINI, 3.8211),
        (GPT_OSS_20B, 20.91),
    ],
)
def test_parameters_are_those_of_the_published_files(read, config, billions):
    assert architecture.parameters(read(config)) / 1e9 == pytest.approx(billions, rel=1e-4)


def test_what_is_not_modelled_is_told(read):
    assert read(PHI3_MINI).left_out == "sliding_window = 2047"
    assert read(NEOX_20B).left_out == "use_parallel_residual = true"
    assert read({**LLAMA3_8B, "new_kind_of_memory": 7}).left_out == "new_kind_of_memory = 7"
    assert read(QWEN2_7B).left_out == ""


@pytest.mark.parametrize("config", [LLAMA3_8B, MIXTRAL, DEEPSEEK_V3, QWEN2_57B, GPT2, NEOX_20B, GEMMA_7B, GPT_OSS_20B])
def test_no_value_of_any_key_ends_in_anything_but_a_model_or_one_line(config, tmp_path):
    path = tmp_path / "config.json"
    for key in nonempty(config):
        for junk in (None, "x", -1, 0, 1.5, [], [1], {}, True, 10**30):
            text = json.dumps({**config, key: junk})
            try:
                model = model_of(text, path)
            except WorkloadError as error:
                assert "\n" not in str(error)  # noqa: PT017 - most raise, some do not
                continue
            assert architecture.parameters(model) > 0
