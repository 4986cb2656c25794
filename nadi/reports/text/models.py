"""Text of `nadi workload models`."""

from collections.abc import Sequence
from typing import Any

from nadi.terminal.tables import FittedTable, facts, name_column, text_column
from workload.generators.models import Model, active_parameters, parameters, training_flops
from workload.generators.models.weights import by_part, mtp_parameters


def table(models: Sequence[Model]) -> FittedTable:
    """Return a table with a row per model."""
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
    """Return the operations of training on one token; causal: whether masked pairs are excluded."""
    return training_flops(model, 1, causal=causal) // model.sequence


def count_text(count: int) -> str:
    """Return a number of parameters as text: 70.6 B, 125 M."""
    unit, size = ("B", 10**9) if count >= 10**9 else ("M", 10**6)
    return f"{count / size:,.1f} {unit}" if count < 100 * size or unit == "B" else f"{count / size:,.0f} {unit}"


def _exactly(count: int) -> str:
    return f"{count:,} ({count_text(count)})"


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_shown(each)}" for key, each in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)
