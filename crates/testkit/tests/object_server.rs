//! The object server as `object_store` sees it, in both of its dialects, and each of its faults.

#![expect(clippy::unwrap_used, reason = "a test's failure is a panic")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt};
use object_store::aws::{AmazonS3Builder, Checksum, S3CopyIfNotExists};
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientOptions, Error, GetOptions, GetRange, MultipartUpload, ObjectStore, ObjectStoreExt,
    PutMode, PutOptions, PutPayload, RetryConfig, UpdateVersion,
};
use regrow_testkit::object_server::{Fault, ObjectServer, Op, Refusal, When};

type Store = Arc<dyn ObjectStore>;

fn retries(max_retries: usize) -> RetryConfig {
    let backoff = BackoffConfig {
        init_backoff: Duration::from_millis(1),
        max_backoff: Duration::from_millis(5),
        base: 2.0,
    };
    RetryConfig { backoff, max_retries, retry_timeout: Duration::from_secs(20) }
}

fn s3_builder(server: &ObjectServer, max_retries: usize) -> AmazonS3Builder {
    // The second test to come finds the provider installed.
    _ = rustls::crypto::ring::default_provider().install_default();
    AmazonS3Builder::new()
        .with_endpoint(server.endpoint())
        .with_bucket_name("bucket")
        .with_region("us-east-1")
        .with_access_key_id("AKIDEXAMPLE")
        .with_secret_access_key("secret")
        .with_allow_http(true)
        .with_copy_if_not_exists(S3CopyIfNotExists::Multipart)
        .with_retry(retries(max_retries))
}

fn s3(server: &ObjectServer, max_retries: usize) -> Store {
    Arc::new(s3_builder(server, max_retries).build().unwrap())
}

fn gcs(server: &ObjectServer, max_retries: usize) -> Store {
    _ = rustls::crypto::ring::default_provider().install_default();
    let account = serde_json::json!({
        "gcs_base_url": server.endpoint(), "disable_oauth": true,
        "client_email": "", "private_key": "", "private_key_id": "",
    });
    let store = GoogleCloudStorageBuilder::new()
        .with_bucket_name("bucket")
        .with_service_account_key(account.to_string())
        .with_client_options(ClientOptions::new().with_allow_http(true))
        .with_retry(retries(max_retries));
    Arc::new(store.build().unwrap())
}

/// A server with a bucket, and a client of each dialect that tries again so often.
fn started(max_retries: usize) -> (ObjectServer, [Store; 2]) {
    let server = ObjectServer::start().unwrap();
    server.create_bucket("bucket");
    let stores = [s3(&server, max_retries), gcs(&server, max_retries)];
    (server, stores)
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 251) as u8).collect()
}

async fn read(store: &Store, key: &str) -> Vec<u8> {
    store.get(&Path::parse(key).unwrap()).await.unwrap().bytes().await.unwrap().to_vec()
}

async fn listed(store: &Store, prefix: Option<&str>) -> Vec<String> {
    let prefix = prefix.map(Path::from);
    store.list(prefix.as_ref()).map_ok(|meta| meta.location.to_string()).try_collect().await.unwrap()
}

#[tokio::test]
async fn objects_come_back() {
    let (server, stores) = started(0);
    for store in stores {
        let key = Path::from("a/b");
        assert!(matches!(store.get(&key).await, Err(Error::NotFound { .. })));
        assert!(matches!(store.head(&key).await, Err(Error::NotFound { .. })));
        let put = store.put(&key, pattern(1000).into()).await.unwrap();
        let meta = store.head(&key).await.unwrap();
        assert_eq!((meta.size, meta.e_tag.clone()), (1000, put.e_tag));
        assert_eq!(read(&store, "a/b").await, pattern(1000));
        assert_eq!(server.get("bucket", "a/b").unwrap(), pattern(1000));

        let unchanged = GetOptions { if_none_match: meta.e_tag.clone(), ..GetOptions::default() };
        assert!(matches!(store.get_opts(&key, unchanged).await, Err(Error::NotModified { .. })));
        let same = GetOptions { if_match: meta.e_tag.clone(), ..GetOptions::default() };
        store.get_opts(&key, same.clone()).await.unwrap();
        store.put(&key, "another".into()).await.unwrap();
        assert!(matches!(store.get_opts(&key, same).await, Err(Error::Precondition { .. })));

        store.put(&key, PutPayload::new()).await.unwrap();
        assert!(read(&store, "a/b").await.is_empty());
        store.delete(&key).await.unwrap();
        assert!(server.keys("bucket", "").is_empty());
    }
    // A deletion of nothing is a success on S3 and none on GCS.
    s3(&server, 0).delete(&Path::from("none")).await.unwrap();
    assert!(matches!(gcs(&server, 0).delete(&Path::from("none")).await, Err(Error::NotFound { .. })));
}

