//! Signatures, in every layout and in every storage. After any writes to the files, a checkpoint
//! that opens with trusted keys has the signed bytes.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::child::child;
use crate::common::damage::{checkpoints, contents, damaged_in_turn, files, options, put, small_tree};
use crate::common::{bytes_of, layouts, tree};
use regrow::array::Region;
use regrow::engine::Layout;
use regrow::location::{Location, ToLocation};
use regrow::{
    CopyOptions, Error, ErrorKind, LoadOptions, OpenOptions, PrivateKey, PublicKey, RemoveOptions,
    SaveOptions, SealOptions, SignOptions, SignReport, VerifyOptions,
};
use regrow_testkit::{copy_folder, fixtures, memory_folder};

const SIGNATURE: &str = "regrow.signature.json";

/// A key of `fixtures/keys`.
fn private(name: &str) -> PrivateKey {
    PrivateKey::read(fixtures().join("keys").join(format!("{name}.pem"))).unwrap()
}

fn public(name: &str) -> PublicKey {
    PublicKey::read(fixtures().join("keys").join(format!("{name}.pub.pem"))).unwrap()
}

fn sign(path: impl ToLocation, name: &str) -> SignReport {
    regrow::sign(path, &private(name), &SignOptions::default()).unwrap()
}

fn trusting(name: &str) -> OpenOptions {
    OpenOptions { trusted_keys: vec![public(name)], ..OpenOptions::default() }
}

fn load(path: impl ToLocation, open: OpenOptions) -> Result<String, Error> {
    let options = LoadOptions { open, ..LoadOptions::default() };
    regrow::engine::load_with(path, &options).map(|tree| contents(&tree))
}

fn is_signature(path: &Path) -> bool {
    path.file_name().unwrap().to_string_lossy().starts_with("regrow.signature.")
}

/// What opening, loading and slicing with a trusted key say of a checkpoint that is not what was
/// signed: each an error of a kind that says so, with a file. What is read without a word is what
/// it was, and then `verify` has something to say.
fn refused(path: &Path, good: &str, what: &str) -> bool {
    let kind = |error: &Error| {
        // A folder that an added file has made into one of two layouts is named as that.
        let is_named =
            matches!(error.kind(), ErrorKind::Untrusted | ErrorKind::Corrupt | ErrorKind::NotACheckpoint);
        assert!(is_named && error.place().file.is_some(), "{what}: {:?}: {error}", error.kind());
    };
    let mut is_refused = false;
    for mapped in [false, true] {
        match load(path, OpenOptions { mapped, ..trusting("alice") }) {
            Ok(found) => assert!(found == good, "{what}: loaded as something else"),
            Err(error) => {
                kind(&error);
                is_refused = true;
            }
        }
    }
    match regrow::verify_with(path, &VerifyOptions { open: trusting("alice"), ..VerifyOptions::default() }) {
        Ok(report) => {
            assert!(!is_refused || !report.is_ok(), "{what}: verified");
            is_refused || !report.is_ok()
        }
        Err(error) => {
            kind(&error);
            true
        }
    }
}

