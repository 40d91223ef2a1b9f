"""A store for TRAK in which several processes can work at the same time: a drop-in for `MmapSaver`.

    from regrow.trak import MmapSaver

    traker = TRAKer(
        model=model, task=task, train_set_size=N,
        saver=MmapSaver, save_dir=folder,
    )

The folder has TRAK's layout: TRAK reads the files of this module, and this module reads the files
of TRAK. Beyond TRAK: a kill or a power cut loses no marked row, experiments of several processes
are merged, arrays are checked when they are opened and are emptied only on request, and any part of
a batch can be resumed. `repair` repairs a folder that another program has damaged.

If TRAK is installed, the import of this module imports TRAK and PyTorch, so that `MmapSaver` is a
subclass of TRAK's `AbstractSaver`. Without TRAK the module works alone.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import operator
import os
import sys
import weakref
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .. import _native
from .._core._location import place
from .._errors import InvalidArgumentError, MismatchError, NotFoundError
from .._torch import _tensors
from ._arrays import OpenArrays, StoreArray
from ._base import AbstractSaver, ModelIDException
from ._finalize import finalize_features, finalize_scores

__all__ = [
    "AbstractSaver",
    "MetadataMismatchError",
    "MmapSaver",
    "ModelIDException",
    "StoreArray",
    "checkpoint_digest",
    "finalize_features",
    "finalize_scores",
    "install",
    "repair",
]

_TRAIN_KEYS = ("grads", "out_to_loss", "features")
_MODES = ("r", "r+", "w+")


def install() -> None:
    """Makes TRAK use the saver of this module. TRAK must be installed.

    A module that has already imported the original by its name keeps the original.
    """
    for module in ("trak", "trak.savers", "trak.traker"):
        found = importlib.import_module(module)
        if hasattr(found, "MmapSaver"):
            setattr(found, "MmapSaver", MmapSaver)  # noqa: B010


class MetadataMismatchError(MismatchError, AssertionError):
    """The folder was created with another dimension, kind of projection, train set size or
    precision.
    """


class MmapSaver(AbstractSaver):
    """Stores gradients, features and scores of TRAK in memory maps, safe against crashes.

    Assigned rows (``saver.current_store["grads"][rows] = values``) are written at once. The mark of
    a row in ``current_store["is_featurized"]`` reaches the disk only after the row itself. This
    needs a sync, which several batches share: after a kill or a power cut, at most `sync_interval`
    seconds of work are repeated.
    """

    sync_interval: float | None = 0.5
    """Seconds that marks of rows wait for the sync they share; 0 syncs every batch. `None` syncs no
    rows, as TRAK's own saver: marks are written at once, and after a power cut rows may be marked
    as done and be zeros."""
    allow_non_finite: bool = False
    """Whether scores with NaN or infinity may be final."""

    def __init__(
        self,
        save_dir: str | os.PathLike[str],
        metadata: Mapping[str, Any],
        train_set_size: int,
        proj_dim: int,
        load_from_save_dir: bool = True,
        logging_level: int = logging.INFO,
        use_half_precision: bool = True,
    ) -> None:
        """Opens the folder, or creates it.

        Args:
            save_dir: The folder.
            metadata: ``JL dimension``, ``JL matrix type`` and ``train set size``, and any other
                values to keep.
            train_set_size: Number of training examples.
            proj_dim: Dimension of the projected gradients.
            load_from_save_dir: Read the existing store, and own `metadata.json`. Parallel workers
                pass `False` to leave both to another process. Existing metadata are checked in both
                cases.
            logging_level: Of the logger ``STORE``.
            use_half_precision: float16, or float32.

        Raises:
            MetadataMismatchError: if the folder was created with other parameters.
            CorruptError: if `metadata.json` cannot be used. `repair` accepts the correct metadata.
        """
        save_dir = _native.local_path(place("save_dir", save_dir))
        self.metadata = metadata
        self.save_dir = Path(save_dir).resolve()
        self.load_from_save_dir = load_from_save_dir
        self.use_half_precision = use_half_precision
        self.train_set_size = train_set_size
        self.proj_dim = proj_dim
        self.metadata_file = self.save_dir / "metadata.json"
        self.experiments_file = self.save_dir / "experiments.json"
        self.logger = logging.getLogger("STORE")
        self.logger.setLevel(logging_level)
        self.model_ids: dict[int, dict[str, int]] = {}
        self.experiments: dict[str, dict[str, Any]] = {}
        self.current_model_id: int | None = None
        self.current_experiment_name: str | None = None
        self.current_store: dict[str, Any] = dict.fromkeys(_TRAIN_KEYS)
        try:
            self._store = _native.TrakStore(
                os.fspath(self.save_dir),
                (_count(train_set_size, "train set size"), _count(proj_dim, "dimension")),
                bool(use_half_precision),
                "create" if load_from_save_dir else "join",
                json.dumps(dict(metadata)),
                None if self.sync_interval is None else float(self.sync_interval),
            )
        except MismatchError as error:
            raise MetadataMismatchError(f"In {self.save_dir}: {error}", file=error.file, help=error.help) from None
        self._train: tuple[int, OpenArrays] | None = None
        self._targets: tuple[int, str, OpenArrays] | None = None
        self._open: dict[str, OpenArrays] = {}
        self._scores: list[weakref.ref[StoreArray]] = []
        # This also runs if the program ends without a call of `close`.
        self._at_exit = weakref.finalize(self, _flush, self._open)
        if load_from_save_dir:
            self._store.refresh_flags()
            self._load_catalog()

    def _load_catalog(self) -> None:
        models, experiments, faults = self._store.catalog()
        self.model_ids = {number: _flags(featurized, finalized) for number, featurized, finalized in models}
        self.experiments = json.loads(experiments)
        for fault in faults:
            self.logger.warning(f"A file of the store cannot be used: {fault}")
        finalized = [number for number, flags in self.model_ids.items() if flags["is_finalized"]]
        self.logger.info(f"Models in {self.save_dir}: {sorted(self.model_ids)}, finalized: {sorted(finalized)}")
        self.logger.info(f"Experiments in {self.save_dir}: {list(self.experiments)}")

    def register_model_id(self, model_id: int, _allow_featurizing_already_registered: bool = False) -> None:
        """Registers a model: creates its arrays and its flags.

        A model that is on disk and not in `model_ids` (after a restart of the worker) continues
        from its state on disk.

        Args:
            model_id: An integer, one for each checkpoint.
            _allow_featurizing_already_registered: Restart a registered model. All its rows are
                lost.

        Raises:
            ModelIDException: if the model is already registered.
        """
        model_id = _model_id(model_id)
        if model_id in self.model_ids and not _allow_featurizing_already_registered:
            raise ModelIDException(f"model id {model_id} is already registered. Check {self.save_dir}")
        self._close_train()
        self.model_ids[model_id] = _flags(*self._store.register(model_id, bool(_allow_featurizing_already_registered)))
        self.load_current_store(model_id)

    def init_store(self, model_id: int) -> None:
        """Creates the four arrays of a model, all zeros, and replaces existing ones."""
        model_id = _model_id(model_id)
        self._close_train()
        self._store.reset_arrays(model_id)
        if model_id in self.model_ids:
            self.model_ids[model_id] = _flags(False, False)
        self.load_current_store(model_id)

    def load_current_store(
        self,
        model_id: int,
        exp_name: str | None = None,
        exp_num_targets: int | None = -1,
        mode: str | None = "r+",
    ) -> None:
        """Opens arrays into `current_store`: the arrays of the train set or of an experiment.

        Args:
            model_id: The model.
            exp_name: The experiment.
            exp_num_targets: The number of its targets, by default the number in `experiments.json`.
            mode: ``"r+"``; ``"r"`` for reading only; ``"w+"`` to create new arrays, all zeros.

        Raises:
            NotFoundError: if an array is missing. Only the gradients of a finalized model may be
                missing (`None`).
            CorruptError: if a file is cut, too long or not an array.
            MismatchError: if an array has other sizes or another precision.
        """
        model_id = _model_id(model_id)
        if mode not in _MODES:
            raise InvalidArgumentError(f"mode is one of {', '.join(_MODES)}, not {mode!r}")
        if exp_name is not None:
            self._load_experiment(model_id, exp_name, exp_num_targets, mode)
            return
        if mode == "w+":
            self.init_store(model_id)
            return
        # Close the arrays of the previous model in any case, so that nothing is written to them
        # under this model's name.
        self._close_train()
        self.current_model_id = model_id
        writable = mode == "r+"
        opened = OpenArrays(
            self._store.model(model_id),
            writable,
            self.logger,
            before_plain=partial(_lower_flags, self._store, self.model_ids, model_id, False, True),
            before_undone=partial(_lower_flags, self._store, self.model_ids, model_id),
            marks_itself=False,
        )
        arrays = opened.arrays
        if writable:
            self._train = model_id, opened
            self._open["train"] = opened
        for key in _TRAIN_KEYS:
            self.current_store[key] = arrays.get(key)
        self.current_store["is_featurized"] = arrays["mask"]
        if arrays.get("grads") is None:
            self.logger.info(f"The gradients of model {model_id} were deleted when it was finalized.")

    def _load_experiment(self, model_id: int, exp_name: str, num_targets: int | None, mode: str) -> None:
        self._close_targets()
        self.current_model_id, self.current_experiment_name = model_id, exp_name
        keys = f"{exp_name}_grads", f"{exp_name}_scores"
        self.current_store.update(dict.fromkeys(keys))
        if num_targets is None or num_targets < 0:
            self._merge_experiments()
            if exp_name not in self.experiments:
                raise NotFoundError(f"experiment {exp_name!r} does not exist", file=str(self.experiments_file))
            num_targets = self.experiments[exp_name]["num_targets"]
        if mode == "w+":
            self._store.init_experiment(exp_name, num_targets, model_id, True)
        writable = mode != "r"
        unfinalize = partial(_unfinalize_scores, self._store, self.experiments, exp_name)
        opened = OpenArrays(
            self._store.experiment(exp_name, num_targets, model_id),
            writable,
            self.logger,
            before_plain=unfinalize,
            # Scores stay final even if targets are written again.
            before_undone=lambda keep_final: None if keep_final else unfinalize(),
            marks_itself=True,
        )
        arrays = opened.arrays
        if writable:
            self._targets = model_id, exp_name, opened
            self._open["targets"] = opened
            self._scores = [known for known in self._scores if known() is not None]
            self._scores.append(weakref.ref(arrays["scores"]))
        self.current_store.update(zip(keys, (arrays["grads"], arrays["scores"]), strict=True))

    def serialize_current_model_id_metadata(self, already_exists: bool = True) -> None:
        """Writes the progress of the current model to disk, once its rows are on disk.

        Args:
            already_exists: Write only if all rows are done. Before that, the progress on disk does
                not change.
        """
        model_id = self.current_model_id
        if model_id is None:
            raise InvalidArgumentError("no model is loaded: call register_model_id or load_current_store first")
        flags = self.model_ids[model_id]
        mask = self.current_store.get("is_featurized")
        if self._train is not None and self._train[0] == model_id and mask is not None:
            mask.reconcile()
            if already_exists and mask.done_count < self.train_set_size:
                flags["is_featurized"] = 0
                return
            self._train[1].flush()
        flags.update(_flags(*self._store.write_flags(model_id, bool(flags["is_finalized"]))))

    def init_experiment(self, exp_name: str, num_targets: int, model_id: int) -> None:
        """Starts an experiment for a model, or joins it. Existing scores are kept.

        If the gradients of the model were lost, all its targets become not done, and the scores are
        not final.

        Raises:
            ModelIDException: if the model has no folder.
            MismatchError: if the experiment has another number of targets.
            InvalidArgumentError: if the name cannot be a file name.
        """
        model_id = _model_id(model_id)
        prefix = self.save_dir / str(model_id)
        if not prefix.is_dir():
            raise ModelIDException(f"model ID folder {prefix} does not exist,\n            cannot start scoring")
        self._close_targets()
        self._store.init_experiment(_name(exp_name), _count(num_targets, "number of targets"), model_id, False)
        self._merge_experiments()
        self.load_current_store(model_id, exp_name, num_targets)

    def save_scores(self, exp_name: str) -> None:
        """Writes the scores of the current experiment to disk and marks them as final.

        Raises:
            CorruptError: if the scores contain NaN or infinity, unless `allow_non_finite` is set.
        """
        assert self.current_experiment_name == exp_name
        self.logger.info(f"Saving scores in {self.save_dir / 'scores'}/{exp_name}.mmap")
        _flush(self._open)
        self._store.finalize_scores(exp_name, True, self.allow_non_finite)
        self._merge_experiments()

    def del_grads(self, model_id: int) -> None:
        """Deletes the gradients of the train set of a model.

        Raises:
            NotFoundError: (a `FileNotFoundError`) if the model has no gradients.
        """
        self._store.delete_grads(_model_id(model_id))

    def missing_rows(self, model_id: int) -> list[int]:
        """Returns the training examples that are not done yet, in order."""
        model_id = _model_id(model_id)
        if self._train is not None and self._train[0] == model_id:
            return self._train[1].missing()
        return self._store.model(model_id).missing()

    def missing_targets(self, exp_name: str, model_id: int) -> list[int]:
        """Returns the targets of an experiment that are not known to be done for a model, in order.

        Targets that TRAK itself wrote are never known to be done.
        """
        model_id = _model_id(model_id)
        if self._targets is not None and self._targets[:2] == (model_id, exp_name):
            return self._targets[2].missing()
        self._merge_experiments()
        num_targets = self.experiments[exp_name]["num_targets"]
        return self._store.experiment(exp_name, num_targets, model_id).missing()

    def check_checkpoint(self, model_id: int, state: Mapping[str, Any] | str) -> None:
        """Ties a model to its checkpoint. The first call records the checkpoint, later calls
        compare with it.

        Args:
            model_id: The model.
            state: A state dict, or any text that names the checkpoint.

        Raises:
            MismatchError: if the model belongs to another checkpoint.
        """
        identity = state if isinstance(state, str) else checkpoint_digest(state)
        self._store.bind_checkpoint(_model_id(model_id), identity)

    def flush(self) -> None:
        """Writes all rows, and then their marks, to disk."""
        _flush(self._open)
        if self._train is not None:
            model_id, opened = self._train
            flags = self.model_ids.get(model_id)
            if flags is not None and not flags["is_featurized"] and opened.native.count_done() == self.train_set_size:
                flags.update(_flags(*self._store.write_flags(model_id, bool(flags["is_finalized"]))))

    def close(self) -> None:
        """Flushes and releases all arrays. It releases them even if the flush fails."""
        try:
            self.flush()
        finally:
            self._let_go_of_train()
            self._let_go_of_targets()
            for scores in (known() for known in self._scores):
                _revoke(scores)
            self._scores = []
            self.current_store = dict.fromkeys(_TRAIN_KEYS)

    def __enter__(self) -> MmapSaver:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _close_train(self) -> None:
        try:
            if self._train is not None:
                self.flush()
        finally:
            self._let_go_of_train()

    def _let_go_of_train(self) -> None:
        self._train = None
        self._open.pop("train", None)
        for key in (*_TRAIN_KEYS, "is_featurized"):
            _revoke(self.current_store.get(key))
            self.current_store[key] = None

    def _close_targets(self) -> None:
        try:
            if self._targets is not None:
                self._targets[2].flush()
        finally:
            self._let_go_of_targets()

    def _let_go_of_targets(self) -> None:
        if self._targets is not None:
            _, exp_name, _ = self._targets
            _revoke(self.current_store.get(f"{exp_name}_grads"))
            # Do not revoke the scores: TRAKer continues with the scores of the first model that it
            # loads.
            self.current_store.update(dict.fromkeys((f"{exp_name}_grads", f"{exp_name}_scores")))
        self._targets = None
        self._open.pop("targets", None)

    def _merge_experiments(self) -> None:
        """Adds the experiments on disk, also those of other processes, to `experiments`."""
        self.experiments.update(json.loads(self._store.catalog()[1]))


def repair(
    save_dir: str | os.PathLike[str],
    metadata: Mapping[str, Any] | None = None,
    use_half_precision: bool | None = None,
    *,
    recompute_zero_rows: bool = False,
) -> list[str]:
    """Repairs a damaged folder: empty or cut JSON, cut or missing arrays, lost experiments.

    Lost rows are marked as not done, and unknown flags become 0: the next run then computes more
    than necessary. Rows of zeros stay unchanged unless requested. No process may use the folder
    during the repair.

    Args:
        save_dir: The folder.
        metadata: The content for `metadata.json` if it is lost.
        use_half_precision: The precision, if no array is left that shows it.
        recompute_zero_rows: Mark also rows with only zeros as not done. Their gradients may really
            be zero. `regrow.verify` names them in a note.

    Returns:
        The repairs, one line for each.
    """
    text = None if metadata is None else json.dumps(dict(metadata))
    return _native.trak_repair(
        _native.local_path(place("save_dir", save_dir)), text, use_half_precision, recompute_zero_rows
    )


def checkpoint_digest(state: Mapping[str, Any]) -> str:
    """Returns a SHA-256 of a state dict: of the names, dtypes, shapes and bytes of its arrays or
    tensors.
    """
    digest = hashlib.sha256()
    for name in sorted(state):
        value = state[name]
        if _tensors.is_tensor(value):
            torch = sys.modules["torch"]
            value = value.detach().cpu().contiguous()
            head, array = f"{value.dtype}", np.asarray(value.reshape(-1).view(torch.uint8))
        else:
            array = np.ascontiguousarray(value)
            head = str(array.dtype)
        if array.dtype.hasobject:
            raise InvalidArgumentError(f"{name!r} is not an array or tensor")
        digest.update(f"{name!r} {head} {tuple(np.shape(value))}\n".encode())
        digest.update(array.tobytes())
    return f"sha256:{digest.hexdigest()}"


def _flush(open_arrays: dict[str, OpenArrays]) -> None:
    with ExitStack() as all_of_them:
        for opened in list(open_arrays.values()):
            all_of_them.callback(opened.flush)


def _revoke(array: Any) -> None:
    if isinstance(array, StoreArray):
        array.revoke()


def _flags(featurized: bool, finalized: bool) -> dict[str, int]:
    return {"is_featurized": int(featurized), "is_finalized": int(finalized)}


def _lower_flags(
    store: _native.TrakStore,
    model_ids: dict[int, dict[str, int]],
    model_id: int,
    keep_final: bool,
    keep_featurized: bool = False,
) -> None:
    """Removes flags of a model before its features are overwritten or its rows become not done."""
    store.lower_flags(model_id, keep_featurized, keep_final)
    flags = model_ids.get(model_id, {})
    if not keep_featurized:
        flags["is_featurized"] = 0
    if not keep_final:
        flags["is_finalized"] = 0


def _unfinalize_scores(store: _native.TrakStore, experiments: dict[str, dict[str, Any]], exp_name: str) -> None:
    store.finalize_scores(exp_name, False, False)
    if exp_name in experiments:
        experiments[exp_name]["scores_finalized"] = 0


def _integer(value: Any, what: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidArgumentError(f"{what} is an integer, not {value!r}") from None


def _count(value: Any, what: str) -> int:
    number = _integer(value, f"the {what}")
    if not 0 <= number < 2**63:
        raise InvalidArgumentError(f"the {what} is not negative, and has 63 bits at most: {number}")
    return number


def _model_id(model_id: Any) -> int:
    number = _integer(model_id, "a model ID")
    if not -(2**63) <= number < 2**63:
        raise InvalidArgumentError(f"a model ID has 64 bits at most: {number}")
    return number


def _name(exp_name: Any) -> str:
    if not isinstance(exp_name, str):
        raise InvalidArgumentError(f"the name of an experiment is text, not {exp_name!r}")
    try:
        exp_name.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError(f"the name of an experiment cannot be written: {exp_name!r}") from None
    return exp_name
