"""The tables of NCCL's tuning model, and those of hosts' threads: tuning.toml."""

from pathlib import Path

from nadi import inputs

TABLES = inputs.parse_toml(Path(__file__).with_name("tuning.toml").read_text(encoding="utf-8"))
