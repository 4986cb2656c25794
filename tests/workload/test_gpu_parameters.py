"""GPUs with parameters after their name."""

import pytest

from nadi.energy import gpu_cost, read_table
from nadi.workload import WorkloadError
from nadi.workload.compute import IN_STEPS, ComputeTimes, Operator, find_gpu
from tests.workload.test_compute_times import MINE

H100 = find_gpu("h100")
PRODUCT = Operator("gemm", (8192, 8192, 8192))
STREAM = Operator("elementwise", (1 << 28, 1, 1))


def times(gpu):
    return ComputeTimes(find_gpu(gpu), pace=IN_STEPS, vendor_tables=False)


def test_power_slows_products_in_a_row_and_bandwidth_all_that_memory_bounds():
    slow = times("H100: power = 500W, memory=2.4TB/s")
    assert slow.gpu.name == "H100: power = 500W, memory=2.4TB/s"
    share = (500 / 700) ** 0.6
    assert slow.gpu.in_a_row["bf16"] == pytest.approx(0.87 * share)
    assert times("h100").time_ps(PRODUCT) / slow.time_ps(PRODUCT) == pytest.approx(share, rel=0.01)
    assert times("h100").time_ps(STREAM) / slow.time_ps(STREAM) == pytest.approx(2.4 / 3.35, rel=0.01)
    assert slow.gpu.memory_bytes == H100.memory_bytes


def test_more_power_gives_at_most_the_rate_of_single_products():
    assert find_gpu("h100:power=10kW").in_a_row == dict.fromkeys(H100.peak_flops, 1.0)
    assert find_gpu("a100:power=200W").in_a_row["bf16"] == pytest.approx(0.5**0.6)


def test_sms_and_clock_change_the_rates_that_are_not_given():
    """The PCIe version has 114 of 132 SMs at 1,755 MHz: 756 TFLOP/s (NVIDIA's data sheet)."""
    pcie = find_gpu("h100:sms=114,clock=1.62GHz,memory=2TB/s,fp8=1PFLOPS,power=350W")
    assert pcie.peak_of("bf16") == pytest.approx(756e12, rel=0.01)
    assert (pcie.peak_of("fp8"), pcie.sms, pcie.memory_bandwidth_Bps) == (1e15, 114, 2e12)


def test_only_capacity_and_link_keep_the_measured_times():
    assert find_gpu("h100:memory=96GiB,host_link=450GB/s").nvidia_tables == H100.nvidia_tables
    assert find_gpu("h100:memory=96GiB").memory_bytes == 96 << 30
    for changed in ("power=500W", "memory=2TB/s", "memory_bandwidth=2TB/s", "bf16=1PFLOPS"):
        assert find_gpu(f"h100:{changed}").nvidia_tables == ""
    assert find_gpu("h100:") == H100


def test_a_file_takes_parameters_too(tmp_path):
    (tmp_path / "mine.toml").write_text(MINE, encoding="utf-8")
    assert find_gpu(f"{tmp_path}/mine.toml:sms=20").peak_of("fp16") == 20e12
    with pytest.raises(WorkloadError, match="power of a GPU whose file has none"):
        find_gpu(f"{tmp_path}/mine.toml:power=100W")


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ("pow=3W", "pow: unknown key; nearest known key: power"),
        ("power=5", "power: 5 is not a power; expected 1W to 100kW, such as 700W"),
        ("power=0.1W", "power: '0.1W' is not a power; expected 1W to 100kW, such as 700W"),
        ("power", "'power' is no key=value; expected a form like h100:power=500W,memory=2.4TB/s"),
        ("power=1W,power=2W", "key 'power' occurs twice"),
        ("sms=0", "sms: found 0; expected 1 to 1048576"),
        ("memory=3W", "memory: '3W' is not a size"),
        ("memory=3W/s", "memory_bandwidth: "),
        ("bf16=2", "peak_flops.bf16: '2' is not a compute rate"),
        ("sustained=nan", "sustained: found nan; expected"),
        ("any_layout=3", "any_layout: found 3; expected"),
        ("in_a_row=1", "in_a_row: found 1; expected"),
        ("name=x", "name is no parameter; expected power, memory, a data type or another number"),
    ],
)
def test_wrong_parameters_are_refused_in_one_line(parameters, text):
    with pytest.raises(WorkloadError) as caught:
        find_gpu(f"h100:{parameters}")
    assert str(caught.value).startswith(f"h100:{parameters}: ")
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_energy_takes_the_power_of_a_variant():
    table = read_table()
    name, cost = gpu_cost(table, "H100:power=500W")
    assert (name, cost.tdp_W, cost.usd_per_hour) == ("h100", 500, table.gpus["h100"].usd_per_hour)
    assert gpu_cost(table, "h100:memory=96GiB")[1].tdp_W == 700
