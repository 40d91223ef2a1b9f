//! Ed25519 keys, in the file formats of OpenSSL and OpenSSH, and as hex digits.
//!
//! | | private | public |
//! |---|---|---|
//! | OpenSSL | PKCS#8 PEM: `openssl genpkey -algorithm ed25519` | SPKI PEM: `openssl pkey -pubout` |
//! | OpenSSH | `ssh-keygen -t ed25519` | `ssh-ed25519 AAAA...` |
//! | raw | | 64 hex digits |

use std::fmt;
use std::str::FromStr;

use ed25519_dalek::pkcs8::{DecodePrivateKey, DecodePublicKey};
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};

use regrow_base::bytes::hex::fixed;
use regrow_base::error::{Error, ErrorKind, Result, ResultExt};
use regrow_storage::location::ToLocation;

const FILE_LEN_MAX_BYTES: u64 = 64 << 10;

const KEY_LEN_BYTES: usize = 32;

pub(crate) const SIGNATURE_LEN_BYTES: usize = 64;

const SSH_NAME: &str = "ssh-ed25519";

/// Returns an error if this build cannot check signatures. This build can.
pub(crate) fn check_available() -> Result<()> {
    Ok(())
}

/// A private key. It is never printed, and its memory is overwritten when dropped.
pub struct PrivateKey(SigningKey);

/// A public key, which verifies signatures. As text it is 64 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PublicKey(VerifyingKey);

impl PrivateKey {
    /// Reads a file with a private key, PKCS#8 PEM or OpenSSH.
    ///
    /// # Errors
    /// The errors of [`parse`](Self::parse); `NotFound` and other errors of the storage.
    pub fn read(path: impl ToLocation) -> Result<Self> {
        let (text, file) = read_text(path)?;
        Self::parse(&text).in_file(file)
    }

    /// Parses a private key, PKCS#8 PEM or OpenSSH.
    ///
    /// # Errors
    /// `InvalidArgument` for anything else: an encrypted key, one of another algorithm, a public
    /// key.
    pub fn parse(text: &str) -> Result<Self> {
        let text = text.trim();
        let wrong = |what: &str| Error::invalid(what).expected("an Ed25519 private key", kind_of(text));
        match label_of(text) {
            Some("PRIVATE KEY") => SigningKey::from_pkcs8_pem(text).map(Self).map_err(|_| {
                wrong("the private key is damaged, or not an Ed25519 key")
                    .help("make one with `openssl genpkey -algorithm ed25519 -out key.pem`")
            }),
            Some("ENCRYPTED PRIVATE KEY") => Err(wrong("the private key is encrypted")
                .help("decrypt it first: `openssl pkey -in key.pem -out plain.pem`")),
            Some("OPENSSH PRIVATE KEY") => Self::parse_openssh(text),
            Some("PUBLIC KEY") => Err(wrong("this is a public key").help("sign with its private key")),
            _ if text.starts_with(SSH_NAME) => {
                Err(wrong("this is a public key").help("sign with its private key"))
            }
            _ => Err(wrong("this is not a private key for signing")
                .help("make one with `openssl genpkey -algorithm ed25519 -out key.pem`")),
        }
    }

    fn parse_openssh(text: &str) -> Result<Self> {
        let damaged = |_| {
            Error::invalid("the private key is damaged, or not an Ed25519 key")
                .help("make one with `ssh-keygen -t ed25519`")
        };
        let key = ssh_key::PrivateKey::from_openssh(in_lines_of_openssh(text)).map_err(damaged)?;
        if key.is_encrypted() {
            return Err(Error::invalid("the private key is encrypted")
                .help("remove the passphrase of a copy: `ssh-keygen -p -N \"\" -f COPY`"));
        }
        let pair = key.key_data().ed25519().ok_or_else(|| {
            Error::invalid("the private key has another algorithm")
                .expected("Ed25519", key.algorithm())
                .help("make one with `ssh-keygen -t ed25519`")
        })?;
        Ok(Self(SigningKey::from_bytes(&pair.private.to_bytes())))
    }

    /// The public key that verifies signatures of this key.
    pub fn public_key(&self) -> PublicKey {
        PublicKey(self.0.verifying_key())
    }

    pub(crate) fn sign(&self, message: &[u8]) -> [u8; SIGNATURE_LEN_BYTES] {
        self.0.sign(message).to_bytes()
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateKey of {}", self.public_key())
    }
}

/// The key with lines of the length that `ssh-keygen` writes: other tools break lines elsewhere,
/// and the parser accepts only this length.
fn in_lines_of_openssh(text: &str) -> String {
    const LINE_LEN: usize = 70;
    let is_mark = |line: &&str| line.starts_with("-----");
    let body: String = text.lines().map(str::trim).filter(|line| !is_mark(line)).collect();
    let mut marks = text.lines().map(str::trim).filter(is_mark);
    let mut lines: Vec<String> = marks.next().map(str::to_owned).into_iter().collect();
    let letters: Vec<char> = body.chars().collect();
    lines.extend(letters.chunks(LINE_LEN).map(|line| line.iter().collect()));
    lines.extend(marks.map(str::to_owned));
    lines.join("\n") + "\n"
}

impl PublicKey {
    /// Reads a file with a public key: SPKI PEM, OpenSSH, or 64 hex digits.
    ///
    /// # Errors
    /// The errors of [`parse`](Self::parse); `NotFound` and other errors of the storage.
    pub fn read(path: impl ToLocation) -> Result<Self> {
        let (text, file) = read_text(path)?;
        Self::parse(&text).in_file(file)
    }

