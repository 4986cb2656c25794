"""Foundations of the other rooms: compiled kernels, rows of state, hashes, heaps, queues of records, packets.

This module has what all of them share: the types of the engine's inputs by their fields (docs/reference/interfaces.md),
the declaration of settings, and the exceptions with which a run fails.
"""

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # at run time, any object with their fields works
    from nadi.topologies import Graph
    from nadi.workload import Program, Schedules
else:
    Graph = Program = Schedules = Any

Array = NDArray[Any]  # array of a type that the surrounding code defines
Rows = Any  # a recarray of a kind of row (pdes.core.rows); NumPy's types do not know the names of words
Record = Any  # one row of such a recarray
Bools = NDArray[np.bool_]
Int8 = NDArray[np.int8]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]


class Framing(Protocol):
    """The settings that determine the lengths of packets on a link."""

    @property
    def header_bytes(self) -> int: ...
    @property
    def ack_bytes(self) -> int: ...
    @property
    def nvlink_framing(self) -> bool: ...


# Settings of the engine: one name and one default, declared where the setting is read; the source of run-file keys.
#
# A setting is a field of a dataclass, `mtu_bytes: int = setting(4096, "payload of a full packet")`. Its key in a run
# file is the name without the unit (`mtu`), since users write the unit with the value ("4KiB", "500ns", "400Gbps").

T = TypeVar("T")

UNITS = ("_bytes", "_ps", "_bps", "_packets")  # suffixes of names that are units


@dataclass(frozen=True)
class Setting:
    """The declaration of a setting."""

    doc: str  # description in one line
    unset: str = ""  # word that users write for a default that is no value: "auto" or "unlimited"
    is_given: bool = True  # whether run files have the setting; the builder of the settings chooses others
    name: str = ""  # name of the field, with its unit
    default: Any = None
    type: Any = None  # type of the field

    @property
    def unit(self) -> str:
        """Unit suffix of the name; empty without one."""
        # "_bps" of "min_rate_bps": the first suffix that fits, none of which ends another
        return next((unit for unit in UNITS if self.name.endswith(unit)), "")

    @property
    def key(self) -> str:
        """Key in run files."""
        return self.name.removesuffix(self.unit)


def setting(default: T, description: str, unset: str = "", *, is_given: bool = True) -> T:
    """Declare a field of a dataclass that is a setting.

    Args:
        default: Value of the setting where users give none.
        description: Meaning of the setting, in one line.
        unset: Word that users write for a default that is no value ("auto", "unlimited"); "" = the default itself.
        is_given: Whether users can give the setting in a run file.
    """
    return field(default=default, metadata={"setting": Setting(description, unset, is_given)})


def settings_of(owner: type) -> tuple[Setting, ...]:
    """Return all settings of a dataclass, in order; every field is one.

    Args:
        owner: Dataclass whose fields are settings.
    """
    declared = [(item, item.metadata["setting"]) for item in fields(owner)]
    return tuple(replace(each, name=item.name, default=item.default, type=item.type) for item, each in declared)


# Exceptions with which a run fails.


class RunError(RuntimeError):
    """A run failed or is impossible; the text is one line, or a list of the rows that wait and for what."""

    exit_code = 1


class ImpossibleRunError(RunError):
    """Settings, fabric and program of a run do not go together: wrong input."""

    exit_code = 2


class MemoryDamageError(RunError):
    """A kernel wrote past an end of an array: a defect of the engine, whose results must not be used."""


class AgreedRunError(RunError):
    """A failure that every rank of a run has found and reports identically."""

    agreed = True
