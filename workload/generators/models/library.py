"""Models from config.json files of Hugging Face: Llama, Mistral, Qwen, DeepSeek, GPT-2, GPT-NeoX, Gemma and Phi-3.

Keys and defaults have the same meaning as in `transformers` (src/transformers/models/*/configuration_*.py). A
config.json has no training sequence length: Nadi assumes at most LONGEST_SEQUENCE tokens, and `seq=...` in the parallel
plan overrides it.
"""

import difflib
import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from nadi import inputs
from nadi.inputs import plug_ins
from nadi.inputs.documents import checked
from nadi.workload.errors import WorkloadError
from nadi.workload.generators.models.architecture import Model

LONGEST_SEQUENCE = 4096

Config = Mapping[str, Any]
Fields = dict[str, Any]

_ACTIVATIONS = {
    "silu": "swiglu",
    "swish": "swiglu",
    "gelu": "gelu",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
}
# Keys that change the work or the memory of a model and that only some readers support
_NOT_MODELLED = (
    "sliding_window", "layer_types", "attention_chunk_size", "full_attention_interval", "attn_logit_softcapping",
    "attn_output_gate", "use_parallel_residual", "parallel_attn", "quantization_config", "num_nextn_predict_layers",
)  # fmt: skip
_UNIMPORTANT = (
    "architectures", "attn_implementation", "auto_map", "aux", "bos", "class", "decoder_start", "dropout", "dtype",
    "ep_size", "eos", "eps", "exclude", "finetun", "forced", "gradient", "id2label", "init", "is_", "keys_to_ignore",
    "label", "max_window_layers", "model_type", "name", "norm_topk", "original_max", "output_", "pad_",
    "partial_rotary", "pdrop", "prefix", "pretraining_tp", "problem", "return", "rope", "rotary", "router_",
    "routed_scaling", "scoring", "seq_aux", "summary", "task_", "tokenizer", "torch", "transformers_",
    "unk", "use_cache", "use_sliding_window", "mlp_only_layers", "moe_layer_freq", "reorder", "scale_attn", "n_ctx",
)  # fmt: skip
"""Substrings of the names of keys that change neither the work nor the memory of a model."""


def model_of(config_text: str, path: Path) -> Model:
    """Return the model of a config.json of Hugging Face. WorkloadError: an unknown type, or a missing or wrong key.

    Args:
        config_text: The text of the file.
        path: The path of the file, for errors.
    """
    try:
        config = json.loads(config_text)
    except (ValueError, RecursionError) as error:
        raise WorkloadError(f"{path}: no JSON: {error}, expected a config.json of Hugging Face") from None
    if not isinstance(config, dict) or "model_type" not in config:
        other = inputs.kind_of(path)
        if other is not None and other.key not in {"json", "text"}:
            raise WorkloadError(inputs.complaint(path, other, "a config.json of Hugging Face"))
        raise WorkloadError(f"{path}: no model_type, expected a config.json of Hugging Face")
    kind = config["model_type"]
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise WorkloadError(f"{path}: model_type {kind!r}, expected one of {', '.join(_READERS)}, or a model in TOML")
    known = _CheckedConfig(config, path)
    values = {
        "name": path.parent.name if path.stem == "config" and path.parent.name else path.stem,
        "source": f"{path.name} of Hugging Face; sequences of at most {LONGEST_SEQUENCE} tokens are assumed",
        **reader(known),
    }
    return checked(Model, {**values, "left_out": ", ".join(known.left_out())}, path, WorkloadError)


class _CheckedConfig:
    """A config that checks the values of its keys and records which keys were read."""

    def __init__(self, config: Config, path: Path) -> None:
        """Keep a config, whose file's path errors name."""
        self._config = config
        self._path = path
        self._read: set[str] = set()

    def __getitem__(self, key: str) -> Any:  # noqa: ANN401 - JSON
        """Return the value of a required key."""
        self._read.add(key)
        if self._config.get(key) is None:
            raise WorkloadError(f"{self._path}: {key} is missing, expected a config.json of Hugging Face")
        return self._config[key]

    def get(self, key: str, default: Any) -> Any:  # noqa: ANN401 - JSON
        """Return the value of a key, or a default if it is missing or null.

        Args:
            key: The name of the key.
            default: The default of `transformers`.
        """
        self._read.add(key)
        value = self._config.get(key)
        return default if value is None else value

    def number(self, key: str, default: int) -> int:
        """Return the integer value of a key, or a default if it is missing or null.

        Args:
            key: The name of the key.
            default: The default of `transformers`.
        """
        value = self.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise WorkloadError(f"{self._path}: {key} is {json.dumps(value)[:40]}, expected an integer")
        return value

    def has_loss(self, key: str) -> bool:
        """Return whether the factor of a loss is above 0, as it is by default in `transformers`.

        Args:
            key: The name of the key that has the factor.
        """
        factor = self.get(key, 1)
        if not isinstance(factor, (int, float)):
            raise WorkloadError(f"{self._path}: {key} is {json.dumps(factor)[:40]}, expected a number")
        return factor > 0

    def full_every(self) -> int:
        """Return the period of layers with full attention, 0 if none has it. Raises WorkloadError: not periodic."""
        kinds, full, sliding = self.get("layer_types", []), "full_attention", "sliding_attention"
        listed = kinds if isinstance(kinds, list) else []
        period = listed.index(full) + 1 if full in listed else 0
        if kinds != [sliding if not period or (i + 1) % period else full for i in range(len(listed))]:
            raise WorkloadError(f"{self._path}: layer_types, expected {full} at equal distances, else {sliding}")
        return period

    def activation(self, key: str, gated: Mapping[str, str] | None = None) -> str:
        """Return the model's activation. Raises WorkloadError: it is unknown.

        Args:
            key: The name of the key that has the activation.
            gated: The activation of an MLP with three matrices, by its name in `transformers`; None = the MLP has two.
        """
        name = self[key]
        kind = ((gated or {}).get(name) or _ACTIVATIONS.get(name)) if isinstance(name, str) else None
        if kind is None:
            raise WorkloadError(f"{self._path}: {key} {name!r}, expected one of {', '.join(_ACTIVATIONS)}")
        return kind

    def left_out(self) -> list[str]:
        """Return the keys with a value that were not read and may change the model, with their values."""
        return [
            f"{key} = {json.dumps(value)[:40]}"
            for key, value in self._config.items()
            if key not in self._read
            and value not in (None, False, 0, [], {}, "")
            and (key in _NOT_MODELLED or not any(word in key for word in _UNIMPORTANT))
        ]


