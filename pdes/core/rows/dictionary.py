"""The page docs/data-dictionary.md from the declarations of rows."""

from collections.abc import Iterable, Iterator

from pdes.core.rows.row import Kind, Row, Word


def documentation(kinds: Iterable[type[Row]]) -> str:
    """Markdown: what kinds of words there are, then a section for each kind of row, file by file."""
    return "\n".join([*_kinds_of_words(), *(line for kind in kinds for line in _section(kind))])


def _kinds_of_words() -> list[str]:
    rows = [f"| {kind.name.lower()} | {kind.value} |" for kind in Kind]
    return ["## Kinds of words", "", "| kind | what the word holds |", "| --- | --- |", *rows, ""]


def _section(kind: type[Row]) -> list[str]:
    doc = " ".join((kind.__doc__ or "").split())
    written = ", ".join(f"`{name}`" for name in kind.written_by)
    facts = f"{_size(kind)}, declared in `{_file(kind)}`, {'written by ' + written if written else 'read only'}."
    rows = ["| word | kind | meaning |", "| --- | --- | --- |", *_words(kind)]
    return [f"## {kind.__name__}", "", doc, "", facts[0].upper() + facts[1:], "", *rows, ""]


def _file(kind: type[Row]) -> str:
    return f"{kind.__module__.replace('.', '/')}.py"


def _size(kind: type[Row]) -> str:
    size = f"{kind.words} words ({kind.dtype.itemsize} bytes)"
    if any(declared.bits for declared in kind.declared.values()):
        return f"{kind.dtype.itemsize} bytes"
    used = sum(declared.many for declared in kind.declared.values())
    return size + f", {used} of them in use" * (used < kind.words)


def _words(kind: type[Row]) -> Iterator[str]:
    base = kind.__bases__[0]
    inherited: dict[str, Word] = getattr(base, "declared", {})
    if inherited:
        yield f"| ... | | as {base.__name__} |"
    for name, declared in kind.declared.items():
        if name in inherited or name.startswith("_"):
            continue
        many = f" [{declared.many}]" * (declared.many > 1)
        meaning = declared.meaning.replace("|", "\\|")
        bits = f", {declared.bits} bits" * (declared.bits > 0)
        yield f"| `{name}`{many} | {declared.kind.name.lower()}{bits} | {meaning} |"
