"""`regrow.flax.checkpoints` beside `flax.training.checkpoints` in its legacy mode."""

from __future__ import annotations

import inspect
import json
import os
import pickle
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import flax
import flax.errors
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
import tensorstore
from flax.core import FrozenDict
from flax.training import checkpoints as theirs
from flax_trees import Stats, assert_same_values, train_state, tree

import regrow
from regrow import _native
from regrow.flax import checkpoints as ours
from regrow.flax import errors, to_bytes

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.usefixtures("legacy_flax_files")]

REPOSITORY = Path(__file__).parents[2]
FOLDERS = json.loads((REPOSITORY / "fixtures/flax/expected.json").read_text())["checkpoint_dirs"]


def state_of(step: Any) -> dict[str, Any]:
    return {"step": step, "w": np.full(3, step, np.float32)}


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


@pytest.mark.parametrize(
    "name",
    [
        "save_checkpoint",
        "save_checkpoint_multiprocess",
        "restore_checkpoint",
        "latest_checkpoint",
        "available_steps",
        "natural_sort",
        "convert_pre_linen",
        "safe_normpath",
        "AsyncManager",
    ],
)
def test_a_signature_is_that_of_the_original(name: str) -> None:
    mine = list(inspect.signature(getattr(ours, name)).parameters.values())
    original = list(inspect.signature(getattr(theirs, name)).parameters.values())
    shared, more = mine[: len(original)], mine[len(original) :]
    assert [(p.name, p.kind, p.default) for p in shared] == [(p.name, p.kind, p.default) for p in original]
    assert all(p.kind is p.KEYWORD_ONLY and p.default is not p.empty for p in more)


# ---- which files there are ------------------------------------------------------------


