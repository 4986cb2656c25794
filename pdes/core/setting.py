"""A setting of the engine: one name, one default, declared where it is read. Run files and their docs are made of it.

It is a field of a dataclass, `mtu_bytes: int = setting(4096, "payload of a full packet")`. A run file's key is the name
without its unit (`mtu`), since users write the unit with the value ("4KiB", "500ns", "400Gbps").
"""

from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

T = TypeVar("T")

UNITS = ("_bytes", "_ps", "_bps", "_packets")


@dataclass(frozen=True)
class Setting:
    """What a field is.

    Attributes:
        doc: in a line.
        unset: what users write for the default where that is no value, "auto" or "unlimited".
        is_given: run files have it; others are settled by who builds the settings.
        name: of the field, with its unit.
        default: used unless the run says otherwise.
    """

    doc: str
    unset: str = ""
    is_given: bool = True
    name: str = ""
    default: Any = None

    @property
    def unit(self) -> str:
        """The end of its name that says the unit; empty if it has none."""
        return next((unit for unit in UNITS if self.name.endswith(unit)), "")

    @property
    def key(self) -> str:
        """What run files call it."""
        return self.name.removesuffix(self.unit)


def setting(default: T, doc: str, unset: str = "", *, is_given: bool = True) -> T:
    """Declare a field of a dataclass that is a setting."""
    return field(default=default, metadata={"setting": Setting(doc, unset, is_given)})


def settings_of(owner: type) -> tuple[Setting, ...]:
    """All settings of a dataclass, in order; every field is one."""
    return tuple(replace(each.metadata["setting"], name=each.name, default=each.default) for each in fields(owner))
