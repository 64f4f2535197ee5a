//! What a file would bring about, for people and for programs.

use std::fmt::Write as _;

use quorate_api::manifest::Manifest;
use quorate_core::condition::{self, PlanLine};
use quorate_core::federation::spec::{Spec, Survive};
use quorate_core::federation::view::HEARD_MS;
use quorate_core::id::{Digest, FederationKey, SiteName, Slot};
use quorate_core::membership::plan;
use quorate_core::membership::preview::{self, Draft};
use quorate_core::membership::step::Decision;
use quorate_core::reason::{Code, Reason};
use quorate_core::report::{FederationReport, SiteReport};
use serde_json::{Value, json};
use similar::TextDiff;

use super::file::Place;
use crate::cmd::plan::{Paste, paste_for, remedy, steps};
use crate::output::table::{count, wrap};

/// See the module.
pub(super) struct Preview {
    pub(super) key: FederationKey,
    pub(super) digest: Digest,
    pub(super) document: String,
    pub(super) place: Place,
    /// The file says what the agent's file says, and that is in force.
    pub(super) unchanged: bool,
    /// The own site is not among the clusters.
    stranger: bool,
    site: String,
    sites: Vec<SiteName>,
    /// Named sites that this agent does not know, or does not hear.
    doubtful: Vec<Reason>,
    /// Sites whose agents hold this very spec.
    holders: Vec<String>,
    /// The first member, if there is no etcd yet.
    seed: Option<Slot>,
    /// The site that speaks for a foreign etcd, if one is to be taken over.
    adopts: Option<SiteName>,
    /// Generation and digest in force.
    running: Option<(u64, Digest)>,
    diff: String,
    added: Vec<Slot>,
    removed: Vec<Slot>,
    survives: Option<Survive>,
    plan: Vec<PlanLine>,
    end: Decision,
    paste: Option<Paste>,
}

impl Preview {
    pub(super) fn new(
        site: &SiteReport,
        report: Option<&FederationReport>,
        manifest: Manifest,
        document: String,
        place: Place,
    ) -> Self {
        let Manifest { key, spec, digest, layout } = manifest;
        let draft = Draft { spec: &spec, digest, layout: &layout };
        let alive = report.and_then(|report| report.view.as_ref().zip(report.wish.as_ref()));
        let (view, wish) = match alive {
            Some((view, wish)) => preview::drafted(view, wish, draft),
            None => preview::unborn(draft),
        };
        let (steps, end) = plan::plan(&view, &wish);
        let plan = condition::plan_lines(&steps);
        let status = report.map(|report| &report.status);
        let members = status.map(|status| status.members.as_slice()).unwrap_or_default();
        // Which operation a refusal stands against is not in the reason, and an exception names exactly one.
        let paste = end.reason().and_then(|reason| paste_for(reason, members, None));
        let before = report.and_then(|report| report.effective.as_deref());
        let old = before.and_then(|spec| spec.layout().ok()).map(|layout| layout.slots).unwrap_or_default();
        let missing = |from: &[Slot], other: &[Slot]| {
            from.iter().filter(|slot| !other.contains(slot)).cloned().collect::<Vec<_>>()
        };
        let text = digest.to_string();
        let holds = |holder: &&condition::SiteStatus| holder.spec_digest.as_deref() == Some(text.as_str());
        let holders =
            status.iter().flat_map(|status| &status.sites).filter(holds).map(|site| site.name.clone());
        let running = status.and_then(|status| Some((status.generation.0, status.digest?)));
        let own = report.as_ref().and_then(|report| report.own_digest);
        Self {
            seed: (alive.is_none() && spec.adopt.is_none()).then(|| layout.seed.clone()),
            adopts: spec.adopts().filter(|_| alive.is_none()).cloned(),
            unchanged: own == Some(digest) && running.is_some_and(|(_, running)| running == digest),
            stranger: !spec.sites().any(|name| name.as_str() == site.site),
            site: site.site.clone(),
            doubtful: spec.sites().filter_map(|name| doubt(site, name)).collect(),
            sites: spec.sites().cloned().collect(),
            holders: holders.collect(),
            running,
            diff: diff(before, &spec),
            added: missing(&layout.slots, &old),
            removed: missing(&old, &layout.slots),
            survives: layout.survives,
            plan,
            end,
            paste,
            key,
            digest,
            document,
            place,
        }
    }

