"""Collective algorithms: one module each, of the folder `algorithms`, of an installed package, or a file of users.

The name that users write is that of the file, or its path.

A module defines

- `KINDS`, the kinds of collectives that the algorithm implements (see workload.kinds),
- `plan(kind, members, **parameters) -> Plans` for members >= 1,
- `closed_form(kind, members, size_bytes, latency_ps, bytes_per_s, **parameters) -> float`: picoseconds on an idle
  network in which a message of b bytes takes latency_ps + b / bytes_per_s, every NPU sends and receives one message at
  a time at that rate, and nothing else limits. size_bytes is the whole buffer S of docs/reference/interfaces.md,
- `extent(kind, members, **parameters) -> PlanExtent` (plans.extent): the number of steps and lanes of `plan`, or an
  upper bound, without building them. Nadi refuses a run whose plans would not fit into free memory. Without this
  function a bound applies that holds for any algorithm and grows with the square of the members.

Where NPUs have several NICs towards each other, a buffer is cut into stripes, which run side by side on connections of
their own (plans.extent), so that the NICs share it by their rates. An algorithm with `OWN_CONNECTIONS = True`
is not cut: its lanes name connections, or its members send to switches.

Optional flags: `LOWER_BOUND = True` if the closed form is only a lower bound, `ESTIMATE = True` if it is an estimate,
`ONE_WAY = True` if no member receives while it sends, so that acknowledgements cost nothing.

Optional parameters, which users write as `ring:channels=4,bidirectional=true`:

- `PARAMETERS`: dict of default values (int, float, bool or str),
- `LIMITS`: dict of (minimum, maximum) of an int, or of the choices of a string; parameters without limits accept any
  value.

An algorithm that depends on the location of its members on the fabric, or on the buffer size, sets `NEEDS_SHAPE = True`
and defines

- `plan(kind, shape, size_bytes, **parameters) -> Plans` (shape: workload.shape.GroupShape of two or more members),
- `closed_form(kind, shape, size_bytes, **parameters) -> float`,
- `extent(kind, shape, size_bytes, **parameters) -> PlanExtent`,
- `TREES`, if switches take part: "all", "hosts" or "hosts and rails" (trees), or a function of the
  parameters that returns one of these. The shape then contains the trees, and the last members of a plan that uses them
  are their aggregators,
- `check_size(kind, size_bytes, **parameters)`, if it takes some sizes only: raises WorkloadError for others,
- `size_class(kind, shape, size_bytes, **parameters) -> int`, if several sizes share a plan: sizes of one class do,
- `launch_ps(kind, shape, size_bytes, **parameters) -> int | None`, if plans of one class differ in their launch_ps, the
  time before the first step: that of a size; None = the same for all sizes of the class,
- `plan_uneven(cut, shape, **parameters) -> Plans`, if it supports all-to-alls of split sizes (cut:
  uneven.Units),
- `describe(kind, shape, size_bytes, **parameters) -> str`, if it chooses among several algorithms, for tables,
- `parts_of_time(kind, shape, size_bytes, **parameters) -> dict[str, float]`: what its closed form consists of, by the
  cause, as fractions of the time,
- `is_coarse(kind, shape, size_bytes, **parameters) -> bool`, if its plans may have larger chunks than the algorithm, as
  too many steps would not fit: whether they take so much longer that the closed form is nearer,
- `protocol(kind, **parameters) -> str`, if its plans have the bytes of a protocol (kernel_times); "" = of none.

`NAMED_ONLY = True` marks an algorithm that is used only when the user names it: it is never a default and
`algorithms_of` does not list it. A tuple limits the mark to the kinds in it.

Every algorithm has two further parameters, PARTS, which cut the buffer into parts that are collectives of their own
(plans.extent), and PROTO: on a machine with known kernels, its plans begin after the launch and the times of their
messages (kernel_times). An algorithm with `OWN_TIMES = True` has these in its plans and in its closed form itself.

`READS_FILES = True` marks an algorithm whose plans depend on files of users, which may change between two calls.

Buffers: all-reduce, reduce, broadcast and barrier work on the whole buffer S at each member. In the other kinds, member
m owns the m-th of n equal parts: all-gather and gather begin with the member's own part and end with all parts;
reduce-scatter and scatter begin with all parts and end with the own part (the sum, or the root's data); all-to-all
sends part i to member i and receives part i from member i into a second buffer (region 1 of plans.plan). The root is
member 0, since traces name no root.
"""