def _llama(config: _CheckedConfig) -> Fields:
    """Return the fields of Llama and models with the same architecture."""
    attention_bias, mlp_bias = config.get("attention_bias", default=False), config.get("mlp_bias", default=False)
    if config.get("use_sliding_window", default=True) is False:
        config.get("sliding_window", None)
    return {
        "layers": config["num_hidden_layers"],
        "hidden": config["hidden_size"],
        "heads": config["num_attention_heads"],
        "kv_heads": config.get("num_key_value_heads", 0),
        "head_dim": config.get("head_dim", 0),
        "ffn": config["intermediate_size"],
        "vocab": config["vocab_size"],
        "sequence": min(config.number("max_position_embeddings", LONGEST_SEQUENCE), LONGEST_SEQUENCE),
        "norm": "rmsnorm",
        "activation": config.activation("hidden_act", {"gelu": "geglu", "gelu_pytorch_tanh": "geglu"}),
        "positions": "rotary",
        "bias": attention_bias and mlp_bias,
        "qkv_bias": bool(attention_bias),
        "tied_embeddings": config.get("tie_word_embeddings", default=False),
    }


def _mixtral(config: _CheckedConfig) -> Fields:
    """Return the fields of Mixtral."""
    experts = {
        "count": config["num_local_experts"],
        "top_k": config["num_experts_per_tok"],
        "ffn": config["intermediate_size"],
        "auxiliary_loss": config.has_loss("router_aux_loss_coef"),
    }
    return {**_llama(config), "experts": experts}


def _gpt_oss(config: _CheckedConfig) -> Fields:
    """Return the fields of GPT-OSS. Raises WorkloadError: full attention is not periodic."""
    return {
        **_mixtral(config),
        "bias": True,
        "window": config["sliding_window"],
        "full_every": config.full_every(),
        "clamped_activation": bool(config.get("swiglu_limit", 0)),
    }


def _qwen_experts(config: _CheckedConfig) -> Fields:
    """Return the fields of the experts of Qwen's models."""
    step = config.number("decoder_sparse_step", 1)
    config.get("mlp_only_layers", None)
    shared = config.number("shared_expert_intermediate_size", 0)
    return {
        "count": config["num_experts"],
        "top_k": config["num_experts_per_tok"],
        "ffn": config["moe_intermediate_size"],
        "shared": int(shared > 0),
        "shared_ffn": shared,
        "shared_gate": shared > 0,
        "first_dense": step - 1,
        "every": step,
        "auxiliary_loss": config.has_loss("router_aux_loss_coef"),
    }


_BIASED = "noaux_tc"  # DeepSeek-V3's way to choose experts, by groups and with a bias of each expert


def _deepseek(config: _CheckedConfig) -> Fields:
    """Return the fields of DeepSeek-V2 and V3."""
    latent = {
        "query_rank": config.get("q_lora_rank", 0),
        "key_value_rank": config["kv_lora_rank"],
        "nope_dim": config["qk_nope_head_dim"],
        "rope_dim": config["qk_rope_head_dim"],
        "value_dim": config["v_head_dim"],
    }
    is_v3 = config["model_type"] == "deepseek_v3"
    method = config.get("topk_method", _BIASED if is_v3 else "greedy")
    groups = {"groups": config.number("n_group", 8 * is_v3), "group_top_k": config.number("topk_group", 4 * is_v3)}
    experts = {
        "count": config["n_routed_experts"],
        "top_k": config["num_experts_per_tok"],
        "ffn": config["moe_intermediate_size"],
        "shared": config.get("n_shared_experts", 0),
        "first_dense": config.get("first_k_dense_replace", 0),
        "every": config.get("moe_layer_freq", 1),
        "auxiliary_loss": config.has_loss("aux_loss_alpha"),
        "expert_bias": method == _BIASED,
        **(groups if method != "greedy" and groups["groups"] != 1 else {}),
    }
    mtp_layers = config.get("num_nextn_predict_layers", 0)
    return {**_llama(config), "head_dim": 0, "latent": latent, "experts": experts, "mtp_layers": mtp_layers}


