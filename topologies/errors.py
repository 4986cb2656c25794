"""The exception of this package."""


class TopologyError(ValueError):
    """A user-written topology cannot be built. Its text is one line; `exit_code` is that of user errors."""

    exit_code = 2
