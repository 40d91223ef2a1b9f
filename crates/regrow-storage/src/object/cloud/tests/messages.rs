//! Tests of the texts of errors, which never contain secrets.

use std::net::TcpListener;

use super::scripted::{Reply, Server, xml};
use super::*;

#[test]
fn what_a_store_says_is_explained() {
    use ErrorKind as Kind;
    type Headers = &'static [(&'static str, &'static str)];
    type Case = (u16, Headers, &'static str, &'static str, Kind, &'static [&'static str]);
    let cases: &[Case] = &[
        (404, &[], "NoSuchBucket", "", Kind::NotFound, &["the bucket bkt does not exist"]),
        (
            301,
            &[("x-amz-bucket-region", "eu-west-1")],
            "PermanentRedirect",
            "",
            Kind::InvalidArgument,
            &["another region", "expected eu-west-1, found us-east-1", "AWS_REGION=eu-west-1"],
        ),
        (
            400,
            &[],
            "AuthorizationHeaderMalformed",
            "<Region>eu-west-3</Region>",
            Kind::InvalidArgument,
            &["eu-west-3"],
        ),
        (
            403,
            &[],
            "InvalidAccessKeyId",
            "<AWSAccessKeyId>AKIDEXAMPLE</AWSAccessKeyId>",
            Kind::PermissionDenied,
            &["does not know the access key id"],
        ),
        (
            403,
            &[],
            "SignatureDoesNotMatch",
            "<StringToSign>x</StringToSign>",
            Kind::PermissionDenied,
            &["secret key"],
        ),
        (400, &[], "ExpiredToken", "", Kind::PermissionDenied, &["expired"]),
        (
            403,
            &[],
            "RequestTimeTooSkewed",
            "<RequestTime>20261122T100000Z</RequestTime><ServerTime>2026-11-22T12:00:00Z</ServerTime>",
            Kind::PermissionDenied,
            &["clock", "expected 2026-11-22T12:00:00Z (the store), found 20261122T100000Z"],
        ),
        (403, &[], "AccessDenied", "", Kind::PermissionDenied, &["access denied", "s3:GetObject"]),
        (507, &[], "InsufficientStorage", "", Kind::StorageFull, &["full"]),
        (400, &[], "KeyTooLongError", "", Kind::InvalidArgument, &["longer"]),
        (418, &[], "Teapot", "", Kind::Io, &["418 Teapot: Words of the store."]),
    ];
    for (status, headers, code, more, kind, words) in cases {
        let (status, headers, body) = (*status, *headers, xml(code, more));
        let server = Server::new(move |_| Reply::Say(status, headers, body.clone()));
        let bucket = server.bucket();
        let errors = [
            bucket.get("a/k", None).unwrap_err(),
            // The answer to a HEAD has no body, so it does not show this code.
            if *code == "NoSuchBucket" {
                continue;
            } else {
                bucket.head("a/k").err().unwrap_or_else(|| panic!("{code}"))
            },
        ];
        for (error, all_words) in errors.iter().zip([true, status == 301 || status == 400 || status == 403]) {
            let text = format!("{error:?}\n{error}");
            assert!(!text.contains(SECRET) && !text.contains(TOKEN), "{text}");
            assert!(text.contains("s3://bkt/a/k"), "{text}");
            assert!(error.help_text().is_some(), "{text}");
            if all_words {
                assert_eq!(error.kind(), *kind, "{text}");
                words.iter().for_each(|word| assert!(text.contains(word), "{word}: {text}"));
            }
        }
        let list = bucket.list("a", None).unwrap_err();
        if *code == "AccessDenied" {
            assert!(list.to_string().contains("s3:ListBucket"), "{list}");
        }
    }
}

