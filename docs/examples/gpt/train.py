"""Train a small character-level GPT on the Python standard library's own source text.

An ordinary PyTorch script; these are the lines that make it elastic::

    with worker_agent.session() as job:
        job.prepare(model, optimizer, loss=loss_of, tensor_plan=PLAN)
        for indices in job.batches(WINDOWS, global_batch=BATCH, epochs=EPOCHS, seed=SEED):
            loss = job.step(inputs, targets)

``python train.py`` runs it alone; ``job.yaml`` says what Scavenger needs to know. As the agent
makes the passes, several processes can share the model: ``layout.yaml``.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import worker_agent

SEED = 0
WINDOWS = 16_384  # an epoch: windows spread evenly over the text
BATCH = 32
EPOCHS = 10
LEARNING_RATE = 1e-3  # at batch 32; a job scales it with its batch
GOAL = 1.7  # nats per character
EVALUATE_EVERY = 1000  # samples

CHARACTERS = 2_000_000
VALIDATION_WINDOWS = 128
VOCABULARY = 128  # ASCII
CONTEXT = 64
WIDTH = 128
HEADS = 4
LAYERS = 4
# How processes share the weights of a layer, where a job asks for that.
PLAN = {
    "characters": "embedding",
    "*.project": "qkv",
    "*.merge": "row",
    "*.network.1": "column",
    "*.network.3": "row",
    "head.1": "vocabulary",
}


def main() -> None:
    """Train until the validation loss reaches the goal."""
    torch.manual_seed(SEED)
    text, held_out = load_text()
    validation = cut(held_out, spread(held_out, VALIDATION_WINDOWS))
    starts = spread(text, WINDOWS)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    validation_loss, evaluated = float("inf"), 0

    with worker_agent.session() as job:
        job.prepare(model, optimizer, loss=loss_of, tensor_plan=PLAN)
        for indices in job.batches(
            WINDOWS,
            global_batch=BATCH,
            epochs=EPOCHS,
            seed=SEED,
            until=lambda: validation_loss <= GOAL,
        ):
            windows = cut(text, starts[indices])
            optimizer.zero_grad()
            loss = job.step(windows[:, :-1], windows[:, 1:])
            optimizer.step()
            job.log(loss=loss)
            # Processes that share the leader's model all take part in an evaluation.
            if job.evaluates and job.samples - evaluated >= EVALUATE_EVERY:
                scores = job.predict(validation[:, :-1])
                validation_loss = loss_of(scores, validation[:, 1:]).item()
                evaluated = job.samples
                job.log(validation_loss=validation_loss)
        if job.is_leader:
            epochs = job.samples / WINDOWS
            print(f"validation loss {validation_loss:.3f} after {epochs:.2f} epochs")


def load_text() -> tuple[Tensor, Tensor]:
    """Return the text to train on and the last twentieth of it, held out to validate with."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    source = b"".join(path.read_bytes() for path in files)
    ascii_only = source.decode("ascii", errors="ignore").encode()[:CHARACTERS]
    text = torch.frombuffer(bytearray(ascii_only), dtype=torch.uint8).long()
    held_out = len(text) // 20
    return text[:-held_out], text[-held_out:]


def spread(text: Tensor, count: int) -> Tensor:
    """Return where this many windows start, evenly over the text, shape (count,)."""
    return torch.arange(count) * (len(text) - CONTEXT) // count


def cut(text: Tensor, starts: Tensor) -> Tensor:
    """Return windows of the context and one character more, shape (windows, CONTEXT + 1)."""
    return text[starts[:, None] + torch.arange(CONTEXT + 1)]


def loss_of(scores: Tensor, following: Tensor) -> Tensor:
    """Return the mean loss of predicting the characters that follow, in nats per character."""
    return cross_entropy(scores.flatten(0, 1), following.flatten())


class GPT(nn.Module):
    """A decoder-only transformer over characters."""

    def __init__(self) -> None:
        super().__init__()
        self.characters = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False))

    def forward(self, characters: Tensor) -> Tensor:
        """Return a score for every next character, shape (windows, CONTEXT, VOCABULARY)."""
        positions = self.positions(torch.arange(CONTEXT))
        scores: Tensor = self.head(self.blocks(self.characters(characters) + positions))
        return scores


class Block(nn.Module):
    """Attention and a two-layer network, each added to what came in."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(WIDTH), Attention())
        self.network = nn.Sequential(
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 4 * WIDTH),
            nn.GELU(),
            nn.Linear(4 * WIDTH, WIDTH),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Transform activations of shape (windows, CONTEXT, WIDTH)."""
        x = x + self.attention(x)
        return x + self.network(x)


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.merge = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Let every position look at itself and at earlier ones."""
        heads = self.project(x).unflatten(-1, (3, -1, WIDTH // HEADS))
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.merge(seen.transpose(1, 2).flatten(2))


if __name__ == "__main__":
    main()
