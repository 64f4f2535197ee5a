//! Every small world: up to five voters over three sites, each alive, unknown or dead, with and without a learner, for
//! several wishes. Each planned step must pass the independent check, and every plan must end in peace or in a reason
//! that names what is missing.

use std::fmt::Write as _;

use crate::membership::plan;
use crate::membership::quorum::quorum;
use crate::membership::scenario::Story;
use crate::membership::step::{Decision, StepKind};

const SLOTS: [&str; 6] = ["east-0", "west-0", "north-0", "east-1", "west-1", "south-0"];
const LIVES: [&str; 3] = ["alive", "unknown", "dead"];

const WISHES: [&str; 5] = [
    "wish east-0 west-0 north-0",
    "wish east-0 west-0 north-0 east-1 west-1",
    "wish east-0 west-0 south-0",
    "wish east-0\nsingle",
    "wish south-1 south-2 centre-0",
];

fn world(wish: &str, lives: &[usize], learner: Option<usize>) -> String {
    let mut text = format!("{wish}\noffer {} south-1 south-2 centre-0\n", SLOTS.join(" "));
    for (i, life) in lives.iter().enumerate() {
        let leader = if i == 0 { "leader" } else { "" };
        writeln!(text, "member {} {} {} {leader}", i + 1, SLOTS[i], LIVES[*life]).unwrap();
    }
    if let Some(life) = learner {
        writeln!(text, "member 9 {} learner {}", SLOTS[lives.len()], LIVES[life]).unwrap();
    }
    text
}

/// The leader leads, so it is alive; everybody else is anything.
fn each_world(mut visit: impl FnMut(&str)) -> usize {
    let mut worlds = 0;
    for wish in WISHES {
        for voters in 1..=5_u32 {
            for code in 0..3_usize.pow(voters - 1) {
                let mut lives = vec![0];
                lives.extend((0..voters - 1).map(|i| code / 3_usize.pow(i) % 3));
                for learner in [None, Some(0), Some(1), Some(2)] {
                    worlds += 1;
                    visit(&world(wish, &lives, learner));
                }
            }
        }
    }
    worlds
}

#[test]
fn every_step_in_every_small_world_passes_the_independent_check() {
    let mut steps = 0;
    let worlds = each_world(|text| {
        let story = Story::read(text);
        let (view, wish) = (story.view(), story.wish());
        match plan::next(&view, &wish) {
            Decision::Step(step) => {
                steps += 1;
                assert_eq!(story.check(&step.kind), Ok(()), "{step}\n{text}");
                assert!(step.before.margin() >= 0 && step.after.margin() >= 0, "{step}\n{text}");
                if let StepKind::Remove { member, learner: false } = step.kind {
                    let target = view.member(member).unwrap();
                    let others = view.voters().filter(|m| m.id != member).all(|m| m.life.alive());
                    assert!(target.life.dead() || others, "I3: {step}\n{text}");
                }
            }
            Decision::Wait(reason) | Decision::Refuse(reason) => {
                let named = reason.member.is_some() || reason.site.is_some();
                assert!(named || reason.need > 0, "a reason that names nothing: {reason}\n{text}");
            }
            Decision::Done => assert!(view.voters().all(|m| m.life.alive()), "{text}"),
        }
    });
    assert!(worlds >= 1_900 && steps >= 500, "{worlds} worlds, {steps} steps");
}

#[test]
fn every_plan_ends_as_wished_when_only_the_provably_dead_are_missing() {
    each_world(|text| {
        let story = Story::read(text);
        let (view, wish) = (story.view(), story.wish());
        let alive = view.voters().filter(|m| m.life.alive()).count();
        let certain = view.members.iter().all(|m| m.life.alive() || m.life.dead());
        if !certain || alive < quorum(view.voters().count()) {
            return;
        }
        let (steps, end) = plan::plan(&view, &wish);
        assert_eq!(end, Decision::Done, "{} steps, then {end:?}\n{text}", steps.len());
        assert!(steps.len() <= 16, "{} steps\n{text}", steps.len());
    });
}

#[test]
fn without_a_quorum_nothing_is_ever_done() {
    each_world(|text| {
        let story = Story::read(text);
        let view = story.view();
        if view.voters().filter(|m| m.life.alive()).count() < quorum(view.voters().count()) {
            let decision = plan::next(&view, &story.wish());
            assert_eq!(decision.reason().map(|r| r.code.name()), Some("QuorumLost"), "{decision:?}\n{text}");
        }
    });
}
