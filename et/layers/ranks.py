"""NPUs of a workload of layers: all do the same work, each in its own groups."""

from et.errors import TraceError
from et.layers.file import LayerFile
from inputs.limits import MAX_NPUS

Groups = dict[str, tuple[int, ...]]


class RankNumbering:
    """Numbering of NPUs: tensor parallelism varies fastest, then data parallelism, then the pipeline, as in Megatron.

    Expert parallelism is within data parallelism: its groups are neighbours there, DP_EP has NPUs of equal place.
    Numbers that do not fit together raise TraceError.
    """

    def __init__(self, file: LayerFile, npus: int) -> None:
        self.npus = npus
        self.tensor = file.numbers.get("model_parallel_NPU_group", 1)
        self.pipeline = max(file.numbers.get("pp", 1), 1)
        expert = max(file.numbers.get("ep", 1), 1)
        per_replica = self.tensor * self.pipeline
        if not per_replica or npus % per_replica or (npus // per_replica) % expert:
            raise TraceError(
                f"{file.path}: {npus} NPUs with tensor {self.tensor}, pipeline {self.pipeline} and expert parallelism "
                f"{expert}, expected that tensor x pipeline divides the NPUs, and expert the rest"
            )
        self.data = npus // per_replica
        self.expert = expert

    @property
    def members(self) -> dict[str, int]:
        """Number of members of each group."""
        return {"": self.npus, "TP": self.tensor, "DP": self.data, "EP": self.expert, "DP_EP": self.data // self.expert}

    def group(self, kind: str, npu: int) -> tuple[int, ...]:
        """Return the members of an NPU's group of a kind."""
        rest, tensor = divmod(npu, self.tensor)
        if kind == "TP":
            return tuple(range(npu - tensor, npu - tensor + self.tensor))
        stage, data = divmod(rest, self.data)
        first_expert = data - data % self.expert
        replicas = {
            "DP": range(self.data),
            "EP": range(first_expert, first_expert + self.expert),
            "DP_EP": range(data % self.expert, self.data, self.expert),
        }[kind]
        return tuple((stage * self.data + replica) * self.tensor + tensor for replica in replicas)

    def groups(self, kinds: list[str]) -> tuple[Groups, dict[str, list[str]]]:
        """Return all groups by number from 1 on, and for each kind the name of each NPU's group."""
        found: Groups = {}
        names: dict[str, list[str]] = {}
        for kind in kinds:
            names[kind] = [""] * self.npus
            for npu in range(self.npus):
                if not names[kind][npu]:
                    members = self.group(kind, npu)
                    name = str(len(found) + 1)
                    found[name] = members
                    for member in members:
                        names[kind][member] = name
        return found, names


def npus_of(file: LayerFile, given: str | None) -> int:
    """Return the number of NPUs that the user or the file gives; raise TraceError if neither does, or they differ."""
    in_file = file.numbers.get("all_gpus")
    if given is None:
        if in_file is None:
            raise TraceError(f"{file.path}: the number of NPUs is unknown, expected --from NAME:npus=N")
        npus = in_file
    else:
        npus = whole_number("npus", given)
    if in_file is not None and npus != in_file:
        raise TraceError(f"{file.path}: all_gpus is {in_file}, but npus={npus} was given, expected the same")
    if not 1 <= npus <= MAX_NPUS:
        raise TraceError(f"{file.path}: {npus} NPUs, expected 1 to {MAX_NPUS}")
    return npus


def whole_number(name: str, text: str) -> int:
    """Return the value of an option; raise TraceError if the value is no integer from 1."""
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) > 0):
        raise TraceError(f"--from: {name} is {text[:40]!r}, expected an integer from 1")
    return int(text)