@pytest.mark.parametrize("case", [case for case in FOLDERS if case["ops"]], ids=lambda case: case["dir"])
def test_histories_of_saves_end_as_in_the_fixtures(case: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / case["dir"]
    for operation in case["ops"]:
        options = dict(operation["save"])
        step = options.pop("step")
        if operation["outcome"] == "ok":
            path = ours.save_checkpoint(folder, state_of(step), step, **options)
            assert path == f"{folder}/checkpoint_{step}"
        else:
            (expected,) = operation["chain"]
            with pytest.raises(errors.InvalidCheckpointError) as raised:
                ours.save_checkpoint(folder, state_of(step), step, **options)
            text = str(raised.value).replace(f"{tmp_path}/", "")
            assert text == expected["message"].partition(" (https://")[0]
            assert type(raised.value).__name__ == expected["type"]
            assert isinstance(raised.value, flax.errors.InvalidCheckpointError)
        assert names(folder) == operation["listing"]
    assert ours.latest_checkpoint(folder) == f"{folder}/{case['latest']}"


@pytest.mark.parametrize("case", [case for case in FOLDERS if case["ops"]], ids=lambda case: case["dir"])
def test_folders_of_the_original_are_read(case: dict[str, Any], fixtures: Path) -> None:
    folder = fixtures / "flax" / case["dir"]
    steps = ours.available_steps(folder, step_type=float)
    assert steps == theirs.available_steps(folder, step_type=float)
    for step in [None, *ours.available_steps(folder, step_type=lambda text: text)]:
        assert_same_values(ours.restore_checkpoint(folder, None, step), theirs.restore_checkpoint(folder, None, step))


def test_leftovers_and_strays_are_no_checkpoints(fixtures: Path, tmp_path: Path) -> None:
    for name in ("ckpt_leftovers", "ckpt_stray"):
        folder = tmp_path / name
        shutil.copytree(fixtures / "flax" / name, folder)
        assert ours.latest_checkpoint(folder) == f"{folder}/checkpoint_2"
        assert ours.available_steps(folder) == [2]
        others = set(names(folder)) - {"checkpoint_2"}
        ours.save_checkpoint(folder, state_of(3), 3)
        assert set(names(folder)) == others | {"checkpoint_3"}
    with pytest.raises(ours.CheckpointNotFoundError, match=r"checkpoint_99\.bak"):
        os.remove(folder / "checkpoint_3")
        ours.restore_checkpoint(folder, None)


@pytest.mark.parametrize("seed", range(12))
def test_random_histories_end_as_with_flax(seed: int, tmp_path: Path) -> None:
    random = np.random.default_rng(seed)
    prefix = ["checkpoint_", "m_", "x"][seed % 3]
    step = -3
    for _ in range(25):
        step = step + int(random.integers(-2, 5)) if random.random() < 0.9 else float(step) + 0.5
        options = {
            "prefix": prefix,
            "keep": int(random.integers(0, 4)),
            "overwrite": bool(random.random() < 0.3),
            "keep_every_n_steps": [None, 2, 5][int(random.integers(3))],
        }
        outcomes = []
        for package, name in ((theirs, "theirs"), (ours, "ours")):
            try:
                package.save_checkpoint(tmp_path / name, state_of(step), step, **options)
                outcomes.append("ok")
            except flax.errors.InvalidCheckpointError:
                outcomes.append("outdated")
        assert outcomes[0] == outcomes[1]
        assert names(tmp_path / "ours") == names(tmp_path / "theirs")
    for name in names(tmp_path / "ours"):
        assert (tmp_path / "ours" / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes()


@pytest.mark.parametrize("prefix", ["run-", "run.", "1e", "run_7"])
def test_what_ends_the_prefix_is_no_part_of_the_number(prefix: str, tmp_path: Path) -> None:
    for step in (1, 2, 10):
        ours.save_checkpoint(tmp_path, state_of(step), step, prefix=prefix, keep=2)
    assert names(tmp_path) == [f"{prefix}10", f"{prefix}2"]
    assert ours.restore_checkpoint(tmp_path, None, prefix=prefix)["step"] == 10


def test_a_negative_keep_makes_no_sense(tmp_path: Path) -> None:
    with pytest.raises(regrow.errors.InvalidArgumentError, match="keep=-1"):
        ours.save_checkpoint(tmp_path, state_of(1), 1, keep=-1)
    assert names(tmp_path) == []


def test_a_name_instead_of_a_step_stays_and_is_restored(tmp_path: Path) -> None:
    (tmp_path / "checkpoint_best").write_bytes(to_bytes(state_of(7)))
    ours.save_checkpoint(tmp_path, state_of(1), 1)
    ours.save_checkpoint(tmp_path, state_of(2), 2)
    assert names(tmp_path) == ["checkpoint_2", "checkpoint_best"]
    assert ours.restore_checkpoint(tmp_path, None, "best")["step"] == 7


def test_orbax_folders_are_steps_too(tmp_path: Path) -> None:
    state = {"w": np.arange(4.0), "b": [np.ones(2)]}
    ocp.PyTreeCheckpointer().save(tmp_path / "checkpoint_1", state)
    (tmp_path / "checkpoint_7").mkdir()
    restored = ours.restore_checkpoint(tmp_path, None)
    assert_same_values(jax.tree.map(np.asarray, restored), {"b": {"0": np.ones(2)}, "w": np.arange(4.0)})
    assert_same_values(ours.restore_checkpoint(tmp_path, state), state)
    assert_same_values(ours.restore_checkpoint(tmp_path / "checkpoint_1", state), state)
    ours.save_checkpoint(tmp_path, state, 2)
    assert names(tmp_path) == ["checkpoint_2", "checkpoint_7"]


def test_orbax_folders_of_flax_are_restored_onto_a_target(tmp_path: Path) -> None:
    state = train_state(optax.adam(1e-3))
    flax.config.update("flax_use_orbax_checkpointing", True)
    theirs.save_checkpoint(tmp_path, state, 5)
    expected = theirs.restore_checkpoint(tmp_path, state)
    restored = ours.restore_checkpoint(tmp_path, state)
    assert jax.tree.structure(restored) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(restored), jax.tree.leaves(expected), strict=True):
        assert np.array_equal(one, other)


def test_an_orbax_checkpointer_is_used(tmp_path: Path) -> None:
    state = {"w": np.arange(4.0)}
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        for step in (1, 2):
            ours.save_checkpoint(tmp_path, state, step, orbax_checkpointer=checkpointer)
        assert names(tmp_path) == ["checkpoint_2"]
        restored = ours.restore_checkpoint(tmp_path, state, orbax_checkpointer=checkpointer)
        assert np.array_equal(restored["w"], state["w"])
    assert np.array_equal(ours.restore_checkpoint(tmp_path, state, orbax_transforms={})["w"], state["w"])


# ---- what is in them ------------------------------------------------------------------


@pytest.mark.parametrize("name", ["adamw_clip", "nested", "frozen_linen", "dtypes", "root_array", "root_none"])
def test_each_restores_what_the_other_saved(name: str, tmp_path: Path) -> None:
    state = tree(name)
    mine = ours.save_checkpoint(tmp_path / "ours", state, 3)
    original = theirs.save_checkpoint(tmp_path / "theirs", state, 3)
    assert Path(mine).read_bytes() == Path(original).read_bytes()
    expected = theirs.restore_checkpoint(original, None)
    for parallel in (True, False):
        assert_same_values(ours.restore_checkpoint(tmp_path / "theirs", None, parallel=parallel), expected)
    assert_same_values(theirs.restore_checkpoint(mine, None), expected)
    restored, again = (p.restore_checkpoint(tmp_path / "ours", state) for p in (ours, theirs))
    assert jax.tree.structure(restored) == jax.tree.structure(again)
    assert_same_values(jax.tree.leaves(restored), jax.tree.leaves(again))


def test_the_multiprocess_form_is_sorted(tmp_path: Path) -> None:
    state = {"z": {"y": 1, "a": jnp.ones(2)}, "b": [1, 2]}
    mine = ours.save_checkpoint_multiprocess(tmp_path / "ours", state, 1)
    original = theirs.save_checkpoint_multiprocess(tmp_path / "theirs", state, 1)
    assert Path(mine).read_bytes() == Path(original).read_bytes() != to_bytes(state)


def test_a_target_is_compared_on_request(tmp_path: Path) -> None:
    ours.save_checkpoint(tmp_path, {"a": np.ones(2)}, 1)
    assert ours.restore_checkpoint(tmp_path, {"a": np.ones(3)})["a"].shape == (2,)
    with pytest.raises(regrow.errors.MismatchError, match=r"a: target \(3,\), stored \(2,\)"):
        ours.restore_checkpoint(tmp_path, {"a": np.ones(3)}, strict=True)


def test_where_nothing_is_a_program_begins_with_its_target(tmp_path: Path) -> None:
    target = {"a": 1}
    for path in (tmp_path / "missing", tmp_path):
        assert theirs.restore_checkpoint(path, target) is target
        assert ours.restore_checkpoint(path, target) is target
        assert ours.restore_checkpoint(path, None) is None
        for kind in (ours.CheckpointNotFoundError, ValueError, FileNotFoundError, regrow.errors.NotFoundError):
            with pytest.raises(kind, match="missing_ok"):
                ours.restore_checkpoint(path, target, missing_ok=False)
        assert ours.latest_checkpoint(path) is None
        assert ours.available_steps(path) == []


def test_a_step_that_is_not_there_is_an_error_as_in_the_original(tmp_path: Path) -> None:
    messages = []
    for package in (theirs, ours):
        with pytest.raises(ValueError) as raised:
            package.restore_checkpoint(tmp_path, None, 5)
        messages.append(str(raised.value))
    assert messages[0] == messages[1] == f"Matching checkpoint not found: {tmp_path}/checkpoint_5"
    with pytest.raises(ValueError, match="Matching"):
        ours.restore_checkpoint(tmp_path, None, 5, missing_ok=True)


@pytest.mark.parametrize("damage", [b"", b"\x81", b"\xc1", b"\x01\x02"])
def test_damage_names_the_file(damage: bytes, tmp_path: Path) -> None:
    (tmp_path / "checkpoint_1").write_bytes(damage)
    with pytest.raises(regrow.errors.CorruptError, match="checkpoint_1") as raised:
        ours.restore_checkpoint(tmp_path, None)
    assert raised.value.file == f"{tmp_path}/checkpoint_1"
    assert isinstance(raised.value, ValueError)


def test_paths_of_other_storages_are_refused() -> None:
    for call in (lambda: ours.latest_checkpoint("memory://b/x"), lambda: ours.save_checkpoint("memory://b", {}, 1)):
        with pytest.raises(regrow.errors.UnsupportedError, match="needs a path on a local disk"):
            call()
    assert not Path("memory:").exists()


def test_a_file_url_is_a_path(tmp_path: Path) -> None:
    saved = ours.save_checkpoint(f"file://{tmp_path}", {"w": np.ones(3)}, 1)
    assert saved == f"{tmp_path}/checkpoint_1"
    assert ours.latest_checkpoint(f"file://{tmp_path}") == saved
    assert ours.restore_checkpoint(f"file://{tmp_path}", None)["w"].sum() == 3


# ---- crash safety ---------------------------------------------------------------------


def test_a_file_is_as_readable_as_any_other(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    path = ours.save_checkpoint(tmp_path, {"a": 1}, 1)
    assert stat.S_IMODE(os.stat(path).st_mode) == stat.S_IMODE(os.stat(tmp_path / "other").st_mode)


KILLED = """
import os, sys
from regrow import _native
from regrow.flax import _folder, checkpoints
point, folder = sys.argv[1:]
def die(*args, **kwargs):
    os._exit(9)
if point == "before_name":
    staged = _native.StagedFile(folder + "/checkpoint_2", True)
    with open(staged.path, "wb") as file:
        file.write(b"half")
    die()
_folder.clean_up = checkpoints.clean_up = die
checkpoints.save_checkpoint(folder, {"a": 2}, 2)
"""


@pytest.mark.parametrize("point", ["before_name", "before_clean_up"])
def test_a_killed_save_leaves_a_folder_that_both_can_use(point: str, tmp_path: Path) -> None:
    ours.save_checkpoint(tmp_path, {"a": 1}, 1)
    done = subprocess.run([sys.executable, "-c", KILLED, point, tmp_path], check=False)
    assert done.returncode == 9
    expected = 2 if point == "before_clean_up" else 1
    assert len(names(tmp_path)) == 2
    for package in (ours, theirs):
        assert package.restore_checkpoint(tmp_path, None) == {"a": expected}
    ours.save_checkpoint(tmp_path, {"a": 3}, 3)
    assert names(tmp_path) == ["checkpoint_3"]


def test_a_save_in_progress_is_not_swept_away(tmp_path: Path) -> None:
    staged = _native.StagedFile(f"{tmp_path}/checkpoint_2", True)
    Path(staged.path or "").write_bytes(to_bytes({"a": 2}))
    ours.save_checkpoint(tmp_path, {"a": 1}, 1)
    assert len(names(tmp_path)) == 2
    staged.commit()
    assert names(tmp_path) == ["checkpoint_1", "checkpoint_2"]
    assert ours.restore_checkpoint(tmp_path, None) == {"a": 2}


def test_two_savers_of_one_step_do_not_both_succeed(tmp_path: Path) -> None:
    outcomes: list[str] = []
    start = threading.Barrier(8)

    def save() -> None:
        start.wait()
        try:
            ours.save_checkpoint(tmp_path, {"a": 1}, 1)
            outcomes.append("ok")
        except ours.InvalidCheckpointError:
            outcomes.append("outdated")

    threads = [threading.Thread(target=save) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["ok"] + ["outdated"] * 7
    assert names(tmp_path) == ["checkpoint_1"]


def test_an_overwrite_replaces_an_orbax_folder_but_no_other(tmp_path: Path) -> None:
    ocp.PyTreeCheckpointer().save(tmp_path / "checkpoint_1", {"a": np.ones(2)})
    (tmp_path / "checkpoint_2").mkdir()
    (tmp_path / "checkpoint_2/thesis.txt").touch()
    ours.save_checkpoint(tmp_path, {"a": 1}, 1, overwrite=True)
    assert ours.restore_checkpoint(tmp_path, None) == {"a": 1}
    with pytest.raises(regrow.errors.InvalidArgumentError, match="not a checkpoint"):
        ours.save_checkpoint(tmp_path, {"a": 2}, 2, overwrite=True)
    assert names(tmp_path) == ["checkpoint_1", "checkpoint_2"]
    assert names(tmp_path / "checkpoint_2") == ["thesis.txt"]


def test_what_the_system_refuses_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(regrow.errors.IoError, match="cannot make the folder"):
        ours.save_checkpoint(tmp_path / "file" / "below", {"a": 1}, 1)


def test_arrays_outlive_the_file(tmp_path: Path) -> None:
    ours.save_checkpoint(tmp_path, {"a": np.arange(100_000)}, 1)
    restored = ours.restore_checkpoint(tmp_path, None)
    ours.save_checkpoint(tmp_path, {"a": np.zeros(100_000)}, 1, overwrite=True)
    ours.save_checkpoint(tmp_path, {"a": np.zeros(100_000)}, 2)
    assert np.array_equal(restored["a"], np.arange(100_000))
    assert not restored["a"].flags.writeable


# ---- in the background ----------------------------------------------------------------


def test_saves_in_the_background_wait_for_each_other(tmp_path: Path) -> None:
    manager = ours.AsyncManager()
    state = state_of(0)
    for step in range(5):
        state["w"][:] = step
        ours.save_checkpoint(tmp_path, state, step, keep=3, async_manager=manager)
        state["w"][:] = -1
    manager.wait_previous_save()
    assert names(tmp_path) == ["checkpoint_2", "checkpoint_3", "checkpoint_4"]
    assert ours.restore_checkpoint(tmp_path, None)["w"].tolist() == [4, 4, 4]
    ours.save_checkpoint(tmp_path, state, 5, async_manager=theirs.AsyncManager())


def test_an_error_in_the_background_is_raised_by_the_next_wait(tmp_path: Path) -> None:
    manager = ours.AsyncManager()
    (tmp_path / "file").touch()
    ours.save_checkpoint(tmp_path / "file" / "below", {"a": 1}, 1, async_manager=manager)
    with pytest.raises(regrow.errors.IoError):
        ours.save_checkpoint(tmp_path, {"a": 1}, 1, async_manager=manager)
    ours.save_checkpoint(tmp_path, {"a": 1}, 1, async_manager=manager)
    manager.wait_previous_save()
    assert ours.restore_checkpoint(tmp_path, None) == {"a": 1}


# ---- arrays of several processes ------------------------------------------------------


class FakeManager:
    """Reads arrays as a `GlobalAsyncCheckpointManager` does, on one process."""

    def wait_until_finished(self) -> None:
        """Nothing is under way."""

    def deserialize(self, shardings: Any, specs: Any) -> list[Any]:
        """Arrays of these places."""
        arrays = [np.asarray(tensorstore.open(spec, open=True).result().read().result()) for spec in specs]
        return [jax.device_put(array, sharding) for array, sharding in zip(arrays, shardings, strict=True)]


@pytest.fixture
def shared(fixtures: Path, tmp_path: Path) -> Path:
    path = tmp_path / "checkpoint_4"
    shutil.copy(fixtures / "flax/mp_placeholder.msgpack", path)
    spec = {
        "driver": "zarr",
        "kvstore": {"driver": "file", "path": f"{path}_gda/params/w"},
        "metadata": {"dtype": "<f4", "shape": [4], "chunks": [2]},
    }
    tensorstore.open(spec, create=True).result().write(np.arange(4, dtype=np.float32)).result()
    return path


def test_arrays_of_several_processes_are_reported(shared: Path) -> None:
    target = {"w": jnp.zeros(4), "b": jnp.zeros(2)}
    for manager, given, kind in (
        (None, target, "MPACheckpointingRequiredError"),
        (FakeManager(), None, "MPARestoreTargetRequiredError"),
    ):
        messages = []
        for package in (theirs, ours):
            with pytest.raises(getattr(flax.errors, kind)) as raised:
                package.restore_checkpoint(shared.parent, given, 4, gda_manager=manager)
            assert type(raised.value).__name__ == kind
            messages.append(str(raised.value).partition(" (https")[0])
        assert messages[1].startswith(messages[0])
        assert f"w is in {shared}_gda/params/w" in messages[1]
    with pytest.raises(ours.MPARestoreTargetRequiredError, match="w"):
        ours.restore_checkpoint(shared.parent, {"w": 1, "b": 1}, gda_manager=FakeManager())
    shutil.rmtree(f"{shared}_gda")
    with pytest.raises(ours.MPARestoreDataCorruptedError, match="which is missing"):
        ours.restore_checkpoint(shared.parent, target, gda_manager=FakeManager())


def test_arrays_of_several_processes_are_read_by_the_manager(shared: Path) -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    target = {"w": jax.device_put(jnp.zeros(4), sharding), "b": jnp.zeros(2)}
    restored = ours.restore_checkpoint(shared.parent, target, gda_manager=FakeManager())
    assert restored["w"].tolist() == [0, 1, 2, 3]
    assert restored["w"].sharding == sharding
    partial = ours.restore_checkpoint(
        shared.parent, None, gda_manager=FakeManager(), allow_partial_mpa_restoration=True
    )
    assert partial["w"] == "//GDAPlaceholder:params/w"


@pytest.mark.parametrize("place", ["{shared}_gda/params/w", "../checkpoint_4_gda/params/w", "params/../params/w"])
def test_a_placeholder_leads_nowhere_else(place: str, shared: Path) -> None:
    shared.write_bytes(to_bytes({"w": f"//GDAPlaceholder:{place.format(shared=shared)}"}))
    for target in ({"w": jnp.zeros(4)}, None):
        with pytest.raises(regrow.errors.CorruptError, match="outside the checkpoint") as raised:
            ours.restore_checkpoint(shared.parent, target, gda_manager=FakeManager())
        assert (raised.value.file, raised.value.leaf) == (str(shared), "w")


def test_a_removed_step_takes_its_arrays_along(shared: Path) -> None:
    ours.save_checkpoint(shared.parent, {"a": 1}, 5, keep=2)
    ours.save_checkpoint_multiprocess(shared.parent, {"a": 1}, 6)
    assert names(shared.parent) == ["checkpoint_6"]


def test_errors_survive_a_pickle() -> None:
    from regrow.flax.errors import raised

    for error in (
        raised(errors.InvalidCheckpointError)("/x/checkpoint_1", 1),
        raised(errors.MPACheckpointingRequiredError)("/x", 1, ["w"]),
        raised(errors.MPARestoreTargetRequiredError)("/x", 1, "w", ["w"]),
        raised(errors.MPARestoreDataCorruptedError)(1, "/x", ["w"]),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert str(again) == str(error)
        assert again.file == error.file
        assert isinstance(error, flax.errors.FlaxError)


# ---- names ----------------------------------------------------------------------------

TEXTS = [
    ["file_1", "file_10", "file_2"],
    ["file_0.1", "file_-0.2", "file_2.0", "file_1e5", "file_+3", "file_.5", "file_1e-05"],
    ["a", "b1", "", "1", "a1b2", "a1b10", "-1", "a-1", "a-2"],
]


@pytest.mark.parametrize("texts", TEXTS)
@pytest.mark.parametrize("signed", [True, False])
def test_the_natural_order_is_that_of_the_original(texts: list[str], signed: bool) -> None:
    assert ours.natural_sort(texts, signed) == theirs.natural_sort(texts, signed)


@pytest.mark.parametrize("path", ["gs://a//b/../c", "./a//b/", "/x/../y", "s3://", "", "a:b"])
def test_paths_are_normalised_as_by_flax(path: str) -> None:
    assert ours.safe_normpath(path) == theirs.safe_normpath(path)


PRE_LINEN = {
    "Conv_0": {"kernel": 1},
    "Dense_1": {"LayerNorm_0": 2, "Dense_3": {"Dense_10": 3, "Dense_9": 4}},
    "Conv_10": 5,
    "Conv_2": 6,
    "named": {"x_y": 7},
}


@pytest.mark.parametrize("params", [PRE_LINEN, FrozenDict(PRE_LINEN), {"Dense_0": {"b": 1}}, 5, {}, Stats(1, 2)])
def test_names_of_before_linen_are_converted_as_by_flax(params: Any) -> None:
    mine, original = ours.convert_pre_linen(params), theirs.convert_pre_linen(params)
    assert mine == original
    assert type(mine) is type(original)
    if isinstance(params, dict):
        assert_same_values(mine, original)
