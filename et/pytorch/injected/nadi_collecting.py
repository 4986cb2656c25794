"""Recording of steps of a training run: host execution trace and Kineto trace of this rank.

A rank writes `host.rank<N>.json` and `kineto.rank<N>.json` into a folder; both appear when they are complete.

    with collect("traces", steps=[3]) as steps:
        for batch in batches:
            train(batch)
            steps.step()

`nadi trace collect` records a script that does not call `collect`: `follow_optimizers` counts optimizer steps.
"""

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

GROUP_ANNOTATION = "nadi:process_group:"
"""Prefix of the annotation around calls whose backend does not record its process group; the group's name follows."""
FOLDER, STEPS = "NADI_COLLECT_FOLDER", "NADI_COLLECT_STEPS"
"""Environment variables by which `nadi trace collect` passes the folder and the steps to record."""
_CALLS = (
    "all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor", "all_to_all",
    "all_to_all_single", "broadcast", "reduce", "gather", "scatter", "barrier", "send", "recv", "isend", "irecv",
)  # fmt: skip


class Recorder:
    """Recorder of some steps of this process into a folder, which is created if it does not exist.

    Numbers of steps are consecutive, from 1 on: the step before the first one warms the profiler up. `first` is the
    number of the step that is in progress.
    """

    def __init__(self, folder: str | os.PathLike[str], steps: Iterable[int], first: int = 0) -> None:
        numbers = sorted(set(steps))
        if not numbers or numbers != list(range(numbers[0], numbers[-1] + 1)) or numbers[0] <= first:
            raise ValueError(f"steps {numbers}: expected consecutive numbers from {first + 1} on")
        self._folder, self._steps, self._first = Path(folder), numbers, first
        self._profile: Any = None
        self._observer: Any = None

    def start(self) -> None:
        """Begin recording; call it after the process group is initialized, if the script uses one."""
        from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile  # noqa: PLC0415 - an extra

        self._folder.mkdir(parents=True, exist_ok=True)
        self._observer = ExecutionTraceObserver()
        self._observer.register_callback(str(self._part("host")))
        self._profile = profile(
            activities=[ProfilerActivity.CPU, *self._devices(ProfilerActivity)],
            schedule=self._action,
            on_trace_ready=self._write,
            record_shapes=True,
            execution_trace_observer=self._observer,
        )
        # The profiler counts steps from 0; the script may have done some before
        self._profile.step_num = self._first
        self._profile.current_action = self._action(self._first)
        _name_groups()
        self._profile.start()

    def step(self) -> None:
        """Record that a step is over."""
        if self._profile is not None:
            self._profile.step()
            if self._profile is not None and self._profile.step_num > self._steps[-1]:
                self.stop()

    def stop(self) -> None:
        """Stop recording, and remove incomplete files."""
        running, self._profile = self._profile, None
        if running is not None:
            if running.step_num <= self._steps[-1]:
                # The steps are not all recorded: save nothing
                running.on_trace_ready = None
            running.stop()
        for kind in ("host", "kineto"):
            self._part(kind).unlink(missing_ok=True)

    def _action(self, step_number: int) -> Any:  # noqa: ANN401 - torch is imported late
        """Return what the profiler does in a step: nothing, warm up, record, or record and save."""
        from torch.profiler import ProfilerAction  # noqa: PLC0415 - an extra

        if step_number == self._steps[-1]:
            return ProfilerAction.RECORD_AND_SAVE
        if self._steps[0] <= step_number < self._steps[-1]:
            return ProfilerAction.RECORD
        return ProfilerAction.WARMUP if step_number == self._steps[0] - 1 else ProfilerAction.NONE

    def _write(self, profile: Any) -> None:  # noqa: ANN401 - torch is imported late
        """Write Kineto's trace of a profile, and give both traces their final names."""
        profile.export_chrome_trace(str(self._part("kineto")))
        self._observer.unregister_callback()
        for kind in ("host", "kineto"):
            self._part(kind).replace(self._folder / f"{kind}.rank{_rank()}.json")

    def _part(self, kind: str) -> Path:
        return self._folder / f".{kind}.rank{_rank()}.{os.getpid()}.part.json"

    @staticmethod
    def _devices(activities: Any) -> list[Any]:  # noqa: ANN401 - torch is imported late
        """Return the profiler's activity of this machine's GPUs, if it has any."""
        import torch  # noqa: PLC0415 - an extra

        return [activities.CUDA] if torch.cuda.is_available() else []


@contextmanager
def collect(folder: str | os.PathLike[str], steps: Iterable[int] = (3,)) -> Iterator[Recorder]:
    """Record some steps of a training loop; the script calls `step()` of the yielded recorder at each step's end.

    Args:
        folder: The folder for the two traces; it is created if it does not exist.
        steps: Consecutive numbers of steps, from 1 on.
    """
    recorder = Recorder(folder, steps)
    recorder.start()
    try:
        yield recorder
    finally:
        recorder.stop()


def follow_optimizers(folder: str, steps: Iterable[int]) -> None:
    """Record steps of a script that does not call `collect`; each step of an optimizer ends one.

    Recording cannot begin before the first step is over, so the earliest step to record is 2.

    Args:
        folder: The folder for the two traces; it is created if it does not exist.
        steps: Consecutive numbers of steps, from 2 on.
    """
    from torch.optim.optimizer import register_optimizer_step_post_hook  # noqa: PLC0415 - an extra

    numbers = sorted(steps)
    done = 0
    recorder: Recorder | None = None

    def over(*_: object) -> None:
        nonlocal done, recorder
        done += 1
        if recorder is not None:
            recorder.step()
        elif done == numbers[0] - 1:
            recorder = Recorder(folder, numbers, first=done)
            recorder.start()

    register_optimizer_step_post_hook(over)


def _rank() -> int:
    """Return this process's rank in torch.distributed, otherwise in the environment, otherwise 0."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    return int(os.environ.get("RANK", "0"))


def _name_groups() -> None:
    """Wrap calls of torch.distributed so that traces have their process group if the backend does not record it."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    for name in _CALLS:
        call = getattr(distributed, name, None)
        if call is None or hasattr(call, "names_group"):
            continue
        named = _named(call)
        for module in (distributed, distributed.distributed_c10d):
            if getattr(module, name, None) is call:
                setattr(module, name, named)


def _named(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `call` of torch.distributed within an annotation that names the process group."""
    signature = inspect.signature(call)

    @functools.wraps(call)
    def wrapper(*args: object, **options: object) -> object:
        from torch import distributed  # noqa: PLC0415 - an extra
        from torch.profiler import record_function  # noqa: PLC0415 - an extra

        group: Any = signature.bind(*args, **options).arguments.get("group")
        name = getattr(group, "group_name", None)
        if name is None or distributed.get_backend(group) == "nccl":
            return call(*args, **options)
        with record_function(f"{GROUP_ANNOTATION}{name}"):
            return call(*args, **options)

    wrapper.names_group = True  # type: ignore[attr-defined]
    return wrapper
