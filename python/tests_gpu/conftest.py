"""For machines with a GPU of NVIDIA, and JAX and PyTorch that use it."""

from __future__ import annotations

import os

# Both use the GPU here: neither is to take all of its memory.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
# Matrix products that give the same bits each time.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
