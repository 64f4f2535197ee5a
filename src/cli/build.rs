//! The git hash for `quorate version`: from the environment, else from git, else none. Only release builds ask git:
//! a development build would be made anew with every commit.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=QUORATE_GIT_HASH");
    let given = std::env::var("QUORATE_GIT_HASH").ok();
    let release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let hash = given.or_else(|| if release { git() } else { None });
    println!("cargo:rustc-env=QUORATE_GIT_HASH={}", hash.as_deref().unwrap_or("unknown"));
    println!("cargo:rustc-env=QUORATE_TARGET={}", std::env::var("TARGET").unwrap_or_default());
}

fn git() -> Option<String> {
    println!("cargo:rerun-if-changed=../../.git/logs/HEAD");
    let output = Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).output().ok()?;
    let hash = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !hash.is_empty()).then_some(hash)
}
