"""A real SLURM of one node or more: munged, slurmctld and slurmd with their own ports and folders."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

CPUS = 4
_PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "squeue", "setpriv", "nsenter", "unshare")
_START_S = 30
_STOP_S = 5
_OFTEN = """\
#include <time.h>
int usleep(unsigned microseconds)
{
    long nanoseconds = microseconds * 50L;
    struct timespec shorter = {nanoseconds / 1000000000, nanoseconds % 1000000000};
    return nanosleep(&shorter, 0);
}
"""
"""slurmctld looks at its queue once a second, after ten naps; these are a twentieth as long."""
_CONF = """\
ClusterName=nadi
SlurmctldHost={controller}
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,defer_batch
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
KillWait=3
MinJobAge=300
FirstJobId={first_job}
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=60 OverSubscribe=NO State=UP
"""
_NODE = "NodeName={name} NodeHostname={host} NodeAddr={address} CPUs={cpus} RealMemory=100000 State=UNKNOWN"


class Node(NamedTuple):
    """A node of a cluster: its names and address, and what runs a command there when put before it."""

    name: str
    host: str
    address: str
    enter: tuple[str, ...] = ()


class Cluster(NamedTuple):
    """A running cluster: where its files are, and the environment that its commands need."""

    folder: Path
    environ: dict[str, str]
    enter: tuple[str, ...] = ()

    def run(self, *command: object, timeout: float = 30, **options) -> subprocess.CompletedProcess:
        """A command with this cluster as its SLURM, on the first node."""
        folder = options.pop("cwd", Path.cwd())  # who enters a machine begins at its root
        return subprocess.run(
            [*self.enter, "env", "-C", str(folder), *(str(part) for part in command)],
            env=self.environ | options.pop("environ", {}),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            **options,
        )

    def submit(self, *arguments: object, cwd: Path, timeout: float = 180, **options) -> str:
        """Have sbatch run a script and wait for it; gives the job's number.

        Raises:
            AssertionError: sbatch refused it.
        """
        done = self.run("sbatch", "--parsable", *arguments, cwd=cwd, **options)
        assert done.returncode == 0, done.stderr
        job = done.stdout.strip().split(";")[0]
        self.wait(job, timeout)
        return job

    def wait(self, job: str, timeout: float = 180) -> None:
        """Until all tasks of a job are over."""
        done = self.until(lambda: self.over(job), timeout)
        assert done, f"job {job} is not over after {timeout} s: {self.run('scontrol', 'show', 'job', job).stdout}"

    def over(self, job: str) -> bool:
        """Whether all tasks of a job are over; one that is queued again is "REQUEUED" for a moment."""
        states = self.states(job)
        return bool(states) and states <= {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"}

    def states(self, job: str) -> set[str]:
        listed = self.run("squeue", "--noheader", "--states=all", "--array", "--format=%T", "--jobs", job)
        return set(listed.stdout.split())

    @staticmethod
    def until(condition, timeout: float) -> bool:
        """Wait until a condition holds; False where it does not in time."""
        end = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > end:
                return False
            time.sleep(0.05)
        return True


def missing() -> str:
    """Why no cluster can be started here, or nothing."""
    if os.geteuid() != 0:
        return "a SLURM for tests needs root"
    absent = [program for program in _PROGRAMS if shutil.which(program, path=_path()) is None]
    return f"not installed: {', '.join(absent)}" if absent else ""


@contextmanager
def cluster(nodes: Sequence[Node] = ()) -> Iterator[Cluster]:
    """Start a cluster, by default of this machine, with the controller on the first node.

    Whatever it started is gone when the block ends, however it ends.

    Raises:
        RuntimeError: it did not come up in half a minute; with the ends of its logs.
    """
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="nadi-slurm-", dir="/tmp"))  # sockets want short paths
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)
        (folder / "state").mkdir()
        nodes = nodes or [Node("node1", _host(), "127.0.0.1")]
        for node in nodes:
            (folder / f"spool.{node.name}").mkdir()
        conf = folder / "slurm.conf"
        ports = _free_ports(2)
        lines = "\n".join(_NODE.format(**node._asdict(), cpus=CPUS) for node in nodes)
        controller = f"{nodes[0].host}({nodes[0].address})"
        values = {"controller": controller, "controller_port": ports[0], "node_port": ports[1], "nodes": lines}
        values["first_job"] = 1 + int(time.time()) % 1_000_000 * 50  # MPICH names files after jobs: not those of before
        conf.write_text(_CONF.format(folder=folder, **values))
        running = Cluster(folder, _environ(conf), nodes[0].enter)
        stack.callback(_kill_strays, conf)
        _munge(running, stack, nodes[0])
        _daemon(running, stack, nodes[0], "slurmctld", "-D", "-i", "-f", conf, **_short_naps(folder))
        for node in nodes:
            _daemon(running, stack, node, "slurmd", "-D", "-N", node.name, "-f", conf)
        stack.callback(_cancel_all, running)
        idle = ["idle"] * len(nodes)
        if not running.until(lambda: running.run("sinfo", "-h", "-N", "-o", "%t").stdout.split() == idle, _START_S):
            raise RuntimeError(f"no SLURM nodes after {_START_S} s\n{_logs(folder)}")
        yield running


def _munge(running: Cluster, stack: ExitStack, node: Node) -> None:
    folder = running.folder
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    files = [f"--{name}-file={folder / f'munge.{name}'}" for name in ("key", "log", "pid", "seed")]
    files.append(f"--socket={folder / 'munge.socket'}")
    _daemon(running, stack, node, "munged", "--foreground", "--force", *files)
    if not running.until((folder / "munge.socket").exists, _START_S):
        raise RuntimeError(f"munged does not come up\n{_logs(folder)}")


def _short_naps(folder: Path) -> dict[str, str]:
    """What slurmctld needs in its environment to look at its queue more often; nothing without a compiler."""
    if (compiler := shutil.which("cc") or shutil.which("gcc")) is None:
        return {}
    source, library = folder / "often.c", folder / "often.so"
    source.write_text(_OFTEN)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True, timeout=_START_S)
    return {"LD_PRELOAD": str(library)}


def _daemon(running: Cluster, stack: ExitStack, node: Node, *command: object, **environ: str) -> None:
    """Start a program that ends with the stack, and with this process should it be killed."""
    log = stack.enter_context((running.folder / f"{command[0]}.{node.name}.err").open("wb"))
    process = subprocess.Popen(
        [*node.enter, "setpriv", "--pdeathsig", "KILL", *(str(part) for part in command)],
        env=running.environ | environ,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    stack.callback(_stop, process)


def _stop(process: subprocess.Popen) -> None:
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_STOP_S)


def _cancel_all(running: Cluster) -> None:
    with suppress(subprocess.TimeoutExpired):
        running.run("scancel", "--user=root", "--signal=KILL", "--full", timeout=_STOP_S)
        running.run("scancel", "--user=root", timeout=_STOP_S)
        running.until(lambda: not running.run("squeue", "-h", timeout=_STOP_S).stdout, _STOP_S)


def _kill_strays(conf: Path) -> None:
    """Steps outlive slurmd; what carries this cluster's slurm.conf in its environment is of this cluster."""
    mark = f"SLURM_CONF={conf}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)


def _environ(conf: Path) -> dict[str, str]:
    """Ours without what an outer SLURM or MPI says."""
    outer = ("SLURM", "SBATCH", "SRUN", "PMI", "OMPI", "HYD")
    own = {name: value for name, value in os.environ.items() if not name.startswith(outer)}
    return own | {"SLURM_CONF": str(conf), "PATH": _path()}


def _path() -> str:
    return os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))


def _host() -> str:
    return socket.gethostname().split(".")[0]


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [opened.getsockname()[1] for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports


def _logs(folder: Path) -> str:
    return "\n".join(
        f"{path.name}: {path.read_text(errors='replace')[-2000:]}"
        for pattern in ("*.err", "*.log")
        for path in folder.glob(pattern)
    )
