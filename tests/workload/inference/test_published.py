"""Serving by its scheduler's clock against published figures (docs/explanation/inference.md has whole runs)."""

import pytest

from nadi.cli.commands.workload.generation import serving_network
from nadi.workload.compute import find_gpu
from nadi.workload.generators.inference import Request, Serving, engines, serving_software, settle
from nadi.workload.generators.inference.deployment import NO_NETWORK, iteration_clock
from nadi.workload.generators.models import find
from nadi.workload.generators.training import parallel_plan

# software, model, GPU, plan, batch, prompt, answer, milliseconds: of NVIDIA's TensorRT-LLM 0.5.0 (performance.md),
# lmdeploy 0.1 (a100_fp16.md: 1,159.84 and 3,024.07 tokens/s) and vLLM's performance benchmark
_ROWS = [
    ("tensorrt-llm-0.5", "llama-7b", "h100", "dtype=fp8", 1, 128, 1, 7),
    ("tensorrt-llm-0.5", "llama-7b", "h100", "dtype=fp8", 1, 2048, 1, 36),
    ("tensorrt-llm-0.5", "llama2-70b", "a100", "tp4,dtype=fp16", 1, 128, 1, 47),
    ("tensorrt-llm-0.5", "llama2-70b", "a100", "tp4,dtype=fp16", 1, 2048, 1, 377),
    ("lmdeploy-0.1", "llama2-70b", "a100", "tp4,dtype=fp16", 64, 128, 128, 64 * 128 / 1.15984),
    ("lmdeploy-0.1", "llama2-7b", "a100", "dtype=fp16", 64, 128, 128, 64 * 128 / 3.02407),
    ("vllm-v1", "llama3-8b", "h200", "tp1", 8, 32, 128, 833.4),
]


@pytest.mark.parametrize(("software", "name", "gpu", "plan", "batch", "prompt", "answer", "published_ms"), _ROWS)
def test_published_times_are_met(software, name, gpu, plan, batch, prompt, answer, published_ms):
    model, host = find(name), serving_software(software)
    settled = settle(model, parallel_plan(plan))
    on = serving_network("selene", settled.gpus) if settled.gpus > 1 else None
    serving = Serving(model, settled, batch=batch, gpu=find_gpu(gpu), network=on, software=software)
    (engine,) = engines(serving, [Request(number, 0, prompt, answer) for number in range(batch)])
    link = NO_NETWORK if on is None else on(settled, 0)
    clock = iteration_clock(model, settled, find_gpu(gpu), host, link)
    took_us = host.request_us + sum(clock(each.batch) for each in engine.schedule.iterations[0])
    assert took_us / 1000 == pytest.approx(published_ms, rel=0.12)
