//! Named stories as text (`testdata/*.txt`): a view in a few words, a command, `----`, and the expected answer.
//! `UPDATE_SCENARIOS=1 cargo test -p quorate-core scenario` writes the answers; the diff is reviewed.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;

use crate::federation::layout::default_zone;
use crate::federation::member::{EtcdOptions, IncarnationState, Process};
use crate::federation::observed::{
    DataCheck, Heard, LeaderClaim, Link, ListedMember, LocalMember, MemberList, PeerLink, SiteObservation,
    SlotOffer, Status, Version,
};
use crate::federation::spec::Override;
use crate::federation::view::{LearnerTrack, Life, MemberView, SiteView, View, Wish};
use crate::id::{
    ClusterId, Digest, Generation, IncarnationId, Index, MemberId, PeerUrl, Revision, SiteName, Slot, Term,
    ZoneName,
};
use crate::intent::{Change, IntentKind, Operation, OperationKind};
use crate::membership::step::{Decision, Step, StepKind};
use crate::membership::{check, placement, plan};
use crate::reason::{Code, Rule};

const OURS: ClusterId = ClusterId(0xc);
const TERM: Term = Term(3);
const COMMIT: Index = Index(5_000);

/// One member of a story.
#[derive(Debug, Clone)]
struct Actor {
    id: MemberId,
    slot: Slot,
    learner: bool,
    life: Life,
    lag: u64,
    proven: bool,
    equal: Option<bool>,
    alarm: bool,
    minor: u16,
}

/// The facts of a story.
#[derive(Debug, Clone)]
pub(crate) struct Story {
    actors: Vec<Actor>,
    leader: MemberId,
    wish: Vec<Slot>,
    offers: Vec<Slot>,
    silent: Vec<SiteName>,
    drifted: Vec<SiteName>,
    since_change_ms: u64,
    leader_changes: u32,
    single: bool,
    lost: Vec<MemberId>,
    exception: Option<Override>,
    backup: Option<(u64, Option<u64>)>,
    pending: Option<Vec<SiteName>>,
    /// The last change was a removal of a replacement.
    removed: bool,
    /// Timers that would fit better, by their round-trip time in ms.
    retimed: Option<u32>,
    /// The effective options, if they are not those that all run with.
    wished: Option<EtcdOptions>,
    /// Members that run with the effective options already.
    restarted: Vec<MemberId>,
    /// What is measured has been so for long enough.
    steady: bool,
    /// Round-trip times between sites, ms.
    distances: Vec<(SiteName, SiteName, u32)>,
    /// The site that speaks for foreign members, by the effective spec.
    adopts: Option<SiteName>,
    /// The same by the pending one.
    pending_adopts: Option<SiteName>,
}

fn slot(text: &str) -> Slot {
    let (place, ordinal) =
        text.rsplit_once('-').filter(|(_, n)| n.parse::<u32>().is_ok()).unwrap_or((text, "0"));
    let (site, zone) = place.split_once('/').unwrap_or((place, ""));
    let zone = if zone.is_empty() { default_zone() } else { ZoneName::new(zone).unwrap() };
    Slot { site: SiteName::new(site).unwrap(), zone, ordinal: ordinal.parse().unwrap() }
}

fn url(slot: &Slot) -> PeerUrl {
    if slot.is_external() {
        return PeerUrl(format!("https://10.0.0.{}:2380", slot.ordinal % 256).into());
    }
    PeerUrl(format!("https://main-{0}-{1}.{0}.quorate.test:2380", slot.site, slot.ordinal).into())
}

/// What all etcds of a story run with.
fn options() -> EtcdOptions {
    EtcdOptions {
        version: "3.6".into(),
        heartbeat_ms: 100,
        election_ms: 1_000,
        quota_bytes: 2 << 30,
        peer_ports: Vec::new(),
    }
}

