"""A ring of NPUs: each is linked to the next, the last to the first."""

from nadi.topologies.builders.stack import OneDimension, one_dimension

Arguments = OneDimension
build, extent = one_dimension("Ring")  # packets take the shorter way round
