"""Regenerate the examples in this folder (`python scripts/slurm/make_examples.py`) after a change of the template."""

from pathlib import Path, PurePosixPath

from nadi.launching.slurm import Job, render, sweep_tasks

PYTHON = PurePosixPath("/path/to/nadi/.venv/bin/python")
RUN_FILE = PurePosixPath("/path/to/run.toml")
EXAMPLES = {
    "one-run.sbatch": Job(
        run_file=RUN_FILE,
        out=PurePosixPath("results/one-run"),
        python=PYTHON,
        name="one-run",
        ranks_per_node=4,
        time="01:00:00",
        overrides=("engine.checkpoint=30min",),
        saves=True,
    ),
    "sweep.sbatch": Job(
        run_file=RUN_FILE,
        out=PurePosixPath("results/sweep"),
        python=PYTHON,
        name="sweep",
        time="01:00:00",
        overrides=("engine.checkpoint=30min",),
        saves=True,
        tasks=sweep_tasks(["network.window=64KiB,256KiB,1MiB", "engine.seed=1,2"]),
    ),
}

if __name__ == "__main__":
    for name, job in EXAMPLES.items():
        path = Path(__file__).parent / name
        path.write_text(render(job), encoding="utf-8")
        print(path)
