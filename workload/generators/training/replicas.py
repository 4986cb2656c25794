"""Collectives between replicas of the same parameters in a step: which gradients and parameters, and when.

| framework | zero | gradients | parameters |
| --- | --- | --- | --- |
| megatron | 0 | all-reduce of buckets, last micro-batch | |
| megatron | 1 | reduce-scatter of buckets, last micro-batch | all-gather of buckets before the first forward pass |
| deepspeed | 0, 1 | all-reduce of buckets, last micro-batch | 1: all-gather after the optimizer |
| deepspeed | 2 | all-reduce of buckets, every micro-batch | all-gather after the optimizer |
| deepspeed | 3 | reduce-scatter of layers, every micro-batch | all-gather of layers, forward and backward |
| fsdp | 2, 3 | reduce-scatter of layers, every micro-batch | all-gather of layers, forward; 3: and backward |

With `shard`, groups of that many replicas gather and reduce-scatter, and each reduce-scatter is followed by an
all-reduce of the shard between these groups: HSDP (`foreach_reduce` of torch/distributed/fsdp/_fully_shard/
_fsdp_collectives.py; only the end of a backward pass waits for its all-reduces, which have a stream of their own), and
Megatron's num_distributed_optimizer_instances (core/distributed/param_and_grad_buffer.py).

Megatron-LM's distributed optimizer gathers during the first forward pass, or without overlap_param_gather at the end of
the step. DeepSpeed uses all-reduces although each GPU needs only its share, because use_multi_rank_bucket_allreduce is
on by default (runtime/zero/stage_1_and_2.py, average_tensor). With gather=list, its ZeRO-3 runs one collective per
tensor instead of one per layer (`workload.generators.training.item_lists`). FSDP copies the tensors that it gathers and
reduces (`workload.generators.training.item_lists`).
"""

from collections.abc import Sequence
from functools import cached_property

from nadi.et import CollectiveCommType
from nadi.workload.compute.operators import DTYPE_BYTES, Operator
from nadi.workload.generators.training import item_lists
from nadi.workload.generators.training.linear import waiting
from nadi.workload.generators.training.parallel_plan import ParallelPlan
from nadi.workload.generators.training.parameters import (
    DEEPSPEED,
    MEGATRON_MINIMUM,
    MEGATRON_PER_REPLICA,
    ParameterBucket,
    buckets,
)
from nadi.workload.generators.training.units import HEAD, ModelUnit


