//! Values that must not be printed.

/// Whether the value of a key of `object_store` may be a secret.
pub(super) fn is_secret(key: &str) -> bool {
    const PARTS: [&str; 9] = [
        "secret",
        "token",
        "access_key",
        "account_key",
        "sas",
        "service_account_key",
        "bearer",
        "customer_key",
        "encryption_key",
    ];
    PARTS.iter().any(|part| key.contains(part)) && !key.ends_with("_file") && !key.ends_with("_url")
}

/// Whether a URL has a user or a password. The URL of a proxy may have them.
pub(super) fn has_userinfo(value: &str) -> bool {
    value
        .split_once("://")
        .is_some_and(|(_, rest)| rest.split(['/', '?']).next().is_some_and(|host| host.contains('@')))
}

/// The parts of a value that must not be printed: the whole value, and the fields of JSON and of a
/// query.
pub(super) fn secrets_of(value: &str) -> Vec<String> {
    let mut secrets = vec![value.to_owned()];
    if let Ok(serde_json::Value::Object(fields)) = serde_json::from_str(value) {
        let private =
            fields.iter().filter(|(name, _)| name.contains("private_key") || name.contains("secret"));
        secrets.extend(private.filter_map(|(_, value)| value.as_str().map(str::to_owned)));
    }
    if let Some((_, rest)) = value.split_once("://")
        && let Some((userinfo, _)) = rest.split_once('@')
    {
        secrets.extend(userinfo.split(':').map(str::to_owned));
    }
    secrets.extend(
        value
            .split('&')
            .filter_map(|pair| pair.trim_start_matches('?').strip_prefix("sig="))
            .map(str::to_owned),
    );
    secrets.retain(|secret| secret.len() >= 4);
    secrets
}
