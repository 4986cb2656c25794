"""Measured training steps for a calibration, and their times at any host time and rates of a site's GPUs.

A table in CSV has a step per line: `model`, `plan`, perhaps `framework`, and `step_ms` or `traces`. Traces are those of
one step, or of the plan's `steps`, with measured times; the step takes the median span over the ranks.
"""

import csv
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from nadi import inputs
from nadi.configuration.run_file import load_config
from nadi.errors import ConfigError
from nadi.inputs.arrays import Float64
from nadi.inputs.errors import InputError
from nadi.inputs.units import PS_PER_MS, PS_PER_US, format_time
from nadi.launching.progress import NoProgress
from nadi.pdes.fidelity import FASTEST
from nadi.simulation.resolving import Resolver
from nadi.simulation.run import execute
from nadi.studies.calibration.constants import HOST, MEMORY, PRODUCTS, Factors
from nadi.studies.calibration.model import spec_of
from nadi.studies.calibration.rows import Source, held_out_of
from nadi.topologies import parse_pairs
from nadi.workload import load_set
from nadi.workload.compute import find_gpu
from nadi.workload.generators import models
from nadi.workload.generators.training import ParallelPlan, parallel_plan, rules

MIN_STEPS = 6  # steps below which nothing is fitted: four to fit one constant, and two to check
_COLUMNS = ("model", "plan", "framework", "step_ms", "traces")
_FRAMEWORKS = tuple(each for each in get_args(rules.Framework) if each != "inference")
_MAX_ROWS = 10_000
_TILT = 0.9  # factor on a rate at which the share of a step that it decides is measured
_GPU_KEYS = ("step_host", "sustained", "streaming")  # parameters of a GPU that a calibration sets
_US_PER_MS = 1000.0


