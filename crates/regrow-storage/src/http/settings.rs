//! The storage options of a web server.

use std::time::Duration;

use reqwest::{Certificate, Client, Proxy};

use crate::StorageOptions;
use crate::error::{Error, ErrorKind, Result};

/// Longest file of certificates. A usual one has about 200 KB.
const CA_BUNDLE_LEN_MAX_BYTES: u64 = 16 << 20;

/// Longest time-out that is accepted, so that sums of times do not overflow.
const TIMEOUT_MAX_SECONDS: f64 = 86_400.0;

const RETRIES_MAX: u32 = 100;

/// How to reach a web server.
#[derive(Clone, PartialEq)]
pub(super) struct Settings {
    /// A bearer token, sent with every request.
    pub token: Option<String>,
    pub connect_timeout: Duration,
    pub read_timeout: Duration,
    pub max_retries: u32,
    ca_bundle: Option<String>,
    proxy: Option<String>,
}

impl Settings {
    pub fn of(options: &StorageOptions) -> Result<Self> {
        let mut settings = Self {
            token: None,
            connect_timeout: Duration::from_secs(10),
            read_timeout: Duration::from_secs(30),
            max_retries: 5,
            ca_bundle: None,
            proxy: None,
        };
        for (name, value) in options.iter() {
            let invalid = |what: &str| Error::invalid(format!("the storage option {name} {what}"));
            let seconds = || match value.parse::<f64>() {
                Ok(seconds) if seconds > 0.0 && seconds <= TIMEOUT_MAX_SECONDS => {
                    Ok(Duration::from_secs_f64(seconds))
                }
                _ => Err(invalid("is a number of seconds, at most a day")),
            };
            match name {
                "token" | "bearer_token" => settings.token = Some(value.to_owned()),
                "connect_timeout" => settings.connect_timeout = seconds()?,
                "read_timeout" => settings.read_timeout = seconds()?,
                "max_retries" => {
                    let retries = value.parse().ok().filter(|&retries| retries <= RETRIES_MAX);
                    settings.max_retries = retries.ok_or_else(|| invalid("is a number from 0 to 100"))?;
                }
                "ca_bundle" | "verify" => settings.ca_bundle = Some(value.to_owned()),
                "proxy_url" | "proxy" => settings.proxy = Some(value.to_owned()),
                "anon" | "anonymous" => {}
                _ => {
                    return Err(invalid("is not an option of web servers").help(
                        "the options are token, connect_timeout, read_timeout, max_retries, ca_bundle and \
                         proxy_url",
                    ));
                }
            }
        }
        Ok(settings)
    }

    /// A name that is equal for servers that can share connections.
    pub fn name(&self) -> String {
        let Self { token: _, connect_timeout, read_timeout, max_retries: _, ca_bundle, proxy } = self;
        format!("{connect_timeout:?} {read_timeout:?} {ca_bundle:?} {proxy:?}")
    }

    pub fn client(&self) -> Result<Client> {
        let mut client = Client::builder()
            .user_agent(concat!("regrow/", env!("CARGO_PKG_VERSION")))
            // A referer would send the query of a URL, which may be a secret, to another host.
            .referer(false)
            .connect_timeout(self.connect_timeout)
            .read_timeout(self.read_timeout);
        if let Some(file) = &self.ca_bundle {
            client = client.tls_certs_merge(certificates(file)?);
        }
        if let Some(proxy) = &self.proxy {
            // The error would print the address, which may hold a password.
            let proxy = Proxy::all(proxy.as_str())
                .map_err(|_| Error::invalid("the storage option proxy_url is not a URL"))?;
            client = client.proxy(proxy);
        }
        client.build().map_err(|error| {
            Error::new(ErrorKind::Io, format!("cannot set up access to web servers: {}", error.without_url()))
        })
    }
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Settings")
    }
}

fn certificates(file: &str) -> Result<Vec<Certificate>> {
    let cannot_read = |error| Error::io("cannot read", file, error);
    let len_bytes = std::fs::metadata(file).map_err(cannot_read)?.len();
    if len_bytes > CA_BUNDLE_LEN_MAX_BYTES {
        return Err(Error::new(ErrorKind::Limit, "a file of certificates is too large")
            .in_file(file)
            .expected(format_args!("at most {CA_BUNDLE_LEN_MAX_BYTES} bytes"), len_bytes));
    }
    let text = std::fs::read(file).map_err(cannot_read)?;
    Certificate::from_pem_bundle(&text)
        .map_err(|error| Error::invalid(format!("not certificates in PEM: {error}")).in_file(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_make_no_sense_are_refused() {
        for (name, value) in [
            ("region", "x"),
            ("read_timeout", "-1"),
            ("read_timeout", "inf"),
            ("connect_timeout", "NaN"),
            ("max_retries", "1e9"),
        ] {
            let error = Settings::of(&StorageOptions::new().with(name, value)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{name}={value}");
        }
        let options = StorageOptions::new().with("token", "secret").with("proxy", "http://me:secret@host");
        let settings = Settings::of(&options).unwrap();
        assert!(!format!("{settings:?}").contains("secret"));
    }
}
