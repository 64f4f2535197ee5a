//! Crossed, repeated and late proposals: each history was once a way around the rules of safety.md section 4.

use crate::executor::*;
use crate::federation::layout::default_zone;
use crate::federation::member::{IncarnationState, Process};
use crate::federation::observed::*;
use crate::federation::track::{Frame, Tracker};
use crate::federation::view::View;
use crate::id::*;
use crate::intent::record::{Record, Witness};
use crate::intent::resolve::{self, Ending, Evidence};
use crate::intent::*;
use crate::membership::scenario::Story;
use crate::membership::{plan, step::Decision};
use std::sync::Arc;

fn site(n: &str) -> SiteName {
    SiteName::new(n).unwrap()
}
fn key() -> FederationKey {
    serde_json::from_str(r#"{"namespace": "etcd", "name": "main"}"#).unwrap()
}
fn intent(seq: u64, op: u128, kind: IntentKind, by: &str, operation: OperationKind) -> Arc<Intent> {
    Arc::new(Intent {
        uid: Uid(7),
        epoch: Epoch(1),
        seq: Seq(seq),
        op: OpId(op),
        kind,
        list: Digest([0; 32]),
        term: Term(3),
        executors: vec![site(by)],
        operation: Operation { kind: operation, source: None, new: None },
        closes: vec![],
        closes_ops: vec![],
        exception: None,
        lost_members: vec![],
        spec: None,
        closed: Vec::new(),
    })
}
type Held = Option<Arc<HeldIntent>>;

#[expect(clippy::unnecessary_wraps, reason = "what a record holds is optional")]
fn held(i: &Arc<Intent>, state: IntentState, sent: bool) -> Held {
    Some(Arc::new(HeldIntent { intent: i.clone(), state, sent_by_me: sent }))
}
fn rec(h: Option<Arc<HeldIntent>>) -> Record {
    let mut r = Record::new(key());
    r.uid = Some(Uid(7));
    r.epoch = Epoch(1);
    r.intent = h;
    r
}
fn with_own_intent(view: &mut View, h: &Held) {
    let me = view.me.clone();
    for s in &mut view.sites {
        if s.name == me {
            let mut o = s.observation.as_deref().unwrap().clone();
            o.record = Arc::new(rec(h.clone()).summary());
            s.observation = Some(Arc::new(o));
        }
    }
}
fn act(r: &Record, name: &str, i: &Arc<Intent>) -> Result<Record, crate::reason::Code> {
    r.propose(i, Witness { site: &site(name), record_missing: false, exception: None, lost_members: &[] })
        .map_err(|e| e.code)
}
/// Drives one run over records; returns outcome; silent sites do not answer.
fn drive(
    me: &str,
    story: &Story,
    records: &mut [(SiteName, Record)],
    silent: &[&str],
    opid: u128,
) -> Outcome {
    let list = story.view().list.unwrap();
    let role = Role { leads: true, term: Term(3), list, at_ms: 0 };
    let mut e = Executor::new(Identity { me: site(me), uid: Uid(7), epoch: Epoch(1), deadline_ms: 7_000 });
    let mut answer = Answer::Start;
    for _ in 0..60 {
        answer = match e.step(answer) {
            Effect::ProveRole => Answer::Role(Some(role.clone())),
            Effect::Collect(_) => Answer::Records(
                records
                    .iter()
                    .map(|(n, r)| (n.clone(), (!silent.contains(&n.as_str())).then(|| r.summary())))
                    .collect(),
            ),
            Effect::Look => Answer::Looked(Box::new(Look {
                view: story.view(),
                wish: story.wish(),
                raw: story.raw(),
                spec: None,
                fresh: OpId(opid),
            })),
            Effect::Propose(i, _) => Answer::Acks(
                records
                    .iter_mut()
                    .filter(|(n, _)| !silent.contains(&n.as_str()))
                    .map(|(n, r)| {
                        let ack = r.propose(
                            &i,
                            Witness { site: n, record_missing: false, exception: None, lost_members: &[] },
                        );
                        (
                            n.clone(),
                            ack.map(|next| {
                                *r = next;
                                r.intent.as_ref().unwrap().sent_by_me
                            }),
                        )
                    })
                    .collect(),
            ),
            Effect::MarkSent(seq, sent) => {
                let r = &mut records.iter_mut().find(|(n, _)| n.as_str() == me).unwrap().1;
                match r.mark_sent(seq, sent) {
                    Some(n) => {
                        *r = n;
                        Answer::Marked(true)
                    }
                    None => Answer::Marked(false),
                }
            }
            Effect::Send { .. } => Answer::Sent(CallResult::Unknown),
            Effect::Wait(_) => Answer::Waited,
            Effect::Tell(res, _) => {
                for (n, r) in records.iter_mut() {
                    if !silent.contains(&n.as_str()) {
                        *r = r.resolve(&res);
                    }
                }
                Answer::Told
            }
            Effect::Finish(o) => return o,
        };
    }
    panic!("no end")
}

/// "Remove learner" is repeated without a look at what the member is by now.
#[test]
fn a_closing_removal_of_a_learner_that_became_a_voter_is_judged() {
    // Promote(3) arrived late; voter 2 is silent: 2 of 3 alive, margin 0.
    let story =
        Story::read("wish east west north\nmember 1 east leader\nmember 2 west unknown\nmember 3 north");
    let (view, wish) = (story.view(), story.wish());
    let i = intent(
        6,
        2,
        IntentKind::Remove { member: MemberId(3), learner: true },
        "east",
        OperationKind::DropLearner,
    );
    let records = vec![(site("east"), Some(rec(held(&i, IntentState::Open, true)).summary()))];
    let list = view.list.clone().unwrap();
    let e = resolve::ending(&i, Evidence { list: &list, records: &records, view: &view, wish: &wish });
    assert!(matches!(e, Ending::Wait(_) | Ending::Voidable), "removes alive voter 3 at margin 0: {e:?}");
}

/// two agents hold the same op under different numbers; nothing can close it without the third.
#[test]
fn an_op_open_under_two_numbers_can_be_closed() {
    let story = Story::read(
        "wish east west north\nmember 1 east leader\nmember 2 west\nmember 3 north unknown\nsilent north",
    );
    // Slot no longer wished is not needed: executor east attests "not sent", so the op is voidable.
    let kind = IntentKind::Remove { member: MemberId(3), learner: false };
    let old = intent(5, 1, kind.clone(), "east", OperationKind::ReplaceLive);
    let new = intent(7, 1, kind, "east", OperationKind::ReplaceLive);
    let mut records = vec![
        (site("east"), rec(held(&new, IntentState::Open, false))),
        (site("west"), rec(held(&old, IntentState::Open, false))),
    ];
    let mut last = None;
    for n in 0..5 {
        last = Some(drive("east", &story, &mut records, &["north"], 100 + n));
    }
    assert!(
        records.iter().all(|(_, r)| !r.intent.as_ref().unwrap().open()),
        "after five runs: {last:?}; west holds {:?}",
        records[1].1.intent
    );
}

/// a Void that closes another op is itself voided: the op it closed is forgotten unproven; then it takes effect.
#[test]
fn an_activation_that_was_voided_does_not_take_effect() {
    let story = Story::read("wish east west north\nmember 1 east leader\nmember 2 west\nmember 3 north");
    let spec: crate::federation::spec::Spec = serde_json::from_value(
        serde_json::json!({"clusters": [{"name": "east"}, {"name": "north"}, {"name": "west"}]}),
    )
    .unwrap();
    // north led, proposed an activation, has all acks in its inbox, and has not yet told. It now answers east.
    let mut x = intent(
        5,
        1,
        IntentKind::ActivateSpec { generation: Generation(2), digest: Digest([9; 32]), timing: None },
        "north",
        OperationKind::Activate,
    )
    .as_ref()
    .clone();
    x.spec = Some(Arc::new(spec));
    let x = Arc::new(x);
    let mut records: Vec<_> =
        ["east", "west", "north"].map(|n| (site(n), act(&rec(None), n, &x).unwrap())).to_vec();
    for n in 0..3 {
        drive("east", &story, &mut records, &[], 200 + n);
    }
    let state = records[0].1.intent.clone().unwrap();
    let voided = matches!(state.intent.kind, IntentKind::Void { .. }) && state.state == IntentState::Applied;
    // north's machine takes its acks: tells `applied`.
    let told = Resolution {
        uid: Uid(7),
        epoch: Epoch(1),
        seq: Seq(5),
        op: OpId(1),
        state: IntentState::Applied,
        closed: vec![],
        intent: x,
    };
    for (_, r) in &mut records {
        *r = r.resolve(&told);
    }
    assert!(
        !(voided && records.iter().any(|(_, r)| r.effective.is_some())),
        "voided by east, and generation 2 is effective all the same"
    );
}

/// the chain: the executor of X never answers, and X is forgotten through Void(Void(X)).
#[test]
fn what_a_void_closes_is_not_forgotten_by_voiding_the_void() {
    let story = Story::read(
        "wish east west north\nmember 1 east leader\nmember 2 west\nmember 3 north unknown\nsilent north",
    );
    let x = intent(
        5,
        1,
        IntentKind::ActivateSpec { generation: Generation(2), digest: Digest([9; 32]), timing: None },
        "north",
        OperationKind::Activate,
    );
    let v = {
        let mut v = intent(6, 2, IntentKind::Void { closes: OpId(1) }, "east", OperationKind::Activate)
            .as_ref()
            .clone();
        v.closes = vec![Seq(5)];
        v.closes_ops = vec![OpId(1)];
        v.executors = vec![site("north")];
        Arc::new(v)
    };
    // east proposed Void(X) after north's record said "not sent"; north then fell silent: no attestation under number 6.
    let mut records: Vec<_> =
        ["east", "west"].map(|n| (site(n), act(&act(&rec(None), n, &x).unwrap(), n, &v).unwrap())).to_vec();
    records.push((site("north"), act(&rec(None), "north", &x).unwrap()));
    let out = drive("east", &story, &mut records, &["north"], 300);
    assert!(
        matches!(out, Outcome::Interrupted(_)),
        "{out:?}: x is forgotten although its executor attested nothing to the void"
    );
}

/// I9's comparison after a promotion is skipped once another intent followed.
#[test]
fn the_promoted_voter_is_compared_also_after_an_activation() {
    let story = Story::read(
        "wish east west north\noffer north\nmember 1 east leader uncompared\nmember 2 west uncompared",
    );
    let promoted = intent(5, 1, IntentKind::Promote { member: MemberId(2) }, "east", OperationKind::ScaleUp);
    let after = intent(
        6,
        2,
        IntentKind::ActivateSpec { generation: Generation(2), digest: Digest([0; 32]), timing: None },
        "east",
        OperationKind::Activate,
    );
    let mut view = story.view();
    with_own_intent(&mut view, &held(&promoted, IntentState::Applied, false));
    let d = plan::next(&view, &story.wish());
    assert!(matches!(d, Decision::Wait(_)), "sanity: {d:?}");
    with_own_intent(&mut view, &held(&after, IntentState::Applied, false));
    let d = plan::next(&view, &story.wish());
    assert!(
        matches!(d, Decision::Wait(_)),
        "next step without the comparison: {:?}",
        d.step().map(ToString::to_string)
    );
}

/// a planned move counts as unplanned for every other agent.
#[test]
fn planned_moves_of_others_do_not_freeze_and_starved_leaders_do() {
    let me = site("north");
    let mut t = Tracker::new(me.clone(), key(), 0);
    let slot = |s: &str| Slot { site: site(s), ordinal: 0, zone: default_zone() };
    let url = |s: &str| PeerUrl(format!("https://main-{s}-0.{s}.quorate.test:2380").into());
    let list = MemberList::new(
        vec![("east", 1), ("west", 2), ("north", 3)]
            .into_iter()
            .map(|(s, id)| ListedMember {
                id: MemberId(id),
                name: "n".into(),
                peer_url: url(s),
                learner: false,
            })
            .collect(),
    );
    let obs = |s: &str, id: u64, leads: Option<u64>, moved: Option<(u64, u64)>| {
        let mut o = SiteObservation::empty(site(s));
        o.members.push(LocalMember {
            slot: slot(s),
            incarnation: IncarnationId(id.into()),
            state: IncarnationState::Voter,
            member: Some(MemberId(id)),
            peer_url: url(s),
            options: None,
            moves_to: None,
            restart: false,
            process: Process::Running,
            status: Some(Status {
                cluster: ClusterId(1),
                member: MemberId(id),
                leader: None,
                term: Term(1),
                index: Index(1),
                applied: Index(1),
                revision: Revision(1),
                db_size: 1,
                version: Version::default(),
                learner: false,
                alarm: false,
                faulty: false,
                list: None,
                ready: true,
                downgrading: false,
            }),
            certificates_good: true,
        });
        o.moved = moved.map(|(to, term)| (MemberId(to), Term(term)));
        o.leader = leads.map(|t| LeaderClaim {
            member: MemberId(id),
            term: Term(t),
            commit: Index(1),
            list: list.clone(),
            checks: vec![],
        });
        Arc::new(o)
    };
    // Nobody moved leadership: a leader that stands still, without a disk or a processor say, runs and does not answer (S45).
    // One whose process has ended explains the change that follows.
    for (process, unplanned) in [(Process::Running, 1), (Process::Exited, 0)] {
        let mut starved = Tracker::new(me.clone(), key(), 0);
        starved.hear(obs("east", 1, Some(1), None), 0, 1_000);
        let mut silent = (*obs("east", 1, None, None)).clone();
        (silent.members[0].status, silent.members[0].process) = (None, process.clone());
        // Its agent waits for an answer of etcd and speaks meanwhile: what it says gets old.
        starved.hear(Arc::new(silent), 0, 2_000);
        starved.renew(&site("east"), 2_900, 4_900);
        starved.hear(obs("west", 2, Some(2), None), 0, 5_000);
        let none = std::collections::BTreeSet::new();
        let v = starved.view(Frame {
            now: 5_100,
            cluster: None,
            removed: &none,
            wish: None,
            expected: &[],
            settle_ms: 5_000,
        });
        assert_eq!(v.leader_changes, unplanned, "{process:?}");
    }
    t.hear(obs("east", 1, Some(1), None), 0, 1_000);
    t.hear(obs("west", 2, None, None), 0, 1_000);
    // east's executor: MoveLeader west (I10 before its removal); then west's: MoveLeader east.
    t.hear(obs("west", 2, Some(2), None), 0, 2_000);
    t.hear(obs("east", 1, None, Some((2, 1))), 0, 2_000);
    t.hear(obs("east", 1, Some(3), Some((2, 1))), 0, 3_000);
    t.hear(obs("west", 2, None, Some((1, 2))), 0, 3_000);
    let none = std::collections::BTreeSet::new();
    let v = t.view(Frame {
        now: 3_100,
        cluster: None,
        removed: &none,
        wish: None,
        expected: &[],
        settle_ms: 5_000,
    });
    assert!(v.leader_changes < 2, "{} planned moves freeze this agent for five minutes", v.leader_changes);
}

/// a mere freeze turns an open promotion into the removal of a healthy learner.
#[test]
fn a_freeze_does_not_turn_a_promotion_into_a_removal() {
    let story = Story::read(
        "wish east west north\nmember 1 east leader\nmember 2 west\nmember 3 north learner\ndrift west\nelections 2\nchanged 100",
    );
    let (view, wish) = (story.view(), story.wish());
    let i = intent(6, 2, IntentKind::Promote { member: MemberId(3) }, "west", OperationKind::ScaleUp);
    let list = view.list.clone().unwrap();
    let records = vec![(site("east"), Some(rec(held(&i, IntentState::Open, false)).summary()))];
    let e = resolve::ending(&i, Evidence { list: &list, records: &records, view: &view, wish: &wish });
    assert!(!matches!(e, Ending::Instead(_)), "I9 and I2 hold, only I13 does not: {e:?}");
}

/// I13: closing moves are sent under a NOSPACE/CORRUPT alarm.
#[test]
fn no_membership_call_under_an_alarm_also_for_closing_moves() {
    let story = Story::read(
        "wish east west north\nmember 1 east leader alarm\nmember 2 west alarm\nmember 3 north learner",
    );
    let (view, wish) = (story.view(), story.wish());
    let i = intent(
        6,
        2,
        IntentKind::AddLearner {
            slot: wish.slots[2].clone(),
            peer_url: PeerUrl("https://main-west-0.other.test:2380".into()),
            incarnation: IncarnationId(1),
        },
        "west",
        OperationKind::ScaleUp,
    );
    let list = view.list.clone().unwrap();
    let records = vec![(site("east"), Some(rec(held(&i, IntentState::Open, false)).summary()))];
    let e = resolve::ending(&i, Evidence { list: &list, records: &records, view: &view, wish: &wish });
    assert!(!matches!(e, Ending::Again(_)), "a second learner, under an alarm: {e:?}");
}

/// the attestation "not sent" is lost as soon as the executor's own record holds the Void.
#[test]
fn a_void_whose_acknowledgement_got_lost_can_be_repeated() {
    // Voter 2 unknown: the removal of 3 is not permitted any more (I3), so only a void can end it.
    let story = Story::read(
        "wish east west north\nmember 1 east leader\nmember 2 west unknown\nmember 3 north\nmember 4 south",
    );
    let x = intent(
        5,
        1,
        IntentKind::Remove { member: MemberId(3), learner: false },
        "east",
        OperationKind::ReplaceLive,
    );
    let mut records: Vec<_> =
        ["east", "west", "north", "south"].map(|n| (site(n), act(&rec(None), n, &x).unwrap())).to_vec();
    // Run 1: Void is persisted by east alone, then east's agent crashes (all others keep X).
    let v = {
        let mut v = intent(6, 2, IntentKind::Void { closes: OpId(1) }, "east", OperationKind::ReplaceLive)
            .as_ref()
            .clone();
        v.closes = vec![Seq(5)];
        v.closes_ops = vec![OpId(1)];
        Arc::new(v)
    };
    records[0].1 = act(&records[0].1, "east", &v).unwrap();
    let mut last = None;
    for n in 0..5 {
        last = Some(drive("east", &story, &mut records, &[], 400 + n));
    }
    assert!(
        records.iter().all(|(_, r)| !r.intent.as_ref().unwrap().open()),
        "everybody answers, nothing was ever sent: {last:?}"
    );
}

/// I18: a resolution must not lift a site into a higher epoch.
#[test]
fn a_resolution_of_a_higher_epoch_is_refused() {
    let mut i = intent(
        5,
        1,
        IntentKind::Remove { member: MemberId(3), learner: false },
        "east",
        OperationKind::ReplaceDead,
    )
    .as_ref()
    .clone();
    i.epoch = Epoch(2);
    let i = Arc::new(i);
    let r = rec(None).resolve(&Resolution {
        uid: Uid(7),
        epoch: Epoch(2),
        seq: Seq(5),
        op: OpId(1),
        state: IntentState::Applied,
        closed: vec![],
        intent: i,
    });
    assert_eq!(r.epoch, Epoch(1), "epoch rises only by ballot or recovery");
}