#[test]
fn nothing_secret_is_ever_printed() {
    // The server sends back the request in its answer, with the secrets.
    let server = Server::new(|asked| {
        let headers: String = asked.headers.values().cloned().collect();
        let message = format!("{} {headers} {SECRET} {TOKEN}", asked.target);
        Reply::Say(
            400,
            &[],
            format!("<Error><Code>{SECRET}</Code><Message>{message}</Message></Error>").into_bytes(),
        )
    });
    let options = server.options();
    let bucket = server.bucket();
    let keys = ["k".to_owned()];
    let mut out = [0; 4];
    let bytes = Bytes::from_static(b"x");
    let tag = Tag::new(Some("t".to_owned()), None);
    let mut texts = vec![format!("{bucket:?} {options:?}")];
    let mut upload = bucket.upload("k", Some(1 << 30)).unwrap();
    let errors = [
        bucket.get("k", None).unwrap_err(),
        bucket.head("k").unwrap_err(),
        bucket.read_range("k", 0, &mut out, None).unwrap_err(),
        bucket.list("k", None).unwrap_err(),
        bucket.list_level("k").unwrap_err(),
        bucket.put("k", bytes.clone(), PutMode::Overwrite).unwrap_err(),
        bucket.create_settled("k", &bytes).unwrap_err(),
        bucket.replace_settled("k", &tag, &bytes).unwrap_err(),
        bucket.delete(&keys).unwrap_err(),
        bucket.copy("k", "l").unwrap_err(),
        upload.part(vec![0; 20 << 20].into()).unwrap_err(),
        upload.finish().unwrap_err(),
        Bucket::of_url_in("s3://b/k", &options.clone().with("max_retries", SECRET), &Surroundings::default())
            .unwrap_err(),
        Bucket::of_url_in("s3://b/k", &options.clone().with("anon", SECRET), &Surroundings::default())
            .unwrap_err(),
        Bucket::of_url_in(&format!("s3://AKID:{SECRET}@b/k"), &options, &Surroundings::default())
            .unwrap_err()
            .in_file("x"),
    ];
    texts.extend(errors.iter().map(|error| format!("{error} {error:?}")));
    texts.iter().for_each(|text| {
        assert!(!text.contains(SECRET) && !text.contains(TOKEN), "{text}");
    });

    for (url, name, value) in [
        ("s3://b/k", "proxy_url", format!("http://user:{SECRET}@127.0.0.1:1")),
        ("gs://b/k", "service_account_key", format!("{{\"private_key\": \"{SECRET}\"}}")),
        ("gs://b/k", "bearer_token", SECRET.to_owned()),
        ("az://b/k", "account_key", SECRET.to_owned()),
        ("az://b/k", "sas_token", format!("sv=1&sig={SECRET}")),
        ("az://b/k", "connection_string", format!("AccountName=a;AccountKey={SECRET}")),
    ] {
        let options =
            StorageOptions::new().with(name, value).with("max_retries", "0").with("connect_timeout", "1");
        let options = match url {
            "az://b/k" => options.with("account_name", "a").with("endpoint_url", "http://127.0.0.1:1"),
            _ => options.with("endpoint_url", "http://127.0.0.1:1"),
        };
        let (bucket, _) = Bucket::of_url_in(url, &options, &Surroundings::default()).unwrap();
        let error = bucket.get("k", None).unwrap_err();
        let text = format!("{error} {error:?} {bucket:?} {options:?}");
        assert!(!text.contains(SECRET), "{text}");
    }
}

#[test]
fn a_missing_server_is_reported_soon() {
    let began = Instant::now();
    let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let options = StorageOptions::new()
        .with("endpoint_url", format!("http://127.0.0.1:{port}"))
        .with("key", "k")
        .with("secret", SECRET);
    let (bucket, _) = Bucket::of_url_in("s3://b/k", &options, &Surroundings::default()).unwrap();
    let error = bucket.get("k", None).unwrap_err();
    assert!(error.to_string().contains("refused"), "{error}");
    assert!(error.help_text().unwrap().contains("the server does not listen"), "{error}");

    let options = options.with("endpoint_url", "https://no-such-host.invalid");
    let (bucket, _) = Bucket::of_url_in("s3://b/k", &options, &Surroundings::default()).unwrap();
    let error = bucket.get("k", None).unwrap_err();
    assert!(error.help_text().unwrap().contains("host name"), "{error}");

    let options = StorageOptions::new()
        .with("endpoint_url", "http://127.0.0.1:9")
        .with("metadata_endpoint", format!("http://127.0.0.1:{port}"));
    let (bucket, _) = Bucket::of_url_in("s3://b/k", &options, &Surroundings::default()).unwrap();
    let error = bucket.get("k", None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    assert!(error.to_string().contains("no credentials for S3 were found"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(12), "{:?}", began.elapsed());
}
