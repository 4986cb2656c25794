"""Python imports this module before a script where `nadi trace collect` has put its folder on PYTHONPATH.

It waits until the script imports PyTorch's optimizers, and then follows them. It also runs the user's own
sitecustomize, which it hides.
"""

import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

_HERE = str(Path(__file__).parent)
_WATCHED = "torch.optim.optimizer"


class _Watcher:
    """An import hook that follows optimizers as soon as they are imported."""

    def find_spec(self, module_name: str, path: object = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        """Return the module's own spec, with a loader that calls `_follow` afterwards.

        Args:
            module_name: The name of the module that is about to be imported.
            path: The path of the package that has the module; not used.
            target: The module that is being reloaded; not used.
        """
        if module_name != _WATCHED:
            return None
        # Without this, find_spec below would call this hook again
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        spec = importlib.util.find_spec(module_name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def loaded(module: ModuleType) -> None:
                load(module)
                _follow()

            spec.loader.exec_module = loaded  # type: ignore[method-assign]
        return spec


def _follow() -> None:
    """Record the steps that the environment names into the folder that it names."""
    sys.path.insert(0, _HERE)
    from nadi_collecting import (  # type: ignore[import-not-found]  # noqa: PLC0415 - beside this file, in no package
        FOLDER,
        STEPS,
        follow_optimizers,
    )

    sys.path.remove(_HERE)
    steps = [int(step) for step in os.environ[STEPS].split(",")]
    follow_optimizers(os.environ[FOLDER], steps)


def _run_hidden() -> None:
    """Run the next `sitecustomize` of the path, which this one hides."""
    elsewhere = [path for path in sys.path if path != _HERE]
    spec = PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


_run_hidden()
sys.meta_path.insert(0, _Watcher())  # type: ignore[arg-type]