class StepRow(NamedTuple):
    """A measured time of a training step."""

    model: str  # name or file of the model
    plan: str  # parallel plan as the user wrote it
    framework: rules.Framework
    time_us: float  # measured time of a step in microseconds
    file: str  # table that has it
    line: int  # number of its line, from 1

    def document(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        return self._asdict()

    @property
    def place(self) -> str:
        """Where the row stands."""
        return f"{self.file}:{self.line}"

    @property
    def settled(self) -> ParallelPlan:
        """The plan with its values settled; WorkloadError if the model cannot run it."""
        model = models.find(self.model)
        plan = rules.settle(model, parallel_plan(self.plan), self.framework)
        rules.check(model, plan, self.framework)
        return plan


class StepSet(NamedTuple):
    """The measured steps of a calibration, in ascending order of their times."""

    rows: tuple[StepRow, ...]
    is_held_out: tuple[bool, ...]  # whether each step only checks the fit
    sources: tuple[Source, ...]
    defects: tuple[tuple[str, str], ...] = ()  # place and reason of rows that are left out: none
    repeats: None = None  # difference between repeated measurements: not known

    @property
    def held_out_rule(self) -> str:
        """Which steps are held out."""
        return "every third step in the order of their times, from the second"

    @property
    def not_fitted(self) -> str:
        """What else may differ."""
        return "not fitted: rates of attention and of the optimizer alone, and data loading that lags behind"

    @property
    def noun(self) -> str:
        """What its rows are."""
        return "steps"

    @property
    def gpus(self) -> int:
        """Number of GPUs of the largest step."""
        return max(row.settled.gpus for row in self.rows)

    @property
    def measured_us(self) -> list[float]:
        """The measured time of each step in microseconds."""
        return [row.time_us for row in self.rows]

    @property
    def together(self) -> list[int]:
        """A number of each step: none is left out together with another one."""
        return list(range(len(self.rows)))

    def named(self, places: Sequence[int]) -> str:
        """Return steps in words.

        Args:
            places: Their places among the rows.
        """
        return ", ".join(dict.fromkeys(f"{self.rows[place].model} {self.rows[place].plan}" for place in sorted(places)))


def read_steps(paths: Sequence[Path]) -> StepSet:
    """Return the steps of tables; ConfigError if a line is wrong or there are too few.

    Args:
        paths: The tables, FILE.csv.
    """
    found = [row for path in paths for row in _rows(path)]
    if len(found) < MIN_STEPS:
        files = ", ".join(map(str, paths))
        raise ConfigError(f"{files}: found {len(found)} steps; expected {MIN_STEPS} or more to fit a host's time")
    rows = sorted(found, key=lambda row: (row.time_us, row.model, row.plan, row.place))
    counts = Counter(row.file for row in rows)
    sources = tuple(
        Source(str(path), hashlib.sha256(inputs.read_bytes(path)).hexdigest(), counts[str(path)]) for path in paths
    )
    return StepSet(tuple(rows), held_out_of(len(rows)), sources)


def _rows(path: Path) -> list[StepRow]:
    """Return the steps of a table."""
    with inputs.refusing(path, "a table of steps in CSV", ConfigError, UnicodeDecodeError, csv.Error):
        lines = inputs.read_text(path).splitlines()
        table = list(csv.reader(lines))
    head = [cell.strip() for cell in table[0]] if table else []
    unknown = [cell for cell in head if cell not in _COLUMNS]
    if unknown or not {"model", "plan"} <= set(head) or not {"step_ms", "traces"} & set(head):
        found = inputs.shown(", ".join(head)[:80]) or "no header"
        raise ConfigError(f"{path}: found {found}; expected the columns model, plan, and step_ms or traces")
    if len(table) > _MAX_ROWS:
        raise ConfigError(f"{path}: found {len(table):,} lines; expected at most {_MAX_ROWS:,}")
    rows = []
    for number, cells in enumerate(table[1:], 2):
        if not cells:
            continue
        if len(cells) != len(head):
            raise ConfigError(f"{path}:{number}: found {len(cells)} cells; expected {len(head)}, as in the header")
        values = {key: cell.strip() for key, cell in zip(head, cells, strict=True)}
        try:
            rows.append(_row(path, number, values))
        except InputError as error:
            raise ConfigError(f"{path}:{number}: {error}") from None
    return rows


def _row(path: Path, number: int, values: Mapping[str, str]) -> StepRow:
    """Return the step of a line; InputError if it is wrong."""
    framework = values.get("framework") or _FRAMEWORKS[0]
    if framework not in _FRAMEWORKS:
        raise ConfigError(f"framework: found {inputs.shown(framework)}; expected one of {', '.join(_FRAMEWORKS)}")
    row = StepRow(values["model"], values["plan"], framework, 0.0, str(path), number)  # type: ignore[arg-type]  # checked
    plan = row.settled
    step_ms, traces = values.get("step_ms", ""), values.get("traces", "")
    if bool(step_ms) == bool(traces):
        raise ConfigError(f"found {'both' if step_ms else 'neither'} of step_ms and traces; expected one of them")
    if traces:
        return row._replace(time_us=_span_us(path.parent / traces, plan))
    try:
        time_us = float(step_ms) * _US_PER_MS
    except ValueError:
        time_us = 0.0
    if not 0 < time_us < float("inf"):
        raise ConfigError(f"step_ms: found {inputs.shown(step_ms[:40])}; expected milliseconds above 0")
    return row._replace(time_us=time_us)


def _span_us(traces: Path, plan: ParallelPlan) -> float:
    """Return the microseconds of a step in traces with measured times: the median span over the ranks."""
    spans = []
    for trace in load_set(traces, plan.gpus, strict=False).traces:
        timed = trace.start_time_micros > 0
        if timed.any():
            ends = trace.start_time_micros[timed] + trace.duration_micros[timed]
            spans.append(int(ends.max() - trace.start_time_micros[timed].min()))
    if not spans or np.median(spans) <= 0:
        raise ConfigError(f"{traces}: found no measured times; expected start_time_micros and duration_micros of nodes")
    return float(np.median(spans)) / max(1, plan.steps)


def gpu_with(gpu: str, factors: Factors) -> str:
    """Return a GPU as users write it, with a site's time of the host and rates in place of those that it has.

    Args:
        gpu: The GPU with its parameters.
        factors: The values of the constants.
    """
    name, _, rest = gpu.partition(":")
    pairs = parse_pairs(gpu, rest) if rest else {}
    kept = {key: value for key, value in pairs.items() if key not in _GPU_KEYS}
    text = _joined(name, kept)
    cited = find_gpu(text)
    set_to = {
        "step_host": format_time(round(factors.get(HOST, 0.0) * PS_PER_MS)),
        "sustained": f"{cited.sustained * factors.get(PRODUCTS, 1.0):.4g}",
        "streaming": f"{cited.streaming * factors.get(MEMORY, 1.0):.4g}",
    }
    names = dict(zip(_GPU_KEYS, (HOST, PRODUCTS, MEMORY), strict=True))
    return _joined(name, kept | {key: value for key, value in set_to.items() if names[key] in factors})


def _joined(name: str, pairs: Mapping[str, object]) -> str:
    return f"{name}:{','.join(f'{key}={value}' for key, value in pairs.items())}" if pairs else name


def cited_step(name: str, gpu: str) -> str:
    """Return the cited value of a constant of steps, for tables.

    Args:
        name: The name of the constant.
        gpu: The GPU as users write it.
    """
    if name == HOST:
        return "0 ms beside the software's"
    cited = find_gpu(gpu_with(gpu, {}))
    return f"{cited.sustained if name == PRODUCTS else cited.streaming:g} of A100's share"


class StepModel:
    """The times of steps as functions of the constants of a site.

    An exact time is that of `nadi run` by closed forms. From an exact time on, a step is
    longer by the host's time, and what products and memory decide of it is inversely proportional to their rates.
    """

    def __init__(self, cluster: str, sections: Mapping[str, Any], rows: Sequence[StepRow]) -> None:
        """Take the measured steps of a cluster.

        Args:
            cluster: The cluster as users write it.
            sections: Keys of a run file beside those of the cluster: [compute] with its GPU, and [network] and [system]
                with the site's constants of collectives.
            rows: The measured steps.
        """
        self._cluster, self._sections, self._rows = cluster, sections, rows
        self._anchor: Factors = {}
        self._anchor_us = np.zeros(len(rows))

    def exact_us(self, factors: Factors | None) -> Float64:
        """Return float64[rows]: the times of the steps in microseconds.

        Args:
            factors: The values of the constants; None = those of the cluster's own file.
        """
        gpu = str(self._sections["compute"]["gpu"])
        if factors is not None:
            gpu = gpu_with(gpu, factors)
        return np.array([self._step_us(row, gpu) for row in self._rows])

    def _step_us(self, row: StepRow, gpu: str) -> float:
        plan = row.settled
        sections = {
            **self._sections,
            "workload": {"model": row.model, "plan": row.plan, "framework": row.framework},
            "topology": {"spec": spec_of(self._cluster, plan.gpus)},
            "network": {**self._sections.get("network", {}), "fidelity": FASTEST},
            "compute": {**self._sections["compute"], "gpu": gpu},
        }
        config = load_config(None, sections=sections, source=row.place)
        plan_of_run = Resolver(config, force=True).plan(has_folder=False)
        return execute(plan_of_run, NoProgress()).results.finish_time_ps / PS_PER_US / max(1, plan.steps)

    @cached_property
    def _decided_us(self) -> tuple[Float64, Float64]:
        """Two float64[rows]: microseconds that are inversely proportional to the rates of products and of memory."""
        cited_us = self.exact_us({})
        more = 1 / _TILT - 1
        products, memory = ((self.exact_us({name: _TILT}) - cited_us) / more for name in (PRODUCTS, MEMORY))
        return products, memory

    def anchored(self, exact_us: Float64, factors: Factors) -> None:
        """Continue from exact times.

        Args:
            exact_us: float64[rows], the exact times at these values of the constants.
            factors: The values of the constants.
        """
        self._anchor, self._anchor_us = dict(factors), exact_us

    def log_us(self, factors: Factors, is_used: NDArray[np.bool_]) -> Float64:
        """Return float64[used rows]: logarithms of the times in microseconds, from the last exact times on.

        Args:
            factors: The values of the constants.
            is_used: bool[rows], the rows that are asked for.
        """
        time_us = self._anchor_us + _US_PER_MS * (factors.get(HOST, 0.0) - self._anchor.get(HOST, 0.0))
        for name, decided_us in zip((PRODUCTS, MEMORY), self._decided_us, strict=True):
            time_us = time_us + decided_us * (1 / factors.get(name, 1.0) - 1 / self._anchor.get(name, 1.0))
        return np.asarray(np.log(time_us)[is_used])