import functools
import math
from collections.abc import Callable, Container, Mapping
from typing import NamedTuple, Protocol, cast

import numpy as np

from nadi.inputs import plug_ins
from nadi.topologies import NVSWITCH, Graph
from nadi.workload.collectives import kernel_times
from nadi.workload.collectives.plans.extent import PlanExtent, in_parts, in_stripes, of_any
from nadi.workload.collectives.plans.plan import Plans
from nadi.workload.collectives.trees import AggregatorTree, trees_of
from nadi.workload.collectives.uneven import ALGORITHMS as PLAIN_UNEVEN, NAME as UNEVEN, Units
from nadi.workload.errors import WorkloadError
from nadi.workload.kinds import kind_index
from nadi.workload.shape import GroupShape

KIND = "collective algorithm"
PREFERRED = ("ring", "direct", "dissemination")
ON_NVSWITCHES = "nccl"

# Parameters that every algorithm has: the number of parts of the buffer, and how many parts run at a time
PARTS = {"dataset_splits": 1, "chains": 1}
MAX_PARTS = 1024
PROTO = {"proto": kernel_times.AUTO}  # parameter of algorithms without OWN_TIMES: the protocol of their messages
_WHOLE = ("barrier",)  # kinds whose buffer cannot be cut

Value = int | float | bool | str


class Algorithm(Protocol):
    """The interface of an algorithm module; without NEEDS_SHAPE, `members` takes the place of the shape."""

    KINDS: tuple[str, ...]  # kinds of collectives that the algorithm can execute

    @staticmethod
    def plan(kind: str, *arguments: object, **parameters: Value) -> Plans:
        """Return the steps of each member; the module's docstring lists the `arguments` and `parameters`."""

    @staticmethod
    def closed_form(kind: str, *arguments: object, **parameters: Value) -> float:
        """Return the picoseconds on an idle network; the module's docstring lists the `arguments` and `parameters`."""


