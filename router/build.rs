//! The commit, for `--version`, the log's first line, `/info` and `te_build_info`.
//!
//! Input: the variable `GIT_SHA`, else, in release builds, the commit of the checkout. Output:
//! `ROUTER_COMMIT`, absent if neither is known, and `ROUTER_VERSION`, the version with the commit if it is
//! known. A development build does not ask git, because it would be rebuilt for every commit.

use std::{env, path::Path, process::Command};

fn main() {
    println!("cargo:rerun-if-env-changed=GIT_SHA");
    println!("cargo:rerun-if-changed=build.rs");
    let given = env::var("GIT_SHA").ok().filter(|commit| !matches!(commit.as_str(), "" | "unknown"));
    let is_release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let mut version = env!("CARGO_PKG_VERSION").to_owned();
    if let Some(commit) = given.or_else(|| is_release.then(commit).flatten()) {
        println!("cargo:rustc-env=ROUTER_COMMIT={commit}");
        let short: String = commit.chars().take(12).collect();
        version = format!("{version} (commit {short})");
    }
    println!("cargo:rustc-env=ROUTER_VERSION={version}");
}

/// The commit of the checkout that this folder belongs to.
fn commit() -> Option<String> {
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    if Path::new(&log).exists() {
        println!("cargo:rerun-if-changed={log}");
    }
    git(&["rev-parse", "HEAD"])
}

fn git(arguments: &[&str]) -> Option<String> {
    let output =
        Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned()).filter(|line| !line.is_empty())
}
