"""Write the reference pages that are made of the code: all commands, and all keys of run files.

    python scripts/document_reference.py

That is docs/commands.md, of the command line as typer has it, and docs/run-file-keys.md, of the models in
nadi/configuration/sections.py. tests/docs/test_reference.py compares both with the code.
"""
# ruff: noqa: ANN401 - commands and options of typer have no types that it would promise

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import typer

from nadi.cli.app import build_app
from nadi.configuration.sections import SETTINGS, RunConfig, given_default

DOCS = Path(__file__).parents[1] / "docs"
_COMMANDS = """# Commands

For people who know what they want to do and ask how the command is called. Each command says the same with `--help`.

Made by scripts/document_reference.py of the command line itself; change the command, not this page.
"""
_KEYS = """# Keys of run files

For people who look for a key. [Run files](run-file.md) say more of each, and what values may be.

Made by scripts/document_reference.py of nadi/configuration/sections.py; change the declaration, not this page.
"""


def commands_of(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command with its words, `trace show`, in the order of the alphabet."""
    for name, command in sorted(group.commands.items()):
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from commands_of(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


def commands_page() -> str:
    """docs/commands.md."""
    parts = [_COMMANDS]
    for name, command in commands_of(typer.main.get_command(build_app())):
        parts.append(f"## nadi {name}\n")
        parts.append(_prose(command.help) + "\n")
        options = [_option(option) for option in command.params if option.name != "help" and not _is_hidden(option)]
        if options:
            head = ["| argument or option | default | meaning |", "| --- | --- | --- |"]
            parts.append("\n".join([*head, *options]) + "\n")
    return "\n".join(parts)


def _is_hidden(option: Any) -> bool:
    return bool(getattr(option, "hidden", False))


def _option(option: Any) -> str:
    """A row of the table."""
    is_option = option.opts[0].startswith("-")
    metavar = option.metavar or ("" if not is_option or option.is_flag else option.name.upper())
    names = ", ".join([*option.opts, *option.secondary_opts]) if is_option else metavar or option.name.upper()
    said = f"{names} {metavar}".strip() if is_option else names
    return f"| `{said.replace('|', '/')}` | {_default(option)} | {_prose(option.help or '')} |"


def _default(option: Any) -> str:
    """What holds without it, as far as it says something."""
    value = option.default
    if option.required:
        return "required"
    if value is None or value is False or value in ("", (), []) or callable(value):
        return ""
    return f"`{'yes' if value is True else value}`"


def _prose(text: str | None) -> str:
    """One paragraph a line; what a table or HTML would take for its own is escaped."""
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n", (text or "").strip().split("\f")[0])]
    return "\n\n".join(paragraphs).replace("|", "\\|").replace("<", "&lt;").replace("[", "\\[")


def keys_page() -> str:
    """docs/run-file-keys.md."""
    parts = [_KEYS]
    for section, field in RunConfig.model_fields.items():
        model = next(one for one in (*get_args(field.annotation), field.annotation) if hasattr(one, "model_fields"))
        begin = f"## [[{section}]]" if section == "faults" else f"## [{section}]"
        has_defaults = not field.is_required() and model is field.annotation  # a run file may lack the section
        defaults = model().model_dump(mode="json") if has_defaults else {}
        rows = [_key(section, key, of_key, defaults) for key, of_key in model.model_fields.items()]
        about = _prose(re.split(r"\n\s*(?:Attributes|Raises):", model.__doc__ or "")[0])
        parts.append(f"{begin}\n\n{about}\n")
        parts.append("\n".join(["| key | default | meaning |", "| --- | --- | --- |", *rows]) + "\n")
    return "\n".join(parts)


def _key(section: str, key: str, field: Any, defaults: Mapping[str, Any]) -> str:
    """A row of the table; the engine's settings have its defaults."""
    if field.is_required():
        default = "required"
    else:
        value = defaults.get(key, field.get_default(call_default_factory=True))
        if value is None and section in {"network", "system", "engine"} and key in SETTINGS:
            value = given_default(key)
        default = "none" if value is None or value == "none" else f"`{_shown(value)}`"
    return f"| `{key}` | {default} | {_prose(field.description)} |"


def _shown(value: Any) -> str:
    """As a run file has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(getattr(value, "value", value)).replace("|", "\\|")


PAGES = {"commands.md": commands_page, "run-file-keys.md": keys_page}
"""Names of pages in docs/, and what makes them."""


def main() -> None:
    """Both pages."""
    for name, made in PAGES.items():
        (DOCS / name).write_text(made(), encoding="utf-8")


if __name__ == "__main__":
    main()
