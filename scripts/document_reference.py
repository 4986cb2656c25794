"""Generate the parts of docs/ that the code declares: the page of commands, and tables inside hand-written pages.

mkdocs calls `on_files` and `on_page_markdown` while it builds the site (`make docs`); nothing is written into docs/.
A page asks for a table with a line such as `<!-- generated: keys network -->`; the names are those of `TABLES`.
"""
# ruff: noqa: ANN401 - typer declares no types for commands and options, mkdocs none for its configuration

import ast
import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, get_args

import typer
from mkdocs.structure.files import File

from nadi.cli.commands import build_app
from nadi.compiling import kernel_cache
from nadi.configuration.run_config import RunConfig
from nadi.configuration.sections import SETTINGS, given_default
from nadi.configuration.work import WorkloadSection
from nadi.energy import table_documentation as energy_table
from nadi.pdes.core.declared import saved_arrays
from nadi.pdes.core.rows import Word, kinds_of_rows
from nadi.pdes.kernels import Row, WordKind
from nadi.simulation.network_settings import documentation as fidelities
from nadi.simulation.schemas import documentation as result_columns

_COMMANDS = """# Commands

This page lists every command of `nadi` with its arguments and options, as `nadi COMMAND --help` prints them. It is
generated from the command line itself when the site is built.
"""
_MARKER = re.compile(r"^<!-- generated: ([\w ]+) -->$", re.MULTILINE)


def commands_page() -> str:
    """Return the page of all commands."""
    parts = [_COMMANDS]
    for name, command in commands_of(typer.main.get_command(build_app())):
        parts.append(f"## nadi {name}\n")
        parts.append(_prose(command.help) + "\n")
        options = [
            _option(option)
            for option in command.params
            if option.name != "help" and not getattr(option, "hidden", False)
        ]
        if options:
            head = ["| argument or option | default | meaning |", "| --- | --- | --- |"]
            parts.append("\n".join([*head, *options]) + "\n")
    return "\n".join(parts)