class Replicas:
    """The collectives between the replicas of one chunk of a stage."""

    def __init__(
        self,
        plan: ParallelPlan,
        framework: str,
        units: Sequence[ModelUnit],
        chunk_number: int,
        *,
        is_first: bool,
        is_other: bool,
    ) -> None:
        """Find the units that are gathered together.

        Args:
            plan: The settled parallel plan.
            framework: The training framework: "megatron", "deepspeed" or "fsdp".
            units: The units of the chunk in the order of the forward pass.
            chunk_number: The number of the chunk in its stage.
            is_first: Whether the chunk has the model's first layers.
            is_other: Whether its groups are the "-other" families, those of the second half of DualPipe's slices.
        """
        self.plan, self.framework = plan, framework
        self.units = units  # Units of the chunk in the order of the forward pass
        self.chunk = chunk_number  # Number of the chunk in its stage
        self._is_first = is_first  # Whether the chunk has the model's first layers
        self._is_other = is_other  # Whether its groups are the "-other" families (second half of DualPipe's slices)
        # Whether parameters are sharded and each layer is gathered before its use
        self.shares_parameters = plan.zero == 3 or framework == "fsdp"
        self._copies_per_pipeline = 2 if plan.is_mirrored else 1
        self._in_lists = plan.gather == "list"  # Whether each tensor has its own collectives, on lists
        # Bytes per gradient in a reduction; DeepSpeed uses the model's data type unless the plan sets grad_dtype
        is_default = "grad_dtype" not in plan.model_fields_set
        dtype = plan.dtype if framework == "deepspeed" and is_default else plan.grad_dtype
        self.gradient_bytes = max(2, int(DTYPE_BYTES[dtype]))
        # Bytes per parameter in an all-gather; products in FP8 use parameters of 16 bits unless they have `fp8_gather`
        self._parameter_bytes = max(2, int(DTYPE_BYTES[plan.dtype]))
        # Whether updated parameters are gathered during the first forward pass of the next step
        self.gathers_beside = framework == "megatron" and plan.zero == 1 and plan.overlap_param_gather
        # Whether buckets are reduced after every micro-batch and not after the last one only
        self._reduces_every_micro_batch = framework == "deepspeed" and plan.zero == 2

    def family(self, *, is_expert: bool) -> str:
        """Return the name of the family of groups that hold the same parameters; "" if the plan leaves them out.

        Args:
            is_expert: Whether the parameters are those of experts; else they are dense.
        """
        if "dp" in self.plan.without:
            return ""
        return ("edp" if is_expert else "dp") + ("-other" if self._is_other else "")

    def shards(self, *, is_expert: bool) -> int:
        """Return the number of GPUs that share the states of dense parameters, or else of experts, under ZeRO.

        Args:
            is_expert: Whether the parameters are those of experts; else they are dense.
        """
        return self.count(is_expert=is_expert) // self.plan.shard_copies

    def _shard_family(self, *, is_expert: bool) -> str:
        """Return the name of the family of groups of these GPUs; "" if the plan leaves its collectives out."""
        family = self.family(is_expert=is_expert)
        return f"{family}-shard" if family and self.plan.shard_copies > 1 else family

    def count(self, *, is_expert: bool) -> int:
        """Return the number of replicas of dense parameters, or else of experts.

        Args:
            is_expert: Whether the parameters are those of experts; else they are dense.
        """
        plan = self.plan
        in_stage = plan.tp * plan.cp * plan.dp // (plan.ep * plan.etp) if is_expert else plan.dp * plan.cp
        return in_stage * self._copies_per_pipeline

    @cached_property
    def buckets(self) -> list[ParameterBucket]:
        """Buckets of gradients and, with the distributed optimizer, of parameters."""
        plan = self.plan
        requested = plan.bucket_bytes // self.gradient_bytes or None
        tensors = [unit.tensors for unit in self.units]
        if self.framework == "deepspeed":
            return buckets(tensors, requested or DEEPSPEED, ends_before=True)
        is_single = not plan.overlap_grad_reduce or not self._is_first
        default = max(MEGATRON_MINIMUM, MEGATRON_PER_REPLICA * plan.dp * plan.cp)
        return buckets(tensors, requested or (None if is_single else default), ends_before=False)

    def before_forward(self, unit_number: int, *, is_first: bool) -> tuple[item_lists.Items, list[str]]:
        """Return the collectives before a unit's forward pass, and the keys that the unit waits for.

        Args:
            unit_number: The index of the unit in the chunk.
            is_first: Whether the pass is the chunk's first one of the step.
        """
        if self.shares_parameters:
            return self._gathers(unit_number, 1)
        if not is_first or not self.gathers_beside:
            return [], []
        return [], [
            self._key(b) for b in self.buckets if b.units[0] <= unit_number <= b.units[1] and self._is_shared(b)
        ]

    def before_backward(self, number: int) -> tuple[item_lists.Items, list[str]]:
        """Return the collectives before a unit's backward pass, and the keys that the unit waits for.

        FSDP with zero 2 keeps gathered parameters, so that it gathers none here.

        Args:
            number: The index of the unit in the chunk.
        """
        return self._gathers(number, -1) if self.plan.zero == 3 and self.shares_parameters else ([], [])

    def after_backward(self, unit_number: int, *, is_last: bool) -> item_lists.Items:
        """Return the reductions that start when a unit's gradients are complete.

        Args:
            unit_number: The index of the unit in the chunk.
            is_last: Whether the pass is the chunk's last one of the step.
        """
        if self.shares_parameters:
            first, wrap = self._wrap(unit_number)
            if first != unit_number:
                return []
            return self._reduce_tensors(wrap) if self._in_lists else self._reduce_layer(wrap)
        if not self.plan.overlap_grad_reduce or not (is_last or self._reduces_every_micro_batch):
            return []
        complete = [b for b in self.buckets if b.units[0] == unit_number and not self._is_deferred(b)]
        return [item for b in complete for item in self._reduce(b, is_overlapped=True)]

    def after_micro_batch(self) -> item_lists.Items:
        """Return the reductions after every micro-batch that overlap no computation."""
        if self._reduces_every_micro_batch and not self.plan.overlap_grad_reduce:
            return [item for b in self.buckets for item in self._reduce(b, is_overlapped=False)]
        return []

    def after_deferred(self) -> item_lists.Items:
        """Return the reductions that wait for the deferred gradients of the output layer's weights."""
        return [item for b in self.buckets if self._is_deferred(b) for item in self._reduce(b, is_overlapped=True)]

    def _is_deferred(self, bucket: ParameterBucket) -> bool:
        """Return whether a bucket has parameters of an output layer whose gradients are deferred."""
        plan = self.plan
        if not plan.defer_embedding_wgrad or not plan.overlap_grad_reduce or bucket.is_expert:
            return False
        return any(self.units[number].name == HEAD for number in range(bucket.units[0], bucket.units[1] + 1))

    def after_all(self) -> item_lists.Items:
        """Return the reductions at the end of a step that overlap no computation."""
        if self.shares_parameters or self.plan.overlap_grad_reduce or self._reduces_every_micro_batch:
            return []
        return [item for b in self.buckets for item in self._reduce(b, is_overlapped=False)]

    def gathers(self, *, is_overlapped: bool) -> item_lists.Items:
        """Return the all-gathers of the parameters that the optimizer updated, in the order of the forward pass.

        Args:
            is_overlapped: Whether they overlap the forward pass, so that only units that need a bucket wait for it.
        """
        if self._in_lists:
            return self._gather_persistent()
        if self.plan.zero not in {1, 2} or self.framework == "fsdp":
            return []
        items: item_lists.Items = []
        for b in reversed(self.buckets):
            if self._is_shared(b):
                narrow = b.operands if self.plan.fp8_gather and self.plan.dtype == "fp8" else 0
                wide_bytes, members = (b.size - narrow) * self._parameter_bytes, self.shards(is_expert=b.is_expert)
                size = -(-(wide_bytes + narrow) // members)
                name = f"chunk{self.chunk}-bucket{b.number}/dp:all-gather"
                key = self._key(b) if is_overlapped else ""
                kind = CollectiveCommType.ALL_GATHER
                items.append(
                    item_lists.GroupCollective(name, kind, size, self._shard_family(is_expert=b.is_expert), key)
                )
        return items

    def _is_shared(self, bucket: ParameterBucket) -> bool:
        return self.shards(is_expert=bucket.is_expert) > 1

    def _key(self, bucket: ParameterBucket) -> str:
        return f"parameters {self.chunk} {bucket.number}"

    def _reduce(self, bucket: ParameterBucket, *, is_overlapped: bool) -> item_lists.Items:
        """Return the reduction of a bucket's gradients; is_overlapped: whether only items with its key wait."""
        members = self.count(is_expert=bucket.is_expert)
        if members == 1:
            return []
        family, count = self.family(is_expert=bucket.is_expert), bucket.size
        name = f"chunk{self.chunk}-bucket{bucket.number}/dp"
        key = f"gradients {self.chunk} {bucket.number}" if is_overlapped else ""
        items = self._before_reduction(bucket) if family else []
        if self.plan.zero and self.framework == "megatron":
            # With several copies, one stream runs the collectives of all buckets (start_grad_sync)
            before = [b.number for b in self.buckets if b.is_expert == bucket.is_expert and b.number < bucket.number]
            needs = (f"copies {self.chunk} {before[-1]}",) if key and before and self.plan.shard_copies > 1 else ()
            keys = (key, key and f"copies {self.chunk} {bucket.number}")
            return [*items, *self._reduce_shards(name, count, keys, needs, is_expert=bucket.is_expert)]
        size = count * self.gradient_bytes
        return [
            *items,
            item_lists.GroupCollective(f"{name}:all-reduce", CollectiveCommType.ALL_REDUCE, size, family, key),
        ]

    def _before_reduction(self, bucket: ParameterBucket) -> item_lists.Items:
        """Return what Megatron-Core does with a bucket first (param_and_grad_buffer.py, start_grad_sync)."""
        plan = self.plan
        items: item_lists.Items = []
        if plan.check_gradients:
            norm = Operator("elementwise", (bucket.size, 1, 0), plan.grad_dtype)
            items = [
                item_lists.Compute("check-gradients", (norm,)),
                *item_lists.reads_number(plan, "check-gradients/host", item_lists.RESTART_MICROS),
            ]
        if plan.scale_gradients:
            scale = Operator("elementwise", (bucket.size, 1, 1), plan.grad_dtype)
            items.append(item_lists.Compute("scale-gradients", (scale,)))
        return items

    def _wrap(self, unit_number: int) -> tuple[int, list[int]]:
        """Return the first unit, and all units, of the layer of a unit, which FSDP calls a wrap."""
        # The units of a wrap are gathered and reduced together.
        unit = self.units[unit_number]
        if not unit.layer:
            return unit_number, [unit_number]
        # A layer of multi-token prediction has the most units of all layers: four.
        # Search near the unit only, since models have thousands of units
        near = range(max(0, unit_number - 3), min(unit_number + 4, len(self.units)))
        wrap = [i for i in near if self.units[i].layer == unit.layer]
        return wrap[0], wrap

    @cached_property
    def _wraps(self) -> list[list[int]]:
        """The wraps of the chunk in the order of the forward pass."""
        return [self._wrap(number)[1] for number in range(len(self.units)) if self._wrap(number)[0] == number]

    def _gathers(self, unit_number: int, direction: int) -> tuple[item_lists.Items, list[str]]:
        """Return the all-gathers that start before a unit, and the keys that the unit waits for."""
        # Before the first unit of a layer, the all-gather of the layer that is `prefetch` layers ahead starts. Before
        # the first layer of a pass, those of all layers up to there start. direction: 1 for a forward pass, -1 for a
        # backward pass.
        wraps = self._wraps[::direction]
        at = next(i for i, wrap in enumerate(wraps) if unit_number in wrap)
        entry = wraps[at][0] if direction > 0 else wraps[at][-1]
        if unit_number != entry:
            return [], []
        # The first layer of a pass starts all gathers up to the one that is prefetched; later layers start one more
        # each
        begin = 0 if at == 0 else at + self.plan.prefetch
        end = at + self.plan.prefetch + 1
        if self._in_lists:
            return self._gather_lists(wraps, at, range(begin, min(end, len(wraps))), is_backward=direction < 0), []
        items = [item for wrap in wraps[begin:end] for item in self._gather_layer(wrap)]
        awaited = [item.key for item in self._gather_layer(wraps[at]) if isinstance(item, item_lists.GroupCollective)]
        if self.framework == "fsdp" and awaited and self.plan.copies == "tensors":
            items.append(item_lists.copied_out(self._name(wraps[at]), self._padded(wraps[at]), self.plan, awaited))
        return items, awaited

    def _gather_layer(self, unit_numbers: Sequence[int]) -> item_lists.Items:
        """Return the all-gathers of the parameters of a layer's units, after the loads of offloaded ones."""
        items: item_lists.Items = []
        for family, members, padded in self._sharded(unit_numbers):
            size = padded // members * self._parameter_bytes
            name, key = f"{self._name(unit_numbers)}/dp:all-gather", f"gathered {unit_numbers[0]} {family}"
            needs: tuple[str, ...] = ()
            if "parameters" in self.plan.offload:  # the GPU first loads its shard from the host
                needs = (f"loaded {unit_numbers[0]} {family}",)
                items.append(
                    item_lists.Memory(f"{self._name(unit_numbers)}/memory:load", size, loads=True, key=needs[0])
                )
            items.append(item_lists.GroupCollective(name, CollectiveCommType.ALL_GATHER, size, family, key, needs))
        return items

    def _reduce_layer(self, unit_numbers: Sequence[int]) -> item_lists.Items:
        """Return the reduce-scatters of the gradients of a layer's units; with FSDP they follow a copy."""
        items: item_lists.Items = []
        if self.framework == "fsdp" and self._sharded(unit_numbers) and self.plan.copies != "none":
            values = self._padded(unit_numbers)
            items.append(
                item_lists.copied_in(self._name(unit_numbers), values, self.plan, self._reduced_before(unit_numbers))
            )
        for is_expert, count in self._parameters(unit_numbers):
            family = self._shard_family(is_expert=is_expert)
            keys = self._reduced_key(unit_numbers, family), self._reduced_key(unit_numbers, f"{family} copies")
            items += self._reduce_shards(f"{self._name(unit_numbers)}/dp", count, keys, (), is_expert=is_expert)
        return items

    def _reduce_shards(
        self, name: str, count: int, keys: tuple[str, str], needs: tuple[str, ...], *, is_expert: bool
    ) -> item_lists.Items:
        """Return the reduce-scatter of gradients, and the all-reduce of a GPU's shard between copies of all shards.

        name, keys, needs: prefix of the names, keys of both, and `needs` of the first; count: number of gradients.
        """
        shards, copies = self.shards(is_expert=is_expert), self.plan.shard_copies
        size = -(-count // shards) * self.gradient_bytes
        items: item_lists.Items = []
        if shards > 1:
            kind, family = CollectiveCommType.REDUCE_SCATTER, self._shard_family(is_expert=is_expert)
            items.append(
                item_lists.GroupCollective(f"{name}:reduce-scatter", kind, size * shards, family, keys[0], needs)
            )
            needs = waiting(keys[0])
        if copies > 1 and self.family(is_expert=is_expert):
            family = f"{self.family(is_expert=is_expert)}-replicate"
            items.append(
                item_lists.GroupCollective(
                    f"{name}:all-reduce", CollectiveCommType.ALL_REDUCE, size, family, keys[1], needs
                )
            )
        return items

    def _parameters(self, unit_numbers: Sequence[int]) -> list[tuple[bool, int]]:
        """Return the numbers of units' parameters with several replicas, and whether these are those of experts."""
        tensors = [tensor for i in unit_numbers for tensor in self.units[i].tensors]
        counts = [(each, sum(t.size for t in tensors if t.is_expert == each)) for each in (False, True)]
        return [(each, count) for each, count in counts if count and self.count(is_expert=each) > 1]

    def _sharded(self, unit_numbers: Sequence[int]) -> list[tuple[str, int, int]]:
        """Return family, members and number (padded to a multiple of them) of units' sharded parameters, by family."""
        counted = [(each, self.shards(is_expert=each), count) for each, count in self._parameters(unit_numbers)]
        return [
            (self._shard_family(is_expert=is_expert), members, -(-count // members) * members)
            for is_expert, members, count in counted
            if members > 1
        ]

    def _padded(self, wrap: Sequence[int]) -> int:
        """Return the number of a layer's sharded parameters, padding included."""
        return sum(padded for _, _, padded in self._sharded(wrap))

    def _reduced_key(self, wrap: Sequence[int], family: str) -> str:
        return f"reduced {wrap[0]} {family}"

    def _reduced_before(self, unit_numbers: Sequence[int]) -> list[str]:
        """Return the keys of the reductions that precede those of a layer's units in the backward pass."""
        at = self._wraps.index(list(unit_numbers)) + 1
        return self._reductions(self._wraps[at]) if at < len(self._wraps) else []

    def _reductions(self, wrap: Sequence[int]) -> list[str]:
        """Return the keys of the reductions of a layer."""
        return [self._reduced_key(wrap, family) for family, _, _ in self._sharded(wrap)]

    def awaited_after_micro_batch(self) -> list[str]:
        """Return the keys of reductions that must end before anything follows a backward pass."""
        # FSDP's `_root_post_backward_final_callback` waits for the last reduction of each backward pass. In pipelines
        # it does so only after the last one.
        is_fsdp = self.framework == "fsdp" and self.plan.pp == 1
        if not is_fsdp or not self._wraps:
            return []
        return [item.key for item in self._reduce_layer(self._wraps[0]) if isinstance(item, item_lists.GroupCollective)]

    def _gather_lists(
        self, wraps: Sequence[Sequence[int]], layer_number: int, begun_layers: range, *, is_backward: bool
    ) -> item_lists.Items:
        """Return the items with which the GPU waits for a layer of `wraps` and starts to gather begun_layers."""
        # The wraps, units of each layer, are in the order of the pass. In a backward pass the gathers start when the
        # previous layer's gradients are reduced.
        reduced = self._reduce_tensors(wraps[layer_number - 1]) if is_backward and layer_number else []
        needs = tuple(item.key for item in reduced if isinstance(item, item_lists.GroupCollective))
        items: item_lists.Items = []
        if layer_number not in begun_layers:
            items += [
                self._unpacked(tensor, key)
                for tensor, key in self._listed(wraps[layer_number], is_backward=is_backward)
            ]
        for number in begun_layers:
            for tensor, key in self._listed(wraps[number], is_backward=is_backward):
                items += self._load(tensor)
                items += item_lists.gather(tensor, self._parameter_bytes, key, needs)
                if number == layer_number:
                    items.append(self._unpacked(tensor, key))
        return items

    def _unpacked(self, tensor: item_lists.ListedTensor, key: str) -> item_lists.Compute:
        return item_lists.unpacked(tensor, self._dtype(self._parameter_bytes), key)

    def _load(self, tensor: item_lists.ListedTensor) -> item_lists.Items:
        """Return the load of the GPU's shard from the host's memory, if parameters are offloaded."""
        if "parameters" not in self.plan.offload:
            return []
        return [item_lists.Memory(f"{tensor.name}/memory:load", tensor.share * self._parameter_bytes, loads=True)]

    def _reduce_tensors(self, unit_numbers: Sequence[int]) -> item_lists.Items:
        """Return the reductions of the tensors of a layer's units, last tensor first, as they are computed."""
        dtype = self._dtype(self.gradient_bytes)
        return [
            item
            for number, tensor in reversed(list(enumerate(self._tensors(unit_numbers))))
            for item in item_lists.reduce(tensor, self.gradient_bytes, dtype, f"reduced {unit_numbers[0]} {number}")
        ]

    def _gather_persistent(self) -> item_lists.Items:
        """Return the gathers of the tensors that are too small to be sharded, after a step."""
        tensors = [t for wrap in self._wraps for t in self._tensors(wrap) if t.size < item_lists.PERSISTENT]
        families = dict.fromkeys(tensor.family for tensor in tensors)
        dtype = self._dtype(self._parameter_bytes)
        return [
            item
            for family in families
            for item in item_lists.gather_persistent(
                [tensor for tensor in tensors if tensor.family == family], self._parameter_bytes, dtype
            )
        ]

    def _tensors(self, unit_numbers: Sequence[int]) -> list[item_lists.ListedTensor]:
        """Return the sharded tensors of a layer's units in the order of the forward pass."""
        pieces = [tensor for i in unit_numbers for tensor in self.units[i].tensors for _ in range(tensor.pieces)]
        listed = []
        for number, tensor in enumerate(pieces):
            members, family = self.count(is_expert=tensor.is_expert), self.family(is_expert=tensor.is_expert)
            if members > 1:
                name = f"{self._name(unit_numbers)}/tensor{number}"
                listed.append(item_lists.ListedTensor(name, tensor.size // tensor.pieces, members, family))
        return listed

    def _listed(self, unit_numbers: Sequence[int], *, is_backward: bool) -> list[tuple[item_lists.ListedTensor, str]]:
        """Return the tensors that a pass gathers for a layer's units, with keys; a regathered one occurs twice."""
        tensors = self._tensors(unit_numbers)
        sizes = [tensor.size for tensor in tensors]
        is_recomputed = is_backward and self.plan.recompute == "full"
        return [
            (tensor, f"gathered {unit_numbers[0]} {number} {time}")
            for number, tensor in enumerate(tensors)
            if tensor.size >= item_lists.PERSISTENT
            for time in range(2 if is_recomputed and item_lists.is_far(sizes, number) else 1)
        ]

    def _dtype(self, value_bytes: int) -> str:
        """Return the name of the data type of values of 4 or fewer bytes."""
        if value_bytes == 4:
            return "fp32"
        return self.plan.activation_dtype

    def _name(self, wrap: Sequence[int]) -> str:
        return self.units[wrap[0]].layer or self.units[wrap[0]].name
