"""What `nadi trace check` prints."""

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

import inputs
from et.checking.finding import SEVERITIES, Example
from et.checking.mending import TraceFix
from et.checking.report import CheckReport

_STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}


def render(report: CheckReport, most: int, mends: Sequence[TraceFix] | None) -> RenderableType:
    """Sorts of findings, the most severe first, with so many examples of each; before them what was mended."""
    lines: list[RenderableType] = []
    for what, count, examples in _by_sort(mends or ()):
        lines += [Text(f"mended   {count:,} {what}"), *_examples(examples, count, most)]
    if mends is not None and not mends:
        lines.append(Text("mended   nothing"))
    for sort in report.groups:
        head = Text(f"{sort.severity:<8} ", style=_STYLES[sort.severity])
        head.append(f"{sort.check}: {sort.count:,} {sort.what}", style="none")
        lines += [head, *_examples(sort.examples, sort.count, most)]
    counts = ", ".join(_counted(report.count(severity), severity) for severity in SEVERITIES)
    size = f"{_counted(report.traces, 'distinct trace')}, {_counted(report.nodes, 'node')}"
    return Group(*lines, Text(inputs.shown(f"{report.path}: {counts}; {size}")))


def _by_sort(mends: Iterable[TraceFix]) -> list[tuple[str, int, list[Example]]]:
    """Mends of all files, those of a sort together."""
    found: dict[str, tuple[int, list[Example]]] = {}
    for mend in mends:
        count, examples = found.get(mend.what, (0, []))
        found[mend.what] = count + mend.count, [*examples, *mend.examples]
    return [(what, count, examples) for what, (count, examples) in found.items()]


def _examples(examples: Sequence[Example], count: int, most: int) -> list[RenderableType]:
    shown = [Text(f"         {inputs.shown(str(example))}") for example in examples[:most]]
    more = count - len(shown)
    return [*shown, *([Text(f"         and {more:,} more")] if more > 0 and most else [])]


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"
