"""Groups of published figures (scripts/published_figures.toml), the class of each row, and the errors of each class."""

import json
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import nccl_tables
import numpy as np

from nadi import topologies
from nadi.configuration.run_file import collective_config
from nadi.simulation.closed_forms import payload_shape
from nadi.simulation.resolving import Resolver, TimedFabric
from nadi.topologies import clusters
from nadi.validation import (
    STATUSES,
    ClassBands,
    ClassErrors,
    Question,
    band_of,
    bands_of,
    collective_question,
    serving_questions,
    step_question,
)
from nadi.workload.collectives import choose, defaults_on
from nadi.workload.collectives.nccl.time_parts import LATENCY_PARTS
from nadi.workload.generators.models import Model, find
from nadi.workload.generators.training import ParallelPlan, parallel_plan, rules
from nadi.workload.shape import GroupShape

_SIZE = re.compile(r"([0-9]+) ?(KiB|MiB|GiB)")
HERE = Path(__file__).parent
RECORDED = HERE / "validation.json"


class Group(NamedTuple):
    """Figures of one source that one command reproduces: a group of published_figures.toml."""

    name: str  # on the command line and in validation.json
    title: str
    source: str  # publication or data set of the figures
    unit: str  # of all figures
    command: str  # reproduces Nadi's values
    takes: str  # run time: "moments" (tests run it), "seconds" or "minutes" (with --all only)
    # `what` (name), `published` value and `status` of each figure, `first` prediction, inputs, and what its question
    # has beside that of the group
    rows: list[dict[str, Any]]
    remark: str = ""  # assumptions, and parameters that were fitted
    cluster: str = ""  # of training steps, where a row has none; "" = the rows are no training steps
    framework: rules.Framework = "megatron"  # of training steps
    quantity: str = ""  # of served requests: which of the quantities of their questions the rows give
    first_when: str = ""  # commit of the first predictions; "" = they were not kept
    # fields of nadi.validation.Question that hold for every row; {} = models, plans and machines of the rows say them
    question: Mapping[str, Any] = {}
    # tables of NVIDIA's package (nccl_tables): system, machine and number of GPUs of each; their rows come from there
    tables: tuple[nccl_tables.NcclTable, ...] = ()

    def questions(self) -> list[Question]:
        """Return what each row asks, in the order of the rows."""
        if self.tables:
            fabrics = [topologies.build(table.topology) for table in self.tables]
            return [collective_question(fabric, "nccl") for fabric in fabrics for _ in nccl_tables.every_row()]
        return [self._question(row) for row in self.rows]

    def _question(self, row: Mapping[str, Any]) -> Question:
        """Return what a row asks."""
        if self.question or "question" in row:
            return Question(**{**self.question, **row.get("question", {})})
        if "serving" in row:
            plan, cluster = parallel_plan(row["plan"]), clusters.find(row["cluster"])
            fabric, model = topologies.build(cluster.topology(plan.gpus)), find(row["model"])
            asked = serving_questions(fabric, cluster.gpu, plan.dtype, experts=model.experts is not None)
            return next(question for question in asked if question.quantity == self.quantity)
        if self.cluster:
            model, plan = model_of(row), settled_plan(row, self.framework)
            gpu = clusters.find(row.get("cluster", self.cluster)).gpu
            return step_question(model, plan, self.framework, gpu, row["published"])
        return collective_question(topologies.build(row.get("topology") or _named_topology(self.command)), "nccl")


def _named_topology(command: str) -> str:
    """Return the topology that a command names."""
    words = shlex.split(command)
    return words[words.index("-t") + 1]


def model_of(row: Mapping[str, Any]) -> Model:
    """Return the model of a row: one of the library, with `changes` in place of its keys."""
    return Model.model_validate(find(row["model"]).model_dump() | row.get("changes", {}))


