"""Command lines of nccl-tests, beside what main() and GetCollByteCount of nccl-tests 2.19.6 make of them."""

import pytest

from nadi.errors import ConfigError
from nadi.insight.nccl_tests_command import PROGRAMS, parse_command, parse_size

MIB = 1 << 20


def test_the_usual_command_has_its_sizes_and_defaults() -> None:
    found = parse_command("./build/all_reduce_perf -b 8M -e 16G -f 2 -g 8")
    assert (found.program, found.kind) == ("all_reduce_perf", "all-reduce")
    assert found.asked_bytes == tuple(8 * MIB << power for power in range(12))
    assert (found.datatype, found.operation, found.root, found.iterations) == ("float", "sum", -1, 20)
    assert (found.ranks(), found.ranks(4), found.hosts()) == (8, 32, None)


def test_without_sizes_there_is_one_of_32_mib() -> None:
    assert parse_command("reduce_perf").asked_bytes == (32 * MIB,)


def test_a_step_adds_as_in_nccl_tests() -> None:
    # size + stepbytes, 1 MiB unless -i says something else; a factor of 1 is none
    assert parse_command("reduce_perf -b 8 -e 3M -f 1").asked_bytes == (8, 8 + MIB, 8 + 2 * MIB)
    assert parse_command("reduce_perf -b 0 -e 2K -i 1K").asked_bytes == (0, 1024, 2048)


@pytest.mark.parametrize(
    ("options", "same"),
    [
        ("-b8M -e16M -f2", "-b 8M -e 16M -f 2"),
        ("--minbytes 8M --maxbytes=16M --stepfactor 2", "-b 8M -e 16M -f 2"),
        ("--min 8M --max 16M --stepf 0x2", "-b 8M -e 16M -f 2"),  # getopt_long takes unique beginnings, strtol base 0
        (
            "-b 4M -b 8M -e 16M -f 2 -n 100 -w 20 -c 0 -a 3 -N 2 -p 1 -S 1 -M 1 -J x.json",
            "-b 8M -e 16M -f 2 -n 100 -w 20",
        ),
    ],
)
def test_options_may_be_written_as_getopt_takes_them(options: str, same: str) -> None:
    assert parse_command(f"all_reduce_perf {options}") == parse_command(f"all_reduce_perf {same}")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8", 8),
        ("64K", 65536),
        ("1.5g", 3 << 29),
        ("128MiB", 128 * MIB),
        ("2MB", 2 * MIB),
        ("1T", None),
        ("-1", None),
        ("", None),
    ],
)
def test_suffixes_are_binary(text: str, size: int | None) -> None:
    assert parse_size(text) == size


def test_sizes_of_parts_are_rounded_down_to_16_bytes() -> None:
    # base = (count / nranks) & ~(16 / eltSize - 1) of GetCollByteCount
    gather = parse_command("all_gather_perf -g 8")
    assert gather.size_and_count(1000, 8) == (896, 28)  # 250 floats, 31 a rank, 28 rounded
    assert gather.size_and_count(64, 8) == (0, 0)
    assert parse_command("alltoall_perf -d half -g 8").size_and_count(1000, 8) == (896, 56)  # 62 halves, rounded to 8
    assert parse_command("all_reduce_perf -d double").size_and_count(1001, 8) == (1000, 125)


@pytest.mark.parametrize(
    ("launcher", "processes", "hosts"),
    [
        ("mpirun -np 32 -N 8", 32, 4),
        ("mpirun --allow-run-as-root -np 16 -H a:8,b:8 --bind-to none", 16, 2),
        ("mpiexec -n 4 -ppn 1", 4, 4),
        ("mpirun --map-by ppr:8:node -np 64", 64, 8),
        ("srun -N4 --ntasks-per-node=8 --mpi=pmix", 32, 4),
        ("srun -n 16 -N 2", 16, 2),
        ("mpirun -np 8", 8, None),
        ("mpirun -npernode 8 --host a,b", 16, 2),
    ],
)
def test_launchers_say_processes_and_hosts(launcher: str, processes: int, hosts: int | None) -> None:
    found = parse_command(f"{launcher} all_gather_perf_mpi -g 1")
    assert (found.processes, found.hosts(), found.ranks()) == (processes, hosts, processes)


def test_variables_of_nccl_become_parameters() -> None:
    words = "NCCL_ALGO=Ring NCCL_IB_GID_INDEX=3 env FOO=1 mpirun -np 8 -x NCCL_PROTO=LL128 -x NCCL_DEBUG -x NCCL_ALGO"
    found = parse_command(f"{words} -genv NCCL_NVLS_ENABLE 0 -x NCCL_MIN_NCHANNELS=8 all_reduce_perf -R 1 -z 1")
    assert found.nccl == {"algo": "ring", "proto": "ll128", "nvls": "false", "registered": "true"}
    assert (found.channels, found.not_modelled) == ((8, 0), ("-z (waits for each operation)",))
    slurm = parse_command("srun -n 8 --export=ALL,NCCL_PXN_DISABLE=1,NCCL_COLLNET_ENABLE=1 alltoall_perf")
    assert slurm.nccl == {"pxn": "false", "collnet": "true"}
    of_kind = "NCCL_ALGO='allreduce:NVLSTree;broadcast:ring' {}"
    assert parse_command(of_kind.format("all_reduce_perf")).nccl == {"algo": "nvls-tree"}
    assert parse_command(of_kind.format("broadcast_perf")).nccl == {"algo": "ring"}
    assert parse_command(of_kind.format("reduce_perf")).nccl == {}


