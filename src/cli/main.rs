//! The one binary of quorate, also installed as `kubectl-quorate`.

use std::process::ExitCode;

fn main() -> ExitCode {
    quorate_cli::cmd::main(std::env::args_os())
}
