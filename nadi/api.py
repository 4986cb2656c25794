"""What `import nadi` offers: simulate a run file or a configuration, open the results of an earlier run."""

import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nadi.launching.gather import ALONE
from nadi.runs import Run


def simulate(
    run: str | Path | Mapping[str, Any] | None = None,
    *,
    out: str | Path | None = None,
    force: bool = False,
    progress: bool = False,
    **sections: Mapping[str, Any],
) -> Run:
    """Simulate, and give what came out.

    Args:
        run: a run file, or its sections as mappings: `{"workload": {...}, "topology": {...}}`; None = all is said by
            `sections`.
        out: folder for the results; None = a folder that goes when the Run does.
        force: try what would take more memory than is free, or more than a day.
        progress: show how far it is.
        sections: values in place of the run file's: `network={"mtu": "1KiB"}`; keys are those of docs/run-file.md.

    Raises:
        ConfigError, TraceError, WorkloadError, TopologyError: what is asked for is wrong; one line says what.
        pdes.RunError: the run failed.
    """
    from nadi.analysis.findings import find
    from nadi.launching.progress import progress as shown
    from nadi.results.run_folder import RUN_FILES, write_results
    from nadi.results.staging import staged
    from nadi.run_file import load_config, put_over
    from nadi.simulation import simulate as finished

    if isinstance(run, (str, Path)):
        config = load_config(Path(run), sections=sections)
    else:
        config = load_config(None, sections=put_over(run or {}, sections))
    folder = Path(out) if out is not None else config.output.dir
    kept = folder or Path(tempfile.mkdtemp(prefix="nadi-"))
    with staged(kept, RUN_FILES, ALONE) as staging:
        with shown(quiet=not progress) as telling:
            simulation = finished(config, telling, force=force)
        write_results(simulation, find(simulation), staging)
    opened = Run(kept)
    if folder is None:
        weakref.finalize(opened, _remove, kept)
    return opened


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
