"""Small models, and what traces of all NPUs have in all."""

import random
from collections import Counter

import numpy as np
from hypothesis import strategies as st

from nadi.et import NodeType
from nadi.workload.generators.models.architecture import Experts, LatentAttention, Model
from nadi.workload.generators.training import parallel_plan
from nadi.workload.generators.training.rules import first_broken, settle

GPT = Model(name="gpt", layers=8, hidden=64, heads=8, vocab=1024, sequence=32)
LLAMA = Model(
    name="llama", layers=8, hidden=64, heads=8, kv_heads=4, ffn=160, vocab=1000, sequence=32, norm="rmsnorm",
    activation="swiglu", positions="rotary", bias=False, tied_embeddings=False, qk_norm=True,
)  # fmt: skip
MIXTRAL = LLAMA.model_copy(update={"name": "mixtral", "experts": Experts(count=8, top_k=2, ffn=96)})
DEEPSEEK = MIXTRAL.model_copy(
    update={
        "name": "deepseek",
        "kv_heads": 0,
        "qk_norm": False,
        "latent": LatentAttention(query_rank=24, key_value_rank=16, nope_dim=8, rope_dim=4, value_dim=8),
        "experts": Experts(count=8, top_k=3, ffn=32, shared=1, first_dense=1),
    }
)
PREDICTING = DEEPSEEK.model_copy(update={"name": "predicting", "mtp_layers": 1})
BALANCED = PREDICTING.model_copy(
    update={
        "name": "balanced",
        "experts": Experts(
            count=8, top_k=3, ffn=32, shared=1, first_dense=1, groups=4, group_top_k=2, auxiliary_loss=True,
            z_loss=True, expert_bias=True,
        ),
    }
)  # fmt: skip
MODELS = (GPT, LLAMA, MIXTRAL, DEEPSEEK, PREDICTING, BALANCED)

_SIZES = (1, 2, 4)
_CHOICES = {
    "tp": _SIZES,
    "pp": _SIZES,
    "dp": _SIZES,
    "cp": (1, 1, 2, 4),
    "ep": _SIZES,
    "etp": (1, 1, 2),
    "vpp": (1, 1, 2),
    "micro_batch": (1, 2),
    "schedule": ("auto", "gpipe", "1f1b", "zero-bubble", "dualpipe"),
    "sequence_parallel": (True, True, False),
    "zero": (0, 1, 2, 3),
    "shard": (0, 0, 0, 2, 4),
    "recompute": ("none", "selective", "full", "per-op", "mlp", "moe+mlp", "moe_act+layernorm+mla_up_proj"),
    "attention": ("flash", "unfused", "triton"),
    "check_gradients": (False, True),
    "scale_gradients": (False, True),
    "fp8_gather": (False, True),
    "leaves_sms": (True, False),
    "report_loss": ("step", "micro-batch", "checked"),
    "context": ("ring", "all-gather", "a2a"),
    "overlap_grad_reduce": (True, False),
    "overlap_param_gather": (True, False),
    "overlap_tp": (True, False),
    "overlap_p2p": (True, True, False),
    "scatter_gather": (True, False),
    "bucket_bytes": (0, 50_000),
    "dispatcher": ("auto", "deepep", "hybridep"),
    "overlap_ep": (None, None, True),
    "imbalance": (0.0, 0.0, 1.2),
    "capacity": (0.0, 0.0, 1.0),
    "gather": ("tensor", "tensor", "list"),
    "offload": ((), (), (), ("optimizer",), ("activations",), ("parameters", "optimizer", "activations")),
    "lora": (0, 0, 8),
    "steps": (1, 1, 2),
}
_MOST_GPUS = 64


@st.composite
def cases(draw):
    """A model, a plan that the rules pass, and a framework."""
    numbers = random.Random(draw(st.integers(0, 2**32)))  # noqa: S311 - most draws are refused by the rules
    while True:
        model, framework = numbers.choice(MODELS), numbers.choice(("megatron", "deepspeed", "fsdp"))
        plan = parallel_plan({key: numbers.choice(choices) for key, choices in _CHOICES.items()})
        if plan.gpus <= _MOST_GPUS and not first_broken(model, plan, framework):
            return model, settle(model, plan, framework), framework


def copies(made):
    """NPUs that run each trace."""
    return np.bincount(made.trace_of_npu, minlength=len(made.traces)).tolist()


def flops(made):
    return sum(
        count * int(trace.num_ops[trace.type == NodeType.COMP_NODE].sum())
        for count, trace in zip(copies(made), made.traces, strict=True)
    )


def sent(made):
    """comm_size of all NPUs by the last part of the name and by pass: "tp:all-gather"."""
    found = Counter()
    for count, trace in zip(copies(made), made.traces, strict=True):
        names = list(trace.names)
        for row in np.flatnonzero(trace.comm_size >= 0).tolist():
            found[names[row].rpartition("/")[2], names[row].split("/")[1]] += count * int(trace.comm_size[row])
    return found


def moved(made, node_type):
    return sum(
        count * int(trace.tensor_size[trace.type == node_type].sum())
        for count, trace in zip(copies(made), made.traces, strict=True)
    )