#[test]
fn a_signed_checkpoint_reads_as_before_in_every_storage() {
    let folder = tempfile::tempdir().unwrap();
    let mut roots = vec![Location::local(folder.path()), "memory://signatures/runs".to_location().unwrap()];
    roots.extend(crate::common::buckets::buckets("signatures"));
    for root in roots {
        for (at, (layout, suffix)) in layouts().into_iter().enumerate() {
            let path = root.join(format!("x{at}{suffix}"));
            let say = |what: &dyn std::fmt::Display| format!("{} at {path}: {what}", layout.name());
            let tree = tree(at as u8);
            regrow::save_with(&path, &tree, &options(&layout)).unwrap();
            let unsigned = regrow::open_with(&path, &trusting("alice")).unwrap_err();
            assert_eq!(unsigned.kind(), ErrorKind::Untrusted, "{}", say(&unsigned));
            let report = regrow::sign(&path, &private("alice"), &SignOptions::default());
            let report = report.unwrap_or_else(|error| panic!("{}", say(&error)));
            assert_eq!(report.signers, [public("alice")]);
            assert!(
                bytes_of(&regrow::engine::load(&path).unwrap()) == bytes_of(&tree),
                "{}",
                say(&"unsigned")
            );
            for mapped in [false, true] {
                let open = OpenOptions { mapped, ..trusting("alice") };
                let options = LoadOptions { open, ..LoadOptions::default() };
                let loaded = regrow::engine::load_with(&path, &options);
                let loaded = loaded.unwrap_or_else(|error| panic!("{}", say(&error)));
                assert!(bytes_of(&loaded) == bytes_of(&tree), "{}", say(&"other bytes"));
            }
            let verify = VerifyOptions { open: trusting("alice"), ..VerifyOptions::default() };
            let verified =
                regrow::verify_with(&path, &verify).unwrap_or_else(|error| panic!("{}", say(&error)));
            assert!(verified.is_ok(), "{}", say(&format!("{:?}", verified.findings)));
            assert!(verified.has_data_checksums && verified.signer == Some(public("alice")));
            let checkpoint = regrow::open_with(&path, &trusting("alice")).unwrap();
            let leaf = checkpoint.find("kernel").unwrap();
            let region = Region::new(vec![100, 7], vec![3, 1000]).unwrap();
            let slice = checkpoint.region(leaf, &region).unwrap().to_c_order().unwrap();
            let whole = &bytes_of(&tree)[2].1;
            let row = |at: usize| &whole[(at * 1500 + 7) * 4..(at * 1500 + 1007) * 4];
            assert!(slice[..] == [row(100), row(101), row(102)].concat(), "{}", say(&"another slice"));
            let error = regrow::open_with(&path, &trusting("bob")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Untrusted, "{}", say(&error));
        }
    }
}

#[test]
fn a_signature_changes_no_file_and_every_layout_opens() {
    let folder = memory_folder().unwrap();
    for (name, path) in checkpoints(folder.path()) {
        let home = path.parent().unwrap();
        let (before, good) = (files(home), contents(&regrow::engine::load(&path).unwrap()));
        let report = sign(&path, "alice");
        let mut after = files(home);
        after.retain(|path, _| !is_signature(path));
        assert!(before == after, "{name}: the files are others");
        assert_eq!(report.file_count, before.len(), "{name}");
        assert!(!refused(&path, &good, &name), "{name}");
        let verify = VerifyOptions { open: trusting("alice"), ..VerifyOptions::default() };
        assert_eq!(regrow::verify_with(&path, &verify).unwrap().findings.len(), 0, "{name}");
        // A seal and a signature do not know of each other.
        regrow::seal(&path, &SealOptions::default()).unwrap();
        assert!(!refused(&path, &good, &name), "{name}: sealed");
        assert!(regrow::verify(&path).unwrap().is_ok(), "{name}: sealed");
        sign(&path, "alice");
        assert!(contents(&regrow::engine::load(&path).unwrap()) == good, "{name}: signed again");
    }
}

