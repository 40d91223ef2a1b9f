"""Models with any keys: saved by the original and by us, each is loaded by both, to the same
model.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import original_pytree as original
import pytest
from conftest import same_bits
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import regrow
from regrow import pytree

# Without characters that Python does not know yet: whether `repr` escapes those depends on the
# version of Unicode.
TEXTS = st.one_of(
    st.sampled_from(["None", "1.5", "1", "True", "('a',)", "b'x'", "a", "w", "", "'", '"', "\\N{DASH}", "\n", "größe"]),
    st.text(st.characters(exclude_categories=["Cs", "Cn"]), max_size=90),
)
SIMPLE_KEYS = st.one_of(
    TEXTS,
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([1.5, 1.0, -0.0, 1e300, 1 + 2j, 1j, 2 + 0j]),
    st.binary(max_size=40),
    st.sampled_from([b"x", b"", ("a",), (), (1, "t"), (None, (1.5,))]),
)
KEYS = st.one_of(SIMPLE_KEYS, st.lists(SIMPLE_KEYS, max_size=3).map(tuple))


def array_of(dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """An array of small numbers."""
    return np.arange(int(np.prod(shape, dtype=int))).reshape(shape).astype(dtype)


ARRAYS = st.builds(
    array_of,
    st.sampled_from(["<f4", ">i2", "|u1", "<c16", "|b1", "<U2", "|S3"]),
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
)
MODELS = st.one_of(
    ARRAYS,
    st.recursive(
        st.dictionaries(KEYS, ARRAYS, max_size=4),
        lambda child: st.dictionaries(KEYS, st.one_of(ARRAYS, child), max_size=4),
        max_leaves=12,
    ),
)
SAME_TEXT = {
    None: np.ones(1),
    "None": np.zeros(2),
    1.5: np.ones(3),
    "1.5": np.zeros(4),
    b"x": np.ones(5),
    "b'x'": np.zeros(6),
}


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(MODELS)
@example({})
@example(SAME_TEXT)
@example({("a",): {"w": np.ones(2)}, "('a',)": {"w": np.zeros(3)}, 2**70: {"": np.ones(1)}, str(2**70): np.ones(2)})
def test_what_either_saves_both_load(model: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        theirs, mine, plain = (Path(folder) / name for name in ("theirs", "mine", "plain"))
        original.save(theirs, model)
        expected = original.load(theirs)
        compare(pytree.model_load(theirs), expected)
        pytree.model_save(model, mine, durable=False)
        compare(original.load(mine), expected)
        # Empty dicts are kept in a key that the original passes over, if there is an array to have
        # it.
        compare(in_order(pytree.model_load(mine)), in_order(model) if original.contents(model) else {})
        pytree.model_save(model, plain, extra_keys=False, durable=False)
        compare(pytree.model_load(plain), expected)
        for suffix in (".data", ".manifest"):
            assert Path(f"{plain}{suffix}").read_bytes() == Path(f"{theirs}{suffix}").read_bytes()


def in_order(model: Any) -> Any:
    """The same model with its keys sorted by what they print as: empty dicts come back behind
    the others.
    """
    if not isinstance(model, dict):
        return model
    return {key: in_order(model[key]) for key in sorted(model, key=repr)}


def compare(mine: Any, expected: Any) -> None:
    """The same dicts, keys with their types and order, arrays to the bit."""
    assert isinstance(mine, dict) == isinstance(expected, dict)
    if not isinstance(expected, dict):
        assert same_bits(mine, expected)
        return
    assert list(map(repr, mine)) == list(map(repr, expected))
    for one, other in zip(mine.values(), expected.values(), strict=True):
        compare(one, other)


@pytest.mark.parametrize("key", [float("nan"), float("inf"), 1j * float("inf"), frozenset({1}), object()], ids=type)
def test_keys_that_python_cannot_read_again_are_refused(key: Any, tmp_path: Path) -> None:
    original.save(tmp_path / "theirs", {key: np.ones(1)})
    with pytest.raises((ValueError, SyntaxError)):
        original.load(tmp_path / "theirs")
    with pytest.raises(regrow.RegrowError):
        pytree.model_load(tmp_path / "theirs")
    with pytest.raises(regrow.RegrowError, match="cannot be the path"):
        pytree.model_save({key: np.ones(1)}, tmp_path / "mine")
    assert not (tmp_path / "mine.manifest").exists()


def test_a_pytree_of_keys_that_print_as_the_same_text_names_the_function_that_has_them(tmp_path: Path) -> None:
    pytree.model_save(SAME_TEXT, tmp_path / "m")
    for open_it in (regrow.open, regrow.load):
        with pytest.raises(
            regrow.errors.UnsupportedError, match=r"print as the same text(.|\n)*regrow\.pytree\.model_load"
        ):
            open_it(tmp_path / "m")


@pytest.mark.parametrize("data", [b"\0", b""], ids=["NumPy 2", "an empty file"])
def test_a_model_without_arrays_goes_by_every_name(data: bytes, tmp_path: Path) -> None:
    pytree.model_save({}, tmp_path / "m")
    (tmp_path / "m.data").write_bytes(data)
    assert pytree.model_load(tmp_path / "m") == {}
    for name in ("m", "m.data", "m.manifest"):
        opened = regrow.open(tmp_path / name)
        assert opened.layout == "pytree_data" and opened.load() == {}, name
        assert regrow.verify(tmp_path / name).ok


NAMED = "[{'dtype': '<f4', 'nbytes': 4, 'offset': 0, 'path': ('\\N{GREEK SMALL LETTER ALPHA}',), 'shape': (1,)}]"


def test_characters_by_name_are_refused_with_the_way_out(tmp_path: Path) -> None:
    """Neither `repr` nor `pprint` writes them; the original would read them in a manifest edited
    by hand.
    """
    (tmp_path / "m.data").write_bytes(bytes(4))
    (tmp_path / "m.manifest").write_text(NAMED)
    assert list(original.load(tmp_path / "m")) == ["α"]
    for load in (pytree.model_load, regrow.load):
        with pytest.raises(regrow.errors.UnsupportedError, match=r"by name(.|\n)*uXXXX") as raised:
            load(tmp_path / "m")
        assert raised.value.offset_bytes == NAMED.index("\\N")
    # What `repr` writes of every character is read.
    for start in range(0, 0x110000, 0x1000):
        text = "".join(chr(code) for code in range(start, start + 0x1000) if not 0xD800 <= code < 0xE000)
        key = text[:: 0x40 if start else 1]
        original.save(tmp_path / "m", {key: np.ones(1)})
        assert list(pytree.model_load(tmp_path / "m")) == [key]
