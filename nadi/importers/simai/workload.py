"""A workload of layers as the traces of all NPUs, one for each kind of pipeline stage."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from nadi.errors import ConfigError
from nadi.et.formats.simai import DIALECT
from nadi.et.layers import LayerFile, RankNumbering, read_layers, stage_tables
from nadi.importers.simai.busbw import BusBandwidths
from nadi.inputs.limits import MAX_NPUS
from nadi.workload import TraceSet


def trace_set(file: LayerFile, gpus: int, bandwidths: BusBandwidths | None = None) -> TraceSet:
    """Return the traces of a number of GPUs; with bandwidths, collectives are computations that take their time.

    Raises ConfigError or TraceError: the numbers of the file do not fit together.
    """
    if not 1 <= gpus <= MAX_NPUS:
        raise ConfigError(f"{file.path}: {gpus} GPUs, expected 1 to {MAX_NPUS}")
    ranks = RankNumbering(file, gpus)
    dialect = DIALECT if bandwidths is None else replace(DIALECT, collective_nanos=bandwidths.nanos)
    tables, table_of_stage = stage_tables(file, dialect, 1, ranks)
    examples = [ranks.stages[table_of_stage.index(number)].first_npu for number in range(len(tables))]
    used = {name for table in tables for name in table.group_names if name}
    families = {kind: tuple(ranks.family(kind)) for kind in sorted(used)}
    # stage after stage, each on as many consecutive GPUs
    trace_of_npu = np.repeat(np.array(table_of_stage, np.int32), ranks.stages[0].stride)
    return TraceSet(tables, trace_of_npu, np.array(examples, np.int32), families)


def read_workload(path: Path) -> tuple[LayerFile, list[str]]:
    """Return the layers of a file as SimAI takes them, and sentences about what differs from the text of the file.

    SimAI reads the first layer of `checkpoints` and of `checkpoint_initiates` again for each further one.
    """
    file = read_layers(path)
    dropped = [name for name, layers in file.lists.items() if len(layers) > 1]
    remarks = [
        f"{path}: {name} has {len(file.lists[name])} layers, of which only the first ({file.lists[name][0]}) counts, "
        "as in SimAI"
        for name in dropped
    ]
    if file.numbers.get("pp", 1) > 1 and not file.numbers.get("pp_comm"):
        remarks.append(f"{path}: pp is {file.numbers['pp']} without pp_comm, so that stages send each other nothing")
    return file._replace(lists={name: layers[:1] for name, layers in file.lists.items()}), remarks