    /// The rule that stands against the end of the plan.
    pub(super) fn refusal(&self) -> Option<&Reason> {
        match &self.end {
            Decision::Refuse(reason) => Some(reason),
            Decision::Step(_) | Decision::Wait(_) | Decision::Done => None,
        }
    }

    /// Sites that the file names and that do not hold it; this one counts as soon as it is written.
    fn needed(&self) -> Vec<&str> {
        let names = self.sites.iter().map(SiteName::as_str);
        names.filter(|name| *name != self.site && !self.holders.iter().any(|holder| holder == name)).collect()
    }

    pub(super) fn text(&self, dry_run: bool) -> String {
        let mut text = String::new();
        let what = match self.running {
            None => "a new federation".to_owned(),
            Some(_) if self.unchanged => "unchanged".to_owned(),
            Some((generation, digest)) if digest == self.digest => {
                format!("generation {generation}, in force already; only the file of this site changes")
            }
            Some((generation, _)) => format!("generation {generation} -> {}", generation + 1),
        };
        let _ = writeln!(text, "{}: {what} (digest {})", self.key, self.digest.short());
        if !self.diff.is_empty() {
            let _ = write!(text, "\n{}", indented(&self.diff));
        }
        let slots = |sign: &str, slots: &[Slot]| {
            slots.iter().fold(String::new(), |text, slot| text + &format!("  {sign} member {slot}\n"))
        };
        if !self.added.is_empty() || !self.removed.is_empty() {
            let _ = write!(text, "\n{}{}", slots("+", &self.added), slots("-", &self.removed));
        }
        text.push_str(&self.plan_text());
        let _ = writeln!(text, "\n  afterwards it {}", survives(self.survives));
        if self.stranger {
            let remark = format!(
                "the file does not name site {}: its member is removed last of all, its volume stays",
                self.site
            );
            let _ = writeln!(text, "\n  note: {}", wrap(&remark, 8, 110).trim_start());
        }
        for reason in &self.doubtful {
            let _ = writeln!(text, "\n  note: {}", wrap(&reason.to_string(), 8, 110).trim_start());
        }
        text.push_str(&self.places(dry_run));
        text
    }

    fn plan_text(&self) -> String {
        let mut text = String::new();
        if !self.plan.is_empty() {
            let _ = writeln!(text, "\nplan: {}", count(self.plan.len(), "step"));
        }
        if let Some(seed) = &self.seed {
            let birth = format!(
                "first it is born with one member, {seed}, as soon as every site holds the file and has voted"
            );
            let _ = writeln!(text, "\n  {}", wrap(&birth, 2, 110).trim_start());
        }
        if let Some(site) = &self.adopts {
            let taken = format!(
                "first a foreign etcd is taken over by {site}, as soon as every site holds the file and has voted; it \
                 is shown with one member here, and `quorate adopt` looks at it"
            );
            let _ = writeln!(text, "\n  {}", wrap(&taken, 2, 110).trim_start());
        }
        text.push_str(&steps(&self.plan));
        match &self.end {
            Decision::Refuse(reason) => {
                let _ = writeln!(text, "\n  REFUSED: {}", wrap(&reason.to_string(), 11, 110).trim_start());
                text.push_str(&remedy(reason));
            }
            Decision::Wait(reason) => {
                let _ =
                    writeln!(text, "\n  then it waits: {}", wrap(&reason.to_string(), 17, 110).trim_start());
                text.push_str(&remedy(reason));
            }
            Decision::Step(_) => text.push_str("\n  and more\n"),
            Decision::Done if self.plan.is_empty() => {
                text.push_str("\nplan: nothing to do, the members are as wished\n");
            }
            Decision::Done => {}
        }
        text.push_str(&self.paste.as_ref().map(Paste::text).unwrap_or_default());
        text
    }