impl Story {
    /// Reads the facts; see the files in `testdata`.
    pub(crate) fn read(text: &str) -> Self {
        let mut story = Self {
            actors: Vec::new(),
            leader: MemberId(1),
            wish: Vec::new(),
            offers: Vec::new(),
            silent: Vec::new(),
            drifted: Vec::new(),
            since_change_ms: 60_001,
            leader_changes: 0,
            single: false,
            lost: Vec::new(),
            exception: None,
            backup: None,
            pending: None,
            removed: false,
            retimed: None,
            wished: None,
            restarted: Vec::new(),
            steady: false,
            distances: Vec::new(),
            adopts: None,
            pending_adopts: None,
        };
        for line in text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')) {
            let mut words = line.split_whitespace();
            let verb = words.next().unwrap();
            let rest: Vec<&str> = words.collect();
            story.fact(verb, &rest);
        }
        story
    }

    fn fact(&mut self, verb: &str, rest: &[&str]) {
        let sites = || rest.iter().map(|s| SiteName::new(s).unwrap()).collect::<Vec<_>>();
        match verb {
            "wish" => self.wish = rest.iter().map(|s| slot(s)).collect(),
            "member" => self.actors.push(Self::actor(rest, &mut self.leader)),
            "offer" => self.offers = rest.iter().map(|s| slot(s)).collect(),
            "silent" => self.silent = sites(),
            "drift" => self.drifted = sites(),
            "changed" => self.since_change_ms = rest[0].parse().unwrap(),
            "elections" => self.leader_changes = rest[0].parse().unwrap(),
            "single" => self.single = true,
            "lost" => self.lost = rest.iter().map(|id| id.parse().unwrap()).collect(),
            "backup" => {
                self.backup = Some((rest[0].parse().unwrap(), rest.get(1).map(|s| s.parse().unwrap())));
            }
            "removed" => self.removed = true,
            "pending" => self.pending = Some(sites()),
            "steady" => self.steady = true,
            "retimed" => self.retimed = Some(rest[0].parse().unwrap()),
            "election" => {
                let election_ms = rest[0].parse().unwrap();
                self.wished = Some(EtcdOptions { election_ms, ..options() });
            }
            "restarted" => self.restarted = rest.iter().map(|id| id.parse().unwrap()).collect(),
            "distance" => {
                let site = |i: usize| SiteName::new(rest[i]).unwrap();
                self.distances.push((site(0), site(1), rest[2].parse().unwrap()));
            }
            "adopts" => self.adopts = sites().pop(),
            "pending-adopts" => self.pending_adopts = sites().pop(),
            "override" => {
                let rule = Rule::ALL.into_iter().find(|r| r.to_string() == rest[0]).unwrap();
                self.exception = Some(Override { rule, operation: rest[1].to_owned(), by: "ann".to_owned() });
            }
            other => panic!("unknown fact {other:?}"),
        }
    }

    fn actor(rest: &[&str], leader: &mut MemberId) -> Actor {
        let id: MemberId = rest[0].parse().unwrap();
        let mut actor = Actor {
            id,
            slot: slot(rest[1]),
            learner: false,
            life: Life::Alive,
            lag: 0,
            proven: true,
            equal: Some(true),
            alarm: false,
            minor: 6,
        };
        for word in &rest[2..] {
            match *word {
                "voter" | "alive" => {}
                "learner" => actor.learner = true,
                "leader" => *leader = id,
                "unknown" => actor.life = Life::Unknown(Code::PeerUnreachable),
                "dead" => actor.life = Life::DeadAttested,
                "fresh" => actor.proven = false,
                "uncompared" => actor.equal = None,
                "different" => actor.equal = Some(false),
                "alarm" => actor.alarm = true,
                "old" => actor.minor = 5,
                "foreign" => actor.slot = Slot::external(&actor.slot.site, id),
                lag => {
                    let digits = lag.strip_prefix("lag=").unwrap_or_else(|| panic!("{lag:?}"));
                    actor.lag = digits.parse().unwrap();
                }
            }
        }
        actor
    }

    fn list(&self) -> MemberList {
        MemberList::new(
            self.actors
                .iter()
                .map(|a| ListedMember {
                    id: a.id,
                    name: "named".into(),
                    peer_url: url(&a.slot),
                    learner: a.learner,
                })
                .collect(),
        )
    }

    fn sites(&self) -> BTreeSet<SiteName> {
        let actors = self.actors.iter().map(|a| a.slot.site.clone());
        actors.chain(self.wish.iter().map(|s| s.site.clone())).chain(self.silent.iter().cloned()).collect()
    }

    fn me(&self) -> SiteName {
        self.actors
            .iter()
            .find(|a| a.id == self.leader)
            .map_or_else(|| slot("east").site, |a| a.slot.site.clone())
    }

    fn age(&self, site: &SiteName) -> u64 {
        if self.silent.contains(site) { 60_000 } else { 500 }
    }

    fn options_of(&self, member: MemberId) -> EtcdOptions {
        let wished = self.wished.clone().filter(|_| self.restarted.contains(&member));
        wished.unwrap_or_else(options)
    }

    fn distance_ms(&self, a: &SiteName, b: &SiteName) -> u32 {
        let pair = |(x, y, _): &&(SiteName, SiteName, u32)| (x == a && y == b) || (x == b && y == a);
        self.distances.iter().find(pair).map_or(0, |(_, _, ms)| *ms)
    }

    fn observation(&self, site: &SiteName) -> SiteObservation {
        let mut o = SiteObservation::empty(site.clone());
        let list = self.list();
        o.spec = Some(Digest([u8::from(self.drifted.contains(site)); 32]));
        o.backup_age_s = self.backup.and_then(|(_, age)| age);
        if self.removed {
            let operation = Operation { kind: OperationKind::ReplaceLive, source: None, new: None };
            let kind = IntentKind::Remove { member: MemberId(99), learner: false };
            Arc::make_mut(&mut o.record).changed = Some(Arc::new(Change { kind, operation }));
        }
        o.peers = self
            .sites()
            .into_iter()
            .map(|to| {
                let rtt_us = self.distance_ms(site, &to) * 1_000 + 100;
                PeerLink { rtt_us, least_us: rtt_us, site: to }
            })
            .collect();
        for actor in &self.actors {
            let rtt_us = self.distance_ms(site, &actor.slot.site) * 1_000 + 100;
            o.links.push(Link {
                member: actor.id,
                misses: 0,
                good_ms: 10_000,
                rtt_us,
                least_us: rtt_us,
                stale: false,
            });
            if actor.slot.site != *site {
                continue;
            }
            let dead = actor.life == Life::DeadAttested;
            o.members.push(LocalMember {
                slot: actor.slot.clone(),
                incarnation: IncarnationId(u128::from(actor.id.0)),
                state: if dead { IncarnationState::Lost } else { IncarnationState::Voter },
                member: Some(actor.id),
                peer_url: url(&actor.slot),
                process: Process::Running,
                options: actor.life.alive().then(|| self.options_of(actor.id)),
                moves_to: None,
                restart: false,
                status: actor.life.alive().then(|| self.status(actor, &list)),
                certificates_good: true,
            });
            if actor.id == self.leader {
                o.leader = Some(LeaderClaim {
                    member: actor.id,
                    term: TERM,
                    commit: COMMIT,
                    list: list.clone(),
                    checks: self.checks(),
                });
            }
        }
        let offers = self.offers.iter().filter(|s| s.site == *site);
        o.offers = offers
            .map(|s| SlotOffer { slot: s.clone(), peer_url: url(s), incarnation: IncarnationId(99) })
            .collect();
        o
    }

    fn status(&self, actor: &Actor, list: &MemberList) -> Status {
        Status {
            cluster: OURS,
            member: actor.id,
            leader: Some(self.leader),
            term: TERM,
            index: COMMIT,
            applied: Index(COMMIT.0 - actor.lag),
            revision: Revision(7),
            db_size: 20_480,
            version: Version { major: 3, minor: actor.minor, patch: 16 },
            learner: actor.learner,
            alarm: actor.alarm,
            faulty: false,
            list: Some(list.digest()),
            ready: true,
            downgrading: false,
        }
    }

    fn checks(&self) -> Vec<DataCheck> {
        let check = |a: &Actor| {
            Some(DataCheck { member: a.id, revision: Revision(7), equal: a.equal?, as_voter: !a.learner })
        };
        self.actors.iter().filter_map(check).collect()
    }

    /// The view of the leader's agent.
    pub(crate) fn view(&self) -> View {
        let list = self.list();
        let digest = list.digest();
        let members = self.actors.iter().map(|a| MemberView {
            id: a.id,
            peer_url: url(&a.slot),
            slot: Some(a.slot.clone()),
            learner: a.learner,
            named: true,
            life: if self.lost.contains(&a.id) { Life::DeadDeclared } else { a.life },
            lag: a.life.alive().then_some(a.lag),
            list: a.life.alive().then_some(digest),
            says_learner: a.life.alive().then_some(a.learner),
            ready: a.life.alive(),
            alarm: a.alarm,
            downgrading: false,
            version: a.life.alive().then_some(Version { major: 3, minor: a.minor, patch: 16 }),
            certificates_good: true,
            incarnation: None,
            linked_ms: if a.life.alive() { 10_000 } else { 0 },
            options: a.life.alive().then(|| self.options_of(a.id)),
            moves_to: None,
            restart: false,
        });
        let members: Vec<MemberView> = members.collect();
        let learner = self.actors.iter().find(|a| a.learner).map(|a| LearnerTrack {
            member: a.id,
            good_samples: if a.proven { 3 } else { 1 },
            good_ms: if a.proven { 3_000 } else { 0 },
            stalled_ms: 0,
        });
        View {
            me: self.me(),
            sites: self
                .sites()
                .into_iter()
                .map(|name| SiteView {
                    age_ms: Some(self.age(&name)),
                    observation: Some(Arc::new(self.observation(&name))),
                    name,
                })
                .collect(),
            list: Some(list),
            own_leads: true,
            leader: Some(self.leader),
            term: TERM,
            commit: COMMIT,
            members,
            learner,
            checks: self.checks(),
            open: None,
            since_change_ms: self.since_change_ms,
            settle_ms: 5_000,
            no_quorum_ms: 0,
            leader_changes: self.leader_changes,
            freed: Vec::new(),
            removed: Arc::default(),
            backing_off: Vec::new(),
        }
    }

    /// The wish.
    pub(crate) fn wish(&self) -> Wish {
        Wish {
            generation: Generation(1),
            slots: self.wish.clone(),
            allow_single_voter: self.single,
            lost_members: self.lost.clone(),
            exception: self.exception.clone(),
            max_backup_age_s: self.backup.map(|(limit, _)| limit),
            pending: self.pending.clone().map(|sites| crate::federation::view::Pending {
                digest: Digest([0; 32]),
                slots: sites.iter().map(|site| slot(site.as_str())).collect(),
                sites,
                allow_single_voter: false,
                lost_sites: Vec::new(),
                timing: None,
                adopts: self.pending_adopts.clone(),
                other_cluster: false,
            }),
            retimed: self.retimed.map(|ms| crate::federation::view::Pending {
                digest: Digest([0; 32]),
                sites: self.wish.iter().map(|slot| slot.site.clone()).collect(),
                slots: self.wish.clone(),
                allow_single_voter: self.single,
                lost_sites: Vec::new(),
                timing: Some(crate::timing::Timing::from_rtt_us(ms * 1_000)),
                adopts: self.adopts.clone(),
                other_cluster: false,
            }),
            adopts: self.adopts.clone(),
            url_changes: Vec::new(),
            leader: self.steady.then(|| placement::better(&self.view())).flatten(),
            deadline_ms: 7_000,
            options: self.wished.clone().unwrap_or_else(options),
            restarting: None,
        }
    }

    /// The raw observations that the independent check reads.
    pub(crate) fn raw(&self) -> Vec<(SiteName, Heard)> {
        let heard = |name: SiteName| {
            let heard = Heard { observation: Arc::new(self.observation(&name)), age_ms: self.age(&name) };
            (name, heard)
        };
        self.sites().into_iter().map(heard).collect()
    }

    /// What the independent check says of a step.
    pub(crate) fn check(&self, kind: &StepKind) -> Result<(), check::Violation> {
        check::verify(&self.raw(), &self.me(), &self.wish(), kind, false)
    }
}

