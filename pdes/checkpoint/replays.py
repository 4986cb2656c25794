"""What exact reuse (pdes/reuse) holds in Python, as values of a checkpoint: records, and NVLink domains of an LP."""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any, cast

import numpy as np

from nadi.pdes.checkpoint.values import packed, unpacked
from nadi.pdes.construction.simulation import LogicalProcess
from nadi.pdes.reuse.episodes import EpisodeRecord, Messages
from nadi.pdes.reuse.open_episodes import DomainState, Group, OpenEpisode, Running
from nadi.pdes.reuse.own_world import Collective, Episode, Member
from nadi.pdes.reuse.records import Records
from nadi.pdes.reuse.replay import Replay

KINDS = (Episode, Collective, Member, EpisodeRecord, Messages)
COUNTS = (
    "simulated",
    "replayed",
    "disturbed",
    "simulated_hops",
    "replayed_hops",
    "replayed_messages",
    "repeated_periods",
    "repeated_hops",
    "near_periods",
    "near_ps",
    "near_error_ps",
)
TIMES = ("begin_ps", "busy_until_ps")  # of OpenEpisode
RUNNING = [each.name for each in fields(Running) if each.name != "group"]


def records_packed(records: Records, arrays: list[np.ndarray]) -> Any:
    """Return the records of a process and its counts as JSON, with their arrays in `arrays` (`packed`)."""
    counts = {name: getattr(records, name) for name in COUNTS}
    return {"counts": counts, "records": packed(dict(records.kept()), arrays)}


def load_records(records: Records, document: Any, arrays: Sequence[np.ndarray], *, counts: bool, kept: bool) -> None:
    """Add to the records of a process those of a saved one, if `kept`, and its counts, if `counts`.

    Args:
        records: Records of memoised collectives of this process, which the function changes.
        document: The saved value as JSON; arrays are named by their index in `arrays`.
        arrays: Saved arrays to which the document refers.
        counts: Whether to add the saved counts.
        kept: Whether to add the saved records.
    """
    if kept:
        records.keep(unpacked(document["records"], arrays, KINDS).items())
    for name in COUNTS if counts else ():
        setattr(records, name, getattr(records, name) + document["counts"][name])


def domains_packed(lp: LogicalProcess, arrays: list[np.ndarray]) -> Any:
    """Return the collectives under way in an LP's domains as JSON and `arrays`; None without replayed domains.

    Args:
        lp: The logical process.
        arrays: List to which the function appends the arrays of the document.
    """
    replay = cast("Replay | None", lp.replay)
    return None if replay is None else [_domain_packed(state, arrays) for state in replay.domains]


def _domain_packed(state: DomainState, arrays: list[np.ndarray]) -> Any:
    def collectives(several: Iterable[Running]) -> Any:
        return [[one.group.number, *(packed(getattr(one, name), arrays) for name in RUNNING)] for one in several]

    return [
        {
            "running": collectives(episode.running),
            "partial": collectives(episode.partial),
            "record": packed(episode.record, arrays),
            **{name: int(getattr(episode, name)) for name in TIMES},
        }
        for episode in state.episodes
    ]


def load_domains(lp: LogicalProcess, document: Any, arrays: Sequence[np.ndarray]) -> None:
    """Restore the collectives under way in an LP's domains.

    Args:
        lp: The logical process.
        document: The saved value as JSON; arrays are named by their index in `arrays`.
        arrays: Saved arrays to which the document refers.
    """
    replay = cast("Replay | None", lp.replay)
    if replay is None or document is None:
        return
    for state, saved in zip(replay.domains, document, strict=True):
        load_domain(state, saved, arrays)


def load_domain(state: DomainState, saved: Any, arrays: Sequence[np.ndarray]) -> None:
    """Restore the collectives under way in a domain.

    Args:
        state: State of the domain, which the function changes.
        saved: Collectives under way in the domain as JSON.
        arrays: Saved arrays to which the document refers.
    """
    groups = {group.number: group for group in state.groups}
    state.episodes = []
    for one in saved:
        running, partial = ([_running(groups, each, arrays) for each in one[name]] for name in ("running", "partial"))
        record = unpacked(one["record"], arrays, KINDS)
        state.episodes.append(OpenEpisode(running, partial, one["begin_ps"], one["busy_until_ps"], record))


def _running(groups: dict[int, Group], saved: Sequence[Any], arrays: Sequence[np.ndarray]) -> Running:
    number, *values = saved
    return Running(groups[number], *(unpacked(each, arrays, KINDS) for each in values))
