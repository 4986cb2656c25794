"""Two network namespaces with a cable between them: to MPI, two hosts that reach each other over TCP only."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

ADDRESSES = ("10.77.0.1", "10.77.0.2")
ONLY_TCP = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0"}
"""UCX, which is below MPICH, sees that the two hosts are one machine and would use shared memory."""
_UP_S = 10
_LAUNCH = """\
#!/bin/bash
# What mpiexec calls in place of ssh: options, host, command. The command comes quoted for a shell.
while [[ $1 == -* ]]; do shift; done
case $1 in
{first}) host={names[0]} ;;
{second}) host={names[1]} ;;
*) exit 1 ;;
esac
shift
exec ip netns exec "$host" bash -c "$*"
"""


_ENTER = """\
hostname {name}
mount --bind {hosts} /etc/hosts
mount -t tmpfs none /dev/shm
mkdir {folder}/{name}
mount --rbind /sys/fs/cgroup {folder}/{name}
mount -t sysfs none /sys
mount --rbind {folder}/{name} /sys/fs/cgroup
touch {ready}
exec sleep infinity
"""
"""What makes a namespace a machine of its own: its name, names of the others, shared memory, its network in /sys."""


class Machine(NamedTuple):
    """A host with a name of its own, and what runs a command there when put before it."""

    name: str
    address: str
    enter: tuple[str, ...]
    namespace: str

    def processes(self) -> list[int]:
        keeper = self.enter[self.enter.index("-t") + 1]
        return [int(number) for number in _ip("netns", "pids", self.namespace).split() if number != keeper]

    def die(self) -> None:
        """Kill all that runs here, as a crash does."""
        while found := self.processes():
            for number in found:
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)


def missing() -> str:
    """Why there can be no two hosts here, or nothing."""
    if os.geteuid() != 0:
        return "two hosts on one machine need root"
    if shutil.which("ip") is None:
        return "two hosts on one machine need ip of iproute2"
    name = f"nadi-{os.getpid()}-try"
    try:
        _ip("netns", "add", name)
        _ip("netns", "exec", name, "true")
        _ip("-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", "eth1")
    except subprocess.CalledProcessError as error:
        return f"no network namespaces with a cable: {' '.join(error.cmd)}: {error.stderr.strip()}"
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False, timeout=10)
    return ""


@contextmanager
def two_hosts(folder: Path) -> Iterator[list[str]]:
    """Make the hosts; gives how to start `mpiexec -n ...` on the first of them, for a rank on each in turn."""
    with ExitStack() as stack:
        names = _connected(stack)
        script = folder / "launch"
        script.write_text(_LAUNCH.format(first=ADDRESSES[0], second=ADDRESSES[1], names=names))
        script.chmod(0o755)
        hosts = ["-launcher", "ssh", "-launcher-exec", str(script), "-hosts", ",".join(ADDRESSES), "-ppn", "1"]
        yield ["ip", "netns", "exec", names[0], "mpiexec", *hosts]


@contextmanager
def two_machines(folder: Path) -> Iterator[list[Machine]]:
    """Make two hosts named node1 and node2, whose shared memory and host names are their own."""
    hosts = folder / "hosts"
    named = [(f"node{i}", address) for i, address in enumerate(ADDRESSES, 1)]
    hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in named))
    with ExitStack() as stack:
        machines = []
        for namespace, (name, address) in zip(_connected(stack), named, strict=True):
            ready = folder / f"{name}.ready"
            script = _ENTER.format(name=name, hosts=hosts, folder=folder, ready=ready)
            inside = ["nsenter", f"--net=/run/netns/{namespace}", "unshare", "--uts", "--mount", "bash", "-ec", script]
            keeper = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *inside])
            stack.callback(keeper.wait, _UP_S)
            stack.callback(keeper.kill)
            end = time.monotonic() + _UP_S
            while not ready.exists():
                if keeper.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"{name} does not come up")
                time.sleep(0.02)
            enter = ("nsenter", "-t", str(keeper.pid), "--net", "--uts", "--mount")
            machines.append(Machine(name, address, enter, namespace))
        yield machines


def _connected(stack: ExitStack) -> list[str]:
    """Make two network namespaces with a cable between them, which go with the stack; gives their names."""
    names = [f"nadi-{os.getpid()}-{which}" for which in "ab"]
    for name in names:
        _ip("netns", "add", name)
        stack.callback(_ip, "netns", "del", name)
    _ip("link", "add", "eth0", "netns", names[0], "type", "veth", "peer", "name", "eth0", "netns", names[1])
    for name, address in zip(names, ADDRESSES, strict=True):
        _ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "link", "set", "eth0", "up")
    _wait_until_up(names)
    return names


def sent_bytes(command: list[str]) -> int:
    """What the first host of `two_hosts` has put on the cable."""
    return int(_ip("netns", "exec", command[3], "cat", "/sys/class/net/eth0/statistics/tx_bytes"))


def _wait_until_up(names: list[str]) -> None:
    """The kernel takes up to a second to say so, and UCX uses no link that is not."""
    end = time.monotonic() + _UP_S
    while any(" UP " not in _ip("-n", name, "-brief", "link", "show", "eth0") for name in names):
        if time.monotonic() > end:
            raise RuntimeError("eth0 does not come up")
        time.sleep(0.05)


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True, timeout=10).stdout
