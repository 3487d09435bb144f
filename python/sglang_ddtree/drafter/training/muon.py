"""Muon in float32, for processors on which bfloat16 products are emulated, and sharded weights.

``torch.optim.Muon`` orthogonalises in bfloat16 whatever the weights are, which costs more than the
training step itself where only float32 has fast products.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

# Quintic Newton-Schulz coefficients of Muon (K. Jordan et al., 2024), the defaults of torch.
_A, _B, _C = 3.4445, -4.775, 2.0315
_ITERATIONS = 5


def orthogonalise(matrices: Tensor) -> Tensor:
    """Singular values of ``[n, rows, columns]`` brought near 1."""
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(_ITERATIONS):
        gram = x @ x.mT
        x = _A * x + (_B * gram + _C * gram @ gram) @ x
    return x.mT if tall else x


class Muon32(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised; matrices of one shape are done together.

    Of a sharded matrix every rank orthogonalises the whole and keeps its own rows.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], lr: float, weight_decay: float = 0.01
    ) -> None:
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay, "momentum": 0.95})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape: dict[Any, list[nn.Parameter]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape[parameter.shape].append(parameter)
            for shape, parameters in by_shape.items():
                updates = orthogonalise(
                    torch.stack([_whole(self._momentum(p, group["momentum"])) for p in parameters])
                )
                scale = group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5
                for parameter, update in zip(parameters, updates, strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.add_(_sharded_as(parameter, update), alpha=-scale)

    def _momentum(self, parameter: nn.Parameter, momentum: float) -> Tensor:
        gradient, state = parameter.grad, self.state[parameter]
        assert gradient is not None
        if not state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        buffer = state["momentum_buffer"].lerp_(gradient, 1 - momentum)
        return gradient.lerp(buffer, momentum)


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _sharded_as(parameter: Tensor, whole: Tensor) -> Tensor:
    if not isinstance(parameter, DTensor):
        return whole
    return distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
