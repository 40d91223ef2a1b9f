"""`torch.save` and `torch.load` with regrow behind them: the objects that training scripts save,
without pickle.

    import regrow.torch

    regrow.torch.save(path, {"model": model.state_dict(), "step": 7})
    # The same objects: types, values, tied memory.
    checkpoint = regrow.torch.load(path, map_location="cpu")

    # Copies and writes in the background.
    saving = regrow.torch.async_save(path, state)
    saving.wait_for_staging()  # before parameters change
    optimizer.step()

    # Numbered steps: see regrow.Manager.
    with regrow.torch.Manager("run", keep=3, save_every=1000) as steps:
        steps.save(step, state)

    dcp.save(state, storage_writer=regrow.torch.StorageWriter(path))
    dcp.load(state, storage_reader=regrow.torch.StorageReader(path))

The checkpoint has the form that `regrow.save` writes: an Orbax checkpoint, and safetensors files
that name PyTorch as their format. A checkpoint contains no code, and a load imports and calls
nothing that the checkpoint names. Needs torch.
"""

from __future__ import annotations

from ._dcp import StorageReader, StorageWriter
from ._load import load
from ._manager import Manager
from ._save import save
from ._stage import SaveHandle, async_save

__all__ = ["Manager", "SaveHandle", "StorageReader", "StorageWriter", "async_save", "load", "save"]
