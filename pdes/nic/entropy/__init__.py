"""Entropy rules: by which of its paths a queue pair sends its next packet. One file per rule.

`inputs.plug_ins` finds the files. A file holds TITLE and a hook `act(world_address, operation, pair, path, now_ps)`:

    PATH_CHOOSE     returns the path of the next packet, 0 to `Constants.paths` - 1; `path` is 1 if it is sent again
    PATH_GOOD       an acknowledgement without a mark of a packet that was sent by `path`
    PATH_MARKED     likewise with a mark, or a congestion notification
    PATH_TRIMMED    a switch has trimmed a packet on `path`
    PATH_DROPPED    a packet on `path` is considered lost, as others that were sent later have arrived
    PATH_TIMED_OUT  a packet on `path` has not arrived when the retransmission timer of the queue pair ran out
    PATH_FORGET     the queue pair was idle for a pause: the rule's own words begin anew; penalties above 0 are gone

    PATH_PROBE      returns a path to probe now, or -1; with PROBES = True, whenever the queue pair may send

LEARNS = True: the rule uses `Qps.penalty`, a number per path, and must know of lost packets. RECYCLES = True: it uses
`Qps.path_good`, SELECTIVE_PACKETS paths. Its own
words are those of a row derived from `PairPaths`.
"fixed", the default, sends all packets of a queue pair by one path.

An operator may deny planes, spines or paths (`denied_of`); the rule `mrc` never takes these.

Constants are those of htsim (ultraethernet/uet-htsim 40ccb05, sim/uec_mp.cpp), whose random numbers are hashes here.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from nadi.inputs import plug_ins
from nadi.pdes.core import RunError
from nadi.pdes.core.plug_ins import module_of
from nadi.pdes.core.rows.network import PairPaths


@dataclass(frozen=True)
class EntropyRule:
    """The entropy rule of a run."""

    name: str
    act: Callable | None  # hook, None for one path
    learns: bool = False  # it keeps a penalty per path, and learns of lost packets
    recycles: bool = False  # it keeps a queue of good paths
    probes: bool = False  # it probes paths that it does not use
    state: type[PairPaths] = PairPaths  # row of a queue pair, with the rule's own words


FIXED = EntropyRule("fixed", None)
MAX_PLANES, MAX_SPINES = 8, 256  # ports of a NIC and uplinks of a leaf that can be denied one by one
_DENIED = re.compile(r"plane ([0-7])(?: spine (\d{1,3}))?|spine (\d{1,3})|path (\d{1,3})")
KIND = "entropy rule"


def names() -> list[str]:
    """Return the names of all rules that a run may use."""
    return plug_ins.names(KIND)


def entropy_rule(name: str) -> EntropyRule:
    """Return the rule of a name or file; RunError if it is unknown or wrong."""
    if name == FIXED.name:
        return FIXED
    module = module_of(KIND, name, "act", parameters=5)
    flags = ("learns", "recycles", "probes")
    states = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, PairPaths)]
    # the class that the file declares; PairPaths itself, which the file may import, is the base of it
    state = next((kind for kind in states if kind is not PairPaths), PairPaths)
    return EntropyRule(name, module.act, state=state, **{flag: getattr(module, flag.upper(), False) for flag in flags})


def denied_of(names: Iterable[str]) -> list[tuple[int, int, int]]:
    """Return plane, spine of a plane, and path of each denial, -1 for each that it does not name.

    Args:
        names: Denials as "plane 1", "spine 3" of each plane, "plane 1 spine 3", or "path 5" of each queue pair.

    Raises RunError: one of them is wrong.
    """
    found = []
    for name in names:
        match = _DENIED.fullmatch(name)
        plane, own, spine, path = (int(text or -1) for text in match.groups()) if match else (-1, -1, -1, -1)
        if match is None or max(own, spine, path) >= MAX_SPINES:
            raise RunError(f'{name!r:.40}; expected "plane 1", "spine 3", "plane 1 spine 3" or "path 5"')
        found.append((plane, max(own, spine), path))
    return found