    /// Who holds the file, and who needs it.
    fn places(&self, dry_run: bool) -> String {
        let needed = self.needed();
        let mut text = String::new();
        let list = |names: &[&str]| if names.is_empty() { "nobody".to_owned() } else { names.join(", ") };
        let holders: Vec<&str> = self.holders.iter().map(String::as_str).collect();
        let _ = writeln!(text, "\n  this file is held by: {}", list(&holders));
        if !needed.is_empty() {
            let _ = writeln!(
                text,
                "  it is needed at:      {}   (`quorate apply -f FILE` there, the same bytes)",
                list(&needed)
            );
        }
        if !self.unchanged {
            let verb = if dry_run { "would be written to" } else { "will be written to" };
            let _ = writeln!(text, "  here it {verb} {}", self.place.path().display());
        }
        text
    }

    pub(super) fn json(&self, written: &[String], done: bool) -> Value {
        let path = self.place.path().display().to_string();
        json!({
            "federation": self.key.to_string(),
            "digest": self.digest,
            "running": self.running.map(|(generation, digest)| json!({"generation": generation, "digest": digest})),
            "unchanged": self.unchanged,
            "diff": self.diff,
            "added": self.added,
            "removed": self.removed,
            "survives": self.survives,
            "seed": self.seed,
            "adopts": self.adopts,
            "plan": self.plan,
            "refused": self.refusal().map(reason_json),
            "waits": match &self.end { Decision::Wait(reason) => Some(reason_json(reason)), _ => None },
            "paste": self.paste,
            "doubtful": self.doubtful.iter().map(reason_json).collect::<Vec<_>>(),
            "holders": self.holders,
            "neededAt": self.needed(),
            "written": written.contains(&path).then_some(path),
            "done": done,
        })
    }
}

/// Whether the site's agent will be able to do its part.
fn doubt(site: &SiteReport, name: &SiteName) -> Option<Reason> {
    if name.as_str() == site.site {
        return None;
    }
    let Some(peer) = site.peers.iter().find(|peer| peer.name == name.as_str()) else {
        return Some(Reason::new(Code::NoPeer).site(name));
    };
    match peer.age_ms {
        Some(age) if age < HEARD_MS => None,
        Some(age) => Some(Reason::new(Code::PeerUnreachable).site(name).numbers(age, 0)),
        None => Some(Reason::new(Code::WaitingForClusters).site(name)),
    }
}

fn reason_json(reason: &Reason) -> Value {
    json!({
        "code": reason.code.name(),
        "rule": reason.rule().map(|rule| rule.to_string()),
        "member": reason.member,
        "site": reason.site,
        "message": reason.to_string(),
        "remedy": reason.code.remedy(),
    })
}

/// What changes in the spec, as a unified difference with all of its lines: specs are short.
fn diff(before: Option<&Spec>, after: &Spec) -> String {
    let yaml = |spec: &Spec| serde_saphyr::to_string(spec).unwrap_or_default();
    let (old, new) = (before.map(yaml).unwrap_or_default(), yaml(after));
    if old == new {
        return String::new();
    }
    let mut text = String::new();
    for change in TextDiff::from_lines(&old, &new).iter_all_changes() {
        let _ = write!(text, "{}{}", change.tag(), change.value());
    }
    text
}

fn indented(text: &str) -> String {
    text.lines().fold(String::new(), |text, line| text + "  " + line.trim_end() + "\n")
}

fn survives(survives: Option<Survive>) -> &'static str {
    match survives {
        Some(Survive::Cluster) => "survives the loss of any one cluster",
        Some(Survive::Zone) => "survives the loss of any one zone, but not of every cluster (QuorumAtRisk)",
        Some(Survive::Member) => {
            "survives the loss of any one member, but not of every cluster or zone (QuorumAtRisk)"
        }
        None => "survives the loss of nothing",
    }
}
