"""ResNet18, as torchvision has it (He et al., 2016): 11.2 million parameters for ten classes."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import relu


class Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = convolution(before, width, stride)
        self.second = convolution(width, width, 1)
        is_same = stride == 1 and before == width
        self.around = nn.Identity() if is_same else convolution(before, width, stride, size=1)

    def forward(self, inputs: Tensor) -> Tensor:
        return relu(self.second(relu(self.first(inputs))) + self.around(inputs))


class ResNet18(nn.Module):
    """Eight blocks between a stem and a classifier."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(convolution(3, 64, 2, size=7), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        widths = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
        self.blocks = nn.Sequential(
            *(
                block
                for before, width, stride in widths
                for block in (Block(before, width, stride), Block(width, width, 1))
            )
        )
        self.head = nn.Linear(512, classes)

    def forward(self, pictures: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(pictures)).mean(dim=(2, 3)))


def convolution(before: int, width: int, stride: int, size: int = 3) -> nn.Sequential:
    """Return a convolution with its normalisation."""
    layer = nn.Conv2d(before, width, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(width))
