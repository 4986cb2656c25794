"""Collective algorithms, one module each, found by looking into the folder `algorithms`.

A module has

- `NAME`, as users write it,
- `KINDS`, the kinds of collectives that it does (see workload.kinds),
- `plan(kind, members, **parameters) -> Plans` for members >= 1,
- `closed_form(kind, members, size_bytes, latency_ps, bytes_per_s, **parameters) -> float`: picoseconds on an idle
  network in which a message of b bytes takes latency_ps + b / bytes_per_s, every NPU sends and receives one message at
  a time at that rate, and nothing else limits. size_bytes is the whole buffer S of docs/reference/interfaces.md,

- `extent(kind, members, **parameters) -> Extent` (plans.extent): how many steps and lanes `plan` makes, without
  making them, or a bound; it has a run refused that takes more memory than is free. Without it a bound of any
  algorithm holds, that grows with the members' square;

if that is a lower bound only, `LOWER_BOUND = True`, if an estimate, `ESTIMATE = True`; if no member receives while it
sends, so that acknowledgements take no turns, `ONE_WAY = True`; and where it has parameters, which users write as
`ring:channels=4,bidirectional=true`,

- `PARAMETERS`: dict of the default of each, an int, bool or str,
- `LIMITS`: dict of (least, most) of ints and of the choices of strings; those that it lacks may be anything.

An algorithm that depends on where its members are on the fabric, or on the size, has `NEEDS_SHAPE = True` and

- `plan(kind, shape, size_bytes, **parameters) -> Plans` (shape: workload.shape.Shape of two members or more),
- `closed_form(kind, shape, size_bytes, **parameters) -> float`,
- `extent(kind, shape, size_bytes, **parameters) -> Extent`,
- if switches take part in it, `TREES`, which trees of them (trees.aggregators): "all", "hosts" or "hosts and rails", or
  what says that of the parameters; the shape has them, and if a plan uses them its last members are their aggregators,
- if sizes share a plan, `size_class(kind, shape, size_bytes, **parameters) -> int`: those of one class do,
- if it does all-to-alls of split sizes too, `plan_uneven(cut, shape, **parameters) -> Plans` (cut:
workload.collectives.uneven's
  Units),
- if it chooses among several ways, `describe(kind, shape, size_bytes, **parameters) -> str`, for tables.

One that `NAMED_ONLY = True` marks is neither a default nor among those that `algorithms_of` lists; nor is one of the
kinds that `NAMED_ONLY` lists.

Every algorithm has two parameters more, PARTS: the buffer may be cut into parts that are collectives of their own
(workload.collectives.plans.dataset_splits).

Buffers: all-reduce, reduce, broadcast and barrier work on all of S at each member. Of the others, member m owns the
m-th of n equal parts: all-gather and gather begin with the own part and end with all parts; reduce-scatter and scatter
begin with all parts and end with the own one, summed or the root's; all-to-all sends part i to member i and ends with
part i from member i in a second buffer (region 1 of workload.collectives.plans.plan). The root is member 0: traces
name none.
"""

import functools
import importlib
import pkgutil
from collections.abc import Callable
from typing import NamedTuple, Protocol, cast

import numpy as np

from topologies import NVSWITCH, Graph
from workload.collectives import algorithms as folder
from workload.collectives.plans.dataset_splits import in_parts
from workload.collectives.plans.extent import PlanExtent, of_any
from workload.collectives.plans.plan import Plans
from workload.collectives.uneven.all_to_all_v import ALGORITHMS as PLAIN_UNEVEN
from workload.collectives.uneven.all_to_all_v import NAME as UNEVEN
from workload.collectives.uneven.all_to_all_v import Units
from workload.errors import WorkloadError
from workload.kinds import kind_index
from workload.shape import Shape

PREFERRED = ("ring", "direct", "dissemination")
ON_NVSWITCHES = "nccl"

PARTS = {"dataset_splits": 1, "chains": 1}
"""Of every algorithm: into how many parts the buffer is cut, and how many are under way at a time."""
MOST_PARTS = 1024
_WHOLE = ("barrier",)
"""Kinds that cannot be cut."""

