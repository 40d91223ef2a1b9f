//! How fast a bucket is filled and read, beside a plain parallel transfer of the same bytes to the
//! same server.
//!
//! ```text
//! cargo run --release -p regrow-testkit --features object-server --bin object_server -- \
//!     --port 9100 --bucket speed &
//! cargo run --release -p regrow --features cloud --example bucket_speed -- \
//!     http://127.0.0.1:9100 speed [MiB] [rounds]
//! ```
//! Prints medians, and ratios: above 1 regrow is faster than the plain transfer.

#![expect(clippy::unwrap_used, reason = "an example that measures")]

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use object_store::aws::AmazonS3Builder;
use object_store::path::Path as Key;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use regrow::array::{Array, Dtype, Region, Shape};
use regrow::location::{Location, StorageOptions};
use regrow::tree::{Key as TreeKey, Leaf, NodeKind, Tree, TreeBuilder};
use regrow::{SaveOptions, open, save_with};
use regrow_store::StoreExt;

const PART_LEN_BYTES: usize = 8 << 20;
const AT_ONCE: usize = 16;
/// As in `benches/buckets.py`.
const SLICE_LEN_BYTES: u64 = 64 << 10;

fn tree(leaves: usize, len_bytes: usize) -> Tree<Leaf> {
    let data: Bytes = (0..len_bytes).map(|at| (at * 31 % 251) as u8).collect::<Vec<_>>().into();
    let mut build = TreeBuilder::new();
    build.open(TreeKey::Index(0), NodeKind::Dict).unwrap();
    for leaf in 0..leaves {
        let shape = Shape::new(vec![len_bytes as u64]).unwrap();
        let array = Array::new(Dtype::UInt8, shape, data.clone()).unwrap();
        build.leaf(TreeKey::dict(format!("leaf_{leaf:05}")), Leaf::array(array)).unwrap();
    }
    build.close().unwrap();
    build.finish().unwrap()
}

async fn plain_put(store: &dyn ObjectStore, key: &Key, data: &Bytes, times: usize) {
    let mut upload = store.put_multipart(key).await.unwrap();
    let total = data.len() * times;
    let mut parts = Vec::new();
    for _ in 0..total.div_ceil(PART_LEN_BYTES) {
        parts.push(upload.put_part(PutPayload::from_bytes(data.slice(..PART_LEN_BYTES.min(data.len())))));
    }
    stream::iter(parts).buffer_unordered(8).for_each(|part| async { part.unwrap() }).await;
    upload.complete().await.unwrap();
}

async fn plain_get(store: &dyn ObjectStore, key: &Key, out: &mut [u8]) {
    let parts = out.chunks_mut(PART_LEN_BYTES).enumerate().map(|(at, part)| async move {
        let start = (at * PART_LEN_BYTES) as u64;
        let bytes = store.get_range(key, start..start + part.len() as u64).await.unwrap();
        part.copy_from_slice(&bytes);
    });
    stream::iter(parts).buffer_unordered(AT_ONCE).for_each(|()| async {}).await;
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

fn seconds<T>(work: impl FnOnce() -> T) -> f64 {
    let began = Instant::now();
    drop(work());
    began.elapsed().as_secs_f64()
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let (endpoint, bucket) = (&arguments[1], &arguments[2]);
    let mib: usize = arguments.get(3).map_or(1024, |text| text.parse().unwrap());
    let rounds: usize = arguments.get(4).map_or(5, |text| text.parse().unwrap());
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let store: Arc<dyn ObjectStore> = Arc::new(
        AmazonS3Builder::new()
            .with_endpoint(endpoint)
            .with_allow_http(true)
            .with_region("us-east-1")
            .with_bucket_name(bucket)
            .with_access_key_id("test")
            .with_secret_access_key("testtest")
            .with_unsigned_payload(true)
            .build()
            .unwrap(),
    );
    let options = StorageOptions::new()
        .with("endpoint_url", endpoint)
        .with("region", "us-east-1")
        .with("key", "test")
        .with("secret", "testtest");
    let place =
        |name: &str| Location::with_options(Path::new(&format!("s3://{bucket}/{name}")), &options).unwrap();
    let overwrite = |path: &Location| {
        let store = path.store();
        for key in store.list(b"").unwrap() {
            store.delete(&key).unwrap();
        }
    };
    let cases =
        [("450 leaves", 450, (mib << 20) / 450), ("20,000 leaves", 20_000, (mib << 20) / 20_000 / 16)];
    for (name, leaves, len_bytes) in cases {
        let tree = tree(leaves, len_bytes);
        let total = leaves * len_bytes;
        let block = Bytes::from(vec![7_u8; PART_LEN_BYTES]);
        let key = Key::from("plain");
        let path = place("ours");
        let (mut saves, mut puts, mut loads, mut gets) = (vec![], vec![], vec![], vec![]);
        let (mut colds, mut slices, mut ranges) = (vec![], vec![], vec![]);
        let mut out = vec![1_u8; total];
        for _ in 0..rounds {
            overwrite(&path);
            saves.push(seconds(|| save_with(&path, &tree, &SaveOptions::default()).unwrap()));
            puts.push(seconds(|| {
                runtime.block_on(plain_put(&*store, &key, &block, total.div_ceil(block.len())))
            }));
            loads.push(seconds(|| regrow::engine::load(&path).unwrap()));
            gets.push(seconds(|| {
                let mut fresh = vec![0_u8; total];
                runtime.block_on(plain_get(&*store, &key, &mut fresh));
                fresh
            }));
            runtime.block_on(plain_get(&*store, &key, &mut out[..1]));
            let leaf = leaves / 2;
            let len = (len_bytes as u64).min(SLICE_LEN_BYTES);
            let region = Region::new(vec![0], vec![len]).unwrap();
            colds.push(seconds(|| open(&path).unwrap().region(leaf, &region).unwrap()));
            let checkpoint = open(&path).unwrap();
            slices.push(seconds(|| checkpoint.region(leaf, &region).unwrap()));
            ranges.push(seconds(|| runtime.block_on(store.get_range(&key, 0..len)).unwrap()));
        }
        println!("{name}, {:.0} MB", total as f64 / 1e6);
        let rows = [
            ("save", saves, puts),
            ("load", loads, gets),
            ("slice of an opened checkpoint", slices, ranges.clone()),
            ("slice, nothing open", colds, ranges),
        ];
        for (what, ours, plain) in rows {
            let (ours, plain) = (median(ours), median(plain));
            println!("  {what:29}  ours {ours:.4} s   plain {plain:.4} s   ratio {:.2}", plain / ours);
        }
    }
}
