"""`nadi calibrate`: constants that are known are found, and rows that bear none leave the cited values."""

import functools

import numpy as np
import pytest

import nadi
from nadi import topologies
from nadi.errors import ConfigError
from nadi.studies.calibration import CalibrationRefusedError, calibrate, read_rows, write_cluster
from nadi.studies.calibration.constants import CONSTANTS, NAMES
from nadi.studies.calibration.fitting import Fitter, alike, borne
from nadi.studies.calibration.model import SiteFabric, SiteModel
from nadi.studies.calibration.rows import SiteRow
from nadi.topologies.clusters import find
from tests.nonempty import nonempty
from tests.studies.printed_logs import PROGRAM, Times, today
from tests.studies.published_sites import AWS_P4D, AWS_P5, CRUSOE, P4D, log_of

KINDS = ("all-reduce", "all-gather", "all-to-all")
SIZES = tuple(1 << power for power in range(10, 29, 2))  # ten sizes, 1 KiB to 256 MiB
NOISE = 0.02
SITE = {"launch": 1.4, "nvlink": 0.85}
HOSTS = {"nic": 1.6, "wire": 0.6}


@functools.cache
def exact_us(machine, gpus, kind, size_bytes, factors):
    row = SiteRow(kind, gpus, size_bytes, 1.0, (), "", 0)
    return SiteFabric(f"{machine}:npus={gpus}").exact_us(row, dict(factors))


