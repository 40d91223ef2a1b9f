"""`cache=`: what was read from a bucket comes from a local disk the next time, and never old
bytes for new ones.
"""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bucket_suite import tree
from test_buckets import bucket, options, s3, same  # noqa: F401

import regrow


def blocks(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "blocks").rglob("*") if path.is_file())


def test_a_second_load_fetches_nothing(options: dict[str, str], tmp_path: Path) -> None:  # noqa: F811
    url = "s3://runs/cache/second"
    regrow.save(url, tree(), storage_options=options)
    first = regrow.Cache(tmp_path / "cache", max_size="1GB")
    assert same(regrow.load(url, storage_options=options, options=regrow.Options(cache=first)), tree())
    assert first.report.miss_bytes > 3000
    again = regrow.Cache(tmp_path / "cache")
    assert same(regrow.load(url, storage_options=options, options=regrow.Options(cache=again)), tree())
    assert again.report == regrow.reports.CacheReport(again.report.hit_bytes, 0, 0)
    assert again.report.hit_bytes > 0


def test_a_folder_by_its_name_is_enough(options: dict[str, str], tmp_path: Path) -> None:  # noqa: F811
    url = "s3://runs/cache/by-name"
    regrow.save(url, tree(), storage_options=options)
    at = regrow.Location(url, **options)
    for cache in (str(tmp_path / "a"), tmp_path / "b", os.fsencode(tmp_path / "c")):
        opened = regrow.open(at, options=regrow.Options(cache=cache))
        assert np.array_equal(opened["params/kernel"][3:5], tree()["params"]["kernel"][3:5])
        assert blocks(Path(os.fsdecode(cache)))


def test_replaced_or_damaged_objects_are_fetched_again(options: dict[str, str], tmp_path: Path) -> None:  # noqa: F811
    url = "s3://runs/cache/replaced"
    for fill in (1.0, 2.0, 1.0):
        regrow.save(url, tree(fill), overwrite=True, storage_options=options)
        assert same(regrow.load(url, storage_options=options, options=regrow.Options(cache=tmp_path)), tree(fill))
    for block in blocks(tmp_path):
        data = bytearray(block.read_bytes())
        data[-1] ^= 1
        block.write_bytes(data)
    cache = regrow.Cache(tmp_path)
    assert same(regrow.load(url, storage_options=options, options=regrow.Options(cache=cache)), tree())
    assert cache.report.damaged > 0


def test_local_paths_need_no_cache(tmp_path: Path) -> None:
    regrow.save(tmp_path / "x", tree())
    for path in (tmp_path / "x", (tmp_path / "x").as_uri()):
        assert same(regrow.load(path, options=regrow.Options(cache=tmp_path / "cache")), tree())
    assert not blocks(tmp_path / "cache")


def test_what_cannot_be_a_cache_is_said(options: dict[str, str], tmp_path: Path) -> None:  # noqa: F811
    wrong: Any
    for wrong in (3, True, [tmp_path]):
        with pytest.raises(regrow.errors.InvalidArgumentError, match="cache"):
            regrow.load("s3://runs/cache/none", storage_options=options, options=regrow.Options(cache=wrong))
        with pytest.raises(regrow.errors.InvalidArgumentError, match="folder"):
            regrow.Cache(wrong)
    for wrong in ("5 apples", "", 0, -1):
        with pytest.raises(regrow.errors.InvalidArgumentError, match="number of bytes"):
            regrow.Cache(tmp_path / "cache", max_size=wrong)
    for wrong in (None, 1.5, True):
        with pytest.raises(regrow.errors.InvalidArgumentError, match="max_size"):
            regrow.Cache(tmp_path / "cache", max_size=wrong)
    tmp_path.chmod(0o777)
    with pytest.raises(regrow.errors.InvalidArgumentError, match="every user"):
        regrow.Cache(tmp_path)


def test_a_cache_can_be_sent_to_another_process(tmp_path: Path) -> None:
    cache = regrow.Cache(tmp_path / "cache", max_size="3GB")
    sent = pickle.loads(pickle.dumps(cache))
    assert (repr(sent), sent.folder) == (repr(cache), str(tmp_path / "cache"))
