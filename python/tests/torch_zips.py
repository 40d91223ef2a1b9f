"""Archives as `torch.save` writes them, made by hand: with shapes, strides and values that no
tensor has.
"""

from __future__ import annotations

import io
import random
import zipfile
from collections.abc import Iterator

NUMPY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\0tC\x01btR"


def text(value: bytes) -> bytes:
    return b"X" + len(value).to_bytes(4, "little") + value


def number(value: int) -> bytes:
    length = (value.bit_length() + 8) // 8
    head = b"\x8a" + bytes([length]) if length < 256 else b"\x8b" + length.to_bytes(4, "little")
    return head + value.to_bytes(length, "little", signed=True)


def numbers(values: tuple[int, ...]) -> bytes:
    return b"(" + b"".join(map(number, values)) + b"t"


def of_numpy(code: bytes, dims: tuple[int, ...], size: int) -> bytes:
    dtype = (
        b"cnumpy\ndtype\n(" + text(code) + b"\x89\x88tR(K\x03" + text(b"<") + b"NNN" + number(size) + b"K\x04K\x08tb"
    )
    return text(b"n") + NUMPY + b"(K\x01" + numbers(dims) + dtype + b"\x89C\0tb"


def pickled(
    storage: bytes = b"FloatStorage",
    count: int = 6,
    offset: int = 0,
    dims: tuple[int, ...] = (2, 3),
    strides: tuple[int, ...] = (3, 1),
    more: bytes = b"",
) -> bytes:
    made = b"(" + text(b"storage") + b"ctorch\n" + storage + b"\n" + text(b"0") + text(b"cpu") + number(count) + b"tQ"
    made += number(offset) + numbers(dims) + numbers(strides) + b"\x89ccollections\nOrderedDict\n)RtR"
    return b"\x80\x02}(" + text(b"w") + b"ctorch._utils\n_rebuild_tensor_v2\n(" + made + more + b"u."


def archive(pickle: bytes, data: bytes = bytes(24)) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        for name, content in (("data.pkl", pickle), ("byteorder", b"little"), ("data/0", data), ("version", b"3\n")):
            made.writestr(f"model/{name}", content)
    return out.getvalue()


CASES: dict[str, bytes] = {
    "as it should be": archive(pickled()),
    "expanded to 4 TiB": archive(pickled(dims=(2**40,), strides=(0,))),
    "expanded on two axes": archive(pickled(dims=(2**31, 2**20), strides=(0, 0))),
    "no elements, a long axis": archive(pickled(dims=(0, 2**62), strides=(1, 1))),
    "no elements, two long axes": archive(pickled(dims=(2**62, 0, 2**62), strides=(1, 1, 1))),
    "no elements, the longest axis": archive(pickled(dims=(0, 2**63 - 1), strides=(0, 0))),
    "64 axes": archive(pickled(dims=(1,) * 64, strides=(1,) * 64)),
    "65 axes": archive(pickled(dims=(1,) * 65, strides=(1,) * 65)),
    "100 axes": archive(pickled(dims=(1,) * 100, strides=(1,) * 100)),
    "long strides": archive(pickled(dims=(1, 1), strides=(2**62, 2**62))),
    "the longest stride": archive(pickled(dims=(1, 2), strides=(2**63 - 1, 1))),
    "a negative axis": archive(pickled(dims=(-1, 3))),
    "a negative stride": archive(pickled(strides=(-3, 1))),
    "an offset beyond": archive(pickled(offset=2**62)),
    "nothing, beyond the end": archive(pickled(dims=(0,), strides=(1,), offset=2**61)),
    "another rank": archive(pickled(strides=(1,))),
    "no axes": archive(pickled(dims=(), strides=())),
    "an empty storage": archive(pickled(count=0, dims=(0,), strides=(1,)), b""),
    "a long storage": archive(pickled(count=2**62)),
    "a key that is no text": archive(pickled(more=text(b"a\xff") + b"K\0")),
    "a key with NUL": archive(pickled(more=text(b"a\0b") + b"K\0")),
    "a long integer": archive(pickled(more=text(b"n") + number(2**900))),
    "a longer integer": archive(pickled(more=text(b"n") + number(2**40000))),
    "a long size": archive(pickled(more=text(b"s") + b"ctorch\nSize\n(" + numbers((2**63,)) + b"tR")),
    "a negative size": archive(pickled(more=text(b"s") + b"ctorch\nSize\n(" + numbers((-1,)) + b"tR")),
    "a device that is none": archive(pickled(more=text(b"d") + b"ctorch\ndevice\n(" + text(b"nonsense") + b"tR")),
    "a device far away": archive(
        pickled(more=text(b"d") + b"ctorch\ndevice\n(" + text(b"cuda") + number(2**40) + b"tR")
    ),
    "a layout that is none": archive(
        pickled(more=text(b"d") + b"ctorch.serialization\n_get_layout\n(" + text(b"torch.no") + b"tR")
    ),
    "a set of lists": archive(pickled(more=text(b"d") + b"cbuiltins\nset\n(](](K\x01eetR")),
    "a frozen set of lists": archive(pickled(more=text(b"d") + b"(]K\x01\x91")),
    "a factory that is none": archive(pickled(more=text(b"d") + b"ccollections\ndefaultdict\n(cbuiltins\neval\ntR")),
    "a count that is none": archive(
        pickled(more=text(b"d") + b"ccollections\nCounter\n(}" + text(b"x") + text(b"y") + b"stR")
    ),
    "text of no bytes": archive(pickled(more=of_numpy(b"U0", (2**40,), 0))),
    "text of no elements": archive(pickled(more=of_numpy(b"U4", (0, 2**31), 16))),
    "numbers of no elements": archive(pickled(more=of_numpy(b"f4", (0, 2**62), 4))),
    "long text": archive(pickled(more=of_numpy(b"U536870911", (0,), 2**31 - 4))),
}


def changed(count: int, seed: int) -> Iterator[bytes]:
    """Archives with changed bytes: in the pickle, with a checksum that fits, or anywhere."""
    choose = random.Random(seed)
    values = [b"\0", b"\xff", b"(", b"t", b"R", b"]", b"}", b"N", number(2**62), number(-1), b"0", b"2", b"Q", b"\x81"]
    for _ in range(count):
        is_inside = choose.random() < 0.8
        more = choose.choice([b"", of_numpy(b"f4", (0, 3), 4), text(b"n") + number(2**70)])
        data = bytearray(pickled(more=more) if is_inside else archive(pickled()))
        for _ in range(choose.choice([1, 1, 2, 4])):
            at = choose.randrange(len(data))
            match choose.randrange(3):
                case 0:
                    data[at] = choose.randrange(256)
                case 1:
                    del data[at : at + choose.randrange(1, 20)]
                case 2:
                    data[at:at] = choose.choice(values)
        yield archive(bytes(data)) if is_inside else bytes(data)
