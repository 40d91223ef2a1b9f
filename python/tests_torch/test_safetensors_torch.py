"""`regrow.safetensors.torch` beside the original. Needs torch, so these tests have a folder of
their own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from interfaces import differences, names_in
from safetensors_exceptions import EXCEPTIONS

import regrow.safetensors as ours
import regrow.safetensors.torch as ours_torch

DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz),
)
LATER = [getattr(torch, name) for name in ("float8_e8m0fnu",) if hasattr(torch, name)]
PAIRS = getattr(torch, "float4_e2m1fn_x2", None)


def random_tensor(rng: np.random.Generator, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Random bits."""
    size = torch.empty(0, dtype=dtype).element_size()
    raw = rng.integers(0, 2 if dtype == torch.bool else 256, int(np.prod(shape)) * size, dtype=np.uint8)
    if not raw.size:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(raw).view(dtype).reshape(shape)


def raw_bytes(tensor: torch.Tensor) -> bytes:
    if tensor.numel() == 0:
        return b""
    flat = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return flat.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_tensors(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert isinstance(tensor, torch.Tensor)
        assert (tensor.dtype, tensor.shape) == (right[name].dtype, right[name].shape), name
        assert raw_bytes(tensor) == raw_bytes(right[name]), name


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def test_every_dtype_both_ways(file: Path) -> None:
    rng = np.random.default_rng(1)
    shapes = [(2, 4), (), (3, 0), (5,)]
    tensors = {
        f"{dtype}.{i}": random_tensor(rng, dtype, shape)
        for dtype in (*DTYPES, *LATER)
        for i, shape in enumerate(shapes)
    }
    assert ours_torch.save(tensors) == safetensors.torch.save(tensors)
    ours_torch.save_file(tensors, file, {"format": "pt"})
    assert file.read_bytes() == safetensors.torch.save(tensors, {"format": "pt"})
    assert_tensors(safetensors.torch.load_file(file), tensors)
    assert_tensors(ours_torch.load_file(file), tensors)
    assert_tensors(ours_torch.load(file.read_bytes()), tensors)
    assert_tensors(ours_torch.load_file(file, copy=False), tensors)


def test_pairs_of_four_bits(file: Path) -> None:
    rng = np.random.default_rng(2)
    elements = rng.integers(0, 16, (2, 6), dtype=np.uint8).view(ml_dtypes.float4_e2m1fn)
    ours.save_file({"a": elements}, file)
    if PAIRS is None:
        with pytest.raises(ours.SafetensorError, match="no dtype float4"):
            ours_torch.load_file(file)
        return
    loaded = ours_torch.load_file(file)
    assert loaded["a"].dtype == PAIRS and loaded["a"].shape == (2, 3)
    assert_tensors(loaded, safetensors.torch.load_file(file))
    assert ours_torch.save(loaded) == safetensors.torch.save(loaded) == file.read_bytes()


def test_safe_open_is_theirs(file: Path) -> None:
    rng = np.random.default_rng(3)
    tensors = {str(dtype): random_tensor(rng, dtype, (3, 4)) for dtype in DTYPES}
    safetensors.torch.save_file(tensors, file)
    for framework in ("pt", "torch", "pytorch"):
        with ours.safe_open(file, framework) as opened, safetensors.safe_open(file, "pt") as theirs:
            assert_tensors(opened.get_tensors(), theirs.get_tensors())
            for name in tensors:
                for index in (0, slice(1, 3), (slice(None), 2), (..., slice(0, 4, 2)), (2, 3)):
                    found, expected = opened.get_slice(name)[index], theirs.get_slice(name)[index]
                    assert_tensors({"x": found}, {"x": expected})


def test_loaded_tensors_are_the_caller_s_own(file: Path) -> None:
    ours_torch.save_file({"a": torch.arange(4)}, file)
    before = file.read_bytes()
    loaded = ours_torch.load_file(file)["a"]
    loaded += 1
    assert loaded.tolist() == [1, 2, 3, 4] and file.read_bytes() == before
    assert ours_torch.load_file(file, device="meta")["a"].device.type == "meta"


def test_tensors_lie_in_a_private_map_as_theirs_do(file: Path) -> None:
    rng = np.random.default_rng(4)
    tensors = {str(dtype): random_tensor(rng, dtype, (3, 5)) for dtype in DTYPES} | {"empty": torch.zeros(0, 3)}
    safetensors.torch.save_file(tensors, file)
    before = file.read_bytes()

    def pages_of_the_file() -> int:
        """Maps of it in this process."""
        return Path("/proc/self/maps").read_text().count(str(file.resolve()))

    for load_file in (ours_torch.load_file, safetensors.torch.load_file):
        loaded = load_file(file)
        assert pages_of_the_file() == 1
        assert_tensors(loaded, tensors)
        for name, tensor in loaded.items():
            # A storage of its own each: none is saved with the whole file behind it, none shares
            # memory.
            assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size(), name
            assert tensor.storage_offset() == 0 and not tensor.requires_grad
            if tensor.numel():
                tensor.view(torch.uint8).fill_(1)
        assert file.read_bytes() == before
        assert_tensors(load_file(file), tensors)
        safetensors.torch.save_file(loaded, file.with_name("again"))
        del tensor, loaded
        assert pages_of_the_file() == 0
        copies = load_file(file, backend="pread")
        assert pages_of_the_file() == 0
        assert_tensors(copies, tensors)
    assert_tensors(ours_torch.load_file(file, copy=True), tensors)
    assert pages_of_the_file() == 0
    with ours.safe_open(file, "pt") as opened:
        one, other = opened.get_tensor("torch.int32"), opened.get_tensor("torch.int32")
        one.fill_(7)
        assert other[0, 0] == 7  # one map for one file, as there
    assert_tensors({"x": ours_torch.load_file(file)["torch.int32"]}, {"x": tensors["torch.int32"]})


def test_a_file_that_is_replaced_stays_as_it_was_loaded(file: Path) -> None:
    tensors = {"a": torch.arange(100_000.0)}
    for save_file in (ours_torch.save_file, safetensors.torch.save_file):
        ours_torch.save_file(tensors, file)
        loaded = ours_torch.load_file(file)
        loaded["a"][0] = 5
        save_file({"a": torch.zeros(3)}, file)
        assert loaded["a"][0] == 5 and torch.equal(loaded["a"][1:], tensors["a"][1:])
        save_file(loaded, file)
        save_file(ours_torch.load_file(file), file)  # onto what it is mapped from
        assert torch.equal(ours_torch.load_file(file)["a"], loaded["a"])


def test_several_files_are_mapped_too(tmp_path: Path) -> None:
    tensors = {f"layer.{i}": torch.full((100,), float(i)) for i in range(40)}
    ours_torch.save_file(tensors, tmp_path / "parts", max_shard_size="800B")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) == 20
    loaded = ours_torch.load_file(tmp_path / "parts")
    assert_tensors(loaded, tensors)
    for tensor in loaded.values():
        tensor.zero_()
    assert_tensors(ours_torch.load_file(tmp_path / "parts"), tensors)


