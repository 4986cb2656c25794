"""A link between every two NPUs."""

from nadi.topologies.builders.stack import OneDimension, one_dimension

Arguments = OneDimension
build, extent = one_dimension("FullyConnected")  # every packet takes one link