#[tokio::test]
async fn ranges() {
    let (server, stores) = started(0);
    let bytes = pattern(1000);
    server.put("bucket", "r", bytes.clone());
    let key = Path::from("r");
    for store in stores {
        let get = async |range: GetRange| {
            let options = GetOptions { range: Some(range), ..GetOptions::default() };
            let result = store.get_opts(&key, options).await?;
            let (range, size) = (result.range.clone(), result.meta.size);
            assert_eq!(size, 1000);
            Ok::<(Range<u64>, Vec<u8>), Error>((range, result.bytes().await?.to_vec()))
        };
        let cases = [
            (GetRange::Bounded(10..20), 10..20),
            (GetRange::Bounded(990..2000), 990..1000),
            (GetRange::Offset(999), 999..1000),
            (GetRange::Suffix(3), 997..1000),
            (GetRange::Suffix(3000), 0..1000),
        ];
        for (asked, got) in cases {
            let (range, body) = get(asked).await.unwrap();
            assert_eq!((range.start as usize..range.end as usize, &body[..]), (got.clone(), &bytes[got]));
        }
        assert!(get(GetRange::Offset(1000)).await.is_err());
        assert_eq!(server.requests().last().unwrap().status, 416);
        let several = store.get_ranges(&key, &[0..1, 500..600, 999..1000]).await.unwrap();
        assert_eq!(several.iter().map(|body| body.len()).sum::<usize>(), 102);
    }
    assert_eq!(server.requests()[0].range.as_deref(), Some("bytes=10-19"));
}

