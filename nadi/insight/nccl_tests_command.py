"""Command lines of nccl-tests (and rccl-tests): the programs, their options and defaults, launchers and environment.

`parse_command` reads "NCCL_ALGO=Ring mpirun -np 32 -N 8 all_reduce_perf -b 8M -e 16G -f 2 -g 1". Options and defaults
are those of main() in src/common.cu of nccl-tests 2.19.6, the sizes of a program those of its GetCollByteCount. What
changes the operation that is timed, and has no model in Nadi, is refused; what costs or saves time beside the model is
listed in `NcclTestsCommand.not_modelled`.
"""

import getopt
import re
import shlex
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import PurePath
from typing import NamedTuple

from nadi.errors import ConfigError

PROGRAMS = {
    "all_reduce_perf": "all-reduce",
    "all_gather_perf": "all-gather",
    "reduce_scatter_perf": "reduce-scatter",
    "alltoall_perf": "all-to-all",
    "broadcast_perf": "broadcast",
    "reduce_perf": "reduce",
    "sendrecv_perf": "send-receive",
    "gather_perf": "gather",
    "scatter_perf": "scatter",
}
"""Kind of collective by program; "send-receive" is a shift round a ring, in which each rank sends to the next one."""
_REFUSED_PROGRAMS = {
    "hypercube_perf": "exchanges along the edges of a hypercube, which Nadi does not model",
    "alltoallv_perf": "has sizes of its own for each pair of ranks: see `nadi collective all-to-all-v`",
}
_BYTES_OF_TYPE = {
    "int8": 1, "char": 1, "uint8": 1, "int32": 4, "int": 4, "uint32": 4, "int64": 8, "uint64": 8,
    "half": 2, "float": 4, "double": 8, "bfloat16": 2, "f8e4m3": 1, "f8e5m2": 1, "fp8_e4m3": 1, "fp8_e5m2": 1,
}  # fmt: skip
_OPERATIONS = ("sum", "prod", "max", "min", "avg", "mulsum")
_DEFAULT_BYTES, _DEFAULT_STEP_BYTES, _DEFAULT_ITERATIONS, _DEFAULT_WARM_UPS = 32 << 20, 1 << 20, 20, 1
_REDUCES = frozenset({"all-reduce", "reduce-scatter", "reduce"})
_HAS_ROOT = frozenset({"broadcast", "reduce", "gather", "scatter"})
_SHARES_OF_RANKS = frozenset({"all-gather", "reduce-scatter", "all-to-all", "gather", "scatter"})
MAX_SIZES = 1000  # maximum number of sizes of a command
_MAX_BYTES = 1 << 50  # largest -e, a thousand times the memory of any GPU
_MAX_RANKS = 1 << 20
_SUFFIXES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SIZE = re.compile(r"\s*+([0-9]++(?:\.[0-9]++)?|\.[0-9]++)\s*+([A-Za-z]?)[Bb]?i?[Bb]?")

_LONG_OPTIONS = {
    "nthreads": "t", "ngpus": "g", "minbytes": "b", "maxbytes": "e", "stepbytes": "i", "stepfactor": "f", "iters": "n",
    "agg_iters": "m", "warmup_iters": "w", "run_cycles": "N", "parallel_init": "p", "check": "c", "op": "o",
    "datatype": "d", "root": "r", "blocking": "z", "stream_null": "y", "timeout": "T", "cudagraph": "G",
    "report_cputime": "C", "report_timestamps": "S", "output_file": "J", "average": "a", "local_register": "R",
    "cta_policy": "x", "device_implementation": "D", "device_cta_count": "V", "memory": "M", "unalign": "u",
    "per_iter_timing": "I", "per_iter_skip": "K",
}  # fmt: skip
_TEXTS = frozenset("odrJF")  # options whose value is no number and no size
_SIZES = {"b": _DEFAULT_BYTES, "e": _DEFAULT_BYTES, "i": _DEFAULT_STEP_BYTES}  # options that are sizes, with defaults
# Options at which other values than this one time something else than one operation of NCCL on buffers of the user
_ONLY = {
    "m": (1, "times groups of operations that are launched together"),
    "C": (0, "reports the time of the CPU instead of that of the operation"),
    "D": (0, "runs a kernel of nccl-tests instead of NCCL"),
}
# Options that cost or save time of the host or of unaligned loads, which the model does not have
_COSTS = {
    "z": (0, "-z (waits for each operation)"),
    "G": (0, "-G (CUDA graphs)"),
    "u": (0, "-u (unaligned buffers)"),
    "x": (-1, "-x (policy of CTAs)"),
}
_SYMMETRIC = 2  # value of -R with which NCCL runs symmetric kernels on registered windows