def logs(folder, factors, machine="dgx-h100", gpus=8, kinds=KINDS, sizes=SIZES, noise=NOISE, seed=7):
    """Write a log for each kind with the times of a site, and return their paths."""
    random, paths = np.random.default_rng(seed), []
    for kind in kinds:
        times = [exact_us(machine, gpus, kind, size, tuple(sorted(factors.items()))) for size in sizes]
        noisy = np.array(times) * np.exp(noise * random.standard_normal((2, len(times))))
        rows = [Times(size, *pair) for size, pair in zip(sizes, noisy.T, strict=True)]
        paths.append(folder / f"{PROGRAM[kind]}_{gpus}.log")
        paths[-1].write_text("\n".join(today(rows, kind, gpus, max(1, gpus // 8))) + "\n")
    return paths


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("site")
    return calibrate("dgx-h100", read_rows(logs(tmp_path, SITE)))


def by_name(calibration):
    return {each.name: each for each in calibration.constants}


def assert_found(calibration, truth):
    """Every constant is within three standard deviations of the truth, and the others are cited or near."""
    for name, each in nonempty(by_name(calibration).items()):
        if name in truth:
            assert each.value != 1.0, (name, each.why)
        if each.value != 1.0:
            assert abs(np.log(each.value / truth.get(name, 1.0))) < 3 * each.uncertainty, each


@pytest.mark.slow
def test_known_constants_are_found(fitted):
    assert_found(fitted, SITE)
    before, after = (fitted.errors(after=after, held_out=True) for after in (False, True))
    assert before.rows == after.rows == len(KINDS) * len(SIZES[1::3])
    assert after.mean < before.mean / 2
    assert after.mean < 1.5 * NOISE  # what noise leaves
    assert fitted.refusal() == ""


@pytest.mark.full
def test_known_constants_are_found_over_hosts(tmp_path):
    paths = logs(tmp_path, HOSTS, gpus=16, kinds=("all-reduce", "all-gather"))
    found = calibrate("dgx-h100", read_rows(paths))
    assert_found(found, HOSTS)
    assert found.errors(after=True, held_out=True).mean < found.errors(after=False, held_out=True).mean / 2


@pytest.mark.full
def test_known_constants_of_a_rack_are_found(tmp_path):
    """A rack of 72 GPUs is one NVLink domain, whatever number of hosts the list of ranks has."""
    site = {"launch": 1.4, "nvlink": 0.85}
    paths = logs(tmp_path, site, "gb200-nvl72", 72, ("all-reduce", "all-gather"), SIZES[:-1], seed=3)
    found = calibrate("gb200-nvl72:npus=72", read_rows(paths))
    assert_found(found, site)
    assert {each.why for each in found.constants if each.name in {"nic", "wire"}} == {"no row depends on it"}
    assert found.errors(after=True, held_out=True).mean < found.errors(after=False, held_out=True).mean / 2
    write_cluster([found], tmp_path / "own.toml")
    cluster = find(str(tmp_path / "own.toml"))
    assert (cluster.gpus_per_host, cluster.gpus, cluster.gpu) == (72, 72, "gb200")


@pytest.mark.slow
def test_one_bad_row_does_not_decide(tmp_path, fitted):
    """A row that takes three times as long as it should moves no constant by more than its uncertainty."""
    paths = logs(tmp_path, SITE)
    lines = paths[1].read_text().splitlines()
    at = next(number for number, line in enumerate(lines) if line.split()[:1] == [str(SIZES[-1])])
    words = lines[at].split()
    words[5] = f"{3 * float(words[5]):.2f}"
    lines[at] = " ".join(words)
    paths[1].write_text("\n".join(lines) + "\n")
    found = calibrate("dgx-h100", read_rows(paths))
    for name, each in nonempty(by_name(fitted).items()):
        assert abs(np.log(by_name(found)[name].value / each.value)) < 2 * each.uncertainty, name
    assert [place for place, _ in found.far] == [f"{paths[1]}:{at + 1}"]


@pytest.mark.slow
def test_order_of_rows_does_not_matter(tmp_path, fitted):
    paths = logs(tmp_path, SITE)
    for path in paths:
        lines = path.read_text().splitlines()
        rows = [line for line in lines if line.split()[0].isdecimal()]
        others = [line for line in lines if line not in rows]
        path.write_text("\n".join([*others, *rows[::-1]]) + "\n")
    again = calibrate("dgx-h100", read_rows(paths[::-1]))
    assert again.factors == fitted.factors
    assert [each.uncertainty for each in again.constants] == [each.uncertainty for each in fitted.constants]


@pytest.mark.slow
def test_constants_that_rows_do_not_bear_stay(tmp_path):
    """Large buffers of one host say nothing about launches or NICs, whatever these are."""
    sizes = tuple(range(2 << 27, 14 << 27, 1 << 27))
    found = by_name(calibrate("dgx-h100", read_rows(logs(tmp_path, SITE, kinds=("all-gather",), sizes=sizes))))
    assert found["nvlink"].value == pytest.approx(SITE["nvlink"], abs=3 * found["nvlink"].uncertainty)
    for name in nonempty({"launch", "hop", "nic", "wire"}):
        assert found[name].value == 1.0, found[name]
        assert found[name].why
    assert found["nic"].why == found["wire"].why == "no row depends on it"


@pytest.mark.slow
def test_a_site_as_cited_is_left_alone(tmp_path):
    """Rows that differ from the cited constants by noise alone bear no constant, and no file is written."""
    refusals = 0
    for seed in nonempty(range(3)):
        found = calibrate("dgx-h100", read_rows(logs(tmp_path, {}, seed=seed)))
        after = found.errors(after=True, held_out=True).mean
        for each in found.constants:
            assert abs(np.log(each.value)) <= 3 * each.uncertainty
        if found.refusal():
            refusals += 1
            with pytest.raises(CalibrationRefusedError, match="not written"):
                write_cluster([found], tmp_path / "own.toml")
            assert not (tmp_path / "own.toml").exists()
        else:
            assert after < 1.5 * NOISE
    assert refusals


@pytest.mark.slow
def test_the_file_gives_the_fitted_times(tmp_path, fitted):
    """The written cluster gives `nadi collective` the times of the calibration, and runs and plans take it."""
    path = tmp_path / "own.toml"
    write_cluster([fitted], path)
    cluster = find(str(path))
    assert cluster.calibration["factors"] == fitted.factors
    assert cluster.calibration["files"][0].keys() == {"file", "sha256", "rows"}
    assert topologies.build(f"{path}:gpus=8").npus == 8
    for kind in KINDS:
        at = {row.size_bytes: us for row, us in zip(fitted.rows.rows, fitted.after_us, strict=True) if row.kind == kind}
        sizes = ",".join(str(size) for size in at)
        found = nadi.collective(kind, f"{path}:gpus=8", sizes, fidelity="closed-form")
        times = {row["bytes"]: row["time_ps"] / 1e6 for row in found["rows"]}
        assert times == pytest.approx(at, rel=1e-6), kind


class Toy:
    """A model of rows whose times follow from two constants alone, "block" and "wire", which act alike above 1 MiB."""

    def __init__(self, rows):
        self.sizes = np.array([row.size_bytes for row in rows])

    def log_us(self, factors, is_used):
        large = self.sizes > 1 << 20
        log = np.log(self.sizes) - large * (np.log(factors.get("block", 1.0)) + np.log(factors.get("wire", 1.0)))
        return log[is_used]


def toy_fitter(sizes, seed=1, **factors):
    """Return a fitter to noisy rows of the toy at some factors, and bool[rows], all of them."""
    noise = NOISE * np.random.default_rng(seed).standard_normal(len(sizes))
    rows = [SiteRow("all-gather", 8, size, 1.0, (), "", 0) for size in sizes]
    exact = np.exp(Toy(rows).log_us(factors, np.ones(len(rows), np.bool_)) + noise)
    measured = [row._replace(time_us=float(us)) for row, us in zip(rows, exact, strict=True)]
    times_us = [row.time_us for row in measured]
    return Fitter(Toy(rows), CONSTANTS, times_us, sizes), np.ones(len(rows), np.bool_)


def test_uncertainties_hold_over_many_sites():
    """The truth is within one standard deviation about two times of three, and within three nearly always."""
    block, distances = NAMES.index("block"), []
    for seed in range(60):
        fitter, rows = toy_fitter([1 << power for power in range(10, 30)], seed, block=0.9)
        found = fitter.fit([block], rows)
        distances.append(abs(found.at[block] - np.log(0.9)) / found.deviation[block])
    assert np.mean(np.array(distances) < 1) == pytest.approx(0.68, abs=0.2)
    assert np.mean(np.array(distances) < 3) > 0.95


@functools.cache
def fabric_of(spec):
    return SiteFabric(spec)


def distances_from_truth(spec, gpus, kinds, sizes, sites):
    """Return how far fitted constants are from the truth in stated standard deviations, over random sites.

    Half of the constants of a site differ from the cited values, as far as their priors allow. Formulas give the times
    and are fitted, so that nothing but noise and the choice of constants is between a fit and the truth.
    """
    rows = [SiteRow(kind, gpus, size, 1.0, (), "", 0) for kind in kinds for size in sizes]
    model, everything, distances = SiteModel({gpus: fabric_of(spec)}, rows), np.ones(len(rows), np.bool_), []
    is_used = np.arange(len(rows)) % 3 != 1
    constants = [each._replace(high=min(each.high, 1.02)) if each.name == "wire" else each for each in CONSTANTS]
    for seed in range(sites):
        random = np.random.default_rng(seed)
        truth = {
            each.name: min(each.high, np.exp(each.prior * random.standard_normal()))
            for each in constants
            if random.random() < 0.5
        }
        times_us = np.exp(model.log_us(truth, everything) + NOISE * random.standard_normal(len(rows)))
        fitter = Fitter(model, constants, times_us.tolist(), [row.size_bytes for row in rows])
        active, _ = borne(fitter, is_used)
        found = fitter.fit(active, is_used)
        deviations = fitter.deviations(found, is_used)
        for number in active:
            error = found.at[number] - np.log(truth.get(NAMES[number], 1.0))
            distances.append(abs(error) / deviations[number])
    return distances


@pytest.mark.full
def test_uncertainties_hold_over_many_random_sites():
    """The truth is within two stated deviations in 95 % of fits, whatever collectives and sizes were measured."""
    large = [count << 27 for count in range(1, 13)]
    small, every = [1 << power for power in range(10, 22)], [1 << power for power in range(10, 30)]
    distances = [
        *distances_from_truth("dgx-h100:npus=8", 8, ("all-gather",), large, 14),
        *distances_from_truth("dgx-h100:npus=8", 8, ("all-gather",), small, 10),
        *distances_from_truth("dgx-h100:npus=8", 8, ("all-to-all",), every, 14),
        *distances_from_truth("dgx-h100:npus=8", 8, ("all-reduce",), every, 10),
        *distances_from_truth("dgx-h100:npus=16", 16, ("all-gather",), every[::2], 10),
    ]
    inside = np.array(distances) < 2
    assert len(inside) >= 60
    assert 0.88 <= inside.mean() <= 0.99, (inside.mean(), len(inside))
    assert max(distances) < 4


def test_constants_that_rows_do_not_tell_apart_are_named():
    fitter, rows = toy_fitter([1 << power for power in range(10, 30)], block=0.7)
    active, reasons = borne(fitter, rows)
    names = [NAMES[number] for number in active]
    assert names in (["block"], ["wire"])
    (others,) = alike(fitter, active, rows).values()
    assert {*names, *(NAMES[number] for number in others)} == {"block", "wire"}
    assert reasons[NAMES.index("launch")] == "no row depends on it"


def test_fewer_rows_bear_fewer_constants():
    """A constant that a single noisy row shows is left alone: no other row predicts it."""
    fitter, rows = toy_fitter([*(1 << power for power in range(9, 21)), 1 << 21], block=0.99)
    assert borne(fitter, rows)[0] == []


@pytest.mark.slow
def test_too_few_rows_are_refused(tmp_path):
    paths = logs(tmp_path, {}, kinds=("all-gather",), sizes=SIZES[:5])
    with pytest.raises(ConfigError, match=r"found 5 usable rows; expected 12 or more to fit constants"):
        read_rows(paths)


def test_other_hosts_are_refused(tmp_path):
    """Eight GPUs on two hosts are not those of a server of eight."""
    path = tmp_path / "all_gather.log"
    rows = [Times(size, 10 + size / 1e5, 10 + size / 1e5) for size in (1 << np.arange(10, 30)).tolist()]
    path.write_text("\n".join(today(rows, "all-gather", 8, 2)) + "\n")
    with pytest.raises(ConfigError, match=r"found 8 GPUs on 2 hosts, where dgx-h100:npus=8 has 1; expected a cluster"):
        calibrate("dgx-h100", read_rows([path]))


def test_defects_are_named(tmp_path):
    """A row that takes longer than a larger buffer is left out, whatever model; so is one with wrong results."""
    rows = [Times(size, 10 + size / 1e5, 10 + size / 1e5) for size in (1 << np.arange(10, 30)).tolist()]
    rows[4] = Times(rows[4].size_bytes, 99.0, 99.0)
    path = tmp_path / "all_gather.log"
    path.write_text("\n".join(today(rows, "all-gather", 8, 1)) + "\n")
    found = read_rows([path])
    assert len(found.rows) == 19
    ((place, reason),) = found.defects
    assert place.startswith(f"{path}:")
    assert reason.startswith("99 us, more than the ")
    assert [held for held, row in zip(found.is_held_out, found.rows, strict=True)] == [n % 3 == 1 for n in range(19)]


def test_names():
    assert NAMES == ("launch", "hop", "block", "nvlink", "nic", "wire")


@pytest.mark.full
@pytest.mark.parametrize(
    ("site", "cluster", "command"),
    [
        (AWS_P5, "dgx-h100", ""),
        (CRUSOE, "dgx-h100", ""),
        (AWS_P4D, "p4d.toml", "NCCL_PROTO=simple all_reduce_perf -b 8 -e 1G -f 2 -g 1"),
    ],
    ids=["p5", "crusoe", "p4d"],
)
def test_held_out_errors_of_published_sites_are_halved(site, cluster, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p4d.toml").write_text(P4D)
    path = tmp_path / "all_reduce.log"
    path.write_text(log_of(site, *filter(None, [command])))
    found = calibrate(cluster, read_rows([path]))
    before, after = (found.errors(after=after, held_out=True) for after in (False, True))
    assert found.refusal() == ""
    assert before.rows <= 10
    assert after.mean < before.mean / 2
