"""Messages without a model as the work of a run file: random ones at a load, or a list of flows."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from nadi.configuration import bounds, named_files
from nadi.configuration.conditions import RANDOM, needs, takes
from nadi.configuration.values import FilePath, Moment, OptionalRate, Section
from nadi.workload.generators.point_to_point import EXPECTED, arrivals


def _known_process(text: str) -> str:
    """Return the text of an arrival process after a check of its form."""
    arrivals(text)
    return text


class TrafficSection(Section):
    """Messages between the ranks of a job; random ones go from each rank to random others."""

    sizes: Annotated[str | None, named_files.SIZES] = Field(
        None,
        description='sizes of random messages: "web-search", "hadoop", "storage", "data-mining", "1MiB", '
        '"uniform:64KiB-1MiB", or a file with lines of bytes and percentage',
    )
    load: float | None = Field(None, gt=0, le=2, description="share of its rate that each rank sends on average")
    rate: OptionalRate = Field(
        None, description="rate of a rank; default: of its links to the network (not to NVSwitches), all together"
    )
    duration: Moment | None = Field(None, description="time span in which random messages arrive")
    arrivals: Annotated[str, AfterValidator(_known_process), needs(RANDOM)] = Field(
        "poisson", description=f"times: {EXPECTED}"
    )
    seed: Annotated[int, needs(RANDOM)] = Field(
        1, ge=0, le=bounds.MAX_SEED, description="seed of times, sizes and receivers"
    )
    file: Annotated[FilePath | None, named_files.FILE] = Field(
        None, description="list of flows instead: CSV (.csv), ns-3's flow.txt (.txt), or htsim's matrix (.cm)"
    )
    queue_pairs: Annotated[Literal["message", "pair"], needs(*takes("queue_pairs"))] = Field(
        "message", description="queue pairs of these messages, in place of [network] queue_pairs"
    )

    @model_validator(mode="after")
    def _random_or_listed(self) -> Self:
        """Refuse sections without exactly one source of messages, or with keys that contradict it."""
        if (self.sizes is None) == (self.file is None):
            found = "both" if self.sizes is not None else "neither"
            raise ValueError(f"found {found} of sizes and file; expected one of them")
        of_random = ("load", "duration") if self.file is None else ("load", "duration", "rate")
        wrong = next((key for key in of_random if (getattr(self, key) is None) == (self.file is None)), None)
        if wrong is not None and self.file is None:
            raise ValueError(f"found sizes without {wrong}; expected load and duration beside them")
        if wrong is not None:
            raise ValueError(f"{wrong} is set beside file; expected sizes beside it")
        return self