_ALGORITHMS = {
    "ring": "ring", "tree": "tree", "nvls": "nvls", "nvlstree": "nvls-tree", "pat": "pat",
    "collnetdirect": "collnet-direct",
}  # fmt: skip
_FUNCTIONS = {
    "all-reduce": "allreduce", "all-gather": "allgather", "reduce-scatter": "reducescatter", "broadcast": "broadcast",
    "reduce": "reduce",
}  # fmt: skip
_PROTOCOLS = ("ll", "ll128", "simple")
MAX_CHANNELS = 32  # maximum number of channels of a communicator that Nadi models
# Variables of NCCL and RCCL that change neither time nor choice: logs, addresses, names, timeouts of errors
_WITHOUT_EFFECT = re.compile(
    r"(?:NCCL|RCCL)_(?:DEBUG\w*|SOCKET_\w+|COMM_ID|CONF_FILE|HOSTID|IB_GID_INDEX|IB_ROCE_VERSION_NUM|IB_ADDR_\w+|IB_TC"
    r"|IB_SL|IB_TIMEOUT|IB_RETRY_CNT|IB_PKEY|SET_THREAD_NAME|RAS_\w+|NET|NET_PLUGIN"
    r"|TUNER_PLUGIN|PROFILER_PLUGIN|TOPO_DUMP_FILE|GRAPH_DUMP_FILE|OOB_\w+|UID_\w+|TESTS_MIN_BW)"
)
# Variables whose effect the model does not have, and what they change; the value is what Nadi models
_UNMODELLED = {
    "NCCL_IB_QPS_PER_CONNECTION": ("1", "paths of a connection"),
    "NCCL_IB_SPLIT_DATA_ON_QPS": ("0", "paths of a connection"),
    "NCCL_IB_ADAPTIVE_ROUTING": ("1", "order of packets"),
    "NCCL_IB_HCA": ("", "which NICs are used"),
    "NCCL_CROSS_NIC": ("2", "which NICs meet"),
    "NCCL_NET_GDR_LEVEL": ("SYS", "copies through the host"),
    "NCCL_NET_GDR_READ": ("1", "copies through the host"),
    "NCCL_IGNORE_CPU_AFFINITY": ("0", "cores of the threads"),
    "NCCL_TESTS_DEVICE": ("", "which GPUs are used"),
    "NCCL_CUMEM_ENABLE": ("1", "memory of the buffers"),
    "NCCL_TOPO_FILE": ("", "what connects GPUs and NICs"),
}
# Variables that choose something: the parameter of "nccl" that they set, and its value by theirs
_CHOICES = {"NCCL_ALGO": ("algo", _ALGORITHMS), "NCCL_PROTO": ("proto", {each: each for each in _PROTOCOLS})}
# Variables that switch something, the value at which they do, and the parameter of "nccl" that it sets
_SWITCHES = {
    "NCCL_NVLS_ENABLE": (0, {"nvls": "false"}),
    "NCCL_COLLNET_ENABLE": (1, {"collnet": "true"}),
    "NCCL_PXN_DISABLE": (1, {"pxn": "false"}),
    "NCCL_P2P_PXN_LEVEL": (0, {"pxn": "false"}),
}
_CHANNELS = re.compile(r"NCCL_(MIN|MAX)_(?:NCHANNELS|CTAS)")
_PREFIXES = ("NCCL_", "RCCL_")  # of variables that the libraries read
_LAUNCHERS = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "srun")
_PROCESSES, _PER_HOST, _NODES = "processes", "processes per host", "hosts"
# Options of launchers that say how many processes run, and where; srun's -N counts hosts, that of mpirun processes
_OF_LAUNCHERS = {
    "-np": _PROCESSES, "--np": _PROCESSES, "-n": _PROCESSES, "--ntasks": _PROCESSES,
    "-npernode": _PER_HOST, "--npernode": _PER_HOST, "-ppn": _PER_HOST, "--ppn": _PER_HOST,
    "-perhost": _PER_HOST, "--ntasks-per-node": _PER_HOST, "--nodes": _NODES,
}  # fmt: skip
_HOST_LISTS = ("-H", "-host", "--host", "-hosts", "-w", "--nodelist")
_PER_NODE = re.compile(r"ppr:([0-9]+):(?:node|host)")  # value of mpirun's --map-by
_GLUED = re.compile(r"(-[nN])([0-9]+)")  # as in srun -N4
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


