"""Text of `nadi workload models` and `nadi workload memory`."""

from collections.abc import Sequence
from typing import Any, get_args

from nadi.errors import ConfigError
from nadi.inputs.units import GIB
from nadi.terminal import FittedTable, facts, name_column, text_column
from nadi.workload.generators.memory import PARTS, StageMemory
from nadi.workload.generators.models import (
    Model,
    active_parameters,
    by_part,
    mtp_parameters,
    parameters,
    training_flops,
)
from nadi.workload.generators.training.rules import Framework


def table(models: Sequence[Model]) -> FittedTable:
    """Return a table with a row per model.

    Args:
        models: Models, a row each.
    """
    sizes = ("layers", 1), ("hidden", 1), ("heads", 1), ("kv heads", 3), ("experts", 2)
    found = FittedTable("models", name_column("name"), "parameters", ("active", 4), *sizes, text_column("source", 5))
    for model in models:
        active = active_parameters(model)
        counts = count_text(parameters(model)), count_text(active) if active != parameters(model) else ""
        shape = str(model.layers), str(model.hidden), str(model.heads)
        kv_heads = str(model.kv_heads) if model.kv_heads not in {0, model.heads} else ""
        experts = f"{model.experts.top_k} of {model.experts.count}" if model.experts else ""
        found.add_row(model.name, *counts, *shape, kv_heads, experts, model.source)
    return found


def one(model: Model) -> FittedTable:
    """Return all properties of one model."""
    rows = [("source", model.source), ("parameters", _exactly(parameters(model)))]
    if active_parameters(model) != parameters(model):
        rows.append(("used by a token", _exactly(active_parameters(model))))
    rows += [(f"  {part}", _exactly(count)) for part, count in by_part(model).items()]
    flops, all_pairs = (flops_per_token(model, causal=causal) / 1e9 for causal in (True, False))
    at = f"at sequences of {model.sequence:,} tokens; {all_pairs:,.2f} with all pairs of query and key"
    rows.append(("training", f"{flops:,.2f} GFLOPs per token, {at}"))
    given = model.model_dump(exclude={"name", "source", "plans", "left_out"}, exclude_unset=True, exclude_none=True)
    rows += [(key, _shown(value)) for key, value in given.items()]
    rows += [("published plan", plan) for plan in model.plans]
    if model.left_out:
        rows.append(("not modelled", model.left_out))
    return facts(model.name, [(label, text) for label, text in rows if text])


def document(model: Model) -> dict[str, Any]:
    """Return the fields of the model, with counts of parameters and operations, as a JSON document."""
    return {
        **model.model_dump(),
        "parameters": parameters(model),
        "active_parameters": active_parameters(model),
        "mtp_parameters": mtp_parameters(model),
        "parameters_by_part": by_part(model),
        "training_flops_per_token": flops_per_token(model, causal=True),
        "training_flops_per_token_all_pairs": flops_per_token(model, causal=False),
    }


def flops_per_token(model: Model, *, causal: bool) -> int:
    """Return the operations of training on one token.

    Args:
        model: Model that is trained.
        causal: Whether masked pairs are excluded.
    """
    return training_flops(model, 1, causal=causal) // model.sequence


def count_text(count: int) -> str:
    """Return a number of parameters as text: 70.6 B, 125 M.

    Args:
        count: Number of parameters.
    """
    unit, size = ("B", 10**9) if count >= 10**9 else ("M", 10**6)
    return f"{count / size:,.1f} {unit}" if count < 100 * size or unit == "B" else f"{count / size:,.0f} {unit}"


def _exactly(count: int) -> str:
    return f"{count:,} ({count_text(count)})"


def _shown(value: object) -> str:
    """Return a value of a model's file in words."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {_shown(each)}" for key, each in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)


def frameworks(name: str) -> Framework:
    """Return a training framework; another name raises ConfigError."""
    known: list[Framework] = [each for each in get_args(Framework) if each != "inference"]
    if name not in known:
        raise ConfigError(f"--framework {name!r}: expected one of {', '.join(known)}")
    return known[known.index(name)]


def memory_table(title: str, stages: Sequence[StageMemory]) -> FittedTable:
    """Return a table with a row per range of stages with equal memory.

    Args:
        title: Title of the table.
        stages: Memory of each stage.
    """
    found = FittedTable(title, name_column("stage"), *((part, 1) for part in PARTS), "total", "host")
    for first, last in _equal_stages(stages):
        stage = stages[first]
        numbers = str(first) if first == last else f"{first} to {last}"
        parts = (f"{getattr(stage, part) / GIB:.2f}" for part in PARTS)
        found.add_row(numbers, *parts, f"{stage.total / GIB:.2f}", f"{stage.host / GIB:.2f}" if stage.host else "")
    return found


def memory_document(stages: Sequence[StageMemory], complaint: str) -> dict[str, Any]:
    """Return the memory of stages in bytes as a JSON document.

    Args:
        stages: Memory of each pipeline stage.
        complaint: Sentence that says why the plan does not fit; "" = it fits.
    """
    rows = [{**stage._asdict(), "total": stage.total} for stage in stages]
    return {"fits": not complaint, "complaint": complaint, "stages": rows}


def _equal_stages(stages: Sequence[StageMemory]) -> list[tuple[int, int]]:
    """Return first and last stage of each range of stages with equal memory."""
    runs: list[tuple[int, int]] = []
    for number, stage in enumerate(stages):
        if runs and stages[runs[-1][0]][1:] == stage[1:]:
            runs[-1] = runs[-1][0], number
        else:
            runs.append((number, number))
    return runs
