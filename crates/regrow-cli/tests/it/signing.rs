//! `regrow sign`, `verify --key` and `--trusted-key`.

use std::fs;
use std::path::PathBuf;

use crate::common::{regrow, saved, text};

fn key(name: &str) -> PathBuf {
    regrow_testkit::fixtures().join("keys").join(name)
}

#[test]
fn what_is_signed_is_read_by_its_key_and_by_no_other() {
    let (_folder, path) = saved();
    let (alice, bob) = (key("alice.pub.pem"), key("bob.pub.pem"));
    for command in ["ls", "info", "verify", "diff"] {
        let arguments = [command, text(&path), "--trusted-key", text(&alice)];
        let second = (command == "diff").then_some(text(&path));
        let run = regrow(arguments.into_iter().chain(second));
        assert_eq!(run.code, 1, "it is not signed: {run:?}");
        assert!(run.stderr.contains("sign"), "{run:?}");
    }
    let run = regrow(["sign", text(&path), "--key", text(&key("alice.pem"))]);
    assert_eq!(run.code, 0, "{run:?}");
    assert!(run.stdout.contains("signed 8 files"), "{run:?}");

    let run = regrow(["verify", text(&path), "--key", text(&alice)]);
    assert_eq!(run.code, 0, "{run:?}");
    assert!(run.stdout.contains(": sound: 5 leaves") && run.stdout.contains(": signed by "), "{run:?}");
    let run = regrow(["verify", "--json", text(&path), "--key", text(&alice)]);
    let signer = run.json()[0]["signer"].as_str().unwrap().to_owned();
    assert_eq!(signer.len(), 64);
    assert_eq!(regrow(["ls", text(&path), "--trusted-key", &signer]).code, 0, "a key may be given as digits");
    let run = regrow(["verify", text(&path), "--key", text(&bob)]);
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.stdout.contains("not read") || run.stdout.contains("damaged"), "{run:?}");
    let run = regrow(["ls", text(&path), "--trusted-key", text(&bob), "--trusted-key", text(&alice)]);
    assert_eq!(run.code, 0, "one of them fits: {run:?}");

    let run = regrow(["sign", "--json", text(&path), "--key", text(&key("bob.pem"))]);
    assert_eq!(run.json()["signers"].as_array().unwrap().len(), 2);
    assert_eq!(regrow(["verify", text(&path), "--key", text(&bob)]).code, 0);

    let file = path.join("model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, bytes).unwrap();
    let run = regrow(["verify", text(&path), "--key", text(&alice)]);
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.stderr.contains("model.safetensors"), "{run:?}");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let (_folder, path) = saved();
    let alice = key("alice.pub.pem");
    for (command, more) in
        [("cp", "elsewhere"), ("rm", "--unfinished"), ("seal", "--remove"), ("steps", "--json")]
    {
        let run = regrow([command, text(&path), more, "--trusted-key", text(&alice)]);
        assert_eq!(run.code, 2, "{command}: {run:?}");
        assert!(run.stderr.contains("does not check signatures"), "{command}: {run:?}");
    }
    assert!(path.join("regrow.json").exists());
    for wrong in ["alice.pem", "x25519.pub.pem", "ssh_ecdsa.pub", "none"] {
        let run = regrow(["ls", text(&path), "--trusted-key", text(&key(wrong))]);
        assert_eq!(run.code, 2, "{wrong}: {run:?}");
    }
    for wrong in ["alice.pub.pem", "encrypted.pem", "ssh_encrypted", "x25519.pem", "none"] {
        let run = regrow(["sign", text(&path), "--key", text(&key(wrong))]);
        assert_ne!(run.code, 0, "{wrong}: {run:?}");
        assert!(run.stderr.starts_with("error: "), "{wrong}: {run:?}");
        assert!(!path.join("regrow.signature.json").exists(), "{wrong}");
    }
}

#[test]
fn a_private_key_is_never_shown() {
    let (_folder, path) = saved();
    let pem = fs::read_to_string(key("alice.pem")).unwrap();
    let secret = pem.lines().nth(1).unwrap();
    for given in [&pem, secret, &pem.replace('\n', " ")] {
        for (command, option) in [("ls", "--trusted-key"), ("verify", "--key"), ("sign", "--key")] {
            for json in [None, Some("--json")] {
                let run = regrow([command, text(&path), option, given].into_iter().chain(json));
                assert!(run.code == 2 || run.code == 3, "{command}: {run:?}");
                for shown in [&run.stdout, &run.stderr] {
                    assert!(!shown.contains(&secret[20..40]), "{command}: {shown}");
                }
            }
        }
    }
    assert!(!path.join("regrow.signature.json").exists());
}
