"""Signs a checkpoint, so that readers can check its origin and its bytes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from .. import _native
from .._core import _arguments
from .._core._location import StrPath, place
from .._core._progress import Progress, Watch, format_bytes
from .._core._readable import readable
from .._text import counted, printable


@readable
class SignReport(NamedTuple):
    """The report of a signature."""

    path: str
    """The file with the signature."""
    file_count: int
    """The number of signed files."""
    bytes: int
    """The bytes of these files."""
    signers: list[str]
    """The public keys of all signatures, as hex digits, oldest first."""

    def __str__(self) -> str:
        files = f"{counted(self.file_count, 'file', 'files')}, {format_bytes(self.bytes)}"
        return "\n".join([f"{printable(self.path)}: {files}, signed by", *(f"  {signer}" for signer in self.signers)])


def sign(
    path: StrPath,
    key: StrPath,
    *,
    step: int | None = None,
    wait: float = _arguments.WAIT_DEFAULT,
    progress: Progress = None,
    storage_options: Mapping[str, Any] | None = None,
) -> SignReport:
    """Puts a signature beside a checkpoint of any layout. Readers with your public key can check
    that you signed the checkpoint.

    ``Options(trusted_keys=...)`` of `open`, `load` and `verify` requires a signature, and checks
    every block against it. The checkpoint is verified first, and does not change; other tools read
    it as before.

    The signature is ``regrow.signature.json`` in the folder, or ``regrow.signature.NAME.json``
    beside a file: a BLAKE3 of each 256 KiB of its files, and an Ed25519 signature of all of these.
    Signatures of other keys over the same files stay. All files are read twice.

    Args:
        path: A checkpoint, or a folder of steps.
        key: Your private Ed25519 key: the path of a file, PKCS#8 PEM (``openssl genpkey -algorithm
            ed25519``) or OpenSSH; or the text of one.
        step: The step of a folder of steps; the newest if `None`.
        wait: How many seconds to wait for another process that changes the checkpoint.
        progress: As for `save`.
        storage_options: How to reach the storage of a URL, as for `save`.

    Raises:
        CorruptError: if the checkpoint is damaged already.
        InvalidArgumentError: for another kind of key, or an encrypted key; for one file of a
            checkpoint of several.
        BusyError: if another process still changes it after `wait` seconds.
        ReplacedError: if another program writes to it in between.
        UnsupportedError: in an archive, on a web server.
        PermissionDeniedError: if nothing can be written there. After any error an earlier signature
            is unchanged.
    """
    at = place("path", path, storage_options)
    chosen = _arguments.count("step", step)
    if not isinstance(key, (str, os.PathLike)):
        raise _arguments.wrong("key", key, "the path of a file with a private key, or the text of one")
    patience = _arguments.seconds("wait", wait)
    with Watch(progress, "signing") as watch:
        return SignReport(*_native.sign(at, os.fspath(key), chosen, patience, watch))