class AlgorithmChoice(NamedTuple):
    """An algorithm with its parameters; equal choices compare equal.

    In all methods `kind` is the kind of collective, one of workload.KINDS, `shape` the position of the group's members
    on the fabric, and `size_bytes` the size of the whole buffer in bytes.
    """

    name: str  # name of the algorithm
    parameters: tuple[tuple[str, Value], ...]  # name and value of every parameter, in the algorithm's order
    dataset_splits: int = 1  # number of parts of the buffer (PARTS)
    chains: int = 1  # number of parts that run at a time (PARTS)
    stripes: int = 1  # number of equal stripes of the buffer, which run side by side over parallel NICs
    proto: str = kernel_times.AUTO  # one of kernel_times.PROTOCOLS

    def striped(self, kind: str, stripes: int) -> "AlgorithmChoice":
        """Return the choice with stripes; the same choice if the kind or the algorithm (OWN_CONNECTIONS) cannot be cut.

        Args:
            kind: The kind of collective, one of workload.KINDS.
            stripes: The number of equal stripes of the buffer, which run side by side over parallel NICs.
        """
        is_whole = kind in _WHOLE or getattr(self.module, "OWN_CONNECTIONS", False)
        return self if is_whole else self._replace(stripes=stripes)

    @property
    def module(self) -> Algorithm:
        """The module that implements the algorithm."""
        return cast("Algorithm", find_algorithm(self.name))

    @property
    def needs_shape(self) -> bool:
        """Whether the algorithm depends on the members' location on the fabric, or on the buffer size."""
        return bool(getattr(self.module, "NEEDS_SHAPE", False))

    def pays(self, accelerator: str) -> bool:
        """Return whether plans get a kernel's launch and message times, which depend on the shape and the size.

        Args:
            accelerator: The name of the NPU type on the fabric; "" = unknown.
        """
        return self.proto != kernel_times.NO_TIMES and kernel_times.has_times(accelerator)

    @property
    def is_fixed(self) -> bool:
        """Whether equal arguments always have equal plans: an algorithm of Nadi's own that reads no files of users."""
        own = known_algorithms().get(self.name)
        return self.module is own and not getattr(own, "READS_FILES", False)

    @property
    def trees(self) -> str:
        """The names of the trees of switches that take part in the algorithm (trees); "" = none."""
        trees = getattr(self.module, "TREES", "")
        return str(trees(**dict(self.parameters)) if callable(trees) else trees)

    @property
    def has_formula(self) -> bool:
        """Whether the algorithm has a closed form."""
        return hasattr(self.module, "closed_form")

    @property
    def is_exact(self) -> bool:
        """Whether the closed form is exact on an idle network, rather than an estimate or a bound."""
        bounds = getattr(self.module, "LOWER_BOUND", False) or getattr(self.module, "ESTIMATE", False)
        return not bounds and self.dataset_splits == self.stripes == 1

    @property
    def may_be_coarse(self) -> bool:
        """Whether plans of large groups may have larger chunks than the algorithm."""
        return hasattr(self.module, "is_coarse")

    def is_coarse(self, kind: str, shape: GroupShape, size_bytes: int) -> bool:
        """Return whether a plan's chunks are so large that the closed form is nearer to the algorithm than the plan."""
        coarse: Callable[..., bool] | None = getattr(self.module, "is_coarse", None)
        return coarse is not None and coarse(kind, shape, self.part_bytes(size_bytes), **dict(self.parameters))

    def on(self, kind: str, shape: GroupShape | None) -> GroupShape:
        """Return the shape, for an algorithm that needs it. Raises WorkloadError: the shape is None.

        Args:
            kind: The kind of collective, one of workload.KINDS.
            shape: The positions of the group's members on the fabric; None = no fabric is known.
        """
        if shape is None:
            raise WorkloadError(f"algorithm {self.name!r} for {kind}: no fabric is known here, expected one")
        return shape

    def size_class(self, kind: str, shape: GroupShape, size_bytes: int) -> int:
        """Return the class of a size for an algorithm that needs a shape; sizes of one class share a plan."""
        classify = getattr(self.module, "size_class", None)
        number = 0
        if self.needs_shape:
            number = self.part_bytes(size_bytes)
            number = number if classify is None else int(classify(kind, shape, number, **dict(self.parameters)))
        if not self.pays(shape.accelerator):
            return number
        protocol = self.protocol(kind, shape, size_bytes)
        return number * len(kernel_times.PROTOCOLS) + kernel_times.PROTOCOLS.index(protocol)

    def protocol(self, kind: str, shape: GroupShape, size_bytes: int) -> str:
        """Return the protocol of the messages of plans that pay for kernels, as kernel_times names it."""
        of_plans = getattr(self.module, "protocol", None)
        named = of_plans(kind, **dict(self.parameters)) if of_plans else ""
        return kernel_times.protocol_of(kind, shape, size_bytes, named or self.proto, in_switches=bool(self.trees))

    def check_size(self, kind: str, size_bytes: int) -> None:
        """Raise WorkloadError if the algorithm does not take a buffer of this size for this kind."""
        check = getattr(self.module, "check_size", None)
        if check is not None:
            check(kind, self.part_bytes(size_bytes), **dict(self.parameters))

    def launch_ps(self, kind: str, shape: GroupShape, size_bytes: int) -> int | None:
        """Return the ps before the first step for a kind, shape and size; None = as planned for any of its class."""
        launch_ps = getattr(self.module, "launch_ps", None)
        part_bytes = self.part_bytes(size_bytes)
        return None if launch_ps is None else launch_ps(kind, shape, part_bytes, **dict(self.parameters))

    def part_bytes(self, size_bytes: int) -> int:
        """Return the approximate size of a part in bytes, rounded up so that it is above 0 if size_bytes is.

        Args:
            size_bytes: The size of the whole buffer in bytes.
        """
        return -(-size_bytes // (self.dataset_splits * self.stripes))

    def describe(self, kind: str, shape: GroupShape, size_bytes: int) -> str:
        """Return in words what an algorithm with variants chooses for a kind, shape and size, or its protocol."""
        describe = getattr(self.module, "describe", None)
        if describe is None:
            return self.protocol(kind, shape, size_bytes) if self.pays(shape.accelerator) else ""
        return str(describe(kind, shape, self.part_bytes(size_bytes), **dict(self.parameters)))

    def parts_of_time(self, kind: str, shape: GroupShape, size_bytes: int) -> dict[str, float]:
        """Return what the closed form consists of, by cause as fractions of the time; {} = the algorithm does not say.

        The arguments are those of `describe`.
        """
        parts: Callable[..., dict[str, float]] | None = getattr(self.module, "parts_of_time", None)
        return {} if parts is None else parts(kind, shape, self.part_bytes(size_bytes), **dict(self.parameters))

    def plan(self, kind: str, members: int, shape: GroupShape | None = None, size_bytes: int = 0) -> Plans:
        """Return the steps of each member. Raises WorkloadError: no member, or no shape where the algorithm needs it.

        Args:
            kind: The kind of collective, one of workload.KINDS.
            members: The number of members of the group.
            shape: The positions of the group's members on the fabric; None if the algorithm does not need them.
            size_bytes: The size of the whole buffer in bytes.
        """
        if members < 1:
            raise WorkloadError(f"{kind} of {members} members: expected at least 1")
        plans = self.module.plan(kind, *self._arguments(kind, members, shape, size_bytes), **dict(self.parameters))
        plans = in_stripes(in_parts(plans, kind, self.dataset_splits, self.chains), kind, self.stripes)
        if shape is None or members == 1 or not self.pays(shape.accelerator):
            return plans
        return kernel_times.timed(plans, shape, self.protocol(kind, shape, size_bytes))

    def plan_uneven(self, split_units: Units, shape: GroupShape | None) -> Plans:
        """Return the steps of each member in an all-to-all with split sizes, for an algorithm that supports it.

        Args:
            split_units: The bytes of each pair of members as whole numbers of a common unit.
            shape: The positions of the group's members on the fabric; None if the algorithm does not need them.
        """
        make: Callable[..., Plans] = self.module.plan_uneven  # type: ignore[attr-defined]  # `choose_uneven` looks
        return make(split_units, self.on(UNEVEN, shape), **dict(self.parameters))

    def extent(self, kind: str, members: int, shape: GroupShape | None = None, size_bytes: int = 0) -> PlanExtent:
        """Return the number of steps and lanes of `plan`, or an upper bound.

        Args:
            kind: The kind of collective, one of workload.KINDS.
            members: The number of members of the group.
            shape: The positions of the group's members on the fabric; None if the algorithm does not need them.
            size_bytes: The size of the whole buffer in bytes.
        """
        count_steps: Callable[..., PlanExtent] | None = getattr(self.module, "extent", None)
        if count_steps is None:
            return of_any(members).in_parts(self.dataset_splits).in_parts(self.stripes)
        extent = count_steps(kind, *self._arguments(kind, members, shape, size_bytes), **dict(self.parameters))
        return extent.in_parts(self.dataset_splits).in_parts(self.stripes)

    def _arguments(self, kind: str, members: int, shape: GroupShape | None, size_bytes: int) -> tuple[object, ...]:
        """Return the arguments of the module's `plan` and `extent` for one part, after the kind."""
        return (self.on(kind, shape), self.part_bytes(size_bytes)) if self.needs_shape else (members,)

    def closed_form(
        self,
        kind: str,
        members: int,
        size_bytes: float,
        latency_ps: float,
        bytes_per_s: float,
        shape: GroupShape | None,
    ) -> float:
        """Return the time in picoseconds of a collective on an idle network, whose messages take a latency and a rate.

        Parts are assumed to run one after another, each as long as alone; parts of parallel chains count as one part.
        What kernels add (kernel_times) is in the plan's `launch_ps` alone.

        Args:
            kind: The kind of collective, one of workload.KINDS.
            members: The number of members of the group.
            size_bytes: The size of the whole buffer in bytes.
            latency_ps: The time of an empty message on an idle network in picoseconds.
            bytes_per_s: The rate at which every member sends and receives, in bytes per second.
            shape: The positions of the group's members on the fabric; None if the algorithm does not need them.
        """
        rounds, size = -(-self.dataset_splits // self.chains), size_bytes * self.chains / self.dataset_splits
        if self.dataset_splits == 1:  # a whole number of bytes stays one, so that closed forms round as without parts
            size = size_bytes
        parameters = dict(self.parameters)
        if self.needs_shape:
            return rounds * self.module.closed_form(kind, self.on(kind, shape), math.ceil(size), **parameters)
        return rounds * self.module.closed_form(kind, members, size, latency_ps, bytes_per_s, **parameters)


@functools.cache
def known_algorithms() -> dict[str, Algorithm]:
    """Return Nadi's own algorithms by name."""
    return {name: plug_ins.module(KIND, name, WorkloadError) for name in plug_ins.own_files(KIND)}


def find_algorithm(name: str) -> Algorithm | None:
    """Return the algorithm of a name or file, None if the name is unknown; WorkloadError if a file holds none.

    Args:
        name: The name of one of Nadi's algorithms or of an installed package's, or the path of a Python file.
    """
    is_outside = plug_ins.is_file(KIND, name) or name in plug_ins.installed_names(KIND)
    return plug_ins.module(KIND, name, WorkloadError) if is_outside else known_algorithms().get(name)


def is_timed_alone(algorithm: str, accelerator: str) -> bool:
    """Return whether an algorithm has the times of kernels on a fabric where others have none.

    Args:
        algorithm: The algorithm as users write it: its name or file, with parameters if any.
        accelerator: The name of the NPU type on the fabric; "" = unknown.
    """
    own_times = getattr(find_algorithm(algorithm.partition(":")[0]), "OWN_TIMES", False)
    return own_times and not kernel_times.has_times(accelerator)


def algorithms_of(kind: str) -> tuple[str, ...]:
    """Return the names of a kind's algorithms, without those that are only used when named.

    Raises WorkloadError: the kind is unknown.

    Args:
        kind: The kind of collective, one of workload.KINDS.
    """
    kind_index(kind)
    installed = {name: plug_ins.module(KIND, name, WorkloadError) for name in plug_ins.installed_names(KIND)}
    return tuple(sorted(_of(kind, known_algorithms() | installed)))


def _of(kind: str, modules: Mapping[str, Algorithm]) -> list[str]:
    return [name for name, module in modules.items() if kind in module.KINDS and not _named_only(module, kind)]


def default_algorithm(kind: str) -> str:
    """Return the default algorithm of a kind of collective: ring if it implements it, or direct, or dissemination.

    Args:
        kind: The kind of collective, one of workload.KINDS.
    """
    kind_index(kind)
    known = _of(kind, known_algorithms())
    return next((name for name in PREFERRED if name in known), known[0])


def defaults_on(fabric: Graph) -> dict[str, str]:
    """Return the algorithms, by kind, that a fabric's hosts run where the user names none.

    Args:
        fabric: The network. Hosts with several NPUs behind an NVSwitch run NCCL; for other fabrics the result is empty.
    """
    if not np.any(fabric.node_kind == NVSWITCH) or len(np.unique(fabric.host)) == fabric.npus:
        return {}
    return dict.fromkeys(known_algorithms()[ON_NVSWITCHES].KINDS, ON_NVSWITCHES)


def choose(kind: str, spec: str) -> AlgorithmChoice:
    """Return an algorithm with its parameters. Raises WorkloadError: unknown algorithm or parameter, or a wrong value.

    Args:
        kind: The kind of collective, one of workload.KINDS.
        spec: The algorithm as users write it: its name or file, with parameters if any, such as `ring:channels=4`.
    """
    name, _, rest = spec.partition(":")
    module = find_algorithm(name)
    if module is None or kind not in module.KINDS:
        raise WorkloadError(f"algorithm {name!r} for {kind}: expected one of {', '.join(algorithms_of(kind))}")
    own: dict[str, Value] = getattr(module, "PARAMETERS", {})
    own_times = getattr(module, "OWN_TIMES", False)
    defaults = {
        **own,
        **({} if kind in _WHOLE or _named_only(module, "") else PARTS),
        **({} if own_times else PROTO),
    }
    limits: dict[str, tuple] = getattr(module, "LIMITS", {}) | dict.fromkeys(PARTS, (1, MAX_PARTS))
    limits |= {} if own_times else dict.fromkeys(PROTO, kernel_times.PROTOCOLS)
    given: dict[str, Value] = {}
    for part in rest.split(",") if rest.strip() else ():
        key, equals, text = (word.strip() for word in part.partition("="))
        if not equals or key not in defaults or key in given:
            problem = "is given twice" if key in given else "is no parameter"
            listed = (
                ", ".join(f"{k}={str(v).lower() if isinstance(v, bool) else v}" for k, v in defaults.items()) or "none"
            )
            raise WorkloadError(f"algorithm {spec!r} for {kind}: {part.strip()!r} {problem}, expected some of {listed}")
        given[key] = _value(f"algorithm {spec!r} for {kind}: {key}", text, defaults[key], limits.get(key))
    splits, chains = (int(given.get(key, value)) for key, value in PARTS.items())
    parameters = tuple((key, given.get(key, value)) for key, value in own.items())
    proto = kernel_times.NO_TIMES if own_times else str(given.get("proto", kernel_times.AUTO))
    return AlgorithmChoice(name, parameters, splits, min(chains, splits), proto=proto)


def with_parameters(spec: str, parameters: Mapping[str, str], without: Container[str] = ()) -> str:
    """Return an algorithm as users write it, with parameters in place of equal ones of its own.

    Args:
        spec: The algorithm as users write it.
        parameters: Values of parameters by name.
        without: Names of parameters of the algorithm that are left out.
    """
    name, _, rest = spec.partition(":")
    own = dict(part.partition("=")[::2] for part in rest.split(",") if part.strip())
    kept = {key.strip(): value.strip() for key, value in own.items() if key.strip() not in without}
    pairs = ",".join(f"{key}={value}" for key, value in (kept | dict(parameters)).items())
    return f"{name}:{pairs}" if pairs else name


def uneven_algorithms() -> tuple[str, ...]:
    """Return the names of the algorithms for all-to-alls with split sizes, the default first."""
    split = sorted(name for name, module in known_algorithms().items() if hasattr(module, "plan_uneven"))
    return (*PLAIN_UNEVEN, *split)


def default_uneven(even_algorithm: str) -> str:
    """Return the default algorithm of all-to-alls with split sizes.

    Args:
        even_algorithm: The algorithm of even all-to-alls as users write it, which is the default if it takes split
            sizes; "" = none.
    """
    does_both = hasattr(find_algorithm(even_algorithm.partition(":")[0]), "plan_uneven")
    return even_algorithm if does_both else PLAIN_UNEVEN[0]


def choose_uneven(spec: str) -> AlgorithmChoice | None:
    """Return the algorithm that `spec` names for all-to-alls with split sizes; None = one of `uneven`'s own.

    Raises WorkloadError: unknown algorithm or parameter, or a value of the wrong type or out of range.

    Args:
        spec: The algorithm as users write it: its name or file, with parameters if any, such as `ring:channels=4`.
    """
    if spec in PLAIN_UNEVEN:
        return None
    name = spec.partition(":")[0]
    if name in PLAIN_UNEVEN or not hasattr(find_algorithm(name), "plan_uneven"):
        raise WorkloadError(f"algorithm {spec!r} for {UNEVEN}: expected one of {', '.join(uneven_algorithms())}")
    return choose("all-to-all", spec)


def plan(kind: str, spec: str, members: int, shape: GroupShape | None = None, size_bytes: int = 0) -> Plans:
    """Return the steps of each member in a collective.

    Args:
        kind: The kind of collective, one of workload.KINDS.
        spec: The algorithm as users write it: its name or file, with parameters if any, such as `ring:channels=4`.
        members: The number of members of the group.
        shape: The positions of the group's members on the fabric; None if the algorithm does not need them.
        size_bytes: The size of the whole buffer in bytes.
    """
    return choose(kind, spec).plan(kind, members, shape, size_bytes)


def closed_form(
    kind: str,
    algorithm: str,
    members: int,
    size_bytes: int,
    latency_ps: float,
    bytes_per_s: float,
    shape: GroupShape | None = None,
) -> float:
    """Return the time of a collective on an idle network in picoseconds (see the module's docstring).

    Args:
        kind: The kind of collective, one of workload.KINDS.
        algorithm: The algorithm as users write it: its name or file, with parameters if any, such as `ring:channels=4`.
        members: The number of members of the group.
        size_bytes: The size of the whole buffer in bytes.
        latency_ps: The time of an empty message on an idle network in picoseconds.
        bytes_per_s: The rate at which every member sends and receives, in bytes per second.
        shape: The positions of the group's members on the fabric; None if the algorithm does not need them.
    """
    if members == 1:
        return 0.0
    chosen = choose(kind, algorithm)
    if not chosen.has_formula:
        raise WorkloadError(f"algorithm {algorithm!r} for {kind}: it has no closed form, expected one that has")
    return chosen.closed_form(kind, members, size_bytes, latency_ps, bytes_per_s, shape)


def _named_only(module: Algorithm, kind: str) -> bool:
    marked: bool | tuple[str, ...] = getattr(module, "NAMED_ONLY", False)
    return kind in marked if isinstance(marked, tuple) else marked


def _value(name: str, text: str, default: Value, limits: tuple | None) -> Value:
    """Return the text of parameter `name` as a value of its default's type; limits: range or words, None = any."""
    if isinstance(default, bool):
        if text not in {"true", "false"}:
            raise WorkloadError(f"{name} is {text!r}, expected true or false")
        return text == "true"
    if isinstance(default, str):
        if limits is not None and text not in limits:
            raise WorkloadError(f"{name} is {text!r}, expected one of {', '.join(limits)}")
        return text
    if isinstance(default, float):
        return _factor(name, text, limits)
    number = int(text) if text.removeprefix("-").isdecimal() and len(text) < _LONGEST_INT else None
    if number is None or (limits is not None and not limits[0] <= number <= limits[1]):
        between = f" from {limits[0]} to {limits[1]}" if limits else ""
        raise WorkloadError(f"{name} is {text!r}, expected a whole number{between}")
    return number


def _factor(name: str, text: str, limits: tuple | None) -> float:
    """Return the text of parameter `name` as a finite number within limits; None = any."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    low, high = limits or (-math.inf, math.inf)
    if not math.isfinite(number) or not low <= number <= high:
        raise WorkloadError(f"{name} is {text!r}, expected a number{f' from {low} to {high}' if limits else ''}")
    return number


# Number of digits from which a text is not accepted as an integer: all shorter numbers fit into 64 bits
_LONGEST_INT = 19
