"""An ordinary training script in float64 that writes down everything a test wants to compare."""

import json
import os
import sys
import time

import torch
from torch import nn

import worker_agent

SAMPLES = 240


def problem() -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and labels, the same in every process."""
    generator = torch.Generator().manual_seed(5)
    return (
        torch.randn(SAMPLES, 6, generator=generator, dtype=torch.float64),
        torch.randint(0, 3, (SAMPLES,), generator=generator),
    )


def network() -> nn.Module:
    """Return a small network."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).double()


def describe(job, indices, total, gradients) -> dict:
    """Return what a test wants to know of an iteration."""
    directive = getattr(job, "directive", None)
    attempt = (0, 0) if directive is None else (directive.generation, directive.revision)
    return {
        "iteration": job.iteration + 1,
        "attempt": attempt,
        "indices": indices.tolist(),
        "loss": total,
        "gradients": gradients,
    }


def main() -> None:
    """Train until told to stop."""
    torch.set_num_threads(1)
    micro_batches = int(os.environ.get("MICRO_BATCHES", "1"))
    pace = float(os.environ.get("PACE", "0"))
    inputs, labels = problem()
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    worker = os.environ.get("SCAVENGER_WORKER", "alone")
    with (
        open(f"{worker}.jsonl", "w", buffering=1) as out,
        worker_agent.session() as job,
    ):
        job.prepare(model, optimizer, micro_batches=micro_batches)
        for indices in job.batches(SAMPLES, 24, epochs=1, seed=9):
            optimizer.zero_grad()
            total, gradients = 0.0, []
            pieces = indices.chunk(micro_batches)
            for part in pieces:
                loss = nn.functional.cross_entropy(model(inputs[part]), labels[part])
                if os.environ.get("GRADIENTS"):
                    grads = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
                    gradients.append(torch.cat([g.flatten() for g in grads]).tolist())
                total += loss.item() * len(part)
                if part is pieces[-1]:
                    # Before the last gradient is sent: what others apply has been written down.
                    out.write(json.dumps(describe(job, indices, total, gradients)) + "\n")
                (loss / micro_batches).backward()
            optimizer.step()
            is_odd = os.environ.get("NAN_AT") == f"{worker} {job.iteration + 1}"
            job.log(loss=float("nan") if is_odd else total / len(indices))
            time.sleep(pace)
    final = torch.cat([p.detach().flatten() for p in model.parameters()])
    print(f"{worker} ends with weights {final.sum().item():.12f}", file=sys.stderr)


if __name__ == "__main__":
    main()
