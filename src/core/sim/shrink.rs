//! The shortest list of faults that still breaks the same invariant.

use super::faults::Timed;
use super::history::{Report, faults_of, play};

/// Takes faults away one by one, as long as the same invariant stays broken.
pub fn shrink(seed: u64) -> (Vec<Timed>, Report) {
    let mut faults = faults_of(seed);
    let mut report = play(seed, Some(&faults), true);
    let Some(invariant) = report.violations.first().map(|v| v.invariant) else { return (faults, report) };
    let mut at = faults.len();
    while at > 0 {
        at -= 1;
        let mut fewer = faults.clone();
        fewer.remove(at);
        let again = play(seed, Some(&fewer), true);
        if again.violations.first().is_some_and(|v| v.invariant == invariant) {
            faults = fewer;
            report = again;
        }
    }
    (faults, report)
}