def _gemma(config: _CheckedConfig) -> Fields:
    """Return the fields of Gemma."""
    config.get("hidden_activation", None)
    tied = config.get("tie_word_embeddings", default=True)
    return {**_llama(config), "activation": "geglu", "tied_embeddings": tied}


def _gpt2(config: _CheckedConfig) -> Fields:
    """Return the fields of GPT-2."""
    return {
        "layers": config["n_layer"],
        "hidden": config["n_embd"],
        "heads": config["n_head"],
        "ffn": config.get("n_inner", 0),
        "vocab": config["vocab_size"],
        "sequence": config["n_positions"],
        "activation": config.activation("activation_function"),
        "tied_embeddings": config.get("tie_word_embeddings", default=True),
    }


def _gpt_neox(config: _CheckedConfig) -> Fields:
    """Return the fields of GPT-NeoX."""
    return {
        "layers": config["num_hidden_layers"],
        "hidden": config["hidden_size"],
        "heads": config["num_attention_heads"],
        "ffn": config["intermediate_size"],
        "vocab": config["vocab_size"],
        "sequence": min(config.number("max_position_embeddings", 2048), LONGEST_SEQUENCE),
        "activation": config.activation("hidden_act"),
        "positions": "rotary",
        "tied_embeddings": config.get("tie_word_embeddings", default=False),
    }


_READERS: dict[str, Callable[[_CheckedConfig], Fields]] = {
    "llama": _llama,
    "mistral": _llama,
    "mixtral": _mixtral,
    "gpt_oss": _gpt_oss,
    "qwen2": lambda config: {**_llama(config), "qkv_bias": True},
    "qwen2_moe": lambda config: {**_llama(config), "qkv_bias": True, "experts": _qwen_experts(config)},
    "qwen3": lambda config: {**_llama(config), "qk_norm": True},
    "qwen3_moe": lambda config: {**_llama(config), "qk_norm": True, "experts": _qwen_experts(config)},
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "gemma": _gemma,
    "phi3": _llama,
}


# Models by name or file: TOML files of this folder, other TOML files, or config.json files of Hugging Face.


_KIND = "model"
_BETWEEN = str.maketrans("", "", "-_ ")
_SIZE = re.compile(r"(?<=[-x])(?:a)?([0-9.]+)([xmbt])")
_UNITS = {"x": 1.0, "m": 1e6, "b": 1e9, "t": 1e12}
_EXPECTED = "a model (TOML, or a config.json of Hugging Face)"


@cache
def names() -> tuple[str, ...]:
    """Return the names of the library's models and of those of installed packages, by family, then by size."""
    return tuple(sorted(plug_ins.names(_KIND), key=_by_family_and_size))


def find(name: str) -> Model:
    """Return the model of a name or file. Raises WorkloadError: the name is unknown, or the file holds no model.

    Args:
        name: The name of a model in any case and with or without "-", "_" and spaces, or the path of a TOML or JSON
            file.
    """
    if name.endswith((".toml", ".json")) or "/" in name:
        return read(Path(name))
    known = {_bare(each): each for each in names()}
    library_name = known.get(_bare(name))
    if library_name is not None:
        return read(plug_ins.toml_file(_KIND, library_name, WorkloadError))
    if Path(name).is_file():
        return read(Path(name))
    near = difflib.get_close_matches(_bare(name), known, n=1, cutoff=0.0)
    raise WorkloadError(
        f"model {name!r}: not in the library, nearest {known[near[0]]}; known: {', '.join(names())}; "
        f"or the path of {_EXPECTED}"
    )


def read(path: Path) -> Model:
    """Return the model of a file. Raises WorkloadError: the file holds no model.

    Args:
        path: The path of a model in TOML, or of a config.json of Hugging Face.
    """
    with inputs.refusing(path, _EXPECTED, WorkloadError, UnicodeDecodeError):
        text = inputs.read_text(path)
    if path.suffix == ".json" or text.lstrip().startswith("{"):
        return model_of(text, path)
    try:
        values = inputs.parse_toml(text)
    except (ValueError, RecursionError) as error:
        raise WorkloadError(f"{path}: no TOML: {error}, expected {_EXPECTED}") from None
    return checked(Model, {"name": path.stem, **values}, path, WorkloadError)


def _bare(name: str) -> str:
    return name.lower().translate(_BETWEEN)


def _by_family_and_size(name: str) -> tuple[str, list[float]]:
    """Return a model's name without its sizes, and the sizes in parameters: ("llama-", [7e9]) for "llama-7b"."""
    family, numbers = name, []
    for match in _SIZE.finditer(name):
        family = family.replace(match[0], "", 1)
        numbers.append(float(match[1]) * _UNITS[match[2]])
    return family, numbers