#[tokio::test]
async fn creation_and_replacement_have_conditions() {
    let (server, stores) = started(0);
    for store in stores {
        let key = Path::from("manifest");
        let create = || PutOptions::from(PutMode::Create);
        let first = store.put_opts(&key, "1".into(), create()).await.unwrap();
        let again = store.put_opts(&key, "x".into(), create()).await;
        assert!(matches!(again, Err(Error::AlreadyExists { .. })), "{again:?}");

        let update = |of: &object_store::PutResult| {
            let version = UpdateVersion { e_tag: of.e_tag.clone(), version: of.version.clone() };
            PutOptions::from(PutMode::Update(version))
        };
        let second = store.put_opts(&key, "2".into(), update(&first)).await.unwrap();
        let stale = store.put_opts(&key, "x".into(), update(&first)).await;
        assert!(matches!(stale, Err(Error::Precondition { .. })), "{stale:?}");
        store.put_opts(&key, "3".into(), update(&second)).await.unwrap();
        assert_eq!(server.get("bucket", "manifest").unwrap(), "3");
        store.delete(&key).await.unwrap();
        let gone = store.put_opts(&key, "x".into(), update(&second)).await;
        assert!(matches!(gone, Err(Error::Precondition { .. })), "{gone:?}");
        assert!(server.get("bucket", "manifest").is_none());
    }
    let asked = |condition: &str| {
        let requests = server.requests();
        requests.iter().filter(|request| request.conditions.iter().any(|given| given == condition)).count()
    };
    assert_eq!((asked("if-none-match: *"), asked("x-goog-if-generation-match: 0")), (2, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn of_eight_creators_one_wins() {
    let (server, stores) = started(0);
    server.latency(Duration::from_millis(20));
    for (round, store) in stores.iter().enumerate() {
        let key = Path::from(format!("race-{round}"));
        let creations = (0..8_usize).map(|writer| {
            let (store, key) = (Arc::clone(store), key.clone());
            tokio::spawn(async move {
                store.put_opts(&key, writer.to_string().into(), PutMode::Create.into()).await
            })
        });
        let outcomes: Vec<_> = creations.collect();
        let mut winners = Vec::new();
        for (writer, outcome) in outcomes.into_iter().enumerate() {
            match outcome.await.unwrap() {
                Ok(_) => winners.push(writer),
                Err(Error::AlreadyExists { .. }) => {}
                Err(other) => panic!("{other}"),
            }
        }
        assert_eq!(winners.len(), 1);
        assert_eq!(server.get("bucket", key.as_ref()).unwrap(), winners[0].to_string());
    }
    assert!((2..=8).contains(&server.in_flight_max()), "{}", server.in_flight_max());
}

async fn uploaded(store: &Store, key: &Path, bytes: &[u8], part_bytes: usize) -> Box<dyn MultipartUpload> {
    let mut upload = store.put_multipart(key).await.unwrap();
    let parts: Vec<_> = bytes.chunks(part_bytes).map(|part| upload.put_part(part.to_vec().into())).collect();
    // The last part arrives first.
    for part in parts.into_iter().rev() {
        part.await.unwrap();
    }
    upload
}

#[tokio::test]
async fn multipart_uploads() {
    let (server, stores) = started(0);
    let bytes = pattern(12 << 20);
    for store in stores {
        let key = Path::from("large");
        let mut upload = uploaded(&store, &key, &bytes, 5 << 20).await;
        assert_eq!((server.open_uploads(), server.keys("bucket", "").len()), (1, 0));
        let put = upload.complete().await.unwrap();
        assert!(put.e_tag.as_ref().unwrap().ends_with("-3\""), "{put:?}");
        assert_eq!(store.head(&key).await.unwrap().e_tag, put.e_tag);
        assert_eq!(server.open_uploads(), 0);
        assert!(read(&store, "large").await == bytes);
        let over_the_seam = (5 << 20) - 7..(10 << 20) + 9;
        let range = store.get_range(&key, over_the_seam.clone()).await.unwrap();
        assert!(range == bytes[over_the_seam.start as usize..over_the_seam.end as usize]);

        let mut upload = uploaded(&store, &key, b"small", 5).await;
        upload.abort().await.unwrap();
        assert_eq!(server.open_uploads(), 0);
        let mut small_parts = uploaded(&store, &key, b"small", 3).await;
        assert!(small_parts.complete().await.is_err());
        assert_eq!(server.requests().last().unwrap().status, 400);
        small_parts.abort().await.unwrap();
        store.put_multipart(&key).await.unwrap().complete().await.unwrap();
        assert!(read(&store, "large").await.is_empty());
        store.delete(&key).await.unwrap();
    }
    assert_eq!(server.count(Op::CreateUpload), 8);
}

#[tokio::test]
async fn lists() {
    let (server, stores) = started(0);
    let odd = ["a/params['w'].0/ü #1", "a/p%2Fq", "a/b c", "a/1+1", "a/<&>\"'", "a/日本"];
    for store in stores {
        for key in odd {
            let key = Path::parse(key).unwrap();
            store.put(&key, key.to_string().into()).await.unwrap();
            assert_eq!(read(&store, key.as_ref()).await, key.as_ref().as_bytes());
        }
        let mut sorted = odd.map(str::to_owned).to_vec();
        sorted.sort();
        assert_eq!(server.keys("bucket", "a/"), sorted);
        for page in [1, 3, 1000] {
            server.page_keys_max(page);
            assert_eq!(listed(&store, None).await, sorted);
            assert_eq!(listed(&store, Some("a")).await, sorted);
        }
        let offset = Path::parse("a/b c").unwrap();
        let after: Vec<_> = store.list_with_offset(None, &offset).try_collect().await.unwrap();
        let after: Vec<_> = after.into_iter().map(|meta| meta.location.to_string()).collect();
        assert_eq!(after, sorted.iter().filter(|key| key.as_str() > "a/b c").cloned().collect::<Vec<_>>());
        for key in odd {
            store.delete(&Path::parse(key).unwrap()).await.unwrap();
        }

        for key in ["t/0", "t/a/1", "t/a/2", "t/b/c/3", "t/b/4", "t/c", "u/5"] {
            server.put("bucket", key, key);
        }
        for page in [1, 2, 1000] {
            server.page_keys_max(page);
            let result = store.list_with_delimiter(Some(&Path::from("t"))).await.unwrap();
            let objects: Vec<_> = result.objects.iter().map(|meta| meta.location.as_ref()).collect();
            let prefixes: Vec<_> = result.common_prefixes.iter().map(Path::as_ref).collect();
            assert_eq!((objects, prefixes), (vec!["t/0", "t/c"], vec!["t/a", "t/b"]), "pages of {page}");
        }
        for key in server.keys("bucket", "") {
            server.delete("bucket", &key);
        }
    }
}

#[tokio::test]
async fn a_long_list_has_pages_of_a_thousand() {
    let (server, stores) = started(0);
    let keys: Vec<_> = (0..2500).map(|number| format!("k/{number:04}")).collect();
    keys.iter().for_each(|key| server.put("bucket", key, ""));
    for store in stores {
        server.clear_requests();
        assert_eq!(listed(&store, Some("k")).await, keys);
        assert_eq!(server.count(Op::List), 3);
    }
}

#[tokio::test]
async fn copies() {
    let (server, stores) = started(0);
    server.put("bucket", "from/ü +%2F", "text");
    let from = Path::parse("from/ü +%2F").unwrap();
    for store in stores {
        let to = Path::from("to");
        store.copy(&from, &to).await.unwrap();
        assert_eq!(read(&store, "to").await, b"text");
        let again = store.copy_if_not_exists(&from, &to).await;
        assert!(matches!(again, Err(Error::AlreadyExists { .. })), "{again:?}");
        store.delete(&to).await.unwrap();
        store.copy_if_not_exists(&from, &to).await.unwrap();
        assert_eq!(read(&store, "to").await, b"text");
        assert!(matches!(store.copy(&Path::from("none"), &to).await, Err(Error::NotFound { .. })));
        store.rename(&to, &Path::from("renamed")).await.unwrap();
        assert_eq!(server.keys("bucket", "").len(), 2);
        store.delete(&Path::from("renamed")).await.unwrap();
    }
    assert_eq!(server.open_uploads(), 0);
}

#[tokio::test]
async fn deletions_in_bulk() {
    let (server, stores) = started(0);
    for store in stores {
        let keys: Vec<_> = (0..1200).map(|number| format!("k/<{number}> ü")).collect();
        keys.iter().for_each(|key| server.put("bucket", key, ""));
        let paths = futures_util::stream::iter(keys).map(|key| Ok(Path::parse(key).unwrap())).boxed();
        let deleted: Vec<_> = store.delete_stream(paths).try_collect().await.unwrap();
        assert_eq!((deleted.len(), server.keys("bucket", "").len()), (1200, 0));
    }
    assert_eq!((server.count(Op::DeleteObjects), server.count(Op::Delete)), (2, 1200));
}

#[tokio::test]
async fn checksums_are_compared() {
    let (server, _) = started(0);
    let store = s3_builder(&server, 0).with_checksum_algorithm(Checksum::CRC64NVME).build().unwrap();
    let store: Store = Arc::new(store);
    store.put(&Path::from("a"), pattern(100).into()).await.unwrap();
    uploaded(&store, &Path::from("b"), &pattern(6 << 20), 5 << 20).await.complete().await.unwrap();
    let wrong =
        "PUT /bucket/c HTTP/1.1\r\nhost: x\r\nx-amz-checksum-crc32: AAAAAA==\r\ncontent-length: 1\r\n\r\nc";
    assert!(exchanged(&server, wrong).starts_with("HTTP/1.1 400"));
    // The crc32 of nine digits, cbf43926.
    let right = "PUT /bucket/c HTTP/1.1\r\nhost: x\r\nx-amz-checksum-crc32: y/Q5Jg==\r\ncontent-length: 9\r\n\r\n123456789";
    assert!(exchanged(&server, right).starts_with("HTTP/1.1 200"));
}

/// The answer to a request as it is written, but for a word that the connection ends with it.
fn exchanged(server: &ObjectServer, request: &str) -> String {
    let mut stream = TcpStream::connect(server.endpoint().trim_start_matches("http://")).unwrap();
    stream.write_all(request.replacen("host: x", "host: x\r\nconnection: close", 1).as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn plain_http_reads() {
    let (server, _) = started(0);
    server.put("bucket", "a b", "0123456789");
    let whole = exchanged(&server, "GET /bucket/a%20b HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(whole.starts_with("HTTP/1.1 200 OK\r\n") && whole.ends_with("\r\n\r\n0123456789"), "{whole}");
    let part = exchanged(&server, "GET /bucket/a%20b HTTP/1.1\r\nhost: x\r\nrange: bytes=-3\r\n\r\n");
    assert!(part.contains("content-range: bytes 7-9/10\r\n") && part.ends_with("\r\n\r\n789"), "{part}");
    let head = exchanged(&server, "HEAD /bucket/a%20b HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(head.contains("content-length: 10\r\n") && head.contains("accept-ranges: bytes"), "{head}");
    assert!(head.ends_with("\r\n\r\n"), "{head}");
    let none = exchanged(&server, "GET /bucket/none HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(none.starts_with("HTTP/1.1 404") && none.contains("<Code>NoSuchKey</Code>"), "{none}");
    let none = exchanged(&server, "GET /none/none HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(none.contains("<Code>NoSuchBucket</Code>"), "{none}");
}

#[test]
fn the_json_api_of_gcs() {
    let (server, _) = started(0);
    let send = |method: &str, path: &str, body: &str| {
        let length = format!("content-length: {}", body.len());
        exchanged(&server, &format!("{method} {path} HTTP/1.1\r\nhost: x\r\n{length}\r\n\r\n{body}"))
    };
    let upload = "/upload/storage/v1/b/bucket/o?uploadType=media&name=a%2Fb&ifGenerationMatch=0";
    let put = send("POST", upload, "text");
    let generation = put.split("\"generation\":\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    assert_eq!(server.get("bucket", "a/b").unwrap(), "text");
    assert!(send("POST", upload, "more").starts_with("HTTP/1.1 412"));
    let object = "/storage/v1/b/bucket/o/a%2Fb";
    let got = send("GET", &format!("{object}?alt=media"), "");
    assert!(got.contains(&format!("x-goog-generation: {generation}\r\n")) && got.ends_with("text"), "{got}");
    let same = format!("{object}?alt=media&ifGenerationNotMatch={generation}");
    assert!(send("GET", &same, "").starts_with("HTTP/1.1 304"));
    assert!(send("GET", object, "").contains("\"size\":\"4\""));
    server.put("bucket", "a/c", "");
    server.put("bucket", "a/d", "");
    let list = send("GET", "/storage/v1/b/bucket/o?prefix=a/&startOffset=a/b&endOffset=a/d&maxResults=1", "");
    assert!(list.contains("\"name\":\"a/b\"") && list.contains("\"nextPageToken\""), "{list}");
    let token = list.split("\"nextPageToken\":\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    let list = send("GET", &format!("/storage/v1/b/bucket/o?endOffset=a/d&pageToken={token}"), "");
    assert!(list.contains("\"name\":\"a/c\"") && !list.contains("a/d"), "{list}");
    assert!(send("DELETE", &format!("{object}?ifGenerationMatch=1"), "").starts_with("HTTP/1.1 412"));
    assert!(send("DELETE", object, "").starts_with("HTTP/1.1 204"));
    assert!(send("DELETE", object, "").starts_with("HTTP/1.1 404"));
}

#[test]
fn signed_chunks_are_unwrapped() {
    let (server, _) = started(0);
    let body = "4;chunk-signature=ab\r\nabcd\r\n2;chunk-signature=cd\r\nef\r\n0;chunk-signature=ef\r\n\r\n";
    let request = format!(
        "PUT /bucket/k HTTP/1.1\r\nhost: x\r\nx-amz-content-sha256: STREAMING-AWS4-HMAC-SHA256-PAYLOAD\r\n\
         content-encoding: aws-chunked\r\nx-amz-decoded-content-length: 6\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    assert!(exchanged(&server, &request).starts_with("HTTP/1.1 200"));
    assert_eq!(server.get("bucket", "k").unwrap(), "abcdef");
    let cut = request.replace("length: 6", "length: 7");
    assert!(exchanged(&server, &cut).contains("<Code>IncompleteBody</Code>"));
}

#[tokio::test]
async fn both_list_versions_and_url_encoding() {
    let (server, _) = started(0);
    for key in ["a/1 ü", "a/2", "b"] {
        server.put("bucket", key, "");
    }
    let get = |query: &str| exchanged(&server, &format!("GET /bucket?{query} HTTP/1.1\r\nhost: x\r\n\r\n"));
    let page = get("max-keys=1&encoding-type=url");
    assert!(page.contains("<Key>a/1%20%C3%BC</Key>") && page.contains("<IsTruncated>true<"), "{page}");
    assert!(page.contains("<NextMarker>a/1%20%C3%BC</NextMarker>"), "{page}");
    let page = get("marker=a/1%20%C3%BC");
    assert!(
        page.contains("<Key>a/2</Key><") && page.contains("<Key>b</Key>") && !page.contains("<Key>a/1"),
        "{page}"
    );
    let page = get("delimiter=/&marker=a/");
    assert!(page.contains("<Key>b</Key>") && !page.contains("CommonPrefixes"), "{page}");
    let page = get("list-type=2&start-after=a/2&max-keys=0");
    assert!(page.contains("<KeyCount>0</KeyCount>") && page.contains("<IsTruncated>false<"), "{page}");
    assert!(get("list-type=2&continuation-token=a/2").contains("<Code>InvalidToken</Code>"));
}

#[tokio::test]
async fn refusals_pass_and_retries_succeed() {
    let (server, stores) = started(3);
    let key = Path::from("k");
    for store in stores {
        let transient = [Refusal::SlowDown, Refusal::InternalError, Refusal::TooManyRequests];
        for refusal in transient {
            server.faults([Fault::refuse(refusal).on(Op::Put).first(2)]);
            server.clear_requests();
            store.put(&key, "text".into()).await.unwrap();
            let statuses: Vec<_> = server.requests().iter().map(|request| request.status).collect();
            assert_eq!(statuses, [refusal.status(), refusal.status(), 200]);
            assert_eq!(server.struck(), [2]);
        }
        server.faults([Fault::status(408, "RequestTimeout").method("get").nth(1)]);
        assert_eq!(read(&store, "k").await, b"text");
        assert_eq!(server.struck(), [1]);
        let lasting = [
            Refusal::ExpiredToken,
            Refusal::RequestTimeTooSkewed,
            Refusal::ConditionalRequestConflict,
            Refusal::AccessDenied,
            Refusal::PermanentRedirect,
        ];
        for refusal in lasting {
            server.faults([Fault::refuse(refusal).key("k")]);
            let error = store.get(&key).await.unwrap_err().to_string();
            // A redirect without a place to go is told without its body.
            assert!(
                refusal == Refusal::PermanentRedirect || error.contains(&format!("{refusal:?}")),
                "{error}"
            );
            assert_eq!(server.struck(), [1]);
        }
        server.clear_faults();
    }
}

#[tokio::test]
async fn a_lost_answer_is_a_write_all_the_same() {
    let (server, stores) = started(0);
    for (store, again) in stores.into_iter().zip([s3(&server, 2), gcs(&server, 2)]) {
        let key = Path::from("k");
        server.faults([Fault::reset_before().on(Op::Put)]);
        store.put(&key, "text".into()).await.unwrap_err();
        assert!(server.get("bucket", "k").is_none());
        server.faults([Fault::reset_after().on(Op::Put)]);
        store.put(&key, "text".into()).await.unwrap_err();
        assert_eq!(server.get("bucket", "k").unwrap(), "text");
        assert_eq!(server.requests().last().unwrap().status, 0);
        server.faults([Fault::refuse(Refusal::InternalError).applied()]);
        store.delete(&key).await.unwrap_err();
        assert!(server.get("bucket", "k").is_none());
        server.clear_faults();

        // A client that tries again finds no upload, although its first completion was done.
        let mut upload = uploaded(&again, &key, b"text", 4).await;
        server.faults([Fault::reset_after().on(Op::Complete).first(1)]);
        let error = format!("{:?}", upload.complete().await.unwrap_err());
        assert!(error.contains("NoSuchUpload"), "{error}");
        assert_eq!(server.get("bucket", "k").unwrap(), "text");
        server.clear_faults();
        store.delete(&key).await.unwrap();
    }
}

#[tokio::test]
async fn a_second_completion_may_succeed() {
    let server = ObjectServer::builder().completes_again().part_bytes_min(1).start().unwrap();
    server.create_bucket("bucket");
    let store = s3(&server, 2);
    server.fault(Fault::reset_after().on(Op::Complete).first(1));
    let key = Path::from("k");
    uploaded(&store, &key, b"text", 1).await.complete().await.unwrap();
    assert_eq!((read(&store, "k").await, server.count(Op::Complete)), (b"text".to_vec(), 2));
}

#[tokio::test]
async fn an_error_may_hide_in_a_success() {
    let (server, _) = started(2);
    let store = s3(&server, 2);
    server.put("bucket", "from", "text");
    server.fault(Fault::error_in_200(Refusal::InternalError).on(Op::Copy).first(1));
    store.copy(&Path::from("from"), &Path::from("to")).await.unwrap();
    let statuses: Vec<_> = server.requests().iter().map(|request| request.status).collect();
    assert_eq!(statuses, [200, 200]);
    assert_eq!(server.get("bucket", "to").unwrap(), "text");
}

#[tokio::test]
async fn bodies_may_be_cut_wrong_and_slow() {
    let (server, stores) = started(0);
    let bytes = pattern(100_000);
    server.put("bucket", "k", bytes.clone());
    let key = Path::from("k");
    for (store, again) in stores.iter().zip([s3(&server, 2), gcs(&server, 2)]) {
        server.faults([Fault::truncate_body(70_000)]);
        store.get(&key).await.unwrap().bytes().await.unwrap_err();
        server.faults([Fault::truncate_body(70_000).first(1)]);
        server.clear_requests();
        assert!(read(&again, "k").await == bytes);
        let ranges: Vec<_> = server.requests().iter().map(|request| request.range.clone()).collect();
        assert_eq!(ranges, [None, Some("bytes=70000-99999".to_owned())]);

        server.faults([Fault::wrong_bytes(5)]);
        let wrong = read(store, "k").await;
        let differing: Vec<_> = (0..bytes.len()).filter(|at| wrong[*at] != bytes[*at]).collect();
        assert_eq!(differing, [5]);
        store.put(&Path::from("w"), "0123456789".into()).await.unwrap();
        assert_eq!(server.get("bucket", "w").unwrap(), b"01234\xca6789".as_slice());

        server.faults([Fault::slow_drip(10_000, Duration::from_millis(10))]);
        let start = Instant::now();
        assert!(read(store, "k").await == bytes);
        assert!(start.elapsed() >= Duration::from_millis(100), "{:?}", start.elapsed());

        let wait = Duration::from_millis(60);
        server.faults([Fault::delay(wait), Fault::delay(wait)]);
        let start = Instant::now();
        store.head(&key).await.unwrap();
        assert!(start.elapsed() >= 2 * wait);
        server.clear_faults();
        server.latency(wait);
        let start = Instant::now();
        store.head(&key).await.unwrap();
        assert!(start.elapsed() >= wait);
        server.latency(Duration::ZERO);
    }
}

#[tokio::test]
async fn lists_may_be_stale() {
    let (server, stores) = started(0);
    for store in stores {
        for key in ["a", "b", "c"] {
            server.put("bucket", key, key);
        }
        server.delete("bucket", "a");
        server.put("bucket", "b", "longer");
        server.fault(Fault::stale_list(3).nth(1));
        server.fault(Fault::stale_list(1).nth(2));
        assert_eq!(listed(&store, None).await, ["a", "b"]);
        let metas: Vec<_> = store.list(None).try_collect().await.unwrap();
        assert_eq!(metas.iter().map(|meta| meta.size).collect::<Vec<_>>(), [1, 1]);
        assert_eq!(listed(&store, None).await, ["b", "c"]);
        server.clear_faults();
        server.keys("bucket", "").iter().for_each(|key| _ = server.delete("bucket", key));
    }
}

#[tokio::test]
async fn chance_can_be_repeated() {
    let (server, _) = started(0);
    let store = s3(&server, 0);
    server.put("bucket", "k", "text");
    let mut runs = Vec::new();
    for _ in 0..2 {
        let when = When::Chance { probability: 0.3, seed: 11 };
        server.faults([Fault::refuse(Refusal::SlowDown).when(when)]);
        server.clear_requests();
        for _ in 0..40 {
            _ = store.head(&Path::from("k")).await;
        }
        runs.push(server.requests().iter().map(|request| request.status).collect::<Vec<_>>());
    }
    assert_eq!(runs[0], runs[1]);
    let struck = server.struck()[0];
    assert!((4..=20).contains(&struck), "{struck}");
}

#[tokio::test]
async fn who_may_and_where() {
    let server = ObjectServer::builder()
        .access_key("AKIDEXAMPLE")
        .bearer("token")
        .region("eu-west-1")
        .deny_list()
        .start()
        .unwrap();
    server.put("bucket", "k", "text");
    let key = Path::from("k");
    let at_home = || s3_builder(&server, 0).with_region("eu-west-1");
    let store = at_home().build().unwrap();
    store.get(&key).await.unwrap();
    assert!(matches!(store.list(None).next().await, Some(Err(_))));
    assert_eq!(server.requests().last().unwrap().status, 403);
    // Who may not list is not told what is missing.
    assert!(matches!(store.get(&Path::from("none")).await, Err(Error::PermissionDenied { .. })));
    let stranger = at_home().with_access_key_id("other").build().unwrap();
    let error = stranger.get(&key).await.unwrap_err().to_string();
    assert!(error.contains("InvalidAccessKeyId"), "{error}");
    let unsigned = at_home().with_skip_signature(true).build().unwrap();
    assert!(matches!(unsigned.get(&key).await, Err(Error::PermissionDenied { .. })));
    assert!(s3(&server, 0).get(&key).await.is_err());
    assert_eq!(server.requests().last().unwrap().status, 301);
    let elsewhere = "HEAD /bucket HTTP/1.1\r\nhost: x\r\nauthorization: AWS4-HMAC-SHA256 \
                     Credential=AKIDEXAMPLE/20260131/us-east-1/s3/aws4_request, SignedHeaders=host\r\n\r\n";
    assert!(exchanged(&server, elsewhere).contains("x-amz-bucket-region: eu-west-1"));
    let bearer = |token: &str| {
        GoogleCloudStorageBuilder::new()
            .with_base_url(&server.endpoint())
            .with_bucket_name("bucket")
            .with_bearer_token(token)
            .with_client_options(ClientOptions::new().with_allow_http(true))
            .build()
            .unwrap()
    };
    bearer("token").get(&key).await.unwrap();
    assert!(matches!(bearer("other").get(&key).await, Err(Error::Unauthenticated { .. })));
}

#[tokio::test]
async fn damage_past_the_protocol() {
    let (server, _) = started(0);
    let store = s3(&server, 0);
    server.put("bucket", "k", "0123456789");
    let before = store.head(&Path::from("k")).await.unwrap();
    assert!(server.flip_byte("bucket", "k", 0) && server.truncate("bucket", "k", 3));
    assert!(!server.flip_byte("bucket", "none", 0));
    assert_eq!(read(&store, "k").await, b"\xcf12");
    assert_eq!(store.head(&Path::from("k")).await.unwrap().e_tag, before.e_tag);
}

#[test]
fn others_control_it_by_requests() {
    let (server, _) = started(0);
    let send = |method: &str, path: &str, body: &str| {
        let len = body.len();
        exchanged(
            &server,
            &format!("{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len}\r\n\r\n{body}"),
        )
    };
    assert!(send("PUT", "/bucket/k", "text").starts_with("HTTP/1.1 200"));
    let rule = r#"[{"ops": ["get"], "when": {"first": 1}, "action": {"refuse": "SlowDown"}}]"#;
    assert!(send("POST", "/-/faults", rule).starts_with("HTTP/1.1 200"));
    assert!(send("GET", "/bucket/k", "").starts_with("HTTP/1.1 503"));
    assert!(send("GET", "/bucket/k", "").ends_with("text"));
    assert!(send("GET", "/-/faults", "").ends_with("[1]"));
    assert!(send("GET", "/-/requests", "").contains(r#""faults":["SlowDown"]"#));
    assert!(send("POST", "/-/faults", r#"{"action": "explode"}"#).starts_with("HTTP/1.1 400"));
    assert!(send("POST", "/-/settings", r#"{"page_keys_max": 1}"#).starts_with("HTTP/1.1 200"));
    let damage = r#"{"bucket": "bucket", "key": "k", "truncate": 2}"#;
    assert!(send("POST", "/-/damage", damage).starts_with("HTTP/1.1 200"));
    assert!(send("GET", "/bucket/k", "").ends_with("\r\n\r\nte"));
    assert!(send("GET", "/-/status", "").contains(r#""open_uploads":0"#));
    assert!(send("POST", "/-/reset?objects", "").starts_with("HTTP/1.1 200"));
    assert!(
        server.requests().is_empty() && server.keys("bucket", "").is_empty() && server.struck().is_empty()
    );
}

#[tokio::test]
async fn a_dropped_server_is_gone() {
    let (server, [store, _]) = started(0);
    let endpoint = server.endpoint();
    server.put("bucket", "k", "text");
    assert_eq!(read(&store, "k").await, b"text");
    drop(server);
    assert!(TcpStream::connect(endpoint.trim_start_matches("http://")).is_err());
    store.head(&Path::from("k")).await.unwrap_err();
}
