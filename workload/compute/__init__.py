"""How long an accelerator computes: operators, what GPUs can do, tables of measured times, a roofline."""

from workload.compute.operators import Operator, format_operators, parse_operators

__all__ = ["Operator", "format_operators", "parse_operators"]
