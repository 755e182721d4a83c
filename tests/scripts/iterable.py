"""Train a character model on a stream: an IterableDataset read by two worker processes."""

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

TEXT = (torch.__doc__ or "") + (nn.Module.__doc__ or "") + (DataLoader.__doc__ or "")
WINDOW = 32


class Characters(IterableDataset):
    def __init__(self, text, windows):
        self.codes = torch.tensor([min(ord(c), 127) for c in text])
        self.windows = windows

    def __iter__(self):
        worker = get_worker_info()
        rng = torch.Generator().manual_seed(worker.id)
        for _ in range(self.windows // worker.num_workers):
            start = int(torch.randint(0, len(self.codes) - WINDOW - 1, (1,), generator=rng))
            window = self.codes[start : start + WINDOW + 1]
            yield window[:-1], window[1:]


class CharRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(128, 32)
        self.rnn = nn.GRU(32, 64, batch_first=True)
        self.head = nn.Linear(64, 128)

    def forward(self, codes):
        hidden, _ = self.rnn(self.embedding(codes))
        return self.head(hidden)


def main():
    torch.manual_seed(1)
    loader = DataLoader(Characters(TEXT, 640), batch_size=16, num_workers=2)
    model = CharRNN()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=3e-3)
    for codes, following in loader:
        logits = model(codes)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), following.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"final loss {loss.item():.17g}")


if __name__ == "__main__":
    main()
