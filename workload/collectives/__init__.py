"""Collective algorithms, one module each, found here by looking into this folder.

A module has

- `NAME`, as users write it,
- `KINDS`, the kinds of collectives that it does (see workload.kinds),
- `plan(kind, members) -> Plans` for members >= 1,
- `closed_form(kind, members, size_bytes, latency_ps, bytes_per_s) -> float`: picoseconds on an idle network in which
  a message of b bytes takes latency_ps + b / bytes_per_s, every NPU sends and receives one message at a time at that
  rate, and nothing else limits. size_bytes is the whole buffer S of docs/interfaces.md.

Buffers: all-reduce, reduce, broadcast and barrier work on all of S at each member. Of the others, member m owns the
m-th of n equal parts: all-gather and gather begin with the own part and end with all parts; reduce-scatter and scatter
begin with all parts and end with the own one, summed or the root's; all-to-all sends part i to member i and ends with
part i from member i in a second buffer. The root is member 0: traces name none.
"""

import functools
import importlib
import pkgutil
from typing import Protocol, cast

from workload.errors import WorkloadError
from workload.kinds import kind_index
from workload.plans import Plans

PREFERRED = "ring"


class Algorithm(Protocol):
    """What a module of this folder has."""

    NAME: str
    KINDS: tuple[str, ...]

    @staticmethod
    def plan(kind: str, members: int) -> Plans:
        """What each member does."""

    @staticmethod
    def closed_form(kind: str, members: int, size_bytes: int, latency_ps: float, bytes_per_s: float) -> float:
        """Picoseconds on an idle network."""


@functools.cache
def algorithms() -> dict[str, Algorithm]:
    """All algorithms by name."""
    modules = (importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__))
    return {module.NAME: cast("Algorithm", module) for module in modules}


def algorithms_of(kind: str) -> tuple[str, ...]:
    """Names of the algorithms that do a kind.

    Raises:
        WorkloadError: unknown kind.
    """
    kind_index(kind)
    return tuple(sorted(name for name, module in algorithms().items() if kind in module.KINDS))


def default_algorithm(kind: str) -> str:
    """The algorithm that a kind gets unless told otherwise: ring where it exists, else the first.

    Raises:
        WorkloadError: unknown kind.
    """
    known = algorithms_of(kind)
    return PREFERRED if PREFERRED in known else known[0]


def algorithm(kind: str, name: str) -> Algorithm:
    """The algorithm `name`, which does `kind`.

    Raises:
        WorkloadError: unknown kind or algorithm, or one that does not do this kind.
    """
    known = algorithms_of(kind)
    if name not in known:
        raise WorkloadError(f"algorithm {name!r} for {kind}: expected one of {', '.join(known)}")
    return algorithms()[name]


def plan(kind: str, name: str, members: int) -> Plans:
    """What each member does in a collective.

    Raises:
        WorkloadError: as `algorithm`; or less than one member.
    """
    module = algorithm(kind, name)
    if members < 1:
        raise WorkloadError(f"{kind} of {members} members: expected at least 1")
    return module.plan(kind, members)


def closed_form(kind: str, name: str, members: int, size_bytes: int, latency_ps: float, bytes_per_s: float) -> float:
    """Picoseconds that a collective takes on an idle network, see above.

    Raises:
        WorkloadError: as `algorithm`.
    """
    if members == 1:
        return 0.0
    return algorithm(kind, name).closed_form(kind, members, size_bytes, latency_ps, bytes_per_s)
