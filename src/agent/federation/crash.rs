//! Moments at which a test ends the agent: only with the feature `crash-points`, which no release has.
//!
//! The file `<stateDir>/crash-point` names one, or one on each line of which the first to come counts: the step, the number of the effect in its run, and the effect that would be
//! next, as in `Promote 7 Send`. All effects before it are done, it is not begun. Two moments lie within an effect: the own
//! record is written, and no other agent was told of it (`ProposeOwn`, `TellOwn`).

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use quorate_core::executor::Effect;
use rustix::process::{Signal, getpid, kill_process};

#[cfg(not(debug_assertions))]
compile_error!("crash-points is for tests: leave the feature out of a release build");

static FILE: OnceLock<PathBuf> = OnceLock::new();

/// Looks for the file in this state folder from now on.
pub(crate) fn arm(state_dir: &Path) {
    FILE.get_or_init(|| state_dir.join("crash-point"));
}

/// The effect as the file names it.
pub(super) const fn name(effect: &Effect) -> &'static str {
    match effect {
        Effect::ProveRole => "ProveRole",
        Effect::Collect(_) => "Collect",
        Effect::Look => "Look",
        Effect::Propose(..) => "Propose",
        Effect::MarkSent(..) => "MarkSent",
        Effect::Send { .. } => "Send",
        Effect::Wait(_) => "Wait",
        Effect::Tell(..) => "Tell",
        Effect::Finish(_) => "Finish",
    }
}

/// Ends the agent the hard way if this is the moment that the file names.
pub(super) fn reached(step: &str, number: u32, moment: &str) {
    let Some(file) = FILE.get() else { return };
    let Ok(wanted) = std::fs::read_to_string(file) else { return };
    let now = format!("{step} {number} {moment}");
    if !wanted.lines().any(|line| line.trim() == now) {
        return;
    }
    // Once: the agent that is started next goes on.
    if std::fs::remove_file(file).is_ok() && kill_process(getpid(), Signal::KILL).is_ok() {
        loop {
            std::thread::park();
        }
    }
}
