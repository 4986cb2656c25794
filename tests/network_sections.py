"""The section [network] of a run without a run file."""

from nadi.configuration.run_file import collective_config


def network_section(overrides, spec="ring:npus=4"):
    """The [network] section of defaults, a cluster's if the fabric is one, and of "network.key=value"."""
    return collective_config(spec, overrides).network
