"""A small transformer trained on random tokens, for trace collection: data parallel, sharded, or tensor parallel.

    nadi trace collect -o recorded -- torchrun --nproc-per-node 2 scripts/train_example.py --parallel ddp
    nadi trace convert recorded -o traces

Without GPUs it trains on CPUs over gloo. `--ranks 2` starts the ranks itself, without torchrun.
"""

import argparse
import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

PARALLEL = ("ddp", "fsdp", "tp")


class Layer(nn.Module):
    """Attention and a feed-forward network, each with pre-normalisation and a residual connection."""

    def __init__(self, hidden: int, heads: int) -> None:
        """Create a layer of width `hidden` with `heads` attention heads."""
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.attention = nn.MultiheadAttention(hidden, heads, batch_first=True)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output [tokens, hidden] for an input of the same shape.

        Args:
            x: The input, [tokens, hidden].
        """
        normed = self.norm1(x)
        x = x + self.attention(normed, normed, normed, need_weights=False)[0]
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


def model(layers: int, hidden: int, heads: int, vocabulary: int) -> nn.Sequential:
    """Return a transformer of `layers` layers of width `hidden`, `heads` heads, and a vocabulary."""
    return nn.Sequential(
        nn.Embedding(vocabulary, hidden), *(Layer(hidden, heads) for _ in range(layers)), nn.Linear(hidden, vocabulary)
    )


def distributed(plain_model: nn.Sequential, kind: str, device: str) -> nn.Module:
    """Return a model distributed over all ranks, as "ddp", "fsdp" or "tp"; device: "cuda" or "cpu"."""
    if kind == "ddp":
        return DistributedDataParallel(plain_model, bucket_cap_mb=1)
    if kind == "fsdp":
        from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - only here

        for layer in plain_model:
            fully_shard(layer)
        return fully_shard(plain_model)
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415 - only here
    from torch.distributed.tensor.parallel import (  # noqa: PLC0415 - only here
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh(device, (dist.get_world_size(),))
    for layer in plain_model:
        if isinstance(layer, Layer):
            parallelize_module(layer, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return plain_model


def main() -> None:
    """Train as one of torchrun's ranks, or start all ranks of `--ranks`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parallel", choices=PARALLEL, default="ddp")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--ranks", type=int, default=0)
    args = parser.parse_args()
    if not args.ranks:
        train(args, "env://", None)
        return
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(args.ranks):
            child = os.fork()
            if child == 0:
                train(args, f"file://{folder}/store", rank)
                os._exit(0)
            children.append(child)
        failed = [child for child in children if os.waitpid(child, 0)[1]]
    if failed:
        raise SystemExit(f"{len(failed)} of {args.ranks} ranks have failed")


def train(options: argparse.Namespace, store_url: str, rank: int | None) -> None:
    """Train as one rank with the command's options; store_url: where ranks meet, rank: own one, None = torchrun's."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        torch.set_num_threads(1)
    backend = "nccl" if device == "cuda" else "gloo"
    if rank is None:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, init_method=store_url, rank=rank, world_size=options.ranks)
    if device == "cuda":
        torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    torch.manual_seed(0)
    vocab = 512
    trained_model = distributed(model(options.layers, options.hidden, 4, vocab).to(device), options.parallel, device)
    optimizer = torch.optim.AdamW(trained_model.parameters())
    for _ in range(options.steps):
        tokens = torch.randint(vocab, (options.batch, options.length + 1), device=device)
        logits = trained_model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