Value = int | bool | str


class Algorithm(Protocol):
    """What every module of this folder has; those without NEEDS_SHAPE say members in place of the shape."""

    NAME: str
    KINDS: tuple[str, ...]

    @staticmethod
    def plan(kind: str, *arguments: object, **parameters: Value) -> Plans:
        """What each member does."""

    @staticmethod
    def closed_form(kind: str, *arguments: object, **parameters: Value) -> float:
        """Picoseconds on an idle network."""


class AlgorithmChoice(NamedTuple):
    """An algorithm with its parameters; equal choices are equal.

    Attributes:
        name: of the algorithm.
        parameters: name and value of all that it has, in its order.
        dataset_splits: see PARTS.
        chains: likewise.
    """

    name: str
    parameters: tuple[tuple[str, Value], ...]
    dataset_splits: int = 1
    chains: int = 1

    @property
    def module(self) -> Algorithm:
        """Where it is written."""
        return known_algorithms()[self.name]

    @property
    def needs_shape(self) -> bool:
        """Whether it depends on where the members are on the fabric, or on the size."""
        return bool(getattr(self.module, "NEEDS_SHAPE", False))

    @property
    def trees(self) -> str:
        """Which trees of switches take part in it, "" = none."""
        found = getattr(self.module, "TREES", "")
        return str(found(**dict(self.parameters)) if callable(found) else found)

    @property
    def has_formula(self) -> bool:
        """Whether there is a closed form."""
        return hasattr(self.module, "closed_form")

    @property
    def is_exact(self) -> bool:
        """Whether the closed form is that of an idle network, and no estimate or bound of it."""
        bounds = getattr(self.module, "LOWER_BOUND", False) or getattr(self.module, "ESTIMATE", False)
        return not bounds and self.dataset_splits == 1

    def on(self, kind: str, shape: Shape | None) -> Shape:
        """The shape, which it needs.

        Raises:
            WorkloadError: there is none.
        """
        if shape is None:
            raise WorkloadError(f"algorithm {self.name!r} for {kind}: no fabric is known here, expected one")
        return shape

    def size_class(self, kind: str, shape: Shape, size_bytes: int) -> int:
        """Sizes of one class have one plan, of an algorithm that needs a shape."""
        sort = getattr(self.module, "size_class", None)
        part_bytes = self.part_bytes(size_bytes)
        return part_bytes if sort is None else int(sort(kind, shape, part_bytes, **dict(self.parameters)))

    def part_bytes(self, size_bytes: int) -> int:
        """Of a part, about; not 0 where there is any."""
        return -(-size_bytes // self.dataset_splits)

    def describe(self, kind: str, shape: Shape, size_bytes: int) -> str:
        """What an algorithm that chooses among several takes for a size; "" of others."""
        tell = getattr(self.module, "describe", None)
        return "" if tell is None else str(tell(kind, shape, self.part_bytes(size_bytes), **dict(self.parameters)))

    def plan(self, kind: str, members: int, shape: Shape | None = None, size_bytes: int = 0) -> Plans:
        """What each member does.

        Raises:
            WorkloadError: less than one member, or no shape for an algorithm that needs it.
        """
        if members < 1:
            raise WorkloadError(f"{kind} of {members} members: expected at least 1")
        if self.needs_shape:
            part_bytes = self.part_bytes(size_bytes)
            plans = self.module.plan(kind, self.on(kind, shape), part_bytes, **dict(self.parameters))
        else:
            plans = self.module.plan(kind, members, **dict(self.parameters))
        return in_parts(plans, kind, self.dataset_splits, self.chains)

    def plan_uneven(self, cut: Units, shape: Shape | None) -> Plans:
        """What each member does in an all-to-all with split sizes, of an algorithm that does those; cut: the sizes.

        Raises:
            WorkloadError: no shape.
        """
        make: Callable[..., Plans] = self.module.plan_uneven  # type: ignore[attr-defined]  # `choose_uneven` looks
        return make(cut, self.on(UNEVEN, shape), **dict(self.parameters))

    def extent(self, kind: str, members: int, shape: Shape | None = None, size_bytes: int = 0) -> PlanExtent:
        """How large `plan` will be, or a bound.

        Raises:
            WorkloadError: as `plan`.
        """
        count: Callable[..., PlanExtent] | None = getattr(self.module, "extent", None)
        if count is None:
            found = of_any(members)
        elif self.needs_shape:
            found = count(kind, self.on(kind, shape), self.part_bytes(size_bytes), **dict(self.parameters))
        else:
            found = count(kind, members, **dict(self.parameters))
        return found.in_parts(self.dataset_splits)

    def closed_form(
        self, kind: str, members: int, size_bytes: float, latency_ps: float, bytes_per_s: float, shape: Shape | None
    ) -> float:
        """Picoseconds on an idle network; of parts, one after another as long as each alone takes.

        Where chains are side by side, their parts count as one. Raises what `on` does.
        """
        rounds, size = -(-self.dataset_splits // self.chains), size_bytes * self.chains / self.dataset_splits
        if self.dataset_splits == 1:
            size = size_bytes
        parameters = dict(self.parameters)
        if self.needs_shape:
            return rounds * self.module.closed_form(kind, self.on(kind, shape), size, **parameters)
        return rounds * self.module.closed_form(kind, members, size, latency_ps, bytes_per_s, **parameters)


@functools.cache
def known_algorithms() -> dict[str, Algorithm]:
    """All algorithms by name."""
    modules = (
        importlib.import_module(f"{folder.__name__}.{found.name}") for found in pkgutil.iter_modules(folder.__path__)
    )
    return {module.NAME: cast("Algorithm", module) for module in modules if hasattr(module, "NAME")}


def algorithms_of(kind: str) -> tuple[str, ...]:
    """Names of the algorithms that do a kind, less those that must be asked for by name.

    Raises:
        WorkloadError: unknown kind.
    """
    kind_index(kind)
    return tuple(sorted(name for name, m in known_algorithms().items() if kind in m.KINDS and not _named_only(m, kind)))


def default_algorithm(kind: str) -> str:
    """The algorithm that a kind gets unless told otherwise: ring where it does it, else direct, else dissemination.

    Raises:
        WorkloadError: unknown kind.
    """
    known = algorithms_of(kind)
    return next((name for name in PREFERRED if name in known), known[0])


def defaults_on(fabric: Graph) -> dict[str, str]:
    """Algorithms of kinds that the user names none for, where the fabric says what its hosts would run.

    Hosts of several NPUs behind an NVSwitch run NCCL; elsewhere there are none, and `default_algorithm` holds.
    """
    if not np.any(fabric.node_kind == NVSWITCH) or len(np.unique(fabric.host)) == fabric.npus:
        return {}
    return dict.fromkeys(known_algorithms()[ON_NVSWITCHES].KINDS, ON_NVSWITCHES)


def choose(kind: str, spec: str) -> AlgorithmChoice:
    """The algorithm and parameters that `spec`, such as `ring` or `ring:channels=4`, means for `kind`.

    Raises:
        WorkloadError: unknown kind, algorithm or parameter, an algorithm that does not do this kind, or a value of
            another type or out of range.
    """
    name, _, rest = spec.partition(":")
    known = algorithms_of(kind)
    module = known_algorithms().get(name)
    if name not in known and (module is None or kind not in module.KINDS):
        raise WorkloadError(f"algorithm {name!r} for {kind}: expected one of {', '.join(known)}")
    own: dict[str, Value] = getattr(known_algorithms()[name], "PARAMETERS", {})
    defaults = {**own, **({} if kind in _WHOLE or _named_only(known_algorithms()[name], "") else PARTS)}
    limits: dict[str, tuple] = getattr(known_algorithms()[name], "LIMITS", {}) | dict.fromkeys(PARTS, (1, MOST_PARTS))
    given: dict[str, Value] = {}
    for part in rest.split(",") if rest.strip() else ():
        key, equals, text = (word.strip() for word in part.partition("="))
        if not equals or key not in defaults or key in given:
            found = "stands twice" if key in given else "is no parameter"
            listed = ", ".join(f"{k}={_shown(v)}" for k, v in defaults.items()) or "none"
            raise WorkloadError(f"algorithm {spec!r} for {kind}: {part.strip()!r} {found}, expected some of {listed}")
        given[key] = _value(f"algorithm {spec!r} for {kind}: {key}", text, defaults[key], limits.get(key))
    splits, chains = (int(given.get(key, value)) for key, value in PARTS.items())
    parameters = tuple((key, given.get(key, value)) for key, value in own.items())
    return AlgorithmChoice(name, parameters, splits, min(chains, splits))


def uneven_algorithms() -> tuple[str, ...]:
    """Names of the algorithms of all-to-alls with split sizes, the default first."""
    split = sorted(name for name, module in known_algorithms().items() if hasattr(module, "plan_uneven"))
    return (*PLAIN_UNEVEN, *split)


def default_uneven(even: str) -> str:
    """The default algorithm of all-to-alls with split sizes; even: the one named for those without, "" = none."""
    does_both = hasattr(known_algorithms().get(even.partition(":")[0]), "plan_uneven")
    return even if does_both else PLAIN_UNEVEN[0]


def choose_uneven(spec: str) -> AlgorithmChoice | None:
    """Return the algorithm that `spec` names for all-to-alls with split sizes; None = one of uneven.all_to_all_v.

    Raises:
        WorkloadError: unknown algorithm or parameter, or a value of another type or out of range.
    """
    if spec in PLAIN_UNEVEN:
        return None
    name = spec.partition(":")[0]
    if name in PLAIN_UNEVEN or name not in uneven_algorithms():
        raise WorkloadError(f"algorithm {spec!r} for {UNEVEN}: expected one of {', '.join(uneven_algorithms())}")
    return choose("all-to-all", spec)


def plan(kind: str, spec: str, members: int, shape: Shape | None = None, size_bytes: int = 0) -> Plans:
    """What each member does in a collective.

    Raises:
        WorkloadError: as `choose`; less than one member; no shape for an algorithm that needs it.
    """
    return choose(kind, spec).plan(kind, members, shape, size_bytes)


def closed_form(
    kind: str,
    spec: str,
    members: int,
    size_bytes: int,
    latency_ps: float,
    bytes_per_s: float,
    shape: Shape | None = None,
) -> float:
    """Picoseconds that a collective takes on an idle network, see above.

    Raises:
        WorkloadError: as `choose`; no shape for an algorithm that needs it; one without a closed form.
    """
    if members == 1:
        return 0.0
    chosen = choose(kind, spec)
    if not chosen.has_formula:
        raise WorkloadError(f"algorithm {spec!r} for {kind}: it has no closed form, expected one that has")
    return chosen.closed_form(kind, members, size_bytes, latency_ps, bytes_per_s, shape)


def _named_only(module: Algorithm, kind: str) -> bool:
    marked: bool | tuple[str, ...] = getattr(module, "NAMED_ONLY", False)
    return kind in marked if isinstance(marked, tuple) else marked


def _shown(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _value(where: str, text: str, default: Value, limits: tuple | None) -> Value:
    """The value that a text means, of the type of the default."""
    if isinstance(default, bool):
        if text not in {"true", "false"}:
            raise WorkloadError(f"{where} is {text!r}, expected true or false")
        return text == "true"
    if isinstance(default, str):
        if limits is not None and text not in limits:
            raise WorkloadError(f"{where} is {text!r}, expected one of {', '.join(limits)}")
        return text
    number = int(text) if text.removeprefix("-").isdecimal() and len(text) < _LONGEST_INT else None
    if number is None or (limits is not None and not limits[0] <= number <= limits[1]):
        between = f" from {limits[0]} to {limits[1]}" if limits else ""
        raise WorkloadError(f"{where} is {text!r}, expected a whole number{between}")
    return number


_LONGEST_INT = 19