def commands_of(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield each visible command of a Typer group with its full name (`trace show`); path: names of groups above."""
    for name, command in sorted(group.commands.items()):
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from commands_of(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


def _option(option: Any) -> str:
    """Return the table row of an argument or option."""
    is_option = option.opts[0].startswith("-")
    metavar = option.metavar or ("" if not is_option or option.is_flag else option.name.upper())
    names = ", ".join([*option.opts, *option.secondary_opts]) if is_option else metavar or option.name.upper()
    usage = f"{names} {metavar}".strip() if is_option else names
    return f"| `{usage.replace('|', '/')}` | {_default(option)} | {_prose(option.help or '')} |"


def _default(option: Any) -> str:
    """Return the default of an argument or option; "" if it has no useful one."""
    value = option.default
    if option.required:
        return "required"
    if value is None or value is False or value in ("", (), []) or callable(value):
        return ""
    return f"`{'yes' if value is True else value}`"


def _prose(text: str | None) -> str:
    """Return a help text as Markdown: the lines of each paragraph joined, special characters escaped."""
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n", (text or "").strip().split("\f")[0])]
    return "\n\n".join(paragraphs).replace("|", "\\|").replace("<", "&lt;").replace("[", "\\[")


def keys_table(section: str) -> str:
    """Return the Markdown table of a run file's section, a key per row with its default and meaning."""
    field = (WorkloadSection if section in WorkloadSection.model_fields else RunConfig).model_fields[section]
    model = next(each for each in (*get_args(field.annotation), field.annotation) if hasattr(each, "model_fields"))
    has_defaults = not field.is_required() and model is field.annotation  # a run file may lack the section
    defaults = model().model_dump(mode="json") if has_defaults else {}
    rows = [_key(section, key, declaration, defaults) for key, declaration in model.model_fields.items()]
    return "\n".join(["| key | default | meaning |", "| --- | --- | --- |", *rows]) + "\n"


def _key(section: str, key: str, field: Any, defaults: Mapping[str, Any]) -> str:
    """Return the table row of a section's key; field: its pydantic field, defaults: default values by key."""
    if field.is_required():
        default = "required"
    else:
        value = defaults.get(key, field.get_default(call_default_factory=True))
        if value is None and section in {"network", "system", "engine"} and key in SETTINGS:
            value = given_default(key)
        default = "none" if value is None or value == "none" else f"`{_shown(value)}`"
    return f"| `{key}` | {default} | {_prose(field.description)} |"


def _shown(value: Any) -> str:
    """Return a value as a run file writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(getattr(value, "value", value)).replace("|", "\\|")


def engine_rows() -> str:
    """Return the sections of the data dictionary for all rows that kernels use."""
    for module in kernel_cache.modules():
        importlib.import_module(module)
    return documentation_of_rows(kinds_of_rows())


def checkpoint_arrays() -> str:
    """Return the table of the arrays that a checkpoint holds."""
    by: dict[str, list[str]] = {}
    for each in saved_arrays():
        by.setdefault(each.by, []).append(f"`{each.name}`")
    lines = ["| by | arrays |", "| --- | --- |", *(f"| {what} | {', '.join(names)} |" for what, names in by.items())]
    return "\n".join(lines)


def documentation_of_rows(kinds: Iterable[type[Row]]) -> str:
    """Return Markdown: the kinds of words, then a section for each kind of row, file by file."""
    words = ["## Kinds of words", "", "| kind | what the word holds |", "| --- | --- |"]
    words += [*(f"| {kind.name.lower()} | {kind.value} |" for kind in WordKind), ""]
    return "\n".join([*words, *(line for kind in kinds for line in _section(kind))])


def _section(kind: type[Row]) -> list[str]:
    """Return the lines of the data dictionary about one kind of row."""
    doc = " ".join((kind.__doc__ or "").split())
    written = ", ".join(f"`{name}`" for name in _writers().get(kind, ()))
    facts = f"{_size(kind)}, declared in `{_file(kind)}`{', written by ' + written if written else ''}."
    rows = ["| word | kind | meaning |", "| --- | --- | --- |", *_words(kind)]
    return [f"## {kind.__name__}", "", doc, "", facts[0].upper() + facts[1:], "", *rows, ""]


@cache
def _writers() -> dict[type[Row], list[str]]:
    """Return the modules of the engine that assign words of each kind of row whose names no other kind has."""
    kinds: dict[str, set[type[Row]]] = {}
    for kind in kinds_of_rows():
        for name in kind.declared.keys() - getattr(kind.__bases__[0], "declared", {}).keys():
            kinds.setdefault(name, set()).add(kind)
    found: dict[type[Row], list[str]] = {}
    root = Path(__file__).parents[1]
    for path in sorted((root / "pdes").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        stored = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)}
        for kind in {kind for name in stored if len(kinds.get(name, ())) == 1 for kind in kinds[name]}:
            found.setdefault(kind, []).append(str(path.relative_to(root)))
    return found


def _file(kind: type[Row]) -> str:
    root = Path(__file__).parents[1]
    return str(
        (root / f"{kind.__module__.replace('.', '/')}.py").resolve().relative_to(root)
    )  # "pdes", not "nadi/pdes"


def _size(kind: type[Row]) -> str:
    """Return the size of a kind of row as text."""
    size = f"{kind.words} words ({kind.dtype.itemsize} bytes)"
    if any(declared.bits for declared in kind.declared.values()):
        return f"{kind.dtype.itemsize} bytes"
    used = sum(declared.many for declared in kind.declared.values())
    return size + f", {used} of them in use" * (used < kind.words)


def _words(kind: type[Row]) -> Iterator[str]:
    """Yield the table rows of the words that a kind of row adds to those of its base."""
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


PAGES: dict[str, Callable[[], str]] = {"reference/commands.md": commands_page}
"""Generated pages: path in docs/, and the function that returns the text."""
TABLES: dict[str, Callable[[], str]] = {
    "columns of results": result_columns,
    "energy table": energy_table,
    "fidelities": fidelities,
    "arrays of checkpoints": checkpoint_arrays,
    "rows of the engine": engine_rows,
    **{f"keys {section}": partial(keys_table, section) for section in (*RunConfig.model_fields, "traffic")},
}
"""Generated parts of pages: name in the marker, and the function that returns the text."""


def with_tables(markdown: str) -> str:
    """Return a page's text with each marker replaced by what it names; an unknown name raises KeyError.

    Args:
        markdown: The text of the page, with markers.
    """
    return _MARKER.sub(lambda marker: TABLES[marker[1]](), markdown)


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages to the files of the site, and return these (a hook of mkdocs)."""
    for path, page in PAGES.items():
        files.append(File.generated(config, path, content=page()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill in the tables of a page (a hook of mkdocs)."""
    return with_tables(markdown)