def settled_plan(row: Mapping[str, Any], framework: rules.Framework) -> ParallelPlan:
    """Return the plan of a row, settled and checked for its model.

    Args:
        row: A row with `model` and `plan`.
        framework: The software whose rules the plan keeps.
    """
    model = model_of(row)
    plan = rules.settle(model, parallel_plan(row["plan"]), framework)
    rules.check(model, plan, framework)
    return plan


def _groups() -> Iterator[Group]:
    """Yield the groups of published_figures.toml; the rows of NVIDIA's tables are those recorded."""
    recorded = json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else {}
    for group in tomllib.loads((HERE / "published_figures.toml").read_text(encoding="utf-8"))["group"]:
        tables = tuple(nccl_tables.NcclTable(*table) for table in group.pop("tables", ()))
        if tables:
            group["rows"] = nccl_tables.rows(tables, recorded.get(group["name"], {}).get("published", []))
        yield checked(Group(**group, tables=tables))


def checked(group: Group) -> Group:
    """Return a group after a check of the status of each row.

    Args:
        group: A group of published figures.
    """
    for row in group.rows:
        if row.get("status") not in STATUSES:
            known = ", ".join(STATUSES)
            raise SystemExit(f"{group.name}, {row['what']}: status {row.get('status')!r}; expected one of {known}")
    return group


GROUPS = tuple(_groups())
SITES = tomllib.loads((HERE / "published_figures.toml").read_text(encoding="utf-8"))["site"]
"""Sites with the factor that `nadi calibrate` finds on their times of steps between hosts."""


def errors_of(group: Group, values: Sequence[float]) -> list[float]:
    """Return the signed relative errors in the order of the figures.

    Args:
        group: The published figures of one comparison.
        values: The predicted values in the order of the figures.
    """
    return [value / row["published"] - 1 for row, value in zip(group.rows, values, strict=not group.tables)]


class Case(NamedTuple):
    """A row with its class and its error."""

    group: Group
    row: Mapping[str, Any]
    question: Question
    value: float  # Nadi's value, in the unit of the group
    error: float  # signed relative error of it
    collective: str = ""  # kind of collective, for NCCL's; "" = another question
    latency_share: float = 0.0  # share of latency in Nadi's value (nadi.validation.bands), for NCCL's collectives

    @property
    def ratio(self) -> float:
        """Measured over predicted time of a collective; some figures are bandwidths."""
        return 1 + self.error if self.group.unit == "GB/s" else 1 / (1 + self.error)

    @property
    def first_error(self) -> float | None:
        """Signed relative error of the first prediction; None if it was not kept."""
        return self.row["first"] / self.row["published"] - 1 if "first" in self.row else None


def cases_by_class(recorded_by_group: Mapping[str, Any]) -> dict[str, list[Case]]:
    """Return the rows of all groups by the name of their class, classes in the order in which groups have them.

    Args:
        recorded_by_group: The recorded results by the name of their group.
    """
    cases: dict[str, list[Case]] = {}
    for group in GROUPS:
        values = recorded_by_group[group.name]["values"]
        shares = recorded_by_group[group.name].get("latency_shares", [])
        of_rows = zip(group.rows, group.questions(), values, errors_of(group, values), strict=not group.tables)
        for number, of_row in enumerate(of_rows):
            case = Case(group, *of_row)
            if number < len(shares):
                case = case._replace(collective=collective_of(group, case.row).kind, latency_share=shares[number])
            cases.setdefault(case.question.class_name(), []).append(case)
    return cases


def class_errors(cases: Sequence[Case]) -> ClassErrors:
    """Return the errors of a class.

    Args:
        cases: The rows of the class.
    """
    errors = [abs(case.error) for case in cases]
    first = [abs(case.first_error) for case in cases if case.first_error is not None]
    statuses = [case.row["status"] for case in cases]
    counts = [case.question.gpus for case in cases]
    return ClassErrors(
        cases=len(cases),
        mean=round(sum(errors) / len(errors), 4),
        worst=round(max(errors), 4),
        statuses={status: statuses.count(status) for status in STATUSES},
        gpu_names=sorted({case.question.gpu for case in cases} - {""}),
        gpus=[min(counts), max(counts)],
        first={"cases": len(first), "mean": round(sum(first) / len(first), 4), "worst": round(max(first), 4)}
        if 2 * len(first) >= len(cases)  # a few of many say nothing about the class
        else None,
    )


