//! URLs of a web server: parsed once, and built for each request.
//!
//! A path is stored decoded: `https://host/my%20run` is the path `my run`, and a joined name may
//! have any character. The user and the query of a URL are sent with every request, and never
//! printed, because both may be secrets.

use reqwest::Url;

use crate::error::{Error, Result};

/// The parts of a URL.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Address {
    /// Scheme, host and port, for example `https://host:8000`.
    pub root: String,
    /// The part after the slash, decoded.
    pub path: String,
    /// The query, which is added to every path.
    pub query: Option<String>,
    pub user: Option<(String, String)>,
}

impl Address {
    pub fn parse(text: &str) -> Result<Self> {
        let refused = |what: &str| Error::invalid(format!("this is not a URL of a web server: {what}"));
        // The text before an `@` may be a secret, even if it holds a `?` or a `#`. The text after a
        // `?` may be a secret, too.
        let shown = text.rsplit_once('@').map_or(text, |(_, rest)| rest);
        let shown = shown.split(['?', '#']).next().unwrap_or_default();
        let parse = || {
            let url = Url::parse(text).map_err(|error| refused(&error.to_string()))?;
            if !url.has_host() || url.cannot_be_a_base() {
                return Err(refused("it has no host"));
            }
            let decode = |text: &str| {
                decode(text).ok_or_else(|| {
                    refused("after `%` come two hexadecimal digits, and the decoded path is UTF-8")
                })
            };
            let parts = url.path().trim_matches('/').split('/');
            let parts = parts.map(decode).collect::<Result<Vec<String>>>()?;
            if parts.iter().any(|part| part.contains(['/', '\0'])) {
                return Err(refused("a name in its path contains a slash"));
            }
            let user = match (url.username(), url.password()) {
                ("", None) => None,
                (user, password) => Some((decode(user)?, decode(password.unwrap_or_default())?)),
            };
            let root = url.origin().ascii_serialization();
            Ok(Self { root, path: parts.join("/"), query: url.query().map(str::to_owned), user })
        };
        parse().map_err(|error: Error| error.in_file(shown))
    }

    /// A path on this server as messages show it.
    pub fn shown(&self, path: &str) -> String {
        format!("{}/{}", self.root, encode(path))
    }

    pub fn request(&self, path: &str) -> String {
        match &self.query {
            Some(query) => format!("{}?{query}", self.shown(path)),
            None => self.shown(path),
        }
    }
}

impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown(&self.path))
    }
}

/// Encodes a path for a URL, including every character that has a meaning for some server.
fn encode(path: &str) -> String {
    let mut encoded = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                encoded.push(char::from(byte));
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

fn decode(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let mut digit = || char::from(bytes.next()?).to_digit(16);
        let (high, low) = (digit()?, digit()?);
        decoded.push(u8::try_from(16 * high + low).ok()?);
    }
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_come_back_and_secrets_stay_inside() {
        let address =
            Address::parse("https://me:p%40ss@host:8000/a%20b/gr%C3%B6%C3%9Fe/?sig=secret#x").unwrap();
        assert_eq!(address.root, "https://host:8000");
        assert_eq!(address.path, "a b/größe");
        assert_eq!(address.user, Some(("me".to_owned(), "p@ss".to_owned())));
        assert_eq!(address.shown("a b/100%+?.npy"), "https://host:8000/a%20b/100%25%2B%3F.npy");
        assert_eq!(address.request("x"), "https://host:8000/x?sig=secret");
        let printed = format!("{address:?}");
        assert!(!printed.contains("secret") && !printed.contains("p@ss"), "{printed}");
        assert_eq!(Address::parse("http://host").unwrap().path, "");
        assert_eq!(Address::parse("http://host/a/../b").unwrap().path, "b");
    }

    #[test]
    fn what_is_no_url_is_refused() {
        for text in [
            "http://",
            "http://ho st/x",
            "http://host/%zz",
            "http://host/%ff",
            "http://host/a%2fb",
            "http://[::1/x",
        ] {
            let error = Address::parse(text).unwrap_err();
            assert_eq!(error.kind(), crate::error::ErrorKind::InvalidArgument, "{text}");
        }
        let error = Address::parse("http://me:secret@ho st/x?secret").unwrap_err();
        assert!(!format!("{error}").contains("secret"), "{error}");
    }
}