def test_tensors_are_on_the_cpu_for_any_default_device(file: Path) -> None:
    """transformers makes models on the device `meta`."""
    ours_torch.save_file({"a": torch.arange(4), "e": torch.zeros(0)}, file)
    for backend in ("mmap", "pread"):
        with torch.device("meta"):
            loaded = ours_torch.load_file(file, backend=backend)
            with ours.safe_open(file, "pt", device=None, backend=backend) as opened:
                part = opened.get_slice("a")[1:3]
            theirs = safetensors.torch.load_file(file)["a"]
        assert {tensor.device.type for tensor in (*loaded.values(), part, theirs)} == {"cpu"}
        assert part.tolist() == [1, 2]
    with pytest.raises(ours.SafetensorError, match="device nope is invalid"):
        ours.safe_open(file, "pt", "nope")


def test_parts_of_a_mapped_tensor_are_what_torch_gives(file: Path) -> None:
    tensor = torch.arange(24.0).reshape(2, 3, 4)
    ours_torch.save_file({"x": tensor}, file)
    indices: list[Any] = [slice(0, 9), (Ellipsis, slice(-2, None)), [0, 1], [], None, True, -1, ()]
    with ours.safe_open(file, "pt") as opened, safetensors.safe_open(file, "pt") as theirs:
        for index in indices:
            found, expected = opened.get_slice("x")[index], theirs.get_slice("x")[index]
            assert torch.equal(found, expected) and found.stride() == expected.stride(), index
        for wrong in (5, slice(None, None, -1), (0, 0, 0, 0), 1.5):
            with pytest.raises((IndexError, ValueError, TypeError)) as said:
                theirs.get_slice("x")[wrong]
            with pytest.raises(said.type) as caught:
                opened.get_slice("x")[wrong]
            assert str(caught.value) == str(said.value)
    part = ours.safe_open(file, "pt", backend="pread").get_slice("x")
    with pytest.raises(ours.SafetensorError, match="index 8 out of bounds for tensor dimension #0 of size 2"):
        part[:9]


