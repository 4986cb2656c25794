"""The file plan.json: its schema, and a reader that collects the answers of several shards."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NotRequired

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, with_config
from typing_extensions import TypedDict

from nadi.errors import ConfigError
from nadi.inputs.documents import DocumentError, read_document
from nadi.simulation.schemas import STEP_CATEGORIES

_MAX_BYTES = 1 << 62
_MAX_COUNT = 1 << 40
_MAX_AMOUNT = 1e30  # far above any time in seconds, energy in joules, rate or price that a plan can have
_STRICT = ConfigDict(strict=True, allow_inf_nan=False, extra="allow")

_Amount = Annotated[float, Field(ge=0, le=_MAX_AMOUNT)]
_Positive = Annotated[float, Field(gt=0, le=_MAX_AMOUNT)]
_Bytes = Annotated[int, Field(ge=0, le=_MAX_BYTES)]
_Count = Annotated[int, Field(ge=0, le=_MAX_COUNT)]


def _complete(share_of_category: dict[str, float]) -> dict[str, float]:
    """Return the shares after checking that every time category has one."""
    missing = [name for name in STEP_CATEGORIES if name not in share_of_category]
    if missing:
        raise ValueError(f"lacks {missing[0]}")
    return share_of_category


@with_config(_STRICT)
class PlanRow(TypedDict):
    """One plan of the table: times in seconds, energy in joules, shares of the step time from 0 to 1."""

    plan: str
    axes: str
    recompute: str
    step_s: _Positive
    bound_s: _Positive
    tokens: Annotated[int, Field(gt=0, le=_MAX_COUNT)]
    tokens_per_s: _Positive
    mfu: _Amount
    mfu_all_pairs: _Amount
    memory_bytes: _Bytes
    whole: bool
    shares: Annotated[dict[str, _Amount], AfterValidator(_complete)]
    energy_J: _Amount
    cost_usd: _Amount
    network_usd: _Amount
    network_price_usd: _Amount
    usd_per_million_tokens: _Amount
    gpu_hours_per_trillion_tokens: _Amount
    usd_per_trillion_tokens: _Amount
    energy_parts_J: dict[str, _Amount]
    packets_step_s: NotRequired[_Positive]
    packets_over_closed_form: NotRequired[dict[str, float]]
    flows_step_s: NotRequired[_Positive]


@with_config(_STRICT)
class TrainingTotals(TypedDict):
    """Time, energy and cost of a whole training with the first plan."""

    tokens: _Positive
    steps: _Amount
    days: _Amount
    gpu_hours: _Amount
    energy_J: _Amount
    cost_usd: _Amount


@with_config(_STRICT)
class PlanAnswer(TypedDict):
    """The ranked plans of one request."""

    model: str
    cluster: str
    gpus: _Count
    gpu: str
    framework: str
    fidelity: str
    memory_bytes: _Bytes
    reserve_bytes: _Bytes
    constraints: str
    valid: _Count
    too_large: _Count
    wanted: Annotated[int, Field(gt=0, le=_MAX_COUNT)]
    skipped: _Count
    left: _Count
    energy_table: str | None
    notes: list[str]
    training: NotRequired[TrainingTotals]
    rows: Annotated[list[PlanRow], Field(min_length=1)]
    why: list[str]


@with_config(_STRICT)
class PlanFile(TypedDict):
    """The whole document: one answer, or one for each value of `--sweep`."""

    answers: Annotated[dict[str, PlanAnswer], Field(min_length=1)]


SCHEMA = TypeAdapter(PlanFile)


def read_answers(folders: Sequence[Path], file_name: str) -> list[dict[str, Any]]:
    """Return the answers in files of this name in folders of `nadi plan --out`; a wrong file is a ConfigError.

    Args:
        folders: The folders that `nadi plan --out` wrote.
        file_name: The name of the file in each folder.
    """
    answers: list[dict[str, Any]] = []
    for folder in folders:
        path = folder / file_name
        try:
            answers.extend(read_document(path, SCHEMA)["answers"].values())
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror or error}; expected results of nadi plan") from error
        except DocumentError as error:
            raise ConfigError(f"{path}: {error}; expected results of this version's nadi plan") from error
    return answers