/// A forger who has everything but the key: bits, whole files, checksums and seals made again.
#[test]
fn forged_files_are_refused() {
    let folder = memory_folder().unwrap();
    for (name, path) in checkpoints(folder.path()) {
        let good = contents(&regrow::engine::load(&path).unwrap());
        sign(&path, "alice");
        let home = path.parent().unwrap();
        let all: Vec<(PathBuf, Vec<u8>)> = files(home).into_iter().collect();
        for (file, bytes) in &all {
            let what = |what: &str| format!("{name}: {} {what}", file.display());
            let flips = if is_signature(file) { 96 } else { 5 };
            for flip in 0..flips {
                let Some(last) = bytes.len().checked_sub(1) else { break };
                let mut flipped = bytes.clone();
                let byte = if flip == 0 { last } else { flip * 7919 * last.max(1) / flips % bytes.len() };
                flipped[byte] ^= 1 << (flip % 8);
                put(file, &flipped);
                assert!(refused(&path, &good, &what("flipped")), "{}", what(&format!("byte {byte}")));
            }
            put(file, bytes);
        }
        damaged_in_turn(&all, |what| {
            let what = format!("{name}: {what}");
            assert!(refused(&path, &good, &what), "{what}");
        });
        if path.is_dir() {
            for added in ["added.npy", "regrow.json", "regrow-structure.json", "d/added", "_METADATA"] {
                let added = path.join(added);
                if added.exists() || !added.parent().unwrap().exists() {
                    continue;
                }
                fs::write(&added, b"{}").unwrap();
                let what = format!("{name}: {} added", added.display());
                assert!(refused(&path, &good, &what), "{what}");
                fs::remove_file(added).unwrap();
            }
        }
        assert!(!refused(&path, &good, &name), "{name}: all is well again");
        // Signed with another key instead.
        for (file, _) in all.iter().filter(|(file, _)| is_signature(file)) {
            fs::remove_file(file).unwrap();
        }
        sign(&path, "bob");
        assert!(refused(&path, &good, &name), "{name}: signed by bob alone");
    }
}

/// A sound checkpoint with other numbers and right checksums, under the signature of the first.
#[test]
fn a_sound_checkpoint_under_the_signature_of_another_is_refused() {
    let folder = memory_folder().unwrap();
    for (at, (layout, suffix)) in layouts().into_iter().enumerate() {
        let say = format!("{} {suffix}", layout.name());
        let home = |name: &str| folder.path().join(format!("{name}{at}"));
        for (name, fill) in [("a", 0), ("b", 1)] {
            fs::create_dir_all(home(name)).unwrap();
            let path = home(name).join(format!("x{suffix}"));
            regrow::save_with(&path, &tree(fill), &options(&layout)).unwrap();
        }
        let path = home("a").join(format!("x{suffix}"));
        let good = contents(&regrow::engine::load(&path).unwrap());
        sign(&path, "alice");
        let signature = files(&home("a")).into_iter().find(|(file, _)| is_signature(file)).unwrap();
        fs::remove_dir_all(home("a")).unwrap();
        copy_folder(&home("b"), &home("a")).unwrap();
        fs::write(&signature.0, &signature.1).unwrap();
        assert!(regrow::verify(&path).unwrap().is_ok(), "{say}: the forgery is sound");
        assert!(refused(&path, &good, &say), "{say}");
        // Of files beside each other: a signature speaks of no neighbour.
        if path.is_file() {
            let other = home("a").join(format!("y{suffix}"));
            let of_other = home("a").join(format!("regrow.signature.y{suffix}.json"));
            regrow::save_with(&other, &tree(2), &options(&layout)).unwrap();
            sign(&other, "alice");
            fs::copy(of_other, &signature.0).unwrap();
            assert!(refused(&path, &good, &say), "{say}: the signature of its neighbour");
        }
    }
}

