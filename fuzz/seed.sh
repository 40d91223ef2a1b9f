#!/usr/bin/env bash
# Fills fuzz/corpus/ with what real libraries wrote: the fixtures, cut to what each target takes.
set -euo pipefail
cd "$(dirname "$0")"
fixtures=../fixtures

# seed TARGET PREFIX SKIP DROP FILE...: PREFIX, then the file without its first SKIP and last DROP bytes.
seed() {
    local target=$1 prefix=$2 skip=$3 drop=$4 name
    shift 4
    mkdir -p "corpus/$target"
    for file in "$@"; do
        name=$(sha256sum <<<"$file" | cut -c1-16)
        { printf '%b' "$prefix"; tail -c "+$((skip + 1))" "$file" | head -c "-$drop"; } >"corpus/$target/seed-$name"
    done
}

# Below a fixtures folder, files of this name.
below() { find "$fixtures/$1" -type f -name "$2" -size -64k | sort; }

mapfile -t files < <(below ocdbt manifest.ocdbt)
seed fuzz_ocdbt_manifest '' 12 4 "${files[@]}"
# The root node of the fixture whose manifest the target uses: after 104 bytes of values, in a frame.
seed fuzz_ocdbt_node '' 116 4 "$fixtures"/ocdbt/small_raw/d/*
mapfile -t files < <(below orbax .zarray)
seed fuzz_zarr_v2 '' 0 0 "${files[@]}"
mapfile -t files < <(below orbax zarr.json)
seed fuzz_zarr_v3 '' 0 0 "${files[@]}"
which=0
for name in _METADATA process_0 _strings.json _CHECKPOINT_METADATA _sharding; do
    mapfile -t files < <(below orbax "$name")
    seed fuzz_orbax_metadata "\\x0$which" 0 0 "${files[@]}"
    which=$((which + 1))
done
mapfile -t files < <(find "$fixtures"/orbax/legacy_*msgpack "$fixtures"/flax -type f \( -name 'checkpoint*' -o -name '*.msgpack' \))
seed fuzz_msgpack '' 0 0 "${files[@]}"

mapfile -t files < <(below npy '*.np[yz]')
seed fuzz_npy '' 0 0 "${files[@]}"
mapfile -t files < <(below equinox '*.eqx')
seed fuzz_equinox '' 0 0 "${files[@]}"
mapfile -t files < <(find "$fixtures"/torch -type f \( -name '*.p*t*' -o -name '*.bin' -o -name 'legacy_*' \))
seed fuzz_torch '' 0 0 "${files[@]}"
mapfile -t files < <(below pytree '*.manifest')
seed fuzz_python_literal '' 0 0 "${files[@]}" "$fixtures/npy/literals_by_hand.txt"

mapfile -t files < <(find "$fixtures"/archives -type f \( -name '*.tar' -o -name '*.zip' \))
seed fuzz_archive '' 0 0 "${files[@]}"
mapfile -t files < <(find "$fixtures"/keys -type f ! -name '*.md' ! -name '*.sh')
seed fuzz_keys '' 0 0 "${files[@]}"
mapfile -t files < <(below pytree 'np[12]_*.manifest')
seed fuzz_pytree_data '' 0 0 "${files[@]}"
seed fuzz_indices '\x00' 0 0 "$fixtures"/safetensors/sharded/*.json
mapfile -t files < <(find "$fixtures"/torch/dcp_* -name .metadata)
seed fuzz_indices '\x01' 0 0 "${files[@]}"

# Several documents in one input, a zero byte after each.
mkdir -p corpus/fuzz_trak corpus/fuzz_sharding corpus/fuzz_rules corpus/fuzz_steps corpus/fuzz_answers corpus/fuzz_whole_checkpoint
for store in half_two_models f32_partial c_id_nested; do
    for document in metadata.json experiments.json id_0.json; do
        cat "$fixtures/trak/$store/$document"
        printf '\0'
    done >"corpus/fuzz_trak/seed-$store"
    cat "$fixtures/trak/$store/0/features.mmap" >>"corpus/fuzz_trak/seed-$store"
done
python3 - "$fixtures" <<'PYTHON'
"""Seeds that are made of parts of fixtures, or by hand."""
import json, pathlib, sys

fixtures = pathlib.Path(sys.argv[1])
corpus = pathlib.Path("corpus")


def write(target, name, content):
    (corpus / target / f"seed-{name}").write_bytes(content)


shardings = {
    text
    for path in fixtures.glob("orbax/*/ckpt/**/_sharding")
    for text in json.loads(path.read_text()).values()
    if isinstance(text, str)
}
for at, text in enumerate(sorted(shardings)[:40]):
    write("fuzz_sharding", at, text.encode())
