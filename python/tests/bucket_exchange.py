"""TensorStore beside regrow in buckets for which it has a driver: for each server of
`bucket_servers` that speaks S3.

class TestMoto(TensorStoreExchange):      # and a fixture `s3`
    pass
"""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import pytest
import tensorstore as ts
from bucket_servers import KEY_ID, REGION, SECRET, S3Bucket
from bucket_suite import FORMS, assert_tree, key_of, leaves_of, tree
from conftest import same_bits

import regrow

_folders = itertools.count()


class TensorStoreExchange:
    """TensorStore reads through its own S3 driver what regrow saved there, bit for bit, and the
    other way round.

    Needs a fixture `s3`, a bucket of S3.
    """

    @pytest.fixture
    def root(self, s3: S3Bucket) -> regrow.Location:
        return regrow.Location(f"{s3.url}/exchange/{next(_folders)}", **s3.options)

    @pytest.fixture(autouse=True)
    def credentials(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)

    @pytest.mark.parametrize(
        ("form", "driver", "is_ocdbt"),
        [
            ("regrow", "zarr3", True),
            ("regrow zstd", "zarr3", True),
            ("orbax", "zarr", True),
            ("orbax zarr3", "zarr3", True),
            ("orbax without ocdbt", "zarr", False),
        ],
    )
    def test_tensorstore_restores_what_regrow_saved(
        self, s3: S3Bucket, root: regrow.Location, form: str, driver: str, is_ocdbt: bool
    ) -> None:
        regrow.save(root / "x", tree(), **FORMS[form][1])
        base = kvstore(s3, root / "x")
        for path, leaf in leaves_of(tree()):
            name = path.replace("/", ".")
            below = (
                {"driver": "ocdbt", "base": base, "path": f"{name}/"}
                if is_ocdbt
                else {**base, "path": f"{base['path']}{name}/"}
            )
            array = ts.open({"driver": driver, "kvstore": below}, open=True, context=ts.Context()).result()
            assert same_bits(array.read().result(), leaf), path

    @pytest.mark.filterwarnings("ignore::regrow.errors.IncompleteCheckpointWarning")  # arrays alone, and no metadata
    @pytest.mark.parametrize("driver", ["zarr3", "zarr"])
    def test_regrow_restores_what_tensorstore_wrote(self, s3: S3Bucket, root: regrow.Location, driver: str) -> None:
        base = kvstore(s3, root / "x")
        for path, leaf in leaves_of(tree()):
            chunks = [max(1, length // 2) for length in leaf.shape]
            if driver == "zarr3":
                grid = {"name": "regular", "configuration": {"chunk_shape": chunks}}
                metadata = {"shape": list(leaf.shape), "data_type": leaf.dtype.name, "chunk_grid": grid}
            else:
                text = "bfloat16" if leaf.dtype == ml_dtypes.bfloat16 else leaf.dtype.str
                compressor = {"id": "zstd", "level": 1}
                metadata = {"shape": list(leaf.shape), "dtype": text, "chunks": chunks, "compressor": compressor}
            spec = {
                "driver": driver,
                "kvstore": {**base, "path": f"{base['path']}{path}/"},
                "metadata": metadata,
            }
            ts.open(spec, create=True, context=ts.Context()).result().write(leaf).result()
        assert_tree(regrow.load(root / "x"))
        assert regrow.verify(root / "x").ok
        opened = regrow.open(root / "x")
        kernel = next(leaf for leaf in opened.values() if leaf.shape == (300, 150))
        assert same_bits(kernel[149:151, 70:80], tree()["params"]["kernel"][149:151, 70:80])

    @pytest.mark.parametrize(("form", "driver"), [("orbax", "zarr"), ("orbax zarr3", "zarr3")])
    def test_regrow_restores_what_tensorstore_wrote_into_ocdbt(
        self, s3: S3Bucket, root: regrow.Location, form: str, driver: str
    ) -> None:
        """The database of a checkpoint: TensorStore puts other values into it, and a new
        manifest in the bucket.
        """
        regrow.save(root / "x", tree(5.0), **FORMS[form][1])
        for path, leaf in leaves_of(tree()):
            database = {"driver": "ocdbt", "base": kvstore(s3, root / "x"), "path": f"{path.replace('/', '.')}/"}
            array = ts.open({"driver": driver, "kvstore": database}, open=True, context=ts.Context()).result()
            array.write(leaf).result()
        assert_tree(regrow.load(root / "x"))


def kvstore(s3: S3Bucket, at: regrow.Location) -> dict[str, Any]:
    """A folder of the bucket to TensorStore."""
    return {
        "driver": "s3",
        "bucket": s3.name,
        "path": f"{key_of(s3, at)}/",
        "endpoint": s3.endpoint,
        "aws_region": REGION,
        "aws_credentials": {"type": "environment"},
    }
