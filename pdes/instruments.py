"""The inside of a run, for code that measures it: logical processes, windows, teams of workers and their parcels."""

from pdes.build.layout import Outboxes, Part, share
from pdes.build.simulation import LogicalProcess
from pdes.build.worlds import build_lps
from pdes.core.rows.workers import LINE_WORDS
from pdes.core.state import DONE, FAILED, FULL, world_at
from pdes.harvest.gathering import check, harvest, results
from pdes.harvest.stall import failed_queue_pair
from pdes.network.boundary import CROSSING_WORDS, HEADER_WORDS, WORD_BYTES
from pdes.nic.driven import has_shares, with_driven
from pdes.workers import team
from pdes.workers.crew import compile_kernels, make_room
from pdes.workers.exchange import ParcelExchange
from pdes.workers.other_teams import send_all, take_all
from pdes.workers.parcels import (
    BLOCK,
    PARCEL_HEADER,
    TAG_LP,
    Parcels,
    headers_of,
    no_parcels,
    pack,
    parcel_words,
    unpack,
)
from pdes.workers.team import (
    ABORTED,
    ARRIVED,
    PACKED,
    PUBLISHED,
    WORKER_WORDS,
    Meeting,
    await_word,
    found_team,
    meeting_at,
    new_crew,
    settle,
    team_in,
    team_words,
)
