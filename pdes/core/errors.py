"""How a run fails."""


class RunError(RuntimeError):
    """The run failed or cannot be done; the text is one line, or a list of who waits for whom."""

    exit_code = 1


class MemoryDamageError(RunError):
    """A kernel wrote past an end of an array: a defect of the engine, whose results must not be used."""


class AgreedRunError(RunError):
    """A failure that all ranks of a run have found alike."""

    agreed = True
