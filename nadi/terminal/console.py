"""What prints tables: a rich Console that takes all text as it is."""

from typing import Any

from rich.console import Console
from rich.text import Text

from inputs.names import shown
from nadi.terminal.printing import plain


class Terminal(Console):
    """A Console without markup, emoji or escape sequences in text, that prints on any terminal.

    A name of a file or node may be "[red]", ":bomb:" or hold the bytes that clear a screen: strings are shown as they
    are, control characters as escapes. Where something is to be bold, a `Text` or a style says so.
    """

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - those of Console
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:  # type: ignore[override]  # noqa: ANN401 - same
        """A string as Text; tables measure it, so what the terminal lacks is replaced before."""
        return super().render_str(plain(shown(text, lines=True), self.encoding), **options)
