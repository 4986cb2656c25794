"""Exceptions with which a run fails."""


class RunError(RuntimeError):
    """A run failed or is impossible; the text is one line, or a list of the rows that wait and for what."""

    exit_code = 1


class ImpossibleRunError(RunError):
    """Settings, fabric and program of a run do not go together: wrong input."""

    exit_code = 2


class MemoryDamageError(RunError):
    """A kernel wrote past an end of an array: a defect of the engine, whose results must not be used."""


class AgreedRunError(RunError):
    """A failure that every rank of a run has found and reports identically."""

    agreed = True
