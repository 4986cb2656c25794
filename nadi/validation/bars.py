"""The errors of each class of questions in validation, and what an answer says of them.

scripts/validation.py writes errors.json from its recorded results; nothing else changes it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

from nadi.validation.questions import Question

ERRORS = Path(__file__).with_name("errors.json")
STATUSES = ("tuned", "predicted first", "seen later")
"""How a measured case and its prediction are related: a constant was fitted to it; the prediction was written down
before anybody of the project had read the measured value; or neither."""


@dataclass(frozen=True)
class ClassErrors:
    """The errors of the measured cases of a class; a mean and a worst error are absolute, relative to the measured."""

    cases: int
    mean: float
    worst: float
    statuses: Mapping[str, int]  # number of cases by STATUSES
    gpu_names: Sequence[str]  # GPUs that were measured
    gpus: Sequence[int]  # smallest and largest number of GPUs
    # the same of the first predictions of cases, before any constant was fitted to them; None = none were kept
    first: Mapping[str, float] | None = None


@cache
def errors_by_class() -> dict[str, ClassErrors]:
    """Return the errors of each class that has measured cases."""
    return {name: ClassErrors(**errors) for name, errors in json.loads(ERRORS.read_text(encoding="utf-8")).items()}


_Text = Annotated[str, Field(max_length=10_000)]
_Error = Annotated[float, Field(ge=0, le=1e30)]


@with_config(ConfigDict(strict=True, allow_inf_nan=False, extra="allow"))
class ErrorBarDocument(TypedDict):
    """An error bar in the results of a run or a plan, as far as readers of results use it."""

    class_name: _Text
    cases: Annotated[int, Field(ge=0, le=1 << 40)]
    mean: _Error | None
    worst: _Error | None
    text: _Text


@dataclass(frozen=True)
class ErrorBar:
    """How far an answer may be trusted: its class, and the errors of that class in validation."""

    quantity: str  # what the answer gives
    class_name: str
    gpus: int  # number of GPUs of the question; 0 = not known
    errors: ClassErrors | None  # None = the class has no measured case

    def document(self) -> dict[str, Any]:
        """Return the error bar as a JSON document; without a measured case the errors are null."""
        none = dict.fromkeys(("mean", "worst", "first"))
        errors = {"cases": 0, **none} if self.errors is None else asdict(self.errors)
        return {"quantity": self.quantity, "class_name": self.class_name, **errors, "text": self.text()}

    def text(self) -> str:
        """Return the error bar as a sentence."""
        return f"error of the {self.quantity} in validation ({self.class_name}): {self._cases()}"

    def _cases(self) -> str:
        """Return the errors of the class, and to what extent they hold here."""
        errors = self.errors
        if errors is None:
            return "no measured case"
        few, many = errors.gpus
        said = f"{_pair(errors.mean, errors.worst)} of {errors.cases:,} case{'s' if errors.cases > 1 else ''}"
        names = ", ".join(name.upper() for name in errors.gpu_names)
        counts = f"{few:,} to {many:,} GPUs" if few < many else f"{few:,} GPU{'s' if few > 1 else ''}" if few else ""
        said += f" ({'; '.join(filter(None, (names, counts)))})" if names or counts else ""
        tuned = errors.statuses.get("tuned", 0)
        if tuned == errors.cases:
            said += ", all tuned: expect larger errors of others"
        else:
            said += f", {', '.join(f'{count:,} {status}' for status, count in errors.statuses.items() if count)}"
        first = _pair(errors.first["mean"], errors.first["worst"]) if errors.first and tuned else ""
        said += f"; when first predicted, {first}" if first and not said.startswith(first) else ""
        return said + (
            ""
            if few <= self.gpus <= many or not few * self.gpus
            else f"; none with {self.gpus:,} GPU{'s' if self.gpus > 1 else ''}"
        )


def _pair(mean: float, worst: float) -> str:
    """Return a mean and a worst error as text."""
    return f"mean {mean:.1%}, worst {worst:.1%}"


def error_bars(questions: Iterable[Question]) -> list[ErrorBar]:
    """Return the error bars of questions, those of one class once.

    Args:
        questions: The questions of an answer, the most important one first.
    """
    bars: dict[str, ErrorBar] = {}
    for question in questions:
        name = question.class_name()
        bars.setdefault(name, ErrorBar(question.quantity, name, question.gpus, errors_by_class().get(name)))
    return list(bars.values())
