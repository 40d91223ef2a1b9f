"""`regrow.torch.save` and `load`, judged by `torch.save` and `torch.load` on the same objects."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import enum
import inspect
import io
import json
import pydoc
import typing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from torch_objects import Point, bits, same, training

import regrow
import regrow.torch


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


def through_torch(obj: Any, **options: Any) -> Any:
    stream = io.BytesIO()
    torch.save(obj, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=False, **options)


def through_regrow(obj: Any, path: Path, **options: Any) -> Any:
    regrow.torch.save(path, obj)
    return regrow.torch.load(path, options=regrow.Options(**options))


@pytest.mark.parametrize("mmap", [False, True])
def test_a_training_dict_comes_back_as_torch_gives_it(path: Path, mmap: bool) -> None:
    obj = training()
    loaded = through_regrow(obj, path, mmap=mmap)
    same(through_torch(obj), loaded)
    same(obj, loaded)
    assert regrow.verify(path).ok
    # Memory can be written, and files are not.
    loaded["model"]["embed.weight"].fill_(7)
    assert loaded["model"]["head.weight"].eq(7).all()
    same(obj, regrow.torch.load(path))


def test_training_goes_on_as_if_nothing_had_happened(path: Path) -> None:
    def made() -> tuple[Any, Any]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1))
        return model, torch.optim.Adam(model.parameters(), lr=0.1)

    def steps(model: Any, optimizer: Any, count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            model(torch.randn(16, 4)).square().mean().backward()
            optimizer.step()

    model, optimizer = made()
    steps(model, optimizer, 3)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}
    regrow.torch.save(path, state)
    steps(model, optimizer, 3)
    again, its_optimizer = made()
    loaded = regrow.torch.load(path)
    again.load_state_dict(loaded["model"])
    its_optimizer.load_state_dict(loaded["optimizer"])
    torch.set_rng_state(loaded["rng"])
    steps(again, its_optimizer, 3)
    same(model.state_dict(), again.state_dict())
    same(optimizer.state_dict(), its_optimizer.state_dict())


DTYPES = sorted(
    {
        dtype
        for dtype in vars(torch).values()
        if isinstance(dtype, torch.dtype) and not str(dtype).startswith("torch.q")
    },
    key=str,
)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_every_dtype(path: Path) -> None:
    obj = {}
    named = [dtype for dtype in DTYPES if dtype in regrow._torch._tensors._dtypes()]
    assert len(named) == 20
    for dtype in set(DTYPES) - set(named):
        unnamed = torch.empty(2, dtype=torch.uint8 if dtype.itemsize == 1 else torch.int64).view(dtype)
        with pytest.raises(regrow.errors.LeafTypeError, match=rf"(?s){dtype}.*leaf w.*view\(torch"):
            regrow.torch.save(path, {"w": unnamed})
    for dtype in named:
        size = torch.empty(0, dtype=dtype).element_size()
        raw = torch.arange(6 * size, dtype=torch.uint8) % (2 if dtype == torch.bool else 251)
        obj[str(dtype)] = raw.view(dtype).reshape(2, 3)
        obj[f"empty {dtype}"] = torch.empty((0, 3), dtype=dtype)
        obj[f"one {dtype}"] = raw[:size].clone().view(dtype).reshape(())
    loaded = through_regrow(obj, path)
    for name, tensor in obj.items():
        assert (loaded[name].dtype, loaded[name].shape) == (tensor.dtype, tensor.shape), name
        assert bits(loaded[name]) == bits(tensor), name


def test_numbers_bit_for_bit(path: Path) -> None:
    odd = np.array([0x7FF8000000000123, 0xFFF0000000000000, 0x8000000000000000, 1], np.uint64).view(np.float64)
    obj = {
        "floats": odd.tolist(), "long": [*odd.tolist(), *([0.1] * 60)], "complex": complex(-0.0, float("nan")),
        "ints": [2**63 - 1, -(2**63), 2**63, -(2**70), 10**5000], "mixed": [1, True, 2.0] * 20, "flags": [True] * 40,
        "tensor": torch.from_numpy(odd.copy()),
    }  # fmt: skip
    loaded = through_regrow(obj, path)
    for name in ("floats", "long"):
        assert np.array(loaded[name]).tobytes() == np.array(obj[name]).tobytes()
    assert repr(loaded.pop("complex")) == repr(obj.pop("complex"))
    same(obj, loaded)
    assert [type(each) for each in loaded["mixed"]] == [type(each) for each in obj["mixed"]]


def test_containers_and_keys(path: Path) -> None:
    obj = {
        "ordered": collections.OrderedDict([("b", 1), ("a", 2)]), "defaults": collections.defaultdict(list, a=[1]),
        "nothing": collections.defaultdict(None, a=1),
        "counts": [collections.Counter("aab"), collections.Counter({(1, 2): 3})],
        "odd": collections.defaultdict(int, {1.5: 1, (1, "x"): 2}),
        0: {"0": 1, 0: 2, "~1": 3, "a/b": {"c": torch.ones(1)}, "a": {"b/c": np.ones(1)}},
        "keys": {None: 0, True: 1, 2.5: 2, b"b": 3, (1, 2): 4, 2**70: 5, torch.float16: 6, "s": torch.zeros(2)},
        "point": Point(torch.ones(2), [1]), "sets": [{1, "a", None}, frozenset((1, 2)), set()],
        "empty": [{}, [], (), ""],
        "raw": [b"", b"\xff", bytearray(b"x")], "text": ["", "ü\n", "\U0001f600"],
        "torch": [torch.strided, torch.channels_last, torch.device("meta"), torch.Size(())],
    }  # fmt: skip
    loaded = through_regrow(obj, path)
    same(obj, loaded)
    assert loaded["defaults"]["new"] == [] and loaded["odd"]["new"] == 0
    for root in (torch.ones(2), [torch.ones(2), 1], 5, None, "text"):
        regrow.torch.save(path, root, overwrite=True)
        same(root, regrow.torch.load(path))


def test_memory_that_is_shared_is_shared_again(path: Path) -> None:
    base, other = torch.arange(24.0), torch.arange(10)
    obj = {
        "view before base": base[4:8], "base": base, "again": base, "matrix": base.view(4, 6).t(),
        "bytes": base.view(torch.int32),
        "step": base[1::2], "parameter": torch.nn.Parameter(base), "scalar": base[3],
        "none is whole": (other[:7], other[3:], other[5]), "apart": list(torch.arange(6).split(3)),
        "conj": [c := torch.tensor([1 + 2j, 3 - 4j]), c.conj(), c.conj().imag, c.real],
        "columns": [(m := torch.arange(6).reshape(2, 3))[:, :1], m[:, 1:]], "expanded": torch.ones(1).expand(4),
    }  # fmt: skip
    regrow.torch.save(path, obj)
    loaded = regrow.torch.load(path)
    # An expanded tensor comes back without its strides of 0; torch.save refuses views of another
    # dtype.
    assert bits(loaded.pop("expanded")) == bits(obj.pop("expanded"))
    same(obj, loaded)
    for name in ("bytes", "conj"):
        obj.pop(name)
        loaded.pop(name)
    same(through_torch(obj), loaded)
    assert loaded["again"] is loaded["base"] and loaded["parameter"] is not loaded["base"]
    loaded["base"].zero_()
    assert not loaded["matrix"].any() and not loaded["parameter"].any() and not loaded["view before base"].any()
    mapped = regrow.torch.load(path, options=regrow.Options(mmap=True))
    same(obj, {name: mapped[name] for name in obj})
    # What touches nothing of the others has memory of its own.
    one, two = loaded["apart"]
    assert one.untyped_storage().data_ptr() != two.untyped_storage().data_ptr()


class Level(enum.IntEnum):
    LOW = 3


def test_members_of_enums_are_saved_as_their_numbers(tmp_path: Path) -> None:
    regrow.torch.save(tmp_path / "x", {"level": Level.LOW, "all": [Level.LOW]})
    loaded = regrow.torch.load(tmp_path / "x")
    assert loaded == {"level": 3, "all": [3]} and type(loaded["level"]) is int


class Mode(enum.Enum):
    A = 1


@dataclasses.dataclass
class Config:
    lr: float = 0.1


class Own(torch.Tensor):
    pass


class Words(dict[str, int]):
    pass


REFUSED: list[tuple[Any, str]] = [
    (torch.nn.Linear(1, 1), r"torch\.nn\.modules\.linear\.Linear.*state_dict\(\)"),
    (torch.optim.SGD([torch.ones(1)], 0.1), r"SGD.*state_dict\(\)"),
    (argparse.Namespace(a=1), r"Namespace.*vars"),
    (Config(), r"Config.*asdict"),
    (Path("x"), r"Path.*str"),
    (Mode.A, r"Mode.*value"),
    (range(3), r"range.*list"),
    (Words(), r"Words.*dict"),
    (torch.Generator(), r"Generator.*get_state"),
    (len, "builtin_function_or_method"),
    (Config, r"a class of type .*Config"),
    (object(), "object.*keep to tensors"),
    (collections.defaultdict(lambda: 1), "defaultdict.*dict"),
    (torch.ones(2).as_subclass(Own), r"Own.*as_subclass"),
    (torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8), "quantized"),
    (torch.ones(2, 2).to_sparse(), "sparse"),
    (torch.empty(2, device="meta"), "meta"),
    (np.array([object()], object), "object"),
    ({torch.ones(1): 1}, r"tensor as its key.*optimizer\.state_dict"),
]


@pytest.mark.parametrize(("value", "message"), REFUSED, ids=[type(value).__name__ for value, _ in REFUSED])
def test_what_needs_pickle_is_refused_with_its_place(path: Path, value: Any, message: str) -> None:
    with pytest.raises(regrow.errors.UnsupportedError, match=f"(?s){message}") as raised:
        regrow.torch.save(path, {"a": [torch.ones(1), {"b": value}]})
    assert raised.value.leaf == "a/1/b"
    assert not path.exists()


def test_what_has_no_end_is_refused(path: Path) -> None:
    loop: list[Any] = []
    loop.append({"a": loop})
    with pytest.raises(regrow.errors.InvalidArgumentError, match="contains itself"):
        regrow.torch.save(path, loop)
    deep: Any = 1
    for _ in range(300):
        deep = [deep]
    with pytest.raises(regrow.errors.LimitError, match="100 levels"):
        regrow.torch.save(path, deep)


def test_map_location(path: Path) -> None:
    obj = {"a": torch.arange(4.0), "b": torch.ones(2)}
    regrow.torch.save(path, obj)
    same(obj, regrow.torch.load(path, "cpu"))
    same(obj, regrow.torch.load(path, {"cuda:0": "cpu"}))
    same(obj, regrow.torch.load(path, lambda storage, location: storage))
    same(obj, regrow.torch.load(path, lambda storage, location: None))
    asked = []
    copied = regrow.torch.load(path, map_location=lambda storage, at: asked.append(at) or storage.clone())
    same(obj, copied)
    assert asked == ["cpu", "cpu"]
    for where in ("meta", torch.device("meta"), {"cpu": "meta"}):
        moved = regrow.torch.load(path, map_location=where)["a"]
        assert moved.device.type == "meta" and moved.shape == (4,)
    for wrong in ("nowhere", 1.5, {"cpu": 3}):
        with pytest.raises(regrow.errors.InvalidArgumentError, match="map_location"):
            regrow.torch.load(path, map_location=wrong)
    with pytest.raises(regrow.errors.InvalidArgumentError, match="map_location gave int"):
        regrow.torch.load(path, map_location=lambda storage, location: 3)


def test_the_device_is_part_of_a_tensor(path: Path) -> None:
    record = {"version": 1, "at": {"/a": {"device": "cuda:5"}}}
    regrow.save(path, {"a": np.arange(3)}, metadata={"regrow.torch": json.dumps(record)})
    if torch.cuda.device_count() <= 5:
        with pytest.raises(regrow.errors.InvalidArgumentError, match=r'cuda:5.*\n.*map_location="cpu"'):
            regrow.torch.load(path)
    same({"a": torch.arange(3)}, regrow.torch.load(path, map_location="cpu"))
    same({"a": torch.arange(3)}, regrow.torch.load(path, map_location={"cuda:5": "cpu"}))


def test_data_files_are_safetensors_that_name_pytorch(path: Path) -> None:
    obj = training()
    regrow.torch.save(path, obj, metadata={"run": "a"})
    with safetensors.safe_open(path / "model.safetensors", framework="pt") as file:
        assert file.metadata()["format"] == "pt"
        assert torch.equal(file.get_tensor("model.embed.weight"), obj["model"]["embed.weight"])
        # Readers that know of no ties find the numbers, too.
        assert torch.equal(file.get_tensor("model.head.weight"), obj["model"]["embed.weight"])
    assert regrow.open(path).metadata["run"] == "a"


def test_files_of_the_hub(tmp_path: Path) -> None:
    state = training()["model"]
    regrow.torch.save(
        tmp_path / "hub", state, metadata={"by": "us"}, layout=regrow.layouts.Safetensors(max_shard_bytes="200B")
    )
    index = json.loads((tmp_path / "hub" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(state)
    assert len(set(index["weight_map"].values())) > 1
    for name, file in index["weight_map"].items():
        with safetensors.safe_open(tmp_path / "hub" / file, framework="pt") as opened:
            assert opened.metadata()["format"] == "pt" and opened.metadata()["by"] == "us"
            assert torch.equal(opened.get_tensor(name), state[name])
    same(state, regrow.torch.load(tmp_path / "hub"))
    regrow.torch.save(tmp_path / "one.safetensors", state, layout="safetensors")
    same(state, regrow.torch.load(tmp_path / "one.safetensors", options=regrow.Options(mmap=True)))
    # A file of the original's.
    plain = {name: tensor.clone().contiguous() for name, tensor in state.items()}
    safetensors.torch.save_file(plain, tmp_path / "theirs.safetensors", metadata={"format": "pt"})
    loaded = regrow.torch.load(tmp_path / "theirs.safetensors")
    same(plain, {name: loaded[name] for name in plain})


def test_what_others_have_saved_comes_as_tensors(path: Path) -> None:
    regrow.save(path, {"a": np.arange(3), "b": [1, "x", None], "big": np.ones((2, 3), np.float16)})
    same(
        {"a": torch.arange(3), "b": [1, "x", None], "big": torch.ones(2, 3, dtype=torch.half)}, regrow.torch.load(path)
    )


def test_damage_is_found(path: Path) -> None:
    obj = {"a": torch.arange(10_000), "b": torch.arange(10_000) * 2}
    regrow.torch.save(path, obj)
    file = path / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-100] ^= 1
    file.write_bytes(data)
    for mmap in (False, True):
        with pytest.raises(regrow.errors.CorruptError, match="leaf b"):
            regrow.torch.load(path, options=regrow.Options(mmap=mmap))
    assert torch.equal(regrow.torch.load(path, options=regrow.Options(mmap=True, checksums=False))["a"], obj["a"])


RECORDS: list[Any] = [
    {"/a": {"is": "int"}}, {"/a": {"is": "nothing"}}, {"/a": {"of": "/none", "view": {}}}, {"/a": {"same": "/b"}},
    {"/a": {"is": "dtype"}}, {"/t": {"is": "dtype"}}, {"/t": {"is": "layout"}}, {"/a": {"stride": [-1]}},
    {"/a": {"stride": ["x"]}},
    {"/a": {"storage": "a", "len": 2**62, "view": {"dtype": "int64", "shape": [3], "stride": [1], "offset": 0}}},
    {"/a": {"storage": "a", "len": 24, "view": {"dtype": "float64", "shape": [9], "stride": [1], "offset": 0}}},
    {"/a": {"storage": "a", "len": 24, "view": {"dtype": "float64", "shape": [1], "stride": [1], "offset": -8}}},
    {"/a": {"storage": "a", "len": 24, "view": {"dtype": "save", "shape": [1], "stride": [1], "offset": 0}}},
    {"/a": {"storage": [], "len": 24, "view": {"dtype": "int64", "shape": [2], "stride": [2**62], "offset": 0}}},
    {"/a": {"storage": "a", "len": "24", "view": {}}}, {"/a": {"storage": "a"}},
    {"": {"is": "dict", "factory": "eval"}}, {"": {"is": "dict", "attributes": {"x": 1}}},
    {"": {"is": "pairs", "class": "list"}},
    {"": {"is": "size"}}, 3, {"/a": 3}, "{",
]  # fmt: skip


@pytest.mark.parametrize("entries", RECORDS, ids=[str(number) for number in range(len(RECORDS))])
def test_a_record_that_does_not_fit_is_refused(path: Path, entries: Any) -> None:
    text = entries if isinstance(entries, str) else json.dumps({"version": 1, "at": entries})
    regrow.save(path, {"a": np.arange(3), "b": 1, "t": "save"}, metadata={"regrow.torch": text})
    with pytest.raises(regrow.errors.CorruptError, match=r"regrow\.torch"):
        regrow.torch.load(path)


def test_a_later_version_is_refused(path: Path) -> None:
    regrow.save(path, {"a": 1}, metadata={"regrow.torch": json.dumps({"version": 2, "at": {}})})
    with pytest.raises(regrow.errors.UnsupportedError, match="expected 1, found 2"):
        regrow.torch.load(path)


def test_like(path: Path) -> None:
    obj = training()
    regrow.torch.save(path, obj)
    loaded = regrow.torch.load(path, like=training(1))
    assert torch.equal(loaded["model"]["embed.weight"], obj["model"]["embed.weight"])
    assert loaded["config"] == obj["config"] and loaded["losses"] == obj["losses"]
    # Numbers before tensors stay numbers.
    regrow.torch.save(path, {"step": 5, "w": torch.ones(2), "tied": obj["losses"]}, overwrite=True)
    found = regrow.torch.load(path, like={"w": torch.zeros(2)})
    same({"step": 5, "w": torch.ones(2), "tied": obj["losses"]}, found)
    regrow.torch.save(path, obj, overwrite=True)
    like = training(1)
    like["model"]["extra"] = torch.ones(1)
    del like["model"]["conv.bias"]
    with pytest.raises(
        regrow.errors.MismatchError, match=r"(?s)/model/extra: expected.*/model/conv\.bias: in the checkpoint"
    ):
        regrow.torch.load(path, like=like)
    like = training(1)
    like["model"]["conv.bias"] = torch.ones(3)
    with pytest.raises(
        regrow.errors.MismatchError, match=r"conv\.bias: expected torch.float32 \[3\], found torch.float32 \[2\]"
    ):
        regrow.torch.load(path, like=like)


def test_type_hints_and_signatures() -> None:
    for name in regrow.torch.__all__:
        public = getattr(regrow.torch, name)
        typing.get_type_hints(public)
    for function in (regrow.torch.save, regrow.torch.async_save, regrow.torch.StorageWriter.__init__):
        parameters = inspect.signature(function).parameters
        assert {"layout", "overwrite", "cast", "lossy", "base", "seal", "job", "options"} <= parameters.keys()
        shown = pydoc.plain(pydoc.render_doc(function))
        assert all(f" {name}: " in shown for name in parameters if name != "self")


def test_keywords_are_those_of_save(path: Path) -> None:
    regrow.torch.save(path, {"a": torch.ones(3)}, compression="zstd", layout=regrow.layouts.Regrow(chunk_byte_size=4))
    same({"a": torch.ones(3)}, regrow.torch.load(path, options=regrow.Options(mmap=True)))
    with pytest.raises(TypeError, match=r"save\(\) got an unexpected keyword argument 'overwrit'"):
        regrow.torch.save(path, {}, overwrit=True)
    with pytest.raises(regrow.errors.AlreadyExistsError):
        regrow.torch.save(path, {})
    with pytest.raises(regrow.errors.InvalidArgumentError, match="metadata"):
        regrow.torch.save(path, {}, metadata=[1], overwrite=True)