class NcclTestsCommand(NamedTuple):
    """A command line of nccl-tests, with defaults for what it leaves out."""

    program: str  # name of the program, one of PROGRAMS
    kind: str  # kind of collective
    asked_bytes: tuple[int, ...]  # sizes of -b, -e, -i and -f, before each program's rounding; 0 is possible
    datatype: str = "float"
    operation: str = "sum"  # "none" for programs that do not reduce
    root: int = -1  # -1 for programs without a root, as nccl-tests prints
    processes: int | None = None  # number of processes that a launcher starts; None = the command has no launcher
    processes_per_host: int | None = None  # None = the launcher does not say
    launched_hosts: int | None = None  # number of hosts that the launcher names; None = it does not say
    threads: int = 1  # threads of a process
    gpus_per_thread: int = 1
    iterations: int = _DEFAULT_ITERATIONS
    warm_ups: int = _DEFAULT_WARM_UPS
    # parameters of the algorithm "nccl" that environment and options set: algo, proto, nvls, collnet, pxn, registered
    nccl: Mapping[str, str] = {}
    channels: tuple[int, int] = (0, 0)  # minimum and maximum number of channels; 0 = NCCL's own
    environment: Mapping[str, str] = {}  # all variables in front of the program and of the launcher's -x
    not_modelled: tuple[str, ...] = ()  # options that cost or save time of which Nadi has no model

    @property
    def type_bytes(self) -> int:
        """Size of an element in bytes."""
        return _BYTES_OF_TYPE[self.datatype]

    def ranks(self, hosts: int | None = None) -> int:
        """Return the number of ranks.

        Args:
            hosts: The number of hosts, on each of which a command without a launcher runs one process; None = 1.
        """
        processes = self.processes if self.processes is not None else hosts or 1
        return processes * self.threads * self.gpus_per_thread

    def hosts(self) -> int | None:
        """Return the number of hosts that the launcher says; None = it does not."""
        if self.launched_hosts is None and self.processes and self.processes_per_host:
            return -(-self.processes // self.processes_per_host)
        return self.launched_hosts

    def size_and_count(self, asked_bytes: int, ranks: int) -> tuple[int, int]:
        """Return the columns size (bytes) and count (elements) for a size that the options ask for.

        Programs that give each rank a part round parts down to 16 bytes, so that small sizes may become 0. Their
        count is that of a part.

        Args:
            asked_bytes: One of `asked_bytes`.
            ranks: The number of ranks.
        """
        count = asked_bytes // self.type_bytes
        if self.kind not in _SHARES_OF_RANKS:
            return count * self.type_bytes, count
        count = count // ranks & ~(16 // self.type_bytes - 1)
        return count * ranks * self.type_bytes, count


def parse_command(command: str) -> NcclTestsCommand:
    """Return what a command line asks for; raise ConfigError, in one line, if Nadi cannot answer it.

    Args:
        command: The command line: variables, a launcher (mpirun, srun) with its options, a program and its options.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise _refused(command, f"{error}; expected a command line") from None
    at = next((at for at, word in enumerate(words) if PurePath(word).name.removesuffix("_mpi").endswith("_perf")), None)
    if at is None:
        raise _refused(command, f"expected a program of nccl-tests: {', '.join(PROGRAMS)}")
    program = PurePath(words[at]).name.removesuffix("_mpi")
    if program not in PROGRAMS:
        why = _REFUSED_PROGRAMS.get(program, f"expected {', '.join(PROGRAMS)}")
        raise ConfigError(f"--command: {program} {why}")
    found = NcclTestsCommand(program, PROGRAMS[program], ())
    found = _with_launcher(found, words[:at])
    return _with_environment(_with_options(found, words[at + 1 :]))


def parse_size(text: str) -> int | None:
    """Return the bytes of a size as nccl-tests reads it: "8", "64K", "1.5G", all suffixes binary; None = it is none.

    Args:
        text: The value of -b, -e or -i.
    """
    match = _SIZE.fullmatch(text)
    if match is None or match[2].lower() not in _SUFFIXES or len(text) > 30:
        return None
    return int(float(match[1]) * _SUFFIXES[match[2].lower()])


def _refused(command: str, why: str) -> ConfigError:
    shown = " ".join(command.split())
    return ConfigError(f"--command {shown[:80]!r}: {why}")


def _with_options(found: NcclTestsCommand, words: Sequence[str]) -> NcclTestsCommand:
    """Return the command with the values of the program's options."""
    values = _option_values(found.program, words)
    for letter, (only, why) in _ONLY.items():
        if _number(found.program, letter, values.get(letter, str(only))) != only:
            raise ConfigError(f"--command: {found.program} -{letter} {values[letter]} {why}; expected -{letter} {only}")
    datatype, operation, root = values.get("d", "float"), values.get("o", "sum"), values.get("r", "0")
    if datatype not in _BYTES_OF_TYPE:
        raise ConfigError(f"--command: {found.program} -d {datatype}: expected one of {', '.join(_BYTES_OF_TYPE)}")
    if operation not in _OPERATIONS:
        raise ConfigError(f"--command: {found.program} -o {operation}: expected one of {', '.join(_OPERATIONS)}")
    counts = {
        letter: _number(found.program, letter, values.get(letter, str(default)), 1)
        for letter, default in {"t": 1, "g": 1, "n": _DEFAULT_ITERATIONS}.items()
    }
    registered = _number(found.program, "R", values.get("R", "0"))
    if registered >= _SYMMETRIC:
        raise ConfigError(
            f"--command: {found.program} -R {registered} runs symmetric kernels, which Nadi does not model"
        )
    costs = (text for letter, (plain, text) in _COSTS.items() if int(values.get(letter, str(plain)), 0) != plain)
    found = found._replace(
        asked_bytes=_sizes(found.program, values),
        datatype=datatype,
        operation=operation if found.kind in _REDUCES else "none",
        root=_number(found.program, "r", root, 0) if found.kind in _HAS_ROOT else -1,
        threads=counts["t"],
        gpus_per_thread=counts["g"],
        iterations=counts["n"],
        warm_ups=_number(found.program, "w", values.get("w", str(_DEFAULT_WARM_UPS))),
        nccl={"registered": "true"} if registered else {},
        not_modelled=tuple(costs),
    )
    ranks = found.ranks()
    if ranks > _MAX_RANKS:
        raise ConfigError(f"--command: found {ranks:,} ranks; expected at most {_MAX_RANKS:,}")
    if found.root >= max(ranks, 1) and found.processes is not None:
        raise ConfigError(f"--command: {found.program} -r {root}: expected a root below {ranks}, the number of ranks")
    return found


def _option_values(program: str, words: Sequence[str]) -> dict[str, str]:
    """Return the value of each option by its letter; the last one of several counts, as in getopt."""
    letters = "".join(f"{letter}:" for letter in sorted({*_LONG_OPTIONS.values(), "F"}))
    try:
        pairs, rest = getopt.gnu_getopt(list(words), letters, [f"{name}=" for name in _LONG_OPTIONS])
    except getopt.GetoptError as error:
        raise ConfigError(f"--command: {program}: {error}; expected options of nccl-tests") from None
    if rest:
        raise ConfigError(f"--command: {program}: found {rest[0]!r} after the options; expected options only")
    values = {}
    for name, value in pairs:
        letter = _LONG_OPTIONS[name[2:]] if name.startswith("--") else name[1:]
        values[letter] = value
        if letter not in _TEXTS and letter not in _SIZES:
            _number(program, letter, value)
    return values


def _number(program: str, letter: str, text: str, minimum: int | None = None) -> int:
    """Return the whole number of an option, decimal or hexadecimal."""
    try:
        number = int(text, 0) if len(text) < 20 else None
    except ValueError:
        number = None
    if number is None or (minimum is not None and number < minimum):
        above = "" if minimum is None else f" from {minimum}"
        raise ConfigError(f"--command: {program} -{letter} {text}: expected a whole number{above}")
    return number


def _sizes(program: str, values: Mapping[str, str]) -> tuple[int, ...]:
    """Return the sizes of -b, -e, -i and -f in bytes."""
    sizes = {}
    for letter, default in _SIZES.items():
        size = parse_size(values[letter]) if letter in values else default
        if size is None or size > _MAX_BYTES:
            raise ConfigError(
                f"--command: {program} -{letter} {values[letter]}: expected a size like 8, 64K, 32M or 16G"
            )
        sizes[letter] = size
    factor, step, first, last = _number(program, "f", values.get("f", "1")), sizes["i"], sizes["b"], sizes["e"]
    if first > last:
        raise ConfigError(f"--command: {program}: found -b {first} above -e {last}; expected -b up to -e")
    grows = first > 0 if factor > 1 else step > 0
    if not grows and first < last:
        raise ConfigError(
            f"--command: {program}: the sizes do not grow; expected a factor -f and -b above 0, or a step -i"
        )
    found = []
    while first <= last:
        found.append(first)
        first = first * factor if factor > 1 else first + step
        if len(found) > MAX_SIZES:
            raise ConfigError(
                f"--command: {program}: found more than {MAX_SIZES:,} sizes; expected fewer, as with -f 2"
            )
        if not grows:
            break
    return tuple(found)


def _with_launcher(found: NcclTestsCommand, words: Sequence[str]) -> NcclTestsCommand:
    """Return the command with the processes of its launcher, and the variables in front of it and after -x."""
    launcher = next((name for word in words if (name := PurePath(word).name) in _LAUNCHERS), "")
    words = [part for word in words for part in _split_word(word)]
    found = found._replace(environment=_environment(words))
    if not launcher:
        return found
    numbers: dict[str, int] = {}
    for word, value in pairwise([*words, ""]):
        what = (_NODES if launcher == "srun" else _PER_HOST) if word == "-N" else _OF_LAUNCHERS.get(word)
        if what:
            numbers[what] = _number(launcher, word.lstrip("-"), value, 1)
        elif word in _HOST_LISTS:
            numbers.setdefault(_NODES, len({host.partition(":")[0] for host in value.split(",")}))
        elif word == "--map-by" and (match := _PER_NODE.match(value)):
            numbers[_PER_HOST] = int(match[1])
    if _PER_HOST in numbers and _NODES in numbers:
        numbers.setdefault(_PROCESSES, numbers[_PER_HOST] * numbers[_NODES])
    if _PROCESSES not in numbers:
        raise ConfigError(f"--command: {launcher} does not say how many processes it starts; expected -np N")
    processes, per_host, hosts = (numbers.get(name) for name in (_PROCESSES, _PER_HOST, _NODES))
    return found._replace(processes=processes, processes_per_host=per_host, launched_hosts=hosts)


def _environment(words: Sequence[str]) -> dict[str, str]:
    """Return the variables that a command line sets: NAME=VALUE, also after -x and --export=, and -genv NAME VALUE."""
    found: dict[str, str] = {}
    passed: list[str] = []  # variables that -x takes over from the shell
    for word, value, after in zip(words, [*words[1:], ""], [*words[2:], "", ""], strict=False):
        if word in {"-genv", "-env"}:
            found[value] = after
        elif word == "-x" and "=" not in value:
            passed.append(value)
        for part in word.removeprefix("--export=").split(",") if word.startswith("--export=") else (word,):
            if match := _ASSIGNMENT.fullmatch(part):
                found[match[1]] = match[2]
    for name in passed:
        if name.startswith(_PREFIXES) and name not in found and not _WITHOUT_EFFECT.fullmatch(name):
            raise ConfigError(f"--command: found -x {name} without a value; expected {name}=VALUE")
    return found


def _split_word(word: str) -> list[str]:
    """Return the parts of "--ntasks=32" and "-n32" of launchers, other words as they are."""
    name, equals, value = word.partition("=")
    if equals and name in _OF_LAUNCHERS:
        return [name, value]
    match = _GLUED.fullmatch(word)
    return [match[1], match[2]] if match else [word]


def nccl_parameters(environment: Mapping[str, str], kind: str, place: str = "--command") -> dict[str, str]:
    """Return the parameters of the algorithm "nccl" that variables set; ConfigError for values that are not known.

    Args:
        environment: The variables by name, of which others than those of NCCL's algorithms do not count.
        kind: The kind of collective.
        place: File or option that has the variables, which messages name.
    """
    nccl: dict[str, str] = {}
    for name, value in environment.items():
        if name in _CHOICES:
            nccl |= _choice(name, value, kind, place)
        elif name in _SWITCHES:
            at, parameter = _SWITCHES[name]
            nccl |= parameter if _whole(name, value, 0, 2, place) == at else {}
    return nccl


def _with_environment(found: NcclTestsCommand) -> NcclTestsCommand:
    """Return the command with the parameters of NCCL that its variables set."""
    nccl = {**found.nccl, **nccl_parameters(found.environment, found.kind)}
    unmodelled, channels = list(found.not_modelled), {"MIN": 0, "MAX": 0}
    for name, value in found.environment.items():
        if name in _UNMODELLED:
            plain, what = _UNMODELLED[name]
            unmodelled += [f"{name}={value} ({what})"] if value != plain else []
        elif name in _CHOICES or name in _SWITCHES:
            continue
        elif match := _CHANNELS.fullmatch(name):
            channels[match[1]] = _whole(name, value, 1, MAX_CHANNELS)
        elif name.startswith(_PREFIXES) and not _WITHOUT_EFFECT.fullmatch(name):
            raise ConfigError(f"--command: {name}={value} is a setting that Nadi does not model; expected it unset")
    if 0 < channels["MAX"] < channels["MIN"]:
        both = f"{channels['MIN']} channels or more and {channels['MAX']} or fewer"
        raise ConfigError(f"--command: found {both}; expected a minimum up to the maximum")
    return found._replace(nccl=nccl, not_modelled=tuple(unmodelled), channels=(channels["MIN"], channels["MAX"]))


def _whole(name: str, text: str, minimum: int, maximum: int, place: str = "--command") -> int:
    """Return the whole number that a variable has."""
    if not text.isdecimal() or len(text) > 9 or not minimum <= int(text) <= maximum:
        raise ConfigError(f"{place}: {name}={text}: expected a whole number from {minimum} to {maximum}")
    return int(text)


def _choice(name: str, text: str, kind: str, place: str) -> dict[str, str]:
    """Return the parameter algo or proto of NCCL_ALGO or NCCL_PROTO: "Ring", or by function "allreduce:tree;ring"."""
    chosen = ""
    for part in text.lower().split(";"):
        function, colon, rest = part.strip().rpartition(":")
        if not colon or function == _FUNCTIONS.get(kind):
            chosen = rest
    if not chosen:
        return {}
    parameter, known = _CHOICES[name]
    if chosen not in known:
        raise ConfigError(f"{place}: {name}={text}: expected one of {', '.join(known)}; Nadi takes one, no list")
    return {parameter: known[chosen]}
