"""A rich Console that prints all text literally."""

from typing import Any

from rich.console import Console
from rich.text import Text

from inputs.names import shown
from nadi.terminal.printing import plain


class Terminal(Console):
    """A Console that interprets no markup, emoji codes or escape sequences, and prints on any terminal.

    The name of a file or node may be "[red]" or ":bomb:", or may contain bytes that clear a screen. This console prints
    strings literally and control characters as escapes. Use a `Text` or a style for bold text.
    """

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - the options of Console
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:  # type: ignore[override]  # noqa: ANN401 - same
        """Return a string as Text without characters that the terminal lacks, because tables measure the result."""
        return super().render_str(plain(shown(text, lines=True), self.encoding), **options)
