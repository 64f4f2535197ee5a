//! The supervisor as a process, with a real etcd, real certificates and the real member API.
//!
//! This binary is three things: the tests, `member` (the supervisor), and `__etcd` (the helper that becomes etcd). That
//! is why it has its own main and speaks the little of libtest's protocol that cargo and nextest need.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod cases;
mod site;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use quorate_link::drain::Drain;
use quorate_member::{Options, Service, exec_etcd};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["__etcd", ..] => {
            eprintln!("{}", exec_etcd(std::env::args_os().skip(2)));
            ExitCode::FAILURE
        }
        ["member", config] => supervise(Path::new(config)),
        _ => test(&args),
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn supervise(config: &Path) -> ExitCode {
    let options = Options::load(config).unwrap();
    runtime().block_on(async {
        let drain = Drain::new();
        drain.on_signals().unwrap();
        let result = Service::run(options, drain.clone()).await;
        drain.finish(Duration::from_secs(10)).await;
        match result {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}: {:?}", std::error::Error::source(&error));
                ExitCode::FAILURE
            }
        }
    })
}

fn test(args: &[String]) -> ExitCode {
    let has = |flag: &str| args.iter().any(|arg| arg == flag);
    if has("--list") {
        if !has("--ignored") {
            for (name, _) in cases::ALL {
                println!("{name}: test");
            }
        }
        return ExitCode::SUCCESS;
    }
    let filters: Vec<&String> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    let wanted = |name: &str| {
        filters.is_empty()
            || filters
                .iter()
                .any(|filter| if has("--exact") { name == *filter } else { name.contains(*filter) })
    };
    let mut failed = 0;
    for (name, case) in cases::ALL.iter().filter(|(name, _)| wanted(name)) {
        // One after the other: they start real etcds.
        let passed = std::panic::catch_unwind(|| runtime().block_on(case())).is_ok();
        println!("test {name} ... {}", if passed { "ok" } else { "FAILED" });
        failed += usize::from(!passed);
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
