"""Parquet files have the columns of nadi/simulation/schemas.py."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nadi import et
from nadi.simulation import schemas
from nadi.simulation.closed_forms import running
from tests.nonempty import nonempty

ROOT = Path(__file__).parents[2]
TYPES = {"text": pa.string(), "word": pa.dictionary(pa.int32(), pa.string()), "bool": pa.bool_()}
INCAST = [[et.send_node(1, "send", src, 3, 1 << 20)] for src in range(3)]
INCAST.append([et.recv_node(node, "receive", node - 1, 3, 1 << 20) for node in (1, 2, 3)])
STAR = 'spec = "leaf-spine:leaves=1,hosts_per_leaf=4,spines=1,rate=100Gbps,delay=1us"'
SHALLOW = '[network]\nswitch = "shared-buffer"\nbuffer = "200kB"\necn_kmin = "5kB"\necn_kmax = "50kB"\n'


def check(file, schema, more=()):
    """Names, order, types and nulls of a file, by hand from the fields."""
    found = pq.read_table(file)
    expected = [field for field in schema.fields if not field.where or field.name in more]
    assert found.column_names == [field.name for field in expected]
    for field, column in nonempty(zip(expected, found.columns, strict=True)):
        assert column.type == (TYPES.get(field.type) or getattr(pa, field.type)()), field.name
        assert field.null or not column.null_count, field.name
    return found.num_rows


def test_files_of_a_run(nadi, write_run, tmp_path):
    """Three NPUs send to one over a shallow shared buffer, so that ports fill and links are paused."""
    group = et.coll_node(9, "sum", et.CollectiveCommType.ALL_REDUCE, 1 << 16)
    run = write_run([[*nodes, group] for nodes in INCAST], f'{SHALLOW}[output]\nsample = "10us"\n', STAR)
    assert nadi("run", run, "--out", tmp_path / "out", "-q").code == 0
    of_packets = {*schemas.OF_EVERY_RUN, *schemas.LOGS} - {schemas.LIMITS}
    rows = {schema.name: check(tmp_path / "out" / schema.file, schema) for schema in of_packets}
    assert all(rows.values())
    assert sorted([*rows, "summary"]) == sorted(path.stem for path in (tmp_path / "out").iterdir())
    assert nadi("run", run, "--out", tmp_path / "flows", "-q", "--fidelity", "flow").code == 0
    assert check(tmp_path / "flows" / schemas.LIMITS.file, schemas.LIMITS) > 0


def test_files_of_a_folded_run(nadi, write_run, step, tmp_path, monkeypatch):
    monkeypatch.setattr(running, "MAX_ROWS", 0)
    run = write_run([step] * 4, '[network]\nfidelity = "closed-form"\n')
    assert nadi("run", run, "--out", tmp_path / "out", "-q").code == 0
    assert check(tmp_path / "out" / schemas.NPUS.file, schemas.NPUS, more=["represented_by"]) == 4


def test_the_file_of_a_sweep(nadi, tmp_path):
    arguments = ["all-reduce", "-t", "ring:npus=4,rate=100Gbps,delay=1us", "--algorithm", "ring,direct"]
    assert nadi("collective", *arguments, "-o", tmp_path / "out", "-q").code == 0
    assert check(tmp_path / "out" / schemas.SWEEP.file, schemas.SWEEP) == 2


@pytest.mark.parametrize("change", ["more", "fewer"])
def test_a_column_that_does_not_stand_in_the_schema_is_refused(change):
    columns = {field.name: np.zeros(2, np.int64) for field in schemas.QUEUES.fields}
    assert schemas.QUEUES.table(columns).num_rows == 2
    if change == "more":
        columns["depth"] = columns["bytes"]
    else:
        del columns["bytes"]
    with pytest.raises(KeyError, match=r"queues\.parquet: .*(depth|bytes)"):
        schemas.QUEUES.table(columns)


def test_numbers_that_the_type_cannot_hold_are_refused():
    columns = {field.name: np.zeros(1, np.int64) for field in schemas.NPUS.fields}
    with pytest.raises(pa.ArrowInvalid, match="not in range"):
        schemas.NPUS.table(columns | {"represented_by": np.array([1 << 40])})


def test_every_number_with_a_dimension_has_its_unit():
    """Times, sizes and rates say their units at the end of their names; what has none is counted or a share."""
    without = {field.name for schema in schemas.SCHEMAS for field in schema.fields if not field.unit}
    assert not {name for name in without if name.endswith(("time", "size", "rate", "delay", "bandwidth"))}
    units = {field.name: field.unit for schema in schemas.SCHEMAS for field in schema.fields}
    assert (units["time_ps"], units["bytes"], units["rate_bps"], units["busbw_Bps"]) == ("ps", "B", "bit/s", "B/s")
