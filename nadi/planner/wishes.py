"""From what the user writes to questions: one, or one for each value of a sweep; and results of earlier runs."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import inputs
from nadi.errors import ConfigError
from nadi.planner.planning import SAME, Wish
from topologies import clusters
from workload import models
from workload.training import parallel_plan, rules


def wish_of(model: str, cluster: str, gpus: int, base: str, framework: str, gpu: str) -> Wish:
    """The question.

    Raises:
        WorkloadError, TopologyError, ConfigError: a name is not known.
    """
    if framework not in get_args(rules.Framework) or framework == "inference":
        raise ConfigError(f"--framework {framework}: expected megatron, deepspeed or fsdp")
    known: rules.Framework = framework  # type: ignore[assignment]
    return Wish(models.find(model), clusters.find(cluster), gpus, parallel_plan(base), known, gpu)


def swept(wish: Wish, sweep: str) -> dict[str, Wish]:
    """A question for each value of a sweep by its name, or the one as it is under the model's name.

    Raises:
        ConfigError: no key, or no value.
    """
    if not sweep:
        return {wish.model.name: wish}
    key, _, text = (part.strip() for part in sweep.partition("="))
    values = [value.strip() for value in text.split(",")]
    if not key or not all(values):
        raise ConfigError(f"--sweep {sweep!r}: expected KEY=VALUE,VALUE,... as rate=200Gbps,400Gbps")
    return {f"{key}={value}": _with(wish, key, value) for value in values}


def _with(wish: Wish, key: str, value: str) -> Wish:
    if key == "gpus":
        if not value.isdecimal() or len(value) > 9:
            raise ConfigError(f"--sweep gpus: found {value!r}; expected whole numbers")
        return replace(wish, gpus=int(value))
    if key == "gpu":
        return replace(wish, gpu=value)
    return replace(wish, fabric={**wish.fabric, key: value})


def read_documents(folders: Sequence[Path], name: str) -> list[dict[str, Any]]:
    """What earlier runs have written.

    Raises:
        ConfigError: there is none, or it is none of ours, or an earlier version's.
    """
    found = []
    for folder in folders:
        path = folder / name
        try:
            document = json.loads(inputs.read_text(path))
            answers = document["answers"]
            found.extend(answers.values())
            missing = [key for answer in answers.values() for key in SAME if key not in answer]
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror or error}; expected results of nadi plan") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path}: is no document of nadi plan ({error}); expected one") from error
        if missing:
            raise ConfigError(f"{path}: {missing[0]} is missing; expected results of this version's nadi plan")
    return found