#[test]
fn a_part_is_verified_without_the_rest() {
    let folder = memory_folder().unwrap();
    for (at, (layout, suffix)) in layouts().into_iter().enumerate() {
        // Of these a part of a leaf is read with all of it.
        if matches!(layout, Layout::Npy(_)) {
            continue;
        }
        let path = folder.path().join(format!("x{at}{suffix}"));
        regrow::save_with(&path, &tree(0), &options(&layout)).unwrap();
        sign(&path, "alice");
        let found = if path.is_dir() { files(&path) } else { files(folder.path()) };
        let prefix = path.to_string_lossy().into_owned();
        let (file, bytes) = found
            .into_iter()
            .filter(|(file, _)| file.to_string_lossy().starts_with(&prefix) && !is_signature(file))
            .max_by_key(|(_, bytes)| bytes.len())
            .unwrap();
        if bytes.len() < 2 << 20 {
            continue;
        }
        // The last block of the longest file is bad: leaves and rows that lie elsewhere are read,
        // it is not.
        let mut damaged = bytes.clone();
        let byte = damaged.len() / 2;
        damaged[byte] ^= 1;
        put(&file, &damaged);
        let say = format!("{} {suffix}", layout.name());
        let checkpoint = regrow::open_with(&path, &trusting("alice"));
        let Ok(checkpoint) = checkpoint else { continue };
        let leaf = checkpoint.find("kernel").unwrap();
        let rows = |from: u64| Region::new(vec![from, 0], vec![2, 1500]).unwrap();
        let mut outcomes = Vec::new();
        for from in (0..698).step_by(20) {
            match checkpoint.region(leaf, &rows(from)) {
                Ok(found) => {
                    let whole = &bytes_of(&tree(0))[2].1;
                    let good = &whole[from as usize * 6000..(from as usize + 2) * 6000];
                    assert!(found.to_c_order().unwrap()[..] == *good, "{say}: row {from}");
                    outcomes.push(true);
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupt, "{say}: {error}");
                    outcomes.push(false);
                }
            }
        }
        println!("{say}: {} of {} parts proved", outcomes.iter().filter(|ok| **ok).count(), outcomes.len());
        assert!(outcomes.contains(&false), "{say}: the bad block was not noticed");
        if matches!(layout, Layout::Regrow(_) | Layout::Flax(_) | Layout::Safetensors(_) | Layout::Equinox(_))
        {
            assert!(outcomes.iter().filter(|ok| **ok).count() > 25, "{say}: read more than its blocks");
        }
    }
}

#[test]
fn several_keys_may_sign_and_a_changed_checkpoint_can_be_signed_again() {
    let folder = tempfile::tempdir().unwrap();
    let layout = Layout::from_name("regrow", serde_json::Value::Null).unwrap();
    let path = folder.path().join("x");
    regrow::save_with(&path, &small_tree(), &options(&layout)).unwrap();
    let good = contents(&regrow::engine::load(&path).unwrap());
    sign(&path, "alice");
    assert_eq!(sign(&path, "bob").signers, [public("alice"), public("bob")]);
    assert_eq!(sign(&path, "alice").signers.len(), 2, "each once");
    for name in ["alice", "bob"] {
        assert!(load(&path, trusting(name)).unwrap() == good);
    }
    // A seal is not looked at, and `ignore_seal` opens nothing that is not signed.
    let both = OpenOptions { ignore_seal: true, ..trusting("alice") };
    assert!(load(&path, both.clone()).is_ok());
    // Saved over, nothing of the old signature is left.
    regrow::save_with(&path, &tree(3), &SaveOptions { overwrite: true, ..options(&layout) }).unwrap();
    assert!(!path.join(SIGNATURE).exists());
    assert_eq!(load(&path, both).unwrap_err().kind(), ErrorKind::Untrusted);
    assert_eq!(sign(&path, "bob").signers, [public("bob")]);
    // Checks cannot be left out.
    let unverified = LoadOptions { open: trusting("bob"), unverified: true, ..LoadOptions::default() };
    let error = regrow::engine::load_with(&path, &unverified).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    // A signature of other files is replaced.
    let key = private("alice");
    let mut bytes = fs::read(path.join(SIGNATURE)).unwrap();
    let text = String::from_utf8(bytes.clone()).unwrap();
    bytes = text.replacen("\"block_blake3\":\"", "\"block_blake3\":\"00", 1).into_bytes();
    fs::write(path.join(SIGNATURE), bytes).unwrap();
    let report = regrow::sign(&path, &key, &SignOptions::default()).unwrap();
    assert_eq!(report.signers, [public("alice")]);
}

