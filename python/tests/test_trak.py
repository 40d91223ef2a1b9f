"""TRAK stores: the drop-in saver against what TRAK's own saver did, call by call; and what it
does better.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trak_stores import METADATA, Saver, expected_stores, files_of, make, pattern

import regrow
from regrow import trak


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


def described(array: Any) -> dict[str, Any] | None:
    if array is None:
        return None
    data = np.asarray(array).tobytes()
    return {
        "dtype": str(array.dtype),
        "shape": list(array.shape),
        "nbytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }


# Where we answer a call otherwise than TRAK, and how: (store, index of the call) -> exception, or
# None for success.
BETTER: dict[tuple[str, int], type[Exception] | None] = {
    ("odd_ids", 5): regrow.errors.InvalidArgumentError,
    ("odd_ids", 6): regrow.errors.InvalidArgumentError,
    ("exp_resized", 3): regrow.errors.MismatchError,
    ("mismatch_unchecked", 3): trak.MetadataMismatchError,
    ("metadata_mismatch", 4): trak.MetadataMismatchError,
}
# From this call on the files are not TRAK's, since something was not lost, emptied or refused.
DIVERGES = {
    "odd_ids": 3,
    "exp_resized": 3,
    "mismatch_unchecked": 3,
    "lost_update": 3,
    "scores_wiped": 6,
    "parallel_run": 2,
}


def do(op: dict[str, Any], saver: Saver) -> Any:
    match op["op"]:
        case "register_model_id":
            return saver.register_model_id(op["model_id"], op["allow_already_registered"])
        case "write_rows":
            array, rows = saver.current_store[op["array"]], op["rows"]
            array[rows] = 1 if op["pattern"] is None else pattern(rows, array.shape[1], op["pattern"])
        case "serialize_current_model_id_metadata":
            if op["set_is_finalized"] is not None:
                saver.model_ids[saver.current_model_id]["is_finalized"] = op["set_is_finalized"]
            return saver.serialize_current_model_id_metadata()
        case "load_current_store":
            return saver.load_current_store(op["model_id"], op["exp_name"], op["num_targets"])
        case "init_experiment":
            return saver.init_experiment(op["exp_name"], op["num_targets"], op["model_id"])
        case "save_scores":
            return saver.save_scores(op["exp_name"])
        case "del_grads":
            return saver.del_grads(op["model_id"])
        case other:
            raise AssertionError(other)
    return None


def test_every_call_does_to_the_files_what_trak_did(fixtures: Path, tmp_path: Path) -> None:
    compared = 0
    for store in expected_stores(fixtures, "valid"):
        name = store["store"]
        folder = tmp_path / name
        savers: dict[str, Saver] = {}
        for at, op in enumerate(store["ops"]):
            where = f"{name}, call {at}: {op['op']}"
            better = BETTER.get((name, at), "as TRAK")
            if op["op"] == "open":
                arguments = {key: op.get(key, store[key]) for key in METADATA_KEYS}
                load = op.get("load_from_save_dir", True)
                call = lambda f=folder, a=arguments, load=load: make(f, load_from_save_dir=load, **a)  # noqa: E731
            else:
                if op["by"] not in savers:
                    continue  # it was refused where TRAK did not look
                call = lambda op=op, saver=savers[op["by"]]: do(op, saver)  # noqa: E731
            if isinstance(better, type):
                with pytest.raises(better):
                    call()
            elif op["outcome"] == "ok" or name == "parallel_run":
                result = call()
                if op["op"] == "open":
                    savers[op.get("by", "A")] = result
            else:
                chain = op["chain"][0]
                with pytest.raises(Exception) as raised:
                    call()
                names = {cls.__name__ for cls in type(raised.value).__mro__}
                assert chain["type"] in names, where
                if chain["type"] == "ModelIDException":
                    message = chain["message"].replace(f"/srv/trak-store/{name}", str(folder.resolve()))
                    assert str(raised.value) == message, where
            if "arrays" in op and not isinstance(better, type):
                current = savers[op["by"]].current_store
                assert {key: described(array) for key, array in current.items()} == op["arrays"], where
            if at >= DIVERGES.get(name, len(store["ops"])):
                continue
            files, theirs = files_of(folder), {key: value for key, value in op["files"].items() if value is not None}
            if "experiments.json" in theirs and json.loads((folder / "experiments.json").read_text()):
                del files["experiments.json"], theirs["experiments.json"]  # it holds the path of the folder
            assert files == theirs, where
            compared += 1
        for saver in savers.values():
            saver.close()
    assert compared > 70


METADATA_KEYS = ("metadata", "train_set_size", "proj_dim", "use_half_precision")


def test_experiments_say_what_trak_says(fixtures: Path, tmp_path: Path) -> None:
    store = next(store for store in expected_stores(fixtures, "valid") if store["store"] == "half_two_models")
    folder = tmp_path / "x"
    saver = make(folder)
    for op in store["ops"][1:]:
        do(op, saver)
    text = store["final"]["experiments.json"].replace("/srv/trak-store/half_two_models", str(folder.resolve()))
    assert (folder / "experiments.json").read_text() == text
    again = make(folder)
    assert {str(key): flags for key, flags in again.model_ids.items()} == store["final"]["reopened"]["model_ids"]
    assert again.experiments == json.loads(text)


def test_stores_of_trak_are_picked_up(fixtures: Path, tmp_path: Path) -> None:
    shutil.copytree(fixtures / "trak/f32_partial", tmp_path / "x")
    saver = make(tmp_path / "x", use_half_precision=False)
    assert saver.missing_rows(0) == [2, 3, 5]
    saver.load_current_store(0)
    # A batch with one half done, as TRAKer passes it on: values for all rows, indices without the
    # done ones.
    batch = np.arange(6)
    done = (saver.current_store["is_featurized"][batch] == 1).reshape(-1)
    left = batch[~done]
    values = np.arange(24, dtype=np.float32).reshape(6, 4)
    saver.current_store["grads"][left] = values
    saver.current_store["out_to_loss"][left] = values[:, :1]
    saver.current_store["is_featurized"][left] = 1
    saver.serialize_current_model_id_metadata()
    assert saver.model_ids[0]["is_featurized"] == 1
    grads = np.asarray(saver.current_store["grads"])
    assert (grads[left] == values[left]).all()
    assert (grads[[0, 1]] == np.asarray(pattern([0, 1], 4, 11))).all()
    with pytest.raises(ValueError, match="broadcast"):
        saver.current_store["grads"][[0, 1]] = values[:3]


INDICES: list[Any] = [
    0,
    -1,
    np.int64(2),
    slice(None),
    slice(1, 5, 2),
    slice(None, None, -1),
    ...,
    [3, 1],
    [3, 3, -6],
    np.array([0, 5]),
    np.array([[0, 1], [2, 3]]),
    np.array([True, False, True, False, False, True]),
    [],
    np.array(4),
    (slice(1, 3), slice(0, 2)),
    (2, 1),
    (slice(None), [0, 2]),
    np.array([], dtype=np.int64),
]


@pytest.mark.parametrize("index", INDICES, ids=[repr(index) for index in INDICES])
def test_assignments_are_those_of_numpy(folder: Path, tmp_path: Path, index: Any) -> None:
    saver = make(folder)
    saver.register_model_id(0, False)
    theirs = np.lib.format.open_memmap(tmp_path / "numpy.npy", "w+", np.float16, (6, 4))
    random = np.random.default_rng(0)
    for key in ("grads", "features"):
        array = saver.current_store[key]
        theirs[:] = 0
        for value in (7, np.arange(4), random.normal(size=theirs[index].shape), np.float32(0.1)):
            if np.ndim(value) == 1 and np.ndim(theirs[index]) and theirs[index].shape[-1:] != (4,):
                continue
            if theirs[index].ndim == 0 and np.ndim(value):
                continue
            theirs[index] = value
            array[index] = value
            assert np.asarray(array).tobytes() == np.asarray(theirs).tobytes()
            assert (folder / f"0/{key}.mmap").read_bytes()[128:] == theirs.tobytes()


@pytest.mark.parametrize("index", [6, -7, [0, 6], np.array([-7])])
def test_rows_that_are_not_there_are_refused(folder: Path, index: Any) -> None:
    saver = make(folder)
    saver.register_model_id(0, False)
    for key in ("grads", "is_featurized"):
        with pytest.raises(IndexError):
            saver.current_store[key][index] = 1
    with pytest.raises(regrow.errors.InvalidArgumentError, match="done"):
        saver.current_store["is_featurized"][0] = 2


def test_arrays_are_memory_maps(folder: Path) -> None:
    saver = make(folder)
    saver.register_model_id(0, False)
    grads = saver.current_store["grads"]
    assert isinstance(grads, np.memmap) and grads.flags.writeable
    assert str(grads.filename) == str(folder.resolve() / "0/grads.mmap")
    grads[1:3][0] = 5  # a view writes to the map
    grads += 1
    assert (np.lib.format.open_memmap(folder / "0/grads.mmap", "r") == [[1] * 4, [6] * 4] + [[1] * 4] * 4).all()
    saver.load_current_store(0, mode="r")
    with pytest.raises(ValueError, match="read-only"):
        saver.current_store["grads"][0] = 1
    saver.load_current_store(0, mode="w+")
    assert not np.asarray(saver.current_store["grads"]).any()


def test_scores_that_are_no_numbers_are_not_final(folder: Path) -> None:
    saver = make(folder)
    saver.register_model_id(0, False)
    saver.init_experiment("val", 3, 0)
    saver.current_store["val_scores"][2, 1] = np.nan
    with pytest.raises(regrow.errors.CorruptError, match="row 2"):
        saver.save_scores("val")
    assert json.loads((folder / "experiments.json").read_text())["val"]["scores_finalized"] == 0
    saver.allow_non_finite = True
    saver.save_scores("val")


def test_a_model_is_tied_to_its_checkpoint(folder: Path) -> None:
    saver = make(folder)
    saver.register_model_id(0, False)
    state = {"w": np.arange(6.0).reshape(2, 3), "b": np.zeros(3, np.float32)}
    saver.check_checkpoint(0, state)
    saver.check_checkpoint(0, dict(reversed(state.items())))
    for other in ({**state, "w": state["w"].reshape(3, 2)}, {**state, "b": np.zeros(3)}, {"w": state["w"]}, "text"):
        with pytest.raises(regrow.errors.MismatchError):
            saver.check_checkpoint(0, other)


@pytest.mark.parametrize("model_id", ["0", 1.5, None, 2**63, -(2**63) - 1])
def test_ids_are_integers(folder: Path, model_id: Any) -> None:
    saver = make(folder)
    with pytest.raises(regrow.errors.InvalidArgumentError):
        saver.register_model_id(model_id, False)
    assert [path.name for path in folder.glob("id_*")] == []


@pytest.mark.parametrize("name", ["", "no/dir", "..//x", "a\0b", "_targets_x", "x" * 300, "\udc80", 3])
def test_names_that_are_no_names_of_files_are_refused(folder: Path, name: Any) -> None:
    saver = make(folder)
    saver.register_model_id(0, False)
    with pytest.raises(regrow.errors.InvalidArgumentError):
        saver.init_experiment(name, 3, 0)
    assert (folder / "experiments.json").read_text() == "{}"


def test_damage_is_an_error_and_repair_the_way_out(fixtures: Path, tmp_path: Path) -> None:
    loads = 0
    for store in expected_stores(fixtures, "corrupt"):
        name = store["store"]
        folder = tmp_path / name
        shutil.copytree(fixtures / "trak" / name, folder)
        before = files_of(folder)
        if name in ("c_meta_empty", "c_meta_partial"):
            with pytest.raises(regrow.errors.CorruptError, match="metadata"):
                make(folder)
        else:
            saver = make(folder)
            assert {0, 1} >= set(saver.model_ids) or name in ("c_id_no_folder", "c_id_wrong_name")
            if name.startswith(("c_features", "c_mask")):
                with pytest.raises((regrow.errors.CorruptError, regrow.errors.NotFoundError)) as raised:
                    saver.load_current_store(0)
                assert raised.value.file is not None
                assert saver.current_store["features"] is None
                loads += 1
            elif name.startswith("c_scores"):
                with pytest.raises((regrow.errors.CorruptError, regrow.errors.NotFoundError)):
                    saver.load_current_store(0, "val", 3)
                loads += 1
            saver.load_current_store(1)
        after = files_of(folder)
        made = {"c_exps_missing": "experiments.json", "c_meta_missing": "metadata.json"}.get(name)
        after.pop(made or "", None)
        assert after == before, name
        trak.repair(folder, METADATA)
        saver = make(folder)
        assert {0, 1} <= set(saver.model_ids) and "val" in saver.experiments
        assert regrow.verify(folder).ok, name
        saver.load_current_store(0)
    assert loads == 10


def test_a_store_is_a_checkpoint(fixtures: Path, tmp_path: Path) -> None:
    source = fixtures / "trak/half_two_models"
    checkpoint = regrow.open(source)
    assert checkpoint.layout == "trak"
    stored = np.lib.format.open_memmap(source / "0/grads.mmap", "r")
    assert checkpoint["models/0/grads"][2:4].tolist() == stored[2:4].tolist()
    assert checkpoint["models/1/features"][1:5, 1:3].shape == (4, 2)
    tree = regrow.load(source)
    assert list(tree) == ["metadata", "models", "scores", "experiments"]
    assert tree["metadata"] == METADATA
    assert tree["models"]["0"]["flags"] == {"is_featurized": 1, "is_finalized": 1}
    assert tree["models"]["0"]["targets"]["val"]["grads"].shape == (3, 4)
    assert tree["experiments"]["val"]["num_targets"] == 3
    regrow.save(tmp_path / "copy", tree, layout="trak")
    assert (tmp_path / "copy/0/grads.mmap").read_bytes() == (source / "0/grads.mmap").read_bytes()
    saver = make(tmp_path / "copy")
    saver.load_current_store(1, "val", 3)
    assert np.asarray(saver.current_store["val_scores"]).tobytes() == tree["scores"]["val"].tobytes()
    regrow.save(tmp_path / "orbax", tree)
    regrow.save(tmp_path / "back", regrow.load(tmp_path / "orbax"), layout="trak")
    assert regrow.verify(tmp_path / "back").ok


def test_formulas_block_by_block(folder: Path) -> None:
    size, dim, targets = 37, 5, 11
    metadata = {"JL dimension": dim, "JL matrix type": "normal", "train set size": size}
    saver = make(folder, metadata=metadata, train_set_size=size, proj_dim=dim, use_half_precision=False)
    random = np.random.default_rng(1)
    grads = {model: random.normal(size=(size, dim)).astype(np.float32) for model in (0, 1)}
    weights = {model: random.uniform(size=(size, 1)).astype(np.float32) for model in (0, 1)}
    of_targets = {model: random.normal(size=(targets, dim)).astype(np.float32) for model in (0, 1)}
    for model in (0, 1, 2):
        saver.register_model_id(model, False)
        if model == 2:
            continue
        saver.current_store["grads"][:] = grads[model]
        saver.current_store["out_to_loss"][:] = weights[model]
        saver.current_store["is_featurized"][:] = 1
        saver.serialize_current_model_id_metadata()
    with pytest.raises(trak.ModelIDException, match="not fully featurized"):
        trak.finalize_features(saver, [2])
    with pytest.raises(trak.ModelIDException, match="not registered"):
        trak.finalize_features(saver, [9])
    trak.finalize_features(saver, [0, 1], lambda_reg=0.5, del_grads=True, block_rows=10)
    assert not (folder / "0/grads.mmap").exists()
    features = {}
    for model in (0, 1):
        inverse = np.linalg.inv(grads[model].T.astype(np.float64) @ grads[model] + 0.5 * np.eye(dim))
        features[model] = grads[model] @ (inverse / np.abs(inverse).mean())
        saver.load_current_store(model)
        assert saver.current_store["grads"] is None
        np.testing.assert_allclose(saver.current_store["features"], features[model], rtol=1e-4, atol=1e-5)
    for model in (0, 1):
        saver.init_experiment("val", targets, model)
        saver.current_store["val_grads"][:7] = of_targets[model][:7]
        if model == 0:
            with pytest.raises(trak.ModelIDException, match="none is finalized"):
                trak.finalize_scores(saver, "val", [2])
            with pytest.raises(trak.ModelIDException, match="not scored"):
                trak.finalize_scores(saver, "val", [0])
            with pytest.raises(regrow.errors.NotFoundError):
                trak.finalize_scores(saver, "val", [1])
            saver.load_current_store(0, "val")
        saver.load_current_store(model, "val")
        saver.current_store["val_grads"][7:] = of_targets[model][7:]
    scores = trak.finalize_scores(saver, "val", block_rows=8)
    expected = sum(features[m] @ of_targets[m].T for m in (0, 1)) / 2 * ((weights[0] + weights[1]) / 2)
    np.testing.assert_allclose(scores, expected, rtol=1e-3, atol=1e-4)
    saver = make(folder, metadata=metadata, train_set_size=size, proj_dim=dim, use_half_precision=False)
    assert saver.experiments["val"]["scores_finalized"] == 1


def test_sums_are_not_in_half_precision(folder: Path) -> None:
    saver = make(folder)
    saver.register_model_id(0, False)
    saver.current_store["grads"][:] = np.eye(6, 4) * 300 + 1
    saver.current_store["is_featurized"][:] = 1
    saver.serialize_current_model_id_metadata()
    trak.finalize_features(saver)  # 300 squared is beyond float16
    assert np.isfinite(np.asarray(saver.current_store["features"])).all()
