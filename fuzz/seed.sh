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

# What regrow writes itself: `regrow.json` behind its checksum, and a header behind the length of its file.
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
cargo run --quiet --manifest-path ../Cargo.toml -p regrow-cli -- demo --keep "$made/demo" >/dev/null
seed fuzz_regrow_json '' 21 0 "$made/demo/step_1/regrow.json"
mkdir -p corpus/fuzz_safetensors_header
header='{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"__metadata__":{"format":"pt"}}'
{ printf '%b' "\\x$(printf %02x $((8 + ${#header} + 8)))\\0\\0\\0\\0\\0\\0\\0"; printf %s "$header"; } \
    >corpus/fuzz_safetensors_header/seed
