"""Models of Hugging Face train with tensor shards by their names, as they do in one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
SCRIPT = """
import json, sys
import torch
import torch.distributed as dist
import transformers
from worker_agent.pytorch.layouts.tensor import TensorGroup, share_weights

family, position = sys.argv[1], int(sys.argv[2])
sizes = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4)
torch.manual_seed(0)
ids, pictures = torch.randint(0, 20, (3, 6)), torch.randn(3, 3, 8, 8, dtype=torch.float64)
T = transformers
match family:
    case "gpt2":
        config = T.GPT2Config(vocab_size=20, n_positions=8, n_embd=16, n_layer=2, n_head=4)
        model, inputs = T.GPT2LMHeadModel(config), {"input_ids": ids}
    case "llama":
        config = T.LlamaConfig(vocab_size=20, num_key_value_heads=2, **sizes)
        model, inputs = T.LlamaForCausalLM(config), {"input_ids": ids}
    case "bert":
        config = T.BertConfig(vocab_size=20, max_position_embeddings=8, **sizes)
        model, inputs = T.BertForMaskedLM(config), {"input_ids": ids}
    case "vit":
        config = T.ViTConfig(image_size=8, patch_size=4, **sizes)
        model, inputs = T.ViTForImageClassification(config), {"pixel_values": pictures}
model = model.double().eval()
model(**inputs).logits.square().mean().backward()
whole = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
model.zero_grad()
dist.init_process_group("gloo", store=dist.FileStore("store", 2), rank=position, world_size=2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
specs = share_weights(model, optimizer, TensorGroup(dist.group.WORLD, position, 2), None)
model(**inputs).logits.square().mean().backward()
apart, scale = 0.0, max(float(each.abs().max()) for each in whole.values())
for name, parameter in model.named_parameters():
    if name in whole:
        expected = whole[name]
        if name in specs:
            expected = specs[name].part(expected, position, 2)
        apart = max(apart, float((parameter.grad - expected).abs().max()) / scale)
print(json.dumps({"apart": apart, "cut": sorted(specs)}))
"""


@pytest.mark.parametrize(
    ("family", "cut"), [("gpt2", 14), ("llama", 16), ("bert", 20), ("vit", 20)]
)
def test_two_processes_compute_the_gradients_of_one(tmp_path: Path, family: str, cut: int) -> None:
    """Each layer of attention and of the perceptron is cut, and the vocabulary of two of them."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, family, str(position)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(PROJECT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for position in range(2)
    ]
    for said in [process.communicate()[0] for process in started]:
        told = json.loads(said.splitlines()[-1])
        assert told["apart"] < 1e-12
        assert len(told["cut"]) == cut