fn line(step: &Step) -> String {
    format!(
        "{:<34} {} -> {}   {}",
        step.kind.to_string().replace(".quorate.test:2380", ""),
        step.before,
        step.after,
        step.operation
    )
}

fn answer(story: &Story, command: &str) -> String {
    let (view, wish) = (story.view(), story.wish());
    let mut out = String::new();
    match command {
        "next" => match plan::next(&view, &wish) {
            Decision::Step(step) => {
                let checked = check::verify(&story.raw(), &story.me(), &wish, &step.kind, step.overridden);
                writeln!(out, "{}", line(&step)).unwrap();
                if let Err(violation) = checked {
                    writeln!(out, "CHECK REFUSES: {violation}").unwrap();
                }
            }
            Decision::Wait(reason) => writeln!(out, "wait: {reason}").unwrap(),
            Decision::Refuse(reason) => writeln!(out, "refuse: {reason}").unwrap(),
            Decision::Done => writeln!(out, "done").unwrap(),
        },
        "plan" => {
            let (steps, end) = plan::plan(&view, &wish);
            for planned in steps {
                for wait in &planned.waits {
                    writeln!(out, "wait: {wait}").unwrap();
                }
                writeln!(out, "{}", line(&planned.step)).unwrap();
                for remark in &planned.remarks {
                    writeln!(out, "    {remark}").unwrap();
                }
            }
            match end.reason() {
                Some(reason) => writeln!(out, "then: {reason}").unwrap(),
                None => writeln!(out, "then: done").unwrap(),
            }
        }
        other => panic!("unknown command {other:?}"),
    }
    out
}

#[test]
fn stories_end_as_written() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata");
    let mut files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 8, "stories are missing in {dir}");
    let update = std::env::var_os("UPDATE_SCENARIOS").is_some();
    let mut failures = String::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let mut written = String::new();
        for block in text.split("\n\n").map(str::trim).filter(|b| !b.is_empty()) {
            let facts = block.split("\n----").next().unwrap().trim();
            if facts.lines().all(|l| l.starts_with('#')) {
                writeln!(written, "{facts}\n").unwrap();
                continue;
            }
            let (facts, command) = facts.rsplit_once('\n').unwrap();
            let result = answer(&Story::read(facts), command.trim());
            writeln!(written, "{facts}\n{command}\n----\n{result}").unwrap();
        }
        if update {
            std::fs::write(&file, &written).unwrap();
        } else if written.trim() != text.trim() {
            writeln!(failures, "{}:\n{written}", file.display()).unwrap();
        }
    }
    assert!(failures.is_empty(), "answers differ; run with UPDATE_SCENARIOS=1 and review:\n{failures}");
}
