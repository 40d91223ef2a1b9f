"""Objects of training scripts, and whether two of them are the same: types, values bit for bit,
memory.
"""

from __future__ import annotations

import collections
import random
from typing import Any

import numpy as np
import torch

Point = collections.namedtuple("Point", "x y")


def training(seed: int = 0) -> dict[str, Any]:
    """What nanoGPT, torchtune and their like save: after one step, with a tied weight."""
    torch.manual_seed(seed)
    model = torch.nn.ModuleDict(
        {
            "embed": torch.nn.Embedding(11, 6),
            "norm": torch.nn.BatchNorm1d(6),
            "conv": torch.nn.Conv2d(3, 2, 3).to(memory_format=torch.channels_last),
            "head": torch.nn.Linear(6, 11, bias=False),
        }
    )
    model["head"].weight = model["embed"].weight
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, amsgrad=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
    loss = (
        model["head"](model["norm"](model["embed"](torch.arange(8)))).sum()
        + model["conv"](torch.ones(1, 3, 4, 4)).sum()
    )
    loss.backward()
    optimizer.step()
    scheduler.step()
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "scaler": {"scale": 65536.0, "growth_factor": 2.0, "_growth_tracker": 0},
        "rng": {
            "torch": torch.get_rng_state(),
            "cuda": [torch.get_rng_state().clone()],
            "numpy": np.random.get_state(),
            "generator": np.random.default_rng(seed).bit_generator.state,
            "python": random.getstate(),
        },
        "loader": {"epoch": 1, "indices": list(range(100, 0, -1)), "seen": {3, 1, 2}, "shard": np.arange(4),
                   "buffer": b"\0\1"},
        "config": {"name": "größe", "lr": 1e-3, "layers": (1, 2), "dtype": torch.bfloat16,
                   "device": torch.device("cuda:3"), "shape": torch.Size([2, 3]), "compile": None, "tags": ["a", "b"]},
        "losses": [0.1 * step for step in range(64)],
        "best": np.float32(0.25),
        "step": 7,
    }  # fmt: skip


def tensors_of(obj: Any) -> list[torch.Tensor]:
    if isinstance(obj, torch.Tensor):
        return [obj]
    if isinstance(obj, dict):
        return [tensor for child in obj.values() for tensor in tensors_of(child)]
    if isinstance(obj, (list, tuple)):
        return [tensor for child in obj for tensor in tensors_of(child)]
    return []


def same(left: Any, right: Any, at: str = "") -> None:
    """Asserts that two objects are equal in types and values, bit for bit, and in what memory
    they share.
    """
    _same(left, right, at)
    assert ties(left) == ties(right)


def ties(obj: Any) -> list[tuple[int, int, int]]:
    """Of all pairs of tensors that reach into each other, how far the second begins behind the
    first.
    """
    found = []
    tensors = [tensor for tensor in tensors_of(obj) if tensor.numel()]
    ends = [
        tensor.data_ptr()
        + tensor.element_size()
        * (1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True)))
        for tensor in tensors
    ]
    for i, one in enumerate(tensors):
        for j, other in enumerate(tensors[:i]):
            if one.data_ptr() < ends[j] and other.data_ptr() < ends[i]:
                found.append((i, j, one.data_ptr() - other.data_ptr()))
    return found


def bits(tensor: torch.Tensor) -> bytes:
    if not tensor.numel():
        return b""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return plain.view(torch.uint8).numpy().tobytes()


def _same(left: Any, right: Any, at: str) -> None:
    if hasattr(left, "_fields"):
        assert type(left).__name__ == type(right).__name__ and left._fields == right._fields, at
    else:
        assert type(left) is type(right), f"{at}: {type(left)} and {type(right)}"
    if isinstance(left, torch.Tensor):
        form = (
            left.dtype,
            left.shape,
            left.stride(),
            left.device,
            left.requires_grad,
            isinstance(left, torch.nn.Parameter),
        )
        assert form == (
            *(right.dtype, right.shape, right.stride(), right.device, right.requires_grad),
            isinstance(right, torch.nn.Parameter),
        ), at
        assert bits(left) == bits(right), at
    elif isinstance(left, dict):
        assert list(left) == list(right), at
        assert [type(key) for key in left] == [type(key) for key in right], at
        assert vars(left) == vars(right) if hasattr(left, "__dict__") else True, at
        assert getattr(left, "default_factory", None) is getattr(right, "default_factory", None), at
        for key in left:
            _same(left[key], right[key], f"{at}/{key}")
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right), at
        for number, (one, other) in enumerate(zip(left, right, strict=True)):
            _same(one, other, f"{at}/{number}")
    elif isinstance(left, (np.ndarray, np.generic)):
        assert (left.dtype, left.shape, left.tobytes()) == (right.dtype, right.shape, right.tobytes()), at
    else:
        assert repr(left) == repr(right) if isinstance(left, float) else left == right, at