def test_every_name_of_the_original_is_here_with_its_signature() -> None:
    names = names_in(safetensors.torch, "safetensors")
    assert len(names) >= 6
    found = []
    for name in names - {each.rpartition(".")[2] for each in EXCEPTIONS}:
        found += differences(name, getattr(safetensors.torch, name), getattr(ours_torch, name, None))
    assert found == []


def random_views(rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """Tensors of a few storages that overlap in part."""
    bases = [torch.zeros(int(rng.integers(1, 12)), dtype=torch.float16) for _ in range(3)]
    out = {}
    for i in range(int(rng.integers(1, 8))):
        base = bases[int(rng.integers(3))]
        start, stop = sorted(int(n) for n in rng.integers(0, len(base) + 1, 2))
        choices = [base, base.view(-1, 1), base[start:stop], base[:: int(rng.integers(1, 4))], base.clone()]
        out["abcdefgh"[(i * 5) % 8]] = choices[int(rng.integers(len(choices)))]
    if rng.integers(4) == 0:
        out["meta"] = torch.zeros(3, device="meta")
    return out


def test_tensors_that_share_memory_are_found_as_they_find_them() -> None:
    """What counts as shared decides what a file holds."""
    rng = np.random.default_rng(6)
    refused = 0
    for _ in range(400):
        tensors = random_views(rng)
        assert ours_torch._find_shared_tensors(tensors) == safetensors.torch._find_shared_tensors(tensors)
        for tensor in tensors.values():
            for name in ("storage_ptr", "storage_size", "_end_ptr", "_is_complete"):
                assert getattr(ours_torch, name)(tensor) == getattr(safetensors.torch, name)(tensor), name
        names = list(tensors)
        options: dict[str, Any] = {}
        if rng.integers(2):
            options["preferred_names"] = names[: int(rng.integers(len(names) + 1))]
        if rng.integers(2):
            options["discard_names"] = names[int(rng.integers(len(names))) :]
        try:
            expected = safetensors.torch._remove_duplicate_names(tensors, **options)
        except RuntimeError:
            refused += 1
            with pytest.raises(RuntimeError, match="Refusing"):
                ours_torch._remove_duplicate_names(tensors, **options)
        else:
            assert ours_torch._remove_duplicate_names(tensors, **options) == expected
    assert 50 < refused < 350


def test_the_private_helpers_for_tensors() -> None:
    rng = np.random.default_rng(7)
    tensors = {str(dtype): random_tensor(rng, dtype, (2, 3)) for dtype in DTYPES} | {"empty": torch.zeros(0, 3)}
    alive: list[Any] = []
    raw = ours.serialize(ours_torch._flatten_as_ptr(tensors, alive))
    assert raw == safetensors.torch.save(tensors) and len(alive) == len(tensors)
    for module in (ours_torch, safetensors.torch):
        assert_tensors(module._view2torch(module.deserialize(raw)), tensors)
        assert module._getdtype("F8_E5M2") == torch.float8_e5m2
        for tensor in tensors.values():
            assert module._to_ndarray(tensor)[0].tobytes() == raw_bytes(tensor)
            assert module._SIZE[tensor.dtype] == tensor.element_size()
        for wrong in ([tensors], {"a": 1}, {"a": torch.zeros(2).to_sparse()}):
            with pytest.raises(ValueError):
                module._evaluate_tensors_for_save(wrong)
        with pytest.raises(ValueError, match="non contiguous"):
            module._flatten_as_ptr({"a": torch.zeros(2, 3).T}, [])


@pytest.mark.parametrize("save", [ours_torch.save, safetensors.torch.save])
def test_unsavable_values_are_refused_as_by_safetensors(save: Any) -> None:
    base = torch.arange(6.0).reshape(2, 3)
    for tensors in ({"a": base, "b": base}, {"a": base, "b": base[0]}, {"a": base, "b": base.view(-1)}):
        with pytest.raises(RuntimeError, match="share memory"):
            save(tensors)
    for tensors in ({"a": base.T}, {"a": base[:, ::2]}, {"a": base.to_sparse()}, {"a": 1}, [base]):
        with pytest.raises(ValueError):
            save(tensors)
    save({"a": base[0], "b": base[1]})
    save({"a": base, "b": base.clone()})
    save({"grad": torch.ones(2, requires_grad=True), "conj": torch.ones(2, dtype=torch.complex64)})


class Tied(torch.nn.Module):
    """Two names for one weight, and a transposed one."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(4, 3)
        self.head = torch.nn.Linear(3, 4, bias=True)
        self.head.weight = self.embed.weight
        self.register_buffer("turned", torch.arange(6.0).reshape(2, 3).T)


def test_a_module_with_shared_tensors_both_ways(file: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Tied()
    ours_torch.save_model(model, file, {"format": "pt"})
    theirs = tmp_path / "theirs.safetensors"
    safetensors.torch.save_model(model, str(theirs), {"format": "pt"})
    with ours.safe_open(file, "pt") as opened, safetensors.safe_open(theirs, "pt") as original:
        assert opened.metadata() == original.metadata() == {"format": "pt", "head.weight": "embed.weight"}
        assert opened.keys() == original.keys() == ["embed.weight", "head.bias", "turned"]
        assert_tensors(opened.get_tensors(), original.get_tensors())
    for path in (file, theirs):
        for load_model in (ours_torch.load_model, safetensors.torch.load_model):
            other = Tied()
            missing, unexpected = load_model(other, str(path))
            assert not missing and not unexpected
            assert torch.equal(other.head.weight, model.embed.weight)
            assert torch.equal(other.turned, model.turned)
    with pytest.raises(ValueError, match="contiguous"):
        ours_torch.save_model(model, file, force_contiguous=False)


def test_a_module_that_differs_is_refused_or_reported(file: Path) -> None:
    ours_torch.save_model(Tied(), file)
    other = torch.nn.Sequential(torch.nn.Linear(3, 4))
    for load_model in (ours_torch.load_model, safetensors.torch.load_model):
        with pytest.raises(RuntimeError, match=r"(?s)0\.bias.*embed\.weight"):
            load_model(other, str(file))
        missing, unexpected = load_model(other, str(file), strict=False)
        assert set(missing) == {"0.weight", "0.bias"}
        assert sorted(unexpected) == ["embed.weight", "head.bias", "turned"]


def test_parts_of_one_storage_without_the_whole_are_refused() -> None:
    whole = torch.arange(6.0)

    class Parts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("a", whole[:4])
            self.register_buffer("b", whole[2:])

    for save_model in (ours_torch.save_model, safetensors.torch.save_model):
        with pytest.raises(RuntimeError):
            save_model(Parts(), "never.safetensors")


def test_a_file_of_the_other_choice_of_names_is_loaded(file: Path) -> None:
    """A model may be saved with the other name kept."""
    model = Tied()
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name != "embed.weight"}
    ours_torch.save_file(state, file)
    for load_model in (ours_torch.load_model, safetensors.torch.load_model):
        missing, unexpected = load_model(Tied(), str(file))
        assert not missing and not unexpected