def test_every_program_has_the_columns_of_nccl_tests() -> None:
    shown = {name: (found := parse_command(name)) and (found.operation, found.root) for name in PROGRAMS}
    # redop and root as src/*.cu pass them to TimeTest
    assert shown == {
        "all_reduce_perf": ("sum", -1),
        "all_gather_perf": ("none", -1),
        "reduce_scatter_perf": ("sum", -1),
        "alltoall_perf": ("none", -1),
        "broadcast_perf": ("none", 0),
        "reduce_perf": ("sum", 0),
        "sendrecv_perf": ("none", -1),
        "gather_perf": ("none", 0),
        "scatter_perf": ("none", 0),
    }


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("", "expected a program of nccl-tests"),
        ("ib_write_bw", "expected a program of nccl-tests"),
        ("all_reduce_perf 'x", "No closing quotation"),
        ("hypercube_perf -g 8", "hypercube"),
        ("alltoallv_perf -g 8", "nadi collective all-to-all-v"),
        ("my_own_perf", "expected all_reduce_perf"),
        ("all_reduce_perf -q 3", "option -q not recognized"),
        ("all_reduce_perf -b", "option -b requires argument"),
        ("all_reduce_perf extra", "found 'extra'"),
        ("all_reduce_perf -b 1X", "-b 1X: expected a size"),
        ("all_reduce_perf -e 9999999G", "-e 9999999G: expected a size"),
        ("all_reduce_perf -b 2G -e 1G", "found -b 2147483648 above -e 1073741824"),
        ("all_reduce_perf -b 0 -e 8 -f 2", "do not grow"),
        ("all_reduce_perf -b 8 -e 16 -i 0", "do not grow"),
        ("all_reduce_perf -b 1 -e 8K -i 1", "more than 1,000 sizes"),
        ("all_reduce_perf -g 0", "-g 0: expected a whole number from 1"),
        ("all_reduce_perf -n x", "-n x: expected a whole number"),
        ("all_reduce_perf -m 4", "-m 4 times groups of operations"),
        ("all_reduce_perf -C 1", "-C 1 reports the time of the CPU"),
        ("all_reduce_perf -R 2 -D 1", "-D 1 runs a kernel of nccl-tests"),
        ("all_reduce_perf -R 2", "-R 2 runs symmetric kernels"),
        ("all_reduce_perf -d all", "-d all: expected one of int8"),
        ("all_reduce_perf -o all", "-o all: expected one of sum"),
        ("mpirun -np 8 broadcast_perf -r 8", "-r 8: expected a root below 8"),
        ("mpirun all_reduce_perf", "expected -np N"),
        ("mpirun -np x all_reduce_perf", "-np x: expected a whole number from 1"),
        ("mpirun -np 2000000 all_reduce_perf", "found 2,000,000 ranks"),
        ("NCCL_ALGO=^NVLS all_reduce_perf", "Nadi takes one, no list"),
        ("NCCL_ALGO=Ring,Tree all_reduce_perf", "Nadi takes one, no list"),
        ("NCCL_PROTO=LL64 all_reduce_perf", "expected one of ll, ll128, simple"),
        ("NCCL_NVLS_ENABLE=yes all_reduce_perf", "expected a whole number from 0 to 2"),
        ("NCCL_MIN_NCHANNELS=64 all_reduce_perf", "expected a whole number from 1 to 32"),
        ("NCCL_MIN_CTAS=16 NCCL_MAX_CTAS=8 all_reduce_perf", "found 16 channels or more and 8 or fewer"),
        ("NCCL_P2P_DISABLE=1 all_reduce_perf", "NCCL_P2P_DISABLE=1 is a setting that Nadi does not model"),
        ("mpirun -np 8 -x NCCL_PROTO all_reduce_perf", "found -x NCCL_PROTO without a value"),
    ],
)
def test_what_has_no_model_is_refused_in_one_line(command: str, expected: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse_command(command)
    assert expected in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_costs_beside_the_model_are_listed() -> None:
    command = "NCCL_IB_QPS_PER_CONNECTION=4 NCCL_CROSS_NIC=2 NCCL_IB_HCA=mlx5_0 all_reduce_perf -G 1 -u 1"
    expected = ("-G (CUDA graphs)", "-u (unaligned buffers)", "NCCL_IB_QPS_PER_CONNECTION=4 (paths of a connection)")
    assert parse_command(command).not_modelled == (*expected, "NCCL_IB_HCA=mlx5_0 (which NICs are used)")
