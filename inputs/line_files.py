"""Files of ns-3: a number of lines in the header, then the lines, then text that ns-3 does not read."""

from collections.abc import Sequence


def unread(path: object, lines: Sequence[tuple[int, str]], before: str) -> tuple[str, ...]:
    """Return a sentence about lines (number, text) that are not read, none without lines.

    Args:
        path: The file, for the text.
        lines: The number and the text of each line that is not read.
        before: The lines that the header counts and that precede these, such as "3 links".
    """
    if not lines:
        return ()
    number, text = lines[0]
    count = "1 line is" if len(lines) == 1 else f"{len(lines):,} lines are"
    return (
        f"{path}: {count} not read, from line {number} on ({text.strip()[:40]!r}), behind the {before} of the header",
    )
