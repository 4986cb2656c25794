"""What replicas of the same parameters say to each other in a step: gradients, parameters, and when.

| framework | zero | gradients | parameters |
| --- | --- | --- | --- |
| megatron | 0 | all-reduce of buckets, last micro-batch | |
| megatron | 1 | reduce-scatter of buckets, last micro-batch | all-gather of buckets before the first forward pass |
| deepspeed | 0, 1 | all-reduce of buckets, last micro-batch | 1: all-gather after the optimizer |
| deepspeed | 2 | all-reduce of buckets, every micro-batch | all-gather after the optimizer |
| deepspeed | 3 | reduce-scatter of layers, every micro-batch | all-gather of layers, forward and backward |
| fsdp | 2, 3 | reduce-scatter of layers, every micro-batch | all-gather of layers, forward; 3: and backward |

Megatron-LM's distributed optimizer gathers beside the first forward pass, or without overlap_param_gather at the end of
the step. DeepSpeed reduces with all-reduces though each GPU needs a share only, as use_multi_rank_bucket_allreduce is
on unless told otherwise (runtime/zero/stage_1_and_2.py, average_tensor). With gather=list its ZeRO-3 does tensor by
tensor what else goes layer by layer (`workload.generators.training.lists`). FSDP copies what it gathers and reduces
(`workload.generators.training.flat_copies`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from et import CollectiveCommType
from workload.compute.operators import DTYPE_BYTES
from workload.generators.training import flat_copies, lists
from workload.generators.training.buckets import (
    DEEPSPEED,
    MEGATRON_LEAST,
    MEGATRON_PER_REPLICA,
    ParameterBucket,
    buckets,
)
from workload.generators.training.items import Compute, GroupCollective, Items, Memory
from workload.generators.training.parallel_plan import ParallelPlan
from workload.generators.training.units import HEAD, ModelUnit


@dataclass(frozen=True)
class Replicas:
    """Of one chunk of a stage.

    Attributes:
        plan: how all is spread.
        framework: by whose rules.
        units: of the chunk.
        chunk: its number in the stage.
        is_first: of its stage it is the one that has the first layers, on the first stage.
        is_other: it is of the slices whose replicas are the families with "-other" (DualPipe).
    """

    plan: ParallelPlan
    framework: str
    units: Sequence[ModelUnit]
    chunk: int
    is_first: bool
    is_other: bool = False

    def family(self, *, is_expert: bool) -> str:
        """Of groups with the same parameters."""
        return ("edp" if is_expert else "dp") + ("-other" if self.is_other else "")

    def count(self, *, is_expert: bool) -> int:
        """Replicas."""
        plan = self.plan
        twice = 2 if plan.is_mirrored else 1
        own = plan.tp * plan.cp * plan.dp // (plan.ep * plan.etp) if is_expert else plan.dp * plan.cp
        return own * twice

    @cached_property
    def shares_parameters(self) -> bool:
        """Layers are gathered when they are needed."""
        return self.plan.zero == 3 or self.framework == "fsdp"

    @property
    def in_lists(self) -> bool:
        """Tensors go one by one, as lists."""
        return self.plan.gather == "list"

    @cached_property
    def gradient_bytes(self) -> int:
        """Of one; DeepSpeed reduces them in the data type of the model unless the plan says another."""
        plan = self.plan
        is_default = "grad_dtype" not in plan.model_fields_set
        dtype = plan.dtype if self.framework == "deepspeed" and is_default else plan.grad_dtype
        return max(2, int(DTYPE_BYTES[dtype]))

    @cached_property
    def parameter_bytes(self) -> int:
        """Of one when it is gathered; products in FP8 take parameters of 16 bits."""
        return max(2, int(DTYPE_BYTES[self.plan.dtype]))

    @cached_property
    def buckets(self) -> list[ParameterBucket]:
        """Of gradients; with the distributed optimizer of parameters too."""
        plan = self.plan
        asked = plan.bucket_bytes // self.gradient_bytes or None
        if self.framework == "deepspeed":
            return buckets(self.units, asked or DEEPSPEED, before=True)
        whole = not plan.overlap_grad_reduce or not self.is_first
        default = max(MEGATRON_LEAST, MEGATRON_PER_REPLICA * plan.dp * plan.cp)
        return buckets(self.units, asked or (None if whole else default), before=False)

    def before_forward(self, number: int, *, is_first: bool) -> tuple[Items, list[str]]:
        """What begins before a unit, and which keys the unit waits for; is_first: the step's first micro-batch."""
        if self.shares_parameters:
            return self._gathers(number, 1)
        if not is_first or not self.gathers_beside:
            return [], []
        return [], [self._key(b) for b in self.buckets if b.units[0] <= number <= b.units[1] and self._is_shared(b)]

    def before_backward(self, number: int) -> tuple[Items, list[str]]:
        """The same of the backward pass; with zero 2 FSDP still has them from the forward pass."""
        return self._gathers(number, -1) if self.plan.zero == 3 and self.shares_parameters else ([], [])

    def after_backward(self, number: int, *, is_last: bool) -> Items:
        """Reductions that begin when a unit's gradients are done; is_last: its last micro-batch."""
        if self.shares_parameters:
            first, own = self._wrap(number)
            if first != number:
                return []
            return self._reduce_tensors(own) if self.in_lists else self._reduce_layer(own)
        every = self.framework == "deepspeed" and self.plan.zero == 2
        if not self.plan.overlap_grad_reduce or not (is_last or every):
            return []
        begun = [b for b in self.buckets if b.units[0] == number and not self._is_deferred(b)]
        return [item for b in begun for item in self._reduce(b, beside=True)]

    def after_micro_batch(self) -> Items:
        """Reductions of every micro-batch that nothing hides."""
        if self.framework == "deepspeed" and self.plan.zero == 2 and not self.plan.overlap_grad_reduce:
            return [item for b in self.buckets for item in self._reduce(b, beside=False)]
        return []

    def after_deferred(self) -> Items:
        """Return the reductions that wait for the deferred gradients of the output layer's weights."""
        return [item for b in self.buckets if self._is_deferred(b) for item in self._reduce(b, beside=True)]

    def _is_deferred(self, bucket: ParameterBucket) -> bool:
        """Return whether a bucket has parameters of an output layer whose gradients are deferred."""
        plan = self.plan
        if not plan.defer_embedding_wgrad or not plan.overlap_grad_reduce or bucket.is_expert:
            return False
        return any(self.units[number].name == HEAD for number in range(bucket.units[0], bucket.units[1] + 1))

    def after_all(self) -> Items:
        """Reductions at the end of a step that nothing hides."""
        every = self.framework == "deepspeed" and self.plan.zero == 2
        if self.shares_parameters or self.plan.overlap_grad_reduce or every:
            return []
        return [item for b in self.buckets for item in self._reduce(b, beside=False)]

    @property
    def gathers_beside(self) -> bool:
        """Parameters come beside the first forward pass of the next step."""
        return self.framework == "megatron" and self.plan.zero == 1 and self.plan.overlap_param_gather

    def gathers(self, *, beside: bool) -> Items:
        """All-gathers of the parameters that the optimizer has worked out, in the order of the forward pass."""
        if self.in_lists:
            return self._gather_persistent()
        if self.plan.zero not in {1, 2} or self.framework == "fsdp":
            return []
        items: Items = []
        for b in reversed(self.buckets):
            if self._is_shared(b):
                members = self.count(is_expert=b.is_expert)
                size = -(-b.size // members) * self.parameter_bytes
                name = f"chunk{self.chunk}-bucket{b.number}/dp:all-gather"
                key = self._key(b) if beside else ""
                kind = CollectiveCommType.ALL_GATHER
                items.append(GroupCollective(name, kind, size, self.family(is_expert=b.is_expert), key))
        return items

    def _is_shared(self, bucket: ParameterBucket) -> bool:
        return self.count(is_expert=bucket.is_expert) > 1

    def _key(self, bucket: ParameterBucket) -> str:
        return f"parameters {self.chunk} {bucket.number}"

    def _reduce(self, bucket: ParameterBucket, *, beside: bool) -> Items:
        members = self.count(is_expert=bucket.is_expert)
        if members == 1:
            return []
        family, count = self.family(is_expert=bucket.is_expert), bucket.size
        name = f"chunk{self.chunk}-bucket{bucket.number}/dp"
        key = f"gradients {self.chunk} {bucket.number}" if beside else ""
        if self.plan.zero and self.framework == "megatron":
            size = -(-count // members) * members * self.gradient_bytes
            return [GroupCollective(f"{name}:reduce-scatter", CollectiveCommType.REDUCE_SCATTER, size, family, key)]
        size = count * self.gradient_bytes
        return [GroupCollective(f"{name}:all-reduce", CollectiveCommType.ALL_REDUCE, size, family, key)]

    def _wrap(self, number: int) -> tuple[int, list[int]]:
        """The units that are gathered together with one, both of a layer, and the first of them."""
        unit = self.units[number]
        if not unit.layer:
            return number, [number]
        own = [i for i in range(number - 3, number + 4) if self._layer(i) == unit.layer]
        return own[0], own

    def _layer(self, number: int) -> str:
        return self.units[number].layer if 0 <= number < len(self.units) else ""

    @cached_property
    def _wraps(self) -> list[list[int]]:
        """Units that are gathered together, in the order of the forward pass."""
        return [self._wrap(number)[1] for number in range(len(self.units)) if self._wrap(number)[0] == number]

    def _gathers(self, number: int, step: int) -> tuple[Items, list[str]]:
        """Before a layer: its parameters are awaited, and those of `prefetch` layers further on begin to come.

        Those of the first layer of a pass, and of those that are fetched ahead with it, begin before it.
        """
        wraps = self._wraps[::step]
        at = next(i for i, own in enumerate(wraps) if number in own)
        entry = wraps[at][0] if step > 0 else wraps[at][-1]
        if number != entry:
            return [], []
        begin = 0 if at == 0 else at + self.plan.prefetch
        end = at + self.plan.prefetch + 1
        if self.in_lists:
            return self._gather_lists(wraps, at, range(begin, min(end, len(wraps))), is_backward=step < 0), []
        items = [item for own in wraps[begin:end] for item in self._gather_layer(own)]
        awaited = [item.key for item in self._gather_layer(wraps[at]) if isinstance(item, GroupCollective)]
        if self.framework == "fsdp" and awaited:
            items.append(flat_copies.unpacked(self._name(wraps[at]), self._padded(wraps[at]), self.plan, awaited))
        return items, awaited

    def _gather_layer(self, own: Sequence[int]) -> Items:
        items: Items = []
        for is_expert, count in self._counts(own):
            size = -(-count // self.count(is_expert=is_expert)) * self.parameter_bytes
            family = self.family(is_expert=is_expert)
            name, key = f"{self._name(own)}/dp:all-gather", f"gathered {own[0]} {family}"
            needs: tuple[str, ...] = ()
            if "parameters" in self.plan.offload:  # the own share comes from the host first
                needs = (f"loaded {own[0]} {family}",)
                items.append(Memory(f"{self._name(own)}/memory:load", size, loads=True, key=needs[0]))
            items.append(GroupCollective(name, CollectiveCommType.ALL_GATHER, size, family, key, needs))
        return items

    def _reduce_layer(self, own: Sequence[int]) -> Items:
        items: Items = []
        if self.framework == "fsdp" and self._counts(own):
            values = self._padded(own)
            items.append(flat_copies.packed(self._name(own), values, self.plan, self._reduced_before(own)))
        for is_expert, count in self._counts(own):
            members = self.count(is_expert=is_expert)
            size = -(-count // members) * members * self.gradient_bytes
            family = self.family(is_expert=is_expert)
            name, key = f"{self._name(own)}/dp:reduce-scatter", self._reduced_key(own, family)
            items.append(GroupCollective(name, CollectiveCommType.REDUCE_SCATTER, size, family, key))
        return items

    def _padded(self, own: Sequence[int]) -> int:
        """Return the number of parameters of units that are shared, padded to a multiple of the replicas."""
        counts = [(count, self.count(is_expert=is_expert)) for is_expert, count in self._counts(own)]
        return sum(-(-count // members) * members for count, members in counts)

    def _reduced_key(self, own: Sequence[int], family: str) -> str:
        return f"reduced {own[0]} {family}"

    def _reduced_before(self, own: Sequence[int]) -> list[str]:
        """Return the keys of the reductions that precede those of a layer in the backward pass."""
        at = self._wraps.index(list(own)) + 1
        return self._reductions(self._wraps[at]) if at < len(self._wraps) else []

    def _reductions(self, own: Sequence[int]) -> list[str]:
        """Return the keys of the reductions of a layer."""
        return [self._reduced_key(own, self.family(is_expert=is_expert)) for is_expert, _ in self._counts(own)]

    def awaited_after_micro_batch(self) -> list[str]:
        """Return the keys of reductions that must end before anything follows a backward pass.

        FSDP's `_root_post_backward_final_callback` waits for the last reduction of each backward pass. In pipelines it
        does so only after the last one.
        """
        is_fsdp = self.framework == "fsdp" and self.plan.pp == 1
        return self._reductions(self._wraps[0]) if is_fsdp and self._wraps else []

    def _gather_lists(self, wraps: Sequence[Sequence[int]], at: int, begun: range, *, is_backward: bool) -> Items:
        """Layer `at` is awaited, those of `begun` begin to come, once the gradients above are reduced."""
        reduced = self._reduce_tensors(wraps[at - 1]) if is_backward and at else []
        needs = tuple(item.key for item in reduced if isinstance(item, GroupCollective))
        items: Items = []
        if at not in begun:
            items += [self._unpacked(tensor, key) for tensor, key in self._listed(wraps[at], is_backward=is_backward)]
        for number in begun:
            for tensor, key in self._listed(wraps[number], is_backward=is_backward):
                items += self._load(tensor)
                items += lists.gather(tensor, self.parameter_bytes, key, needs)
                if number == at:
                    items.append(self._unpacked(tensor, key))
        return items

    def _unpacked(self, tensor: lists.ListedTensor, key: str) -> Compute:
        return lists.unpacked(tensor, self._dtype(self.parameter_bytes), key)

    def _load(self, tensor: lists.ListedTensor) -> Items:
        """The own share comes from the host before it is sent."""
        if "parameters" not in self.plan.offload:
            return []
        return [Memory(f"{tensor.name}/memory:load", tensor.share * self.parameter_bytes, loads=True)]

    def _reduce_tensors(self, own: Sequence[int]) -> Items:
        """The last of a layer's gradients is done first."""
        dtype = self._dtype(self.gradient_bytes)
        return [
            item
            for number, tensor in reversed(list(enumerate(self._tensors(own))))
            for item in lists.reduce(tensor, self.gradient_bytes, dtype, f"reduced {own[0]} {number}")
        ]

    def _gather_persistent(self) -> Items:
        tensors = [tensor for own in self._wraps for tensor in self._tensors(own) if tensor.size < lists.PERSISTENT]
        families = dict.fromkeys(tensor.family for tensor in tensors)
        dtype = self._dtype(self.parameter_bytes)
        return [
            item
            for family in families
            for item in lists.gather_persistent(
                [tensor for tensor in tensors if tensor.family == family], self.parameter_bytes, dtype
            )
        ]

    def _tensors(self, own: Sequence[int]) -> list[lists.ListedTensor]:
        """Of units, in the order of the forward pass, that are shared."""
        found = [tensor for i in own for tensor in self.units[i].tensors for _ in range(tensor.pieces)]
        made = []
        for number, tensor in enumerate(found):
            members, family = self.count(is_expert=tensor.is_expert), self.family(is_expert=tensor.is_expert)
            if members > 1:
                name = f"{self._name(own)}/tensor{number}"
                made.append(lists.ListedTensor(name, tensor.size // tensor.pieces, members, family))
        return made

    def _listed(self, own: Sequence[int], *, is_backward: bool) -> list[tuple[lists.ListedTensor, str]]:
        """Those that are gathered for a pass, each with its key; one that is dropped on the way comes twice."""
        tensors = self._tensors(own)
        sizes = [tensor.size for tensor in tensors]
        is_redone = is_backward and self.plan.recompute == "full"
        return [
            (tensor, f"gathered {own[0]} {number} {time}")
            for number, tensor in enumerate(tensors)
            if tensor.size >= lists.PERSISTENT
            for time in range(2 if is_redone and lists.is_far(sizes, number) else 1)
        ]

    def _dtype(self, value_bytes: int) -> str:
        if value_bytes == 4:
            return "fp32"
        return "bf16" if self.plan.dtype == "fp8" else self.plan.dtype

    def _name(self, own: Sequence[int]) -> str:
        return self.units[own[0]].layer or self.units[own[0]].name

    def _counts(self, own: Sequence[int]) -> list[tuple[bool, int]]:
        """Parameters of units, of experts and others, that are shared."""
        counts = []
        for is_expert in (False, True):
            count = sum(t.size for i in own for t in self.units[i].tensors if t.is_expert == is_expert)
            if count and self.count(is_expert=is_expert) > 1:
                counts.append((is_expert, count))
        return counts
