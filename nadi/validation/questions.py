"""What a user asks, as far as the error of the answer depends on it, and the class of each question.

This is the one place that computes classes; classes.toml declares them. Of a question with several parts, such as a
training step with collectives over hosts, the class is that of the whole.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nadi.inputs import parse_toml

if TYPE_CHECKING:
    from nadi.topologies import Graph
    from nadi.workload.generators.models import Model
    from nadi.workload.generators.training import ParallelPlan

_CLASSES = Path(__file__).with_name("classes.toml")
_UNKNOWN = "another accelerator"
STEP, FIRST_TOKEN, TOKENS, TIME = "step time", "time to first token", "tokens per second", "time"


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question, by the fields to which the conditions of classes.toml refer."""

    subject: str  # "step", "serving", "collective", "jobs", "messages", "traces", "layer", "kernels" or "memory"
    quantity: str = TIME  # what the answer gives
    gpu: str = ""  # name of the GPU, in lower case and without parameters; "" = none is known
    gpus: int = 0  # number of GPUs; 0 = not known
    domains: int = 1  # NVLink domains, hosts or racks, that the GPUs are in
    domain_gpus: int = 0  # most GPUs of the question in one such domain
    dtype: str = ""  # data type of the plan; "" = not known
    experts: bool = False  # whether the model has a mixture of experts
    framework: str = ""  # software that trains the model; "" = none
    software: str = ""  # profile of that software, "auto" for today's; "" = none
    lora: bool = False  # whether only adapters are trained
    algorithm: str = ""  # "nccl" or "other" for a collective
    faults: bool = False  # whether parts of the machine fail or slow down
    time_s: float | None = None  # the answer in seconds; None = not known

    @property
    def architecture(self) -> str:
        """Name of the GPU's architecture in classes."""
        return _name_of(self.gpu, _declared()["architectures"], _UNKNOWN)

    @property
    def precision(self) -> str:
        """Name of the data type in classes."""
        return _name_of(self.dtype, _declared()["precisions"], self.dtype)

    def class_name(self) -> str:
        """Return the name of the question's class."""
        met = next(each for each in _declared()["class"] if all(self._meets(*of) for of in each["when"].items()))
        fields = ("architecture", "precision", "framework", "software", "quantity")
        return str(met["name"]).format(**{name: getattr(self, name) for name in fields})

    def _meets(self, field: str, wanted: object) -> bool:
        """Return whether a field has an allowed value, as a condition of classes.toml gives it."""
        value = getattr(self, field)
        if isinstance(wanted, dict):
            return value is not None and wanted.get("from", value) <= value and not wanted.get("below", np.inf) <= value
        return value in wanted if isinstance(wanted, list) else value == wanted


@cache
def _declared() -> dict[str, Any]:
    """Return the content of classes.toml."""
    return parse_toml(_CLASSES.read_text(encoding="utf-8"))


def _name_of(value: str, values_of_name: Mapping[str, list[str]], otherwise: str) -> str:
    """Return the name whose values have this one."""
    return next((name for name, values in values_of_name.items() if value in values), otherwise)


def gpu_name(name: str) -> str:
    """Return the name of a GPU without its parameters, in lower case.

    Args:
        name: The name as users write it, such as "H100:power=500W".
    """
    return name.partition(":")[0].lower()


def step_question(
    model: "Model",
    plan: "ParallelPlan",
    framework: str,
    gpu: str,
    time_s: float | None,
) -> Question:
    """Return the question for the time of a training step.

    Args:
        model: The model that is trained.
        plan: The parallel plan, with all values settled.
        framework: The software that trains it: megatron, deepspeed or fsdp.
        gpu: The name of the GPU; "" = none is known.
        time_s: The time of the step in seconds; None = not known.
    """
    return Question(
        subject="step",
        quantity=STEP,
        gpu=gpu_name(gpu),
        gpus=plan.gpus,
        dtype=plan.dtype,
        experts=model.experts is not None,
        framework=framework,
        software=plan.software,
        lora=plan.lora > 0,
        time_s=time_s,
    )


def serving_questions(graph: "Graph", gpu: str, dtype: str = "", *, experts: bool = False) -> Iterator[Question]:
    """Yield the questions for the times of requests to a served model.

    Args:
        graph: The fabric of the GPUs that serve.
        gpu: The name of the GPU; "" = none is known.
        dtype: The data type of the plan; "" = not known.
        experts: Whether the model has a mixture of experts.
    """
    asked = _placed(Question(subject="serving", gpu=gpu_name(gpu), dtype=dtype, experts=experts), graph)
    for quantity in (FIRST_TOKEN, TOKENS):
        yield replace(asked, quantity=quantity)


def collective_question(graph: "Graph", algorithm: str) -> Question:
    """Return the question for the time of a collective of all NPUs.

    Args:
        graph: The fabric; its NVSwitches or its accelerator say which GPUs its NPUs are.
        algorithm: The algorithm with its parameters, as the user writes it.
    """
    from nadi.topologies import NVSWITCH
    from nadi.workload.collectives import ON_NVSWITCHES
    from nadi.workload.collectives.nccl.generations import AUTO, generation_of

    rate_bps = int(graph.link_rate_bps[graph.node_kind[graph.link_dst] == NVSWITCH].max(initial=0))
    gpu = graph.accelerator or (generation_of(AUTO, "", rate_bps).name if rate_bps else "")
    kind = "nccl" if algorithm.partition(":")[0] == ON_NVSWITCHES else "other"
    return _placed(Question(subject="collective", gpu=gpu, algorithm=kind), graph)


def _placed(question: Question, graph: "Graph") -> Question:
    """Return a question of all NPUs of a fabric."""
    _, npus_of_domain = np.unique(graph.host[: graph.npus], return_counts=True)
    domains, most = len(npus_of_domain), int(npus_of_domain.max())
    return replace(question, gpus=graph.npus, domains=domains, domain_gpus=most)
