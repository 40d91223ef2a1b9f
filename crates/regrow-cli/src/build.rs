//! The version of this build of the command. The build script `build.rs` computes it.

use std::sync::LazyLock;

use regrow_storage::schemes;
use serde_json::{Value, json};

const VERSION: &str = env!("CARGO_PKG_VERSION");
const TARGET: &str = env!("REGROW_BUILD_TARGET");
const PROFILE: &str = env!("REGROW_BUILD_PROFILE");
const COMPILER: &str = env!("REGROW_BUILD_COMPILER");
const COMMIT: &str = env!("REGROW_BUILD_COMMIT");

/// The text that `regrow --version` prints after the name.
pub static LONG_VERSION: LazyLock<String> = LazyLock::new(|| {
    let urls: Vec<String> = schemes().map(|scheme| format!("{scheme}://")).collect();
    format!(
        "{VERSION}\ncommit    {COMMIT}\nbuild     {PROFILE}, {TARGET}\ncompiler  {COMPILER}\nURLs      {}",
        urls.join(" ")
    )
});

pub const SUMMARY: &str =
    concat!(env!("CARGO_PKG_VERSION"), ", ", env!("REGROW_BUILD_PROFILE"), ", ", env!("REGROW_BUILD_TARGET"));

pub fn as_json() -> Value {
    json!({
        "version": VERSION,
        "commit": Some(COMMIT).filter(|commit| *commit != "not known"),
        "profile": PROFILE,
        "target": TARGET,
        "compiler": COMPILER,
        "url_schemes": schemes().collect::<Vec<_>>(),
    })
}