    /// Parses a public key: SPKI PEM, a line of OpenSSH, or 64 hex digits.
    ///
    /// # Errors
    /// `InvalidArgument` for anything else: a private key, a key of another algorithm, a weak key
    /// whose signatures prove nothing.
    pub fn parse(text: &str) -> Result<Self> {
        let text = text.trim();
        let wrong = |what: &str| Error::invalid(what).expected("an Ed25519 public key", kind_of(text));
        let key = match label_of(text) {
            Some("PUBLIC KEY") => VerifyingKey::from_public_key_pem(text)
                .map_err(|_| wrong("the public key is damaged, or not an Ed25519 key"))?,
            Some(_) => {
                return Err(wrong("this is not a public key").help(
                    "give its public key: `openssl pkey -in key.pem -pubout`, or the file `.pub` of \
                     ssh-keygen",
                ));
            }
            None if text.starts_with("ssh-") => {
                let key = ssh_key::PublicKey::from_openssh(text)
                    .map_err(|_| wrong("the public key is damaged, or its algorithm is not known"))?;
                let bytes = key.key_data().ed25519().ok_or_else(|| {
                    wrong("the public key has another algorithm")
                        .help("make one with `ssh-keygen -t ed25519`")
                })?;
                return Self::from_bytes(&bytes.0);
            }
            None => {
                let digits = fixed::<KEY_LEN_BYTES>(text).ok_or_else(|| wrong("this is not a public key"))?;
                return Self::from_bytes(&digits);
            }
        };
        Self::strong(key)
    }

    /// A public key as people give it: the key itself, or the path of a file with it.
    ///
    /// # Errors
    /// The errors of [`parse`](Self::parse) and [`read`](Self::read).
    pub fn parse_or_read(text: &str) -> Result<Self> {
        if Self::is_text_of_key(text) { Self::parse(text) } else { Self::read(text) }
    }

    /// Whether a text is a key, not the name of a key file.
    fn is_text_of_key(text: &str) -> bool {
        let text = text.trim_start();
        text.starts_with("-----BEGIN ")
            || text.starts_with("ssh-ed25519 ")
            || fixed::<KEY_LEN_BYTES>(text).is_some()
    }

    pub(crate) fn from_bytes(bytes: &[u8; KEY_LEN_BYTES]) -> Result<Self> {
        let not_a_key = |_| Error::invalid("these 32 bytes are not an Ed25519 public key");
        Self::strong(VerifyingKey::from_bytes(bytes).map_err(not_a_key)?)
    }

    fn strong(key: VerifyingKey) -> Result<Self> {
        match key.is_weak() {
            false => Ok(Self(key)),
            true => Err(Error::invalid(
                "the public key is weak: its signatures can be forged without the private key",
            )),
        }
    }

    /// The key's 32 bytes.
    pub fn to_bytes(&self) -> [u8; KEY_LEN_BYTES] {
        self.0.to_bytes()
    }

    pub(crate) fn verifies(&self, message: &[u8], signature: &[u8; SIGNATURE_LEN_BYTES]) -> bool {
        self.0.verify_strict(message, &Signature::from_bytes(signature)).is_ok()
    }
}

impl FromStr for PublicKey {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

fn label_of(text: &str) -> Option<&str> {
    text.strip_prefix("-----BEGIN ")?.split_once("-----").map(|(label, _)| label)
}

/// The label for errors, without any part of the key.
fn kind_of(text: &str) -> String {
    match label_of(text) {
        Some(label) => label.to_lowercase(),
        None if text.starts_with("ssh-") => "an OpenSSH public key".to_owned(),
        None => "something else".to_owned(),
    }
}

/// Whether a path looks like a key passed by mistake: it has PEM lines, or the beginning of a key
/// in base64, or a run of letters as long as 32 bytes in base64.
fn may_be_a_key(text: &str) -> bool {
    // The beginnings of PKCS#8 without the public key, PKCS#8 with it, and OpenSSH.
    const OPENINGS: [&str; 3] = ["MC4CAQAwBQYDK2Vw", "MFECAQEwBQYDK2Vw", "b3BlbnNzaC1rZXktdjEA"];
    const BASE64_LEN: usize = 43;
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '+' | '=');
    let has_run = || text.split(|letter| !is_letter(letter)).any(|run| run.len() >= BASE64_LEN);
    let has_opening = || OPENINGS.iter().any(|opening| text.contains(opening));
    text.contains(['\n', '\r']) || text.contains("-----") || has_opening() || has_run()
}

fn read_text(path: impl ToLocation) -> Result<(String, std::path::PathBuf)> {
    let at = path.to_location()?;
    let missing = || {
        let error = Error::new(ErrorKind::NotFound, "the key file does not exist");
        match may_be_a_key(&at.path().to_string_lossy()) {
            true => error.help(
                "the key file does not exist; its path is not shown, since it may be a key \
                itself",
            ),
            false => error.in_file(&at).help("a key is a file, or for a public key its 64 hex digits"),
        }
    };
    if !at.is_file() {
        return Err(missing());
    }
    let bytes = at.read_beginning(FILE_LEN_MAX_BYTES)?.ok_or_else(missing)?;
    let text = String::from_utf8(bytes).map_err(|_| {
        Error::invalid("the key file is not text: regrow reads PEM and OpenSSH keys").in_file(&at)
    })?;
    Ok((text, at.describe()))
}