def bands_by_class(cases: Mapping[str, Sequence[Case]]) -> dict[str, dict[str, Any]]:
    """Return the bands of collectives (nadi.validation.bands) by the name of the class.

    Args:
        cases: The rows by the name of their class.
    """
    return {
        name: asdict(bands_of_cases(of_class))
        for name, of_class in cases.items()
        if of_class[0].question.subject == "collective" and of_class[0].question.algorithm == "nccl"
    }


def bands_of_cases(cases: Sequence[Case]) -> ClassBands:
    """Return the bands of rows of NCCL's collectives of one class.

    Args:
        cases: The rows.
    """
    between_hosts = cases[0].question.domains > 1
    rows = [(case.collective, case.latency_share, case.ratio) for case in cases]
    return bands_of(rows, band_of([site["factor"] for site in SITES]) if between_hosts else None)


class MeasuredCollective(NamedTuple):
    """A collective of a row, as Nadi times it."""

    topology: str
    overrides: tuple[str, ...]  # values of keys of a run file
    kind: str
    size_bytes: int
    algorithm: str  # "" = the fabric's


def collective_of(group: Group, row: Mapping[str, Any]) -> MeasuredCollective:
    """Return the collective of a row of NCCL's times.

    Args:
        group: The group of the row.
        row: The row.
    """
    count, unit = (_SIZE.findall(row["what"]) or [("0", "KiB")])[-1]
    size_bytes = int(row.get("bytes", int(count) << {"KiB": 10, "MiB": 20, "GiB": 30}[unit]))
    if group.tables:
        title, kind, _ = row["what"].rsplit(", ", 2)
        (table,) = (table for table in group.tables if table.title == title)
        return MeasuredCollective(table.topology, (), kind, size_bytes, "")
    if "topology" in row:
        kind = row.get("kind", row.get("collective"))
        return MeasuredCollective(row["topology"], (), kind, size_bytes, row.get("algorithm", ""))
    words = shlex.split(group.command)
    overrides = tuple(after for word, after in pairwise(words) if word == "--set")
    algorithm = words[words.index("--algorithm") + 1] if "--algorithm" in words else ""
    return MeasuredCollective(_named_topology(group.command), overrides, words[2], size_bytes, algorithm)


def latency_shares(group: Group) -> list[float]:
    """Return the share of latency in Nadi's time of each row; [] if the rows are no collectives of NCCL.

    Args:
        group: The group.
    """
    questions = group.questions()
    if not group.rows or questions[0].subject != "collective" or questions[0].algorithm != "nccl":
        return []

    @cache
    def fabric(topology: str, overrides: tuple[str, ...]) -> TimedFabric:
        return Resolver(collective_config(topology, overrides), force=True).idle_fabric(1)

    @cache
    def shape(topology: str, overrides: tuple[str, ...], trees: str) -> GroupShape:
        on = fabric(topology, overrides)
        return payload_shape(on.graph, on.settings, np.arange(on.graph.npus), trees=trees)

    shares = []
    for row in group.rows:
        asked = collective_of(group, row)
        own = fabric(asked.topology, asked.overrides)
        named = own.collectives.algorithm.get(asked.kind) or defaults_on(own.graph)[asked.kind]
        chosen = choose(asked.kind, asked.algorithm or named)
        parts = chosen.parts_of_time(asked.kind, shape(asked.topology, asked.overrides, chosen.trees), asked.size_bytes)
        shares.append(round(sum(parts.get(part, 0.0) for part in LATENCY_PARTS), 4))
    return shares