#[test]
fn copies_take_the_signature_along_and_removals_take_it_away() {
    let folder = tempfile::tempdir().unwrap();
    for (at, (layout, suffix)) in layouts().into_iter().enumerate() {
        let home = folder.path().join(format!("{at}"));
        let (path, copied) = (home.join(format!("x{suffix}")), home.join(format!("copied{suffix}")));
        fs::create_dir_all(&home).unwrap();
        regrow::save_with(&path, &small_tree(), &options(&layout)).unwrap();
        let good = contents(&regrow::engine::load(&path).unwrap());
        sign(&path, "alice");
        regrow::copy(&path, &copied, &CopyOptions { not_durable: true, ..CopyOptions::default() }).unwrap();
        assert!(load(&copied, trusting("alice")).unwrap() == good, "{} {suffix}", layout.name());
        // A folder with only tensors is not removed, of any writer.
        if matches!(layout, Layout::Safetensors(_)) && suffix.is_empty() {
            continue;
        }
        for path in [path, copied] {
            regrow::remove(&path, &RemoveOptions::default()).unwrap();
        }
        assert_eq!(fs::read_dir(&home).unwrap().count(), 0, "{} {suffix}", layout.name());
    }
}

#[test]
fn a_step_has_a_signature_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["regrow", "orbax"] {
        let root = folder.path().join(name);
        let layout = Layout::from_name(name, serde_json::Value::Null).unwrap();
        for step in ["1", "2"] {
            regrow::save_with(root.join(step), &small_tree(), &options(&layout)).unwrap();
        }
        let options = SignOptions { step: Some(1), ..SignOptions::default() };
        let report = regrow::sign(&root, &private("alice"), &options).unwrap();
        assert_eq!(report.path, root.join("1").join(SIGNATURE));
        let step = |step| OpenOptions { step: Some(step), ..trusting("alice") };
        let good = contents(&regrow::engine::load(root.join("1")).unwrap());
        assert!(load(&root, step(1)).unwrap() == good);
        assert_eq!(load(&root, step(2)).unwrap_err().kind(), ErrorKind::Untrusted, "{name}");
        assert_eq!(load(&root, trusting("alice")).unwrap_err().kind(), ErrorKind::Untrusted, "{name}");
    }
}

#[test]
fn a_damaged_checkpoint_is_not_signed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    let layout = Layout::from_name("orbax", serde_json::Value::Null).unwrap();
    regrow::save_with(&path, &small_tree(), &options(&layout)).unwrap();
    let manifest = path.join("manifest.ocdbt");
    let mut bytes = fs::read(&manifest).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    put(&manifest, &bytes);
    assert!(regrow::sign(&path, &private("alice"), &SignOptions::default()).is_err());
    assert!(!path.join(SIGNATURE).exists());
}

