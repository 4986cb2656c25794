"""The file of an unfinished search: bounds and step times found so far, with which the same request continues.

The file is in the folder of results, is replaced as a whole, and disappears when the search ends. Its entries are by
request, so that a changed request, cluster, GPU or version of Nadi finds none.
"""

import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter, with_config
from typing_extensions import TypedDict

from nadi.energy import NPU_TIMES, PORTS, PortUse
from nadi.errors import OutputError
from nadi.inputs import write_whole
from nadi.inputs.documents import DocumentError, read_document
from nadi.launching.progress import NoProgress, Progress
from nadi.simulation.schemas import STEP_CATEGORIES
from nadi.studies.planner.step import EnergyUse, StepTime

FILE = "plan.search.json"
_SAVE_EVERY_S = 5.0  # minimum seconds between two writes
_MAX_AMOUNT = 1e30  # far above any time in ps and any number of bytes that a step can have

_Amount = Annotated[float, Field(ge=0, le=_MAX_AMOUNT, allow_inf_nan=False)]
_Times = Annotated[float, Field(ge=-_MAX_AMOUNT, le=_MAX_AMOUNT, allow_inf_nan=False)]
_Port = tuple[_Amount, _Amount, _Amount, Annotated[int, Field(ge=0, le=1 << 40)]]


@with_config(ConfigDict(extra="forbid"))
class _Step(TypedDict):
    """A step time; the columns are those of StepTime and EnergyUse."""

    step_ps: Annotated[float, Field(gt=0, le=_MAX_AMOUNT, allow_inf_nan=False)]
    share_ps: Annotated[list[_Times], Field(min_length=len(STEP_CATEGORIES), max_length=len(STEP_CATEGORIES))]
    npu_ps: Annotated[list[_Times], Field(min_length=len(NPU_TIMES), max_length=len(NPU_TIMES))]
    ports: dict[str, _Port]
    is_whole: bool


@with_config(ConfigDict(extra="forbid"))
class _Search(TypedDict):
    """What is known of one request, by the text of plans."""

    bounds_ps: dict[str, _Amount]
    steps: dict[str, _Step]


_SCHEMA = TypeAdapter(dict[str, _Search])


class ProgressFile:
    """Results of unfinished searches in a folder, or in memory only."""

    def __init__(self, folder: Path | None) -> None:
        """Read the file of the folder, None = keep nothing; OutputError if it is not one of Nadi."""
        self._path = folder / FILE if folder else None
        self._earlier: dict[str, Any] = {}
        self._searches: dict[str, Any] = {}
        self._saved_s = time.monotonic()
        if self._path is not None and self._path.exists():
            try:
                self._earlier = read_document(self._path, _SCHEMA)
            except OSError as error:
                raise OutputError(f"{self._path}: {error.strerror or error}; expected a search of nadi plan") from None
            except DocumentError as error:
                expected = "expected a search of nadi plan, or none; remove the file to begin anew"
                raise OutputError(f"{self._path}: {error}; {expected}") from None

    def search(self, request: str) -> tuple[Mapping[str, float], Mapping[str, StepTime]]:
        """Return the known bounds in ps and step times by plan; request: text on which all of them depend."""
        key = hashlib.sha256(request.encode()).hexdigest()
        # only requests of this call are saved again: entries of older versions disappear with the first save
        found = self._searches[key] = self._earlier.get(key, {"bounds_ps": {}, "steps": {}})
        self._current = found
        return found["bounds_ps"], {plan: _step(step) for plan, step in found["steps"].items()}

    def tell(self, progress: Progress | NoProgress) -> None:
        """Print whether the current search continues an earlier one, or that the file is of other requests.

        Args:
            progress: The display that prints the line.
        """
        if self._current["bounds_ps"]:
            timed, plans = len(self._current["steps"]), len(self._current["bounds_ps"])
            progress.say(f"{self._path}: the search continues, with {timed} of {plans} plans timed")
        elif self._earlier and not self._earlier.keys() & self._searches.keys():
            progress.say(f"{self._path}: of another request or version; the search begins anew")

    def add_bound(self, plan: str, bound_ps: float) -> None:
        """Add the bound of a plan of the current search.

        Args:
            plan: The axes of the plan as text.
            bound_ps: The lower bound of the step time in picoseconds.
        """
        self._current["bounds_ps"][plan] = bound_ps
        self._save_if_due()

    def add_step(self, plan: str, step: StepTime) -> None:
        """Add a step time of the current search.

        Args:
            plan: The axes of the plan as text.
            step: The step time with its parts.
        """
        self._current["steps"][plan] = {
            "step_ps": float(step.step_ps),
            "share_ps": step.share_ps.tolist(),
            "npu_ps": step.use.npu_ps.tolist(),
            "ports": step.use.ports,
            "is_whole": step.is_whole,
        }
        self._save_if_due()

    def save(self) -> None:
        """Write the file, and the folder if it does not exist yet; OutputError if it cannot be written."""
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, json.dumps(self._searches))
        except OSError as error:
            raise OutputError(f"{self._path}: {error.strerror or error}; the search is not saved") from error
        self._saved_s = time.monotonic()

    def remove(self) -> None:
        """Remove the file at the end of the search."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _save_if_due(self) -> None:
        if time.monotonic() - self._saved_s >= _SAVE_EVERY_S:
            self.save()


def _step(entry: Mapping[str, Any]) -> StepTime:
    """Return a step time of the file."""
    ports = {name: PortUse(*port) for name, port in entry["ports"].items() if name in PORTS}
    use = EnergyUse(np.array(entry["npu_ps"]), ports)
    return StepTime(entry["step_ps"], np.array(entry["share_ps"]), use, entry["is_whole"])
