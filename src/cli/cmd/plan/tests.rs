use super::*;
use crate::cmd::status::tests::{edge, fixture, moving, stopped, unborn};

#[test]
fn plans_in_every_mood() {
    insta::assert_snapshot!("done", text(&fixture(|_| {})));
    insta::assert_snapshot!("moving", text(&moving()));
    insta::assert_snapshot!("edge", text(&edge()));
    insta::assert_snapshot!("stopped", text(&stopped()));
    insta::assert_snapshot!("unborn", text(&unborn()));
}

#[test]
fn an_override_names_rule_and_operation() {
    let mut status = moving();
    status.reason = Some(quorate_core::reason::Reason::new(Code::LeaderUnstable));
    assert_eq!(
        paste(&status).unwrap().lines,
        "spec:\n  override:\n    rule: I13\n    operation: ReplaceLive/91bc3c398fb3c146\n    by: YOUR NAME\n"
    );
    for code in [Code::TooSoon, Code::QuorumLost, Code::LearnerLagging, Code::SpecDrift] {
        status.reason = Some(quorate_core::reason::Reason::new(code));
        assert!(paste(&status).is_none(), "{code:?}");
    }
}