#[test]
fn keys_of_openssl_and_openssh_are_read_and_others_are_errors() {
    let key = |name: &str| fixtures().join("keys").join(name);
    for (private, public) in [("alice.pem", "alice.pub.pem"), ("ssh", "ssh.pub")] {
        let (private, public) =
            (PrivateKey::read(key(private)).unwrap(), PublicKey::read(key(public)).unwrap());
        assert_eq!(private.public_key(), public);
        assert_eq!(public.to_string().parse::<PublicKey>().unwrap(), public);
        assert_eq!(PublicKey::parse_or_read(&public.to_string()).unwrap(), public);
        assert!(!format!("{private:?}").contains("PRIVATE"));
    }
    for (name, says) in [
        ("encrypted.pem", "openssl pkey"),
        ("ssh_encrypted", "ssh-keygen -p"),
        ("ssh_ecdsa", "ssh-keygen -t ed25519"),
        ("x25519.pem", "genpkey"),
        ("alice.pub.pem", "with its private key"),
        ("ssh.pub", "with its private key"),
        ("make.sh", "genpkey"),
    ] {
        let error = PrivateKey::read(key(name)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{name}: {error}");
        assert!(error.help_text().is_some_and(|help| help.contains(says)), "{name}: {error}");
        assert!(error.place().file.is_some(), "{name}");
    }
    for name in
        ["alice.pem", "ssh", "encrypted.pem", "x25519.pub.pem", "ssh_ecdsa.pub", "make.sh", "README.md"]
    {
        let error = PublicKey::read(key(name)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{name}: {error}");
    }
    assert_eq!(PublicKey::read(key("nowhere")).unwrap_err().kind(), ErrorKind::NotFound);
    // What is written as a path is shown, unless it may be a key.
    let error = PrivateKey::read("some/where/key.pem").unwrap_err();
    assert!(error.to_string().contains("some/where/key.pem"), "{error}");
    // The neutral point: signatures that it verifies can be made without the private key.
    let weak = format!("01{}", "00".repeat(31));
    assert!(weak.parse::<PublicKey>().unwrap_err().to_string().contains("weak"));
}

/// Lines of private keys, passed in any place, are in no error.
#[test]
fn no_error_shows_a_private_key() {
    for name in ["alice.pem", "ssh", "encrypted.pem", "ssh_encrypted", "x25519.pem"] {
        let whole = fs::read_to_string(fixtures().join("keys").join(name)).unwrap();
        let lines: Vec<&str> = whole.lines().filter(|line| !line.starts_with("-----")).collect();
        let body = lines.concat();
        let cut = &whole[..whole.len() * 2 / 3];
        for given in [&whole, cut, &body, &format!("  {whole}"), &whole.replace("\n", "\r\n"), lines[0]] {
            let errors = [
                PrivateKey::parse(given).err(),
                PrivateKey::read(given).err(),
                PublicKey::parse(given).err(),
                PublicKey::read(given).err(),
                PublicKey::parse_or_read(given).err(),
            ];
            for error in errors.into_iter().flatten() {
                let said = format!("{error} {error:?} {:?}", std::error::Error::source(&error));
                let secret = |line: &&&str| line.len() > 20;
                for line in lines.iter().filter(secret) {
                    assert!(!said.contains(&line[..20]), "{name}: {said}");
                }
            }
        }
    }
    let seed = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60";
    assert!(!PrivateKey::read(seed).unwrap_err().to_string().contains("9d61"));
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
/// The child: does nothing unless it was started by the test below.
#[test]
fn child_signs() {
    let Some(path) = std::env::var_os(PATH) else { return };
    regrow_testkit::trace::mark();
    sign(Path::new(&path), "alice");
    regrow_testkit::trace::mark();
}

const PATH: &str = "REGROW_TEST_SIGNATURES";

/// Killed before any system call that changes something, a signature is there or is not, and one of
/// another key stays.
#[test]
fn a_killed_signature_is_all_or_nothing() {
    use regrow_testkit::trace::{Fault, run, writes};
    let folder = memory_folder().unwrap();
    let layout = Layout::from_name("regrow", serde_json::Value::Null).unwrap();
    let path = folder.path().join("x");
    regrow::save_with(&path, &small_tree(), &options(&layout)).unwrap();
    let good = contents(&regrow::engine::load(&path).unwrap());
    let mut kills = 0;
    loop {
        let _ = fs::remove_file(path.join(SIGNATURE));
        sign(&path, "bob");
        let mut child = child("protection::signatures::child_signs");
        child.env(PATH, &path);
        let ended = run(&mut child, writes, kills, Fault::Kill).unwrap();
        assert!(load(&path, trusting("bob")).unwrap() == good, "killed at call {kills}");
        match load(&path, trusting("alice")) {
            Ok(found) => assert!(found == good),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Untrusted, "{error}"),
        }
        if ended.hit.is_none() {
            break;
        }
        kills += 1;
    }
    println!("killed at each of {kills} calls");
    assert!(kills >= 4, "made, written, synced, named: {kills}");
}
