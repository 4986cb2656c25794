"""Compute times of accelerators: operators, GPU specifications, tables of measured times, and a roofline model."""

from nadi.workload.compute.gpu import (
    ALONE,
    IN_SERVING,
    IN_STEPS,
    Efficiencies,
    Gpu,
    SustainedShare,
    find_gpu,
    gpu_names,
)
from nadi.workload.compute.measured_times import (
    AicbModel,
    Measurement,
    read_aicb,
    read_table,
    read_tables,
    table_names,
    write_table,
)
from nadi.workload.compute.operators import Operator, format_operators, parse_operators
from nadi.workload.compute.times import SOURCES, ComputeTimes
