"""Signatures in Python; `cryptography` makes the keys, and judges what was signed."""

from __future__ import annotations

import hashlib
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

import regrow

TREE = {"a": np.arange(200_000, dtype=np.float32), "b": {"c": np.arange(7, dtype=np.int32)}}


def _private(key: Ed25519PrivateKey, form: serialization.PrivateFormat) -> str:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


def _public(key: Ed25519PrivateKey) -> list[str]:
    """The public key in every form."""
    public = key.public_key()
    forms = [
        (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo),
        (serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH),
    ]
    return [public.public_bytes_raw().hex(), *(public.public_bytes(*form).decode() for form in forms)]


@pytest.fixture
def key(tmp_path: Path) -> Ed25519PrivateKey:
    """A new key; as PKCS#8 in `key.pem`."""
    key = Ed25519PrivateKey.generate()
    (tmp_path / "key.pem").write_text(_private(key, serialization.PrivateFormat.PKCS8))
    return key


def _check(loaded: Any) -> None:
    np.testing.assert_array_equal(loaded["a"], TREE["a"])
    np.testing.assert_array_equal(loaded["b"]["c"], TREE["b"]["c"])  # type: ignore[index]


@pytest.mark.parametrize("name", ["x", "x.npz"])
def test_another_library_verifies_a_signature(tmp_path: Path, key: Ed25519PrivateKey, name: str) -> None:
    path = tmp_path / name
    regrow.save(path, TREE)
    report = regrow.protect.sign(path, tmp_path / "key.pem")
    text = Path(report.path).read_bytes()
    document = json.loads(text)
    # What is signed are the bytes between the name and the brace that ends the file.
    signed = text[text.index(b'"signed":') + len(b'"signed":') : text.rstrip().rindex(b"}")]
    (each,) = document["signatures"]
    public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(each["public_key"]))
    public.verify(bytes.fromhex(each["signature"]), b"regrow signature 1\n" + signed)
    assert each["public_key"] == key.public_key().public_bytes_raw().hex() == report.signers[0]
    assert document["signed"]["names"]
    assert sum(document["signed"]["len_bytes"]) == report.bytes
    _check(regrow.load(path, options=regrow.Options(trusted_keys=report.signers)))


def test_keys_in_every_form(tmp_path: Path, key: Ed25519PrivateKey) -> None:
    regrow.save(tmp_path / "x", TREE)
    for form in (serialization.PrivateFormat.PKCS8, serialization.PrivateFormat.OpenSSH):
        regrow.protect.sign(tmp_path / "x", _private(key, form))
        for number, public in enumerate(_public(key)):
            (tmp_path / f"{number}.pub").write_text(public)
            for trusted in (public, tmp_path / f"{number}.pub", [str(tmp_path / f"{number}.pub")]):
                _check(regrow.load(tmp_path / "x", options=regrow.Options(trusted_keys=trusted)))
    encrypted = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
    )
    for wrong in (encrypted.decode(), _public(key)[1]):
        with pytest.raises(regrow.errors.InvalidArgumentError):
            regrow.protect.sign(tmp_path / "x", wrong)
    for nothing in ([], [3], 3, "no such file", _private(key, serialization.PrivateFormat.PKCS8)):
        with pytest.raises((regrow.errors.InvalidArgumentError, regrow.errors.NotFoundError)):
            regrow.load(tmp_path / "x", options=regrow.Options(trusted_keys=nothing))  # type: ignore[arg-type]
    with pytest.raises(regrow.errors.InvalidArgumentError):
        regrow.protect.sign(tmp_path / "x", 3)  # type: ignore[arg-type]


def test_unsigned_and_forged_checkpoints_are_refused(tmp_path: Path, key: Ed25519PrivateKey) -> None:
    path, trusted = tmp_path / "x.npz", _public(key)[0]
    reads = [
        lambda: regrow.load(path, options=regrow.Options(trusted_keys=trusted)),
        lambda: [
            np.asarray(leaf[...]) for leaf in regrow.open(path, options=regrow.Options(trusted_keys=trusted)).values()
        ],
    ]

    def refused(kind: type[Exception]) -> None:
        for read in reads:
            with pytest.raises(kind):
                read()

    regrow.save(path, TREE)
    refused(regrow.errors.UntrustedError)
    report = regrow.protect.sign(path, _private(Ed25519PrivateKey.generate(), serialization.PrivateFormat.PKCS8))
    refused(regrow.errors.UntrustedError)
    # The same files are signed by another, too.
    assert len(regrow.protect.sign(path, tmp_path / "key.pem").signers) == 2
    for read in reads:
        read()
    assert regrow.verify(path, options=regrow.Options(trusted_keys=trusted)).signer == trusted
    with ThreadPoolExecutor(2) as executor:
        assert (
            regrow.verify(path, executor=executor, workers=2, options=regrow.Options(trusted_keys=trusted)).signer
            == trusted
        )
    # Saves other numbers, with right checksums, and puts the old signature back.
    signature = Path(report.path)
    kept = signature.read_bytes()
    forged = {"a": TREE["a"] + 1, "b": TREE["b"]}
    regrow.save(path, forged, overwrite=True)
    signature.unlink(missing_ok=True)
    refused(regrow.errors.UntrustedError)
    signature.write_bytes(kept)
    refused(regrow.errors.CorruptError)
    assert not regrow.verify(path, options=regrow.Options(trusted_keys=trusted)).ok


def test_the_libraries_read_what_is_signed_and_copies_keep_it(tmp_path: Path, key: Ed25519PrivateKey) -> None:
    safetensors.numpy.save_file({"a": TREE["a"]}, tmp_path / "x.safetensors")
    before = hashlib.sha256((tmp_path / "x.safetensors").read_bytes()).digest()
    regrow.protect.sign(tmp_path / "x.safetensors", tmp_path / "key.pem")
    assert hashlib.sha256((tmp_path / "x.safetensors").read_bytes()).digest() == before
    assert (safetensors.numpy.load_file(tmp_path / "x.safetensors")["a"] == TREE["a"]).all()
    regrow.copy(tmp_path / "x.safetensors", tmp_path / "y.safetensors")
    loaded = regrow.load(tmp_path / "y.safetensors", options=regrow.Options(trusted_keys=_public(key)))
    np.testing.assert_array_equal(loaded["a"], TREE["a"])
    regrow.save(tmp_path / "run/3", TREE)
    regrow.protect.sign(tmp_path / "run", tmp_path / "key.pem", step=3)
    shutil.copytree(tmp_path / "run/3", tmp_path / "elsewhere")
    _check(regrow.load(tmp_path / "elsewhere", options=regrow.Options(trusted_keys=_public(key))))
    _check(regrow.load(tmp_path / "run", options=regrow.Options(trusted_keys=_public(key))))
