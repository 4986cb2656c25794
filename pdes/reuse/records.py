"""The records of a process's episodes: each is simulated once, the least recently used are dropped."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable

from nadi.pdes.reuse.episodes import Episode, EpisodeRecord

MAX_BYTES = 1 << 30  # memory of all records of a process
TRIED = 64  # episodes, replayed or disturbed, after which it is known whether replay is worth its search
HOPS_OF_REPLAY, HOPS_OF_WORLD = 4_000, 100_000  # packet-hops that take as long as a replay, and as a world's building


class Records:
    """Records of episodes, shared by the workers of a process."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        """Begin without records; max_bytes: memory that they may take together."""
        self.simulated = 0  # episodes
        self.replayed = 0
        self.disturbed = 0  # episodes that went on as packets
        self.simulated_hops = 0  # packet-hops
        self.replayed_hops = 0
        self.replayed_messages = 0
        self.repeated_periods = 0  # periods of the whole run that were counted, not simulated
        self.repeated_hops = 0
        self.near_periods = 0  # those of them that are only nearly like simulated ones, by fast-forward
        self.near_ps = 0  # simulated time of these
        self.near_error_ps = 0  # by how much they may be longer or shorter together, as simulated ones differ
        self.size_bytes = 0
        self._max_bytes = max_bytes
        self._records: OrderedDict[Episode, EpisodeRecord] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, episode: Episode, simulate: Callable[[Episode], EpisodeRecord]) -> EpisodeRecord:
        """Return the record of an episode, by `simulate` if there is none yet."""
        with self._lock:
            record = self._records.get(episode)
            if record is not None:
                self._records.move_to_end(episode)
                return record
        # without the lock: others may simulate meanwhile, at worst the same episode
        record = simulate(episode)
        with self._lock:
            self.simulated += 1
            self.simulated_hops += record.hops
        self.keep([(episode, record)])
        return record

    def keep(self, records: Iterable[tuple[Episode, EpisodeRecord]]) -> None:
        """Keep records of episodes, in the order of their last use, as far as there is room."""
        with self._lock:
            for episode, record in records:
                # another worker may have simulated the same episode meanwhile: the first record stays
                if episode not in self._records:
                    self._records[episode] = record
                    self.size_bytes += record.size_bytes
            # the first entry is the one that was used longest ago
            while self.size_bytes > self._max_bytes and len(self._records) > 1:
                self.size_bytes -= self._records.popitem(last=False)[1].size_bytes

    def kept(self) -> list[tuple[Episode, EpisodeRecord]]:
        """Return the records that are kept, in the order of their last use."""
        with self._lock:
            return list(self._records.items())

    def count_replay(self, record: EpisodeRecord) -> None:
        """Count an episode that is over.

        Args:
            record: The episode's record.
        """
        with self._lock:
            self.replayed += 1
            self.replayed_hops += record.hops
            self.replayed_messages += record.message_count

    def count_disturbed(self, episodes: int) -> None:
        """Count episodes that continue as packets; episodes: number of episodes."""
        with self._lock:
            self.disturbed += episodes

    def count_periods(self, before: dict[str, int], periods: int, hops: int) -> None:
        """Count periods of the whole run, with `hops` packet-hops in all; before: `counts` one period ago."""
        self.repeated_periods += periods
        self.repeated_hops += hops
        # each of the periods replays as many messages as the one that was simulated
        self.replayed_messages += periods * (self.replayed_messages - before["replayed_messages"])

    def count_near(self, periods: int, length_ps: int, spread_ps: int) -> None:
        """Count periods that are length_ps long, as others are that differ by at most spread_ps."""
        self.near_periods += periods
        self.near_ps += periods * length_ps
        self.near_error_ps += periods * spread_ps

    def counts(self) -> dict[str, int]:
        """Return the counts of `Results.reuse`."""
        return {
            "episodes_simulated": self.simulated,
            "episodes_replayed": self.replayed,
            "episodes_disturbed": self.disturbed,
            "episode_hops": self.simulated_hops,
            "replayed_hops": self.replayed_hops,
            "replayed_messages": self.replayed_messages,
            "repeated_periods": self.repeated_periods,
            "repeated_hops": self.repeated_hops,
            "near_periods": self.near_periods,
            "near_ps": self.near_ps,
            "near_error_ps": self.near_error_ps,
            "record_bytes": self.size_bytes,
        }

    @property
    def is_in_vain(self) -> bool:
        """Whether replay takes longer than the packets that it saves."""
        # An episode whose world is built also counts twice the packets that its world then simulates: it may be one of
        # those that are simulated again, as another collective joins it.
        # Example: 100 replays of 10,000 hops save 1,000,000; 20 worlds that simulated 200,000 hops cost 400,000 again,
        # 100 x 4,000 for the replays and 20 x 100,000 for the worlds: in vain.
        saved_hops = self.replayed_hops - 2 * self.simulated_hops
        tried = self.replayed + self.disturbed
        return tried >= TRIED and saved_hops < HOPS_OF_REPLAY * tried + HOPS_OF_WORLD * self.simulated
