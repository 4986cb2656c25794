"""Open episodes of an NVLink domain: which of the collectives under way affect each other.

Collectives affect each other if they overlap in time and share members, directly or through others: each link of a
domain is that of one member to the NVSwitch, whose ports do not depend on each other.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from nadi.pdes.construction.domains import Domain
from nadi.pdes.core import Int64, state as s
from nadi.pdes.reuse import Collective, EpisodeRecord


class Start(NamedTuple):
    """The start of a collective at a member."""

    start_ps: int
    order: int  # of the starts in the LP
    node: int
    row: int  # trace row
    slot: int


@dataclass(eq=False)
class Group:
    """A group within a domain; columns by member, aggregators last."""

    number: int
    npus: Int64  # NPUs
    places: tuple[int, ...]  # places among the domain's NPUs
    nodes: Int64  # nodes of the LP
    slots: Int64  # slots of the group
    real: int  # members that are no aggregators


@dataclass(eq=False)
class Running:
    """A collective of a group that members have started; columns by member that takes part, -1 = not started."""

    # `start_ps` and `end_ps` are of this run, in ps since its begin; an episode's record has times since the episode's
    # begin
    group: Group
    seq: int
    collective: Collective
    first_ps: int  # earliest time at which it sends
    rows: Int64  # trace row
    start_ps: Int64
    order: Int64  # order of the starts in the LP
    end_ps: Int64

    @property
    def is_complete(self) -> bool:
        """Whether all members have started."""
        return bool((self.start_ps >= 0).all())

    @property
    def slots(self) -> Int64:
        """Slots of the group."""
        return self.group.slots[: len(self.rows)]

    @property
    def nodes(self) -> Int64:
        """Nodes of the LP."""
        return self.group.nodes[: len(self.rows)]


@dataclass(eq=False)
class OpenEpisode:
    """Collectives under way that affect each other: each shares members with another one."""

    running: list[Running]  # collectives that all members have started
    partial: list[Running] = field(default_factory=list)  # others that meet them
    begin_ps: int = 0
    busy_until_ps: int = s.INF  # time until which it affects what starts on its links
    record: EpisodeRecord | None = None

    @property
    def together(self) -> list[Running]:
        """All its collectives."""
        return [*self.running, *self.partial]

    @property
    def places(self) -> tuple[int, ...]:
        """Places of all members among the domain's NPUs, ascending."""
        return tuple(sorted({place for one in self.together for place in one.collective.places}))

    def meets(self, places: Iterable[int]) -> bool:
        """Whether it has a member at one of these places."""
        return not set(self.places).isdisjoint(places)


def first_sent(one: Running) -> tuple[int, tuple[int, ...]]:
    """Return by what the collectives of an episode are in order: the first time at which they send, and members.

    Args:
        one: Collective of the episode.
    """
    return one.first_ps, one.group.places


@dataclass(eq=False)
class DomainState:
    """Groups of a domain, and the episodes under way in it."""

    number: int
    domain: Domain
    groups: list[Group]
    episodes: list[OpenEpisode] = field(default_factory=list)

    def add(self, one: Running) -> list[OpenEpisode]:
        """Add a collective that all members have started; return the episodes on its links that are over, removed.

        Args:
            one: A collective that all members have started.
        """
        over: list[OpenEpisode] = []
        running = [one]
        for other in [other for other in self.episodes if other.meets(one.collective.places)]:
            self.episodes.remove(other)
            # nothing of the other is on the links any more
            # Example: A on GPUs 0 to 3 ends at 10 us, and ties are forgotten at 11 us. B on GPUs 2 to 5 that first
            # sends at 12 us finds idle links: A is over. At 9 us it would meet A's packets: both become one episode,
            # which is simulated together.
            if one.first_ps > other.busy_until_ps and not other.partial:
                over.append(other)
            else:
                running += other.running
        self.episodes.append(OpenEpisode(sorted(running, key=first_sent)))
        return over

    def take_in(self, episode: OpenEpisode, partial: list[Running]) -> bool:
        """Add to an episode what meets it of the collectives that some members have started; return if it changes.

        Other episodes that these collectives meet become parts of it. One that changes has no record.

        Args:
            episode: Episode that may grow.
            partial: Collectives that some members have started.
        """
        meets: list[Running] = []
        others: list[OpenEpisode] = []
        places = {place for one in episode.running for place in one.collective.places}
        # a collective that is taken in may meet further ones, and so on until none does
        grows = True
        while grows:
            grows = False
            for one in partial:
                overlaps = one.first_ps <= episode.busy_until_ps and not places.isdisjoint(one.collective.places)
                if overlaps and one not in meets:
                    meets.append(one)
                    places.update(one.collective.places)
                    grows = True
            for other in self.episodes:
                overlaps = any(
                    one.first_ps <= other.busy_until_ps and other.meets(one.collective.places) for one in meets
                )
                if overlaps and other is not episode and other not in others:
                    others.append(other)
                    places.update(other.places)
                    grows = True
        # a fixed order, so that equal episodes have equal keys
        meets.sort(key=first_sent)
        known = [(one.group, one.start_ps.tolist()) for one in episode.partial]
        if not others and known == [(one.group, one.start_ps.tolist()) for one in meets]:
            return False
        for other in others:
            self.episodes.remove(other)
        episode.running = sorted(
            [*episode.running, *(one for other in others for one in other.running)], key=first_sent
        )
        episode.partial, episode.record = meets, None
        return True

    def give_up(
        self, places: Iterable[int], started: list[Running], now_ps: int
    ) -> tuple[list[OpenEpisode], list[OpenEpisode], list[Running], list[Running]]:
        """Remove all that shares members with packets at these places, directly or through others.

        started: collectives that are in no episode. Returns the removed episodes that are over at now_ps, and the
        others; then those of `started` that are removed, and that stay.
        """
        over: list[OpenEpisode] = []
        disturbed: list[OpenEpisode] = []
        lost: list[Running] = []
        touched, stay = set(places), list(started)
        # what is removed touches further members, and so on until nothing new is found
        grows = True
        while grows:
            grows = False
            for episode in [episode for episode in self.episodes if episode.meets(touched)]:
                self.episodes.remove(episode)
                # its packets are gone, so its replay stays as it is
                if episode.busy_until_ps < now_ps and not episode.partial:
                    over.append(episode)
                    continue
                disturbed.append(episode)
                touched.update(episode.places)
                grows = True
            for one in [one for one in stay if not touched.isdisjoint(one.collective.places)]:
                stay.remove(one)
                lost.append(one)
                touched.update(one.collective.places)
                grows = True
        return over, disturbed, lost, stay