write(
    "fuzz_rules",
    "all",
    b'''layout = "orbax"
only = ["h.*", "wte.weight"]
lossy = true
[options]
zarr3 = true
[[rename]]
from = 'h\.(\d+)\.(.*)'
to = 'blocks/$1/$2'
[[transpose]]
leaves = "**/kernel"
axes = [1, 0]
[[reshape]]
leaves = "**/qkv"
shape = [3, -1, 64]
[[cast]]
leaves = "**"
dtype = "bfloat16"
''',
)
holder = {"host": "a", "pid": 1, "boot": "b", "nonce": "1", "since": 1.0, "at": 1.0, "step": 2, "name": "step_2", "expires": 9e9}
record = json.dumps(holder).encode()
write("fuzz_steps", "all", b"\0".join([json.dumps({"step": 3, "name": "step_3"}).encode(), record, record, record]))
body = (fixtures / "safetensors/every_dtype.safetensors").read_bytes()
head = b"HTTP/1.1 206 Partial Content\r\nconnection: close\r\ncontent-length: LENGTH\r\naccept-ranges: bytes\r\netag: \"a\"\r\ncontent-range: bytes 0-LAST/LENGTH\r\n\r\n"
looked = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\naccept-ranges: bytes\r\netag: \"a\"\r\n\r\n" % len(body)
end = b"\n===\n"
write("fuzz_answers", "http", b"\0" + end.join([looked, head + body, head + body, head + body]))
listing = b"""HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: LENGTH\r\ncontent-type: application/xml\r\n\r\n<?xml version="1.0"?><ListBucketResult><Name>bucket</Name><Prefix>x/</Prefix><KeyCount>1</KeyCount><MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated><Contents><Key>x/regrow.json</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>"a"</ETag><Size>10</Size></Contents><CommonPrefixes><Prefix>x/d/</Prefix></CommonPrefixes></ListBucketResult>"""
json_listing = b"""HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: LENGTH\r\ncontent-type: application/json\r\n\r\n{"kind":"storage#objects","items":[{"name":"x/regrow.json","size":"10","updated":"2026-01-01T00:00:00Z","etag":"a","generation":"1"}],"prefixes":["x/d/"]}"""
write("fuzz_answers", "s3", b"\3" + end.join([listing] * 3 + [head + body] * 3))
write("fuzz_answers", "gcs", b"\2" + end.join([json_listing, listing] * 2 + [head + body] * 3))
for which in range(64):
    write("fuzz_whole_checkpoint", which, bytes([which, 2]) + bytes((which * 31 + at * 97) % 256 for at in range(24)))
PYTHON

# What regrow writes itself: `regrow.json` behind its checksum, and a header behind the length of its file.
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
cargo run --quiet --manifest-path ../Cargo.toml -p regrow-cli -- demo --keep "$made/demo" >/dev/null
seed fuzz_regrow_json '' 21 0 "$made/demo/step_1/regrow.json"
mkdir -p corpus/fuzz_safetensors_header
header='{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"__metadata__":{"format":"pt"}}'
{ printf '%b' "\\x$(printf %02x $((8 + ${#header} + 8)))\\0\\0\\0\\0\\0\\0\\0"; printf %s "$header"; } \
    >corpus/fuzz_safetensors_header/seed

# A seal and a structure behind their checksums, and what is signed.
command() { cargo run --quiet --manifest-path ../Cargo.toml -p regrow-cli -- "$@" >/dev/null; }
command convert "$fixtures/regrow/early" "$made/npy" --layout npy --lossy
mkdir -p corpus/fuzz_structure corpus/fuzz_seal corpus/fuzz_signature
head -c -20 "$made/npy/regrow-structure.json" >corpus/fuzz_structure/seed
cp "$fixtures/safetensors/every_dtype.safetensors" "$made/x.safetensors"
command seal "$made/x.safetensors"
seed fuzz_seal '' 21 0 "$made/regrow.seal.x.safetensors.json"
rm "$made/regrow.seal.x.safetensors.json"
command sign "$made/x.safetensors" --key "$fixtures/keys/alice.pem"
seed fuzz_signature '\x00' 0 0 "$made/regrow.signature.x.safetensors.json"
{ printf '\1'; sed 's/^.*"signed"://; s/}$//' "$made/regrow.signature.x.safetensors.json"; } >corpus/fuzz_signature/seed-signed
