"""Text of `nadi trace check`."""

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

import inputs
from et.checking.finding import SEVERITIES, CheckReport, Example
from et.checking.fixing import TraceFix

_STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}


def render(report: CheckReport, max_examples: int, fixes: Sequence[TraceFix] | None) -> RenderableType:
    """Return the fixes, then the findings by sort, the most severe first, with up to `max_examples` examples each."""
    lines: list[RenderableType] = []
    for what, count, examples in _by_sort(fixes or ()):
        lines += [Text(f"fixed    {count:,} {what}"), *_examples(examples, count, max_examples)]
    if fixes is not None and not fixes:
        lines.append(Text("fixed    nothing"))
    for group in report.groups:
        head = Text(f"{group.severity:<8} ", style=_STYLES[group.severity])
        head.append(f"{group.check}: {group.count:,} {group.what}", style="none")
        lines += [head, *_examples(group.examples, group.count, max_examples)]
    counts = ", ".join(_counted(report.count(severity), severity) for severity in SEVERITIES)
    size = f"{_counted(report.traces, 'distinct trace')}, {_counted(report.nodes, 'node')}"
    return Group(*lines, Text(inputs.shown(f"{report.path}: {counts}; {size}")))


def _by_sort(fixes: Iterable[TraceFix]) -> list[tuple[str, int, list[Example]]]:
    """Return the fixes of all files, grouped by sort."""
    found: dict[str, tuple[int, list[Example]]] = {}
    for fix in fixes:
        count, examples = found.get(fix.what, (0, []))
        found[fix.what] = count + fix.count, [*examples, *fix.examples]
    return [(what, count, examples) for what, (count, examples) in found.items()]


def _examples(examples: Sequence[Example], count: int, max_examples: int) -> list[RenderableType]:
    """Return a line per example, up to a maximum, and the number of the others among `count`."""
    shown = [Text(f"         {inputs.shown(str(example))}") for example in examples[:max_examples]]
    more = count - len(shown)
    return [*shown, *([Text(f"         and {more:,} more")] if more > 0 and max_examples else [])]


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"
