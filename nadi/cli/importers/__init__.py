"""Commands that run the files of another simulator, one file each: `read(options)`, which returns a `TranslatedRun`.

The parameters of `read` are options of the other simulator, declared as for typer, and its docstring is the help. The
options of `_options` are those of all importers, unless `read` has parameters of these names. SETTINGS is for click's
context.
"""

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import typer
from typer.main import get_command

from nadi.cli.options import Force, Overrides, Quiet, named_path
from nadi.cli.output import run_and_report
from nadi.importers import TranslatedRun
from nadi.inputs.plug_ins import PlugInError
from nadi.terminal import say

KIND = "importer"


def _options(
    out: Path | None = typer.Option(
        None, metavar="DIR", parser=named_path, help="Folder for summary.json and the tables."
    ),
    overrides: Overrides = [],
    force: Force = False,
    as_json: bool = typer.Option(False, "--json", help="Print the summary as JSON instead of the report."),
    quiet: Quiet = False,
) -> Callable[..., None]:
    """Return a function that simulates with the options of all importers."""
    return partial(_run, out, overrides, force=force, as_json=as_json, quiet=quiet)


def importer_command(name: str, module: Any) -> Any:  # noqa: ANN401 - typer has its own click
    """Return the command of an importer.

    Args:
        name: The name of the importer, or the path of its file.
        module: The module with its function `read`.
    """
    command = _command(module.read, **getattr(module, "SETTINGS", {}))
    common, read = _command(_options), command.callback
    names, words = {each.name for each in command.params}, {word for each in command.params for word in each.opts}
    shared = [each for each in common.params if each.name not in names]
    for option in shared:
        option.opts = [word for word in option.opts if word not in words]

    def run(**values: Any) -> None:  # noqa: ANN401 - of options
        begin_s = time.monotonic()
        simulate = common.callback(**{option.name: values.pop(option.name) for option in shared})
        simulate(partial(read, **values), f"nadi {name}", begin_s)

    command.params += shared
    command.callback = run
    return command


def _command(function: Callable[..., Any], **settings: Any) -> Any:  # noqa: ANN401 - typer has its own click
    """Return a function as a command, with settings of click's context."""
    group = typer.Typer(add_completion=False, rich_markup_mode=None)
    group.command(context_settings=settings)(function)
    return get_command(group)


def _run(
    out: Path | None,
    overrides: Sequence[str],
    read: Callable[[], TranslatedRun],
    source: str,
    begin_s: float,
    *,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Simulate what an importer reads, or write its run file."""
    from nadi.api.running import RunRequest
    from nadi.configuration.run_file import load_config
    from nadi.importers.files import write_run_file
    from nadi.launching.ranks import connected_ranks, together

    ranks = connected_ranks(os.environ)
    with together(ranks):
        run = read()
        if not isinstance(run, TranslatedRun):
            raise PlugInError.at(source, f"read returned {type(run).__name__}", "a TranslatedRun")
        keys = [*run.overrides, *overrides]
        config = load_config(None, keys, run.sections, source)
        if not run.warns:
            config = config.with_named(key.partition("=")[0].strip() for key in keys)
    for warning in run.warnings if ranks.rank == 0 else ():
        say(f"nadi: {warning}", err=True)
    if run.run_file is None:
        before = partial(run.before_report, err=as_json) if run.before_report and ranks.size == 1 else None
        request = RunRequest(config, out)
        run_and_report(request, ranks, begin_s, force=force, as_json=as_json, quiet=quiet, before_report=before)
    elif ranks.rank == 0:
        write_run_file(run.run_file, config, run.sections, run.origin)
        say(f"run file: {run.run_file}")
