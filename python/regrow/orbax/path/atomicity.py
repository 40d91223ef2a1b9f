"""Names of Orbax' ways to make a checkpoint appear at once. The engine decides by the storage; they are accepted."""

from __future__ import annotations

from .._paths import COMMIT_SUCCESS_FILE, TMP_DIR_SUFFIX

__all__ = ["COMMIT_SUCCESS_FILE", "TMP_DIR_SUFFIX", "AtomicRenameTemporaryPath", "CommitFileTemporaryPath"]


class AtomicRenameTemporaryPath:
    """Write under another name and rename: what the engine does on a local disk."""


class CommitFileTemporaryPath:
    """Write under the final name and a marker last: what the engine does in a bucket."""
