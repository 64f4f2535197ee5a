//! From the words of a spec to slots: how many voters, and where.

use serde::{Deserialize, Serialize};

use crate::federation::spec::{ClusterSpec, Spec, SpecError, Survive};
use crate::id::{SiteName, Slot, ZoneName};

/// More voters cost every write a longer wait and survive hardly more; etcd's own advice is at most 7.
pub const MAX_VOTERS: u32 = 7;

/// The slots that a spec asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// One voter each, sorted.
    pub slots: Vec<Slot>,
    /// What this layout survives at best.
    pub survives: Option<Survive>,
    /// The slot that would be the seed.
    pub seed: Slot,
    /// Whether one voter is accepted as a goal.
    pub allow_single_voter: bool,
}

impl Layout {
    /// Number of voters.
    pub fn voters(&self) -> usize {
        self.slots.len()
    }
}

fn error(path: impl Into<String>, message: impl Into<String>) -> SpecError {
    SpecError { path: path.into(), message: message.into() }
}

/// Voters by number of sites (decisions.md 1).
const fn default_voters(sites: usize) -> u32 {
    if sites >= 5 { 5 } else { 3 }
}

/// See [`Spec::layout`].
pub(super) fn of(spec: &Spec) -> Result<Layout, Vec<SpecError>> {
    let mut errors = Vec::new();
    names(spec, &mut errors);
    timers(spec, &mut errors);
    version(spec, &mut errors);
    overrides(spec, &mut errors);
    adopt(spec, &mut errors);
    let shares = shares(spec, &mut errors);
    if !errors.is_empty() {
        return Err(errors);
    }
    let mut slots: Vec<Slot> = Vec::new();
    for (cluster, share) in spec.clusters.iter().zip(&shares) {
        slots.extend((0..*share).map(|ordinal| slot(cluster, ordinal)));
    }
    let Some(seed) = seed(spec, &slots) else {
        return Err(vec![error(
            "spec.clusters",
            "no cluster that may vote has a member; give one of them members",
        )]);
    };
    slots.sort();
    let survives = survives(&slots);
    if let Some(wanted) = spec.survive
        && survives < Some(wanted)
    {
        return Err(vec![error("spec.survive", cannot_survive(wanted, spec.clusters.len(), slots.len()))]);
    }
    Ok(Layout { slots, survives, seed, allow_single_voter: spec.allow_single_voter.unwrap_or(false) })
}

fn names(spec: &Spec, errors: &mut Vec<SpecError>) {
    if spec.clusters.is_empty() {
        errors.push(error("spec.clusters", "must name at least one cluster"));
    }
    for (i, cluster) in spec.clusters.iter().enumerate() {
        if spec.clusters.iter().take(i).any(|other| other.name == cluster.name) {
            errors.push(error(
                format!("spec.clusters[{i}].name"),
                format!("{:?} is named twice", cluster.name),
            ));
        }
        let zones = cluster.zones.as_deref().unwrap_or_default();
        if cluster.zones.is_some() && zones.is_empty() {
            errors.push(error(
                format!("spec.clusters[{i}].zones"),
                "must not be empty; leave it out for one zone",
            ));
        }
        for (j, zone) in zones.iter().enumerate() {
            if zones.iter().take(j).any(|other| other == zone) {
                errors.push(error(
                    format!("spec.clusters[{i}].zones[{j}]"),
                    format!("{zone:?} is named twice"),
                ));
            }
        }
    }
    for (i, site) in spec.skipped().iter().enumerate() {
        if !spec.has_site(site) {
            errors.push(error(
                format!("spec.bootstrap.skipClusters[{i}]"),
                format!("{site:?} is not one of spec.clusters"),
            ));
        }
    }
}

fn timers(spec: &Spec, errors: &mut Vec<SpecError>) {
    let (heartbeat, election) = spec.timers();
    if heartbeat == 0 || election < heartbeat.saturating_mul(5) || election > 50_000 {
        errors.push(error(
            "spec.etcd.electionMs",
            format!("{election} must be at least 5 x the heartbeat of {heartbeat} and at most 50000"),
        ));
    }
}

fn version(spec: &Spec, errors: &mut Vec<SpecError>) {
    let Some(version) = &spec.version else { return };
    let supported = ["3.5", "3.6", "3.7"];
    let parts: Vec<&str> = version.split('.').collect();
    let numeric = parts.iter().all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()));
    let minor = parts.iter().take(2).copied().collect::<Vec<_>>().join(".");
    if !numeric || !(2..=3).contains(&parts.len()) || !supported.contains(&minor.as_str()) {
        errors.push(error(
            "spec.version",
            format!("{version:?} must be a minor or an exact version of {}", supported.join(", ")),
        ));
    }
}

fn overrides(spec: &Spec, errors: &mut Vec<SpecError>) {
    use crate::reason::Rule;
    let Some(exception) = &spec.exception else { return };
    if !matches!(exception.rule, Rule::I3 | Rule::I13 | Rule::I17) {
        errors.push(error(
            "spec.override.rule",
            format!("{} cannot be overridden, only I3, I13 and I17", exception.rule),
        ));
    }
    if exception.operation.is_empty() || exception.by.is_empty() {
        errors.push(error("spec.override", "operation and by must be given"));
    }
}

/// What can be said of a foreign etcd without asking it.
fn adopt(spec: &Spec, errors: &mut Vec<SpecError>) {
    let Some(adopt) = &spec.adopt else { return };
    if !spec.has_site(&adopt.cluster) {
        errors.push(error("spec.adopt.cluster", format!("{:?} is not one of spec.clusters", adopt.cluster)));
    }
    if spec.skipped().contains(&adopt.cluster) {
        let message = format!("{:?} speaks for the foreign members; it cannot be skipped", adopt.cluster);
        errors.push(error("spec.bootstrap.skipClusters", message));
    }
    if adopt.endpoints.is_empty() {
        errors.push(error("spec.adopt.endpoints", "must name a client URL of each foreign member"));
    }
    for (i, endpoint) in adopt.endpoints.iter().enumerate() {
        let path = format!("spec.adopt.endpoints[{i}]");
        let authority = endpoint.strip_prefix("https://").and_then(|rest| rest.rsplit_once(':'));
        let good = authority.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
        if !good {
            errors.push(error(path.as_str(), format!("{endpoint:?} must have the form https://host:port")));
        }
        if adopt.endpoints.iter().take(i).any(|other| other == endpoint) {
            errors.push(error(path, format!("{endpoint:?} is named twice")));
        }
    }
    if adopt.peer_ca.contains("PRIVATE KEY") {
        errors.push(error("spec.adopt.peerCA", "holds a private key; it must hold certificates only"));
    } else if !adopt.peer_ca.contains("-----BEGIN CERTIFICATE-----") {
        errors.push(error("spec.adopt.peerCA", "must hold the root of the foreign peers as PEM"));
    }
}

/// Voters per cluster, in the order of the spec.
fn shares(spec: &Spec, errors: &mut Vec<SpecError>) -> Vec<u32> {
    let explicit: Vec<Option<u32>> = spec.clusters.iter().map(|cluster| cluster.members).collect();
    let given: u32 = explicit.iter().flatten().fold(0, |sum, n| sum.saturating_add(*n));
    let open = explicit.iter().filter(|share| share.is_none()).count();
    let total = spec
        .members
        .unwrap_or_else(|| if open == 0 { given } else { default_voters(spec.clusters.len()).max(given) });
    let path = if spec.members.is_some() { "spec.members" } else { "spec.clusters" };
    if total == 0 {
        errors.push(error(path, "must have at least one voter"));
    } else if total.is_multiple_of(2) {
        errors.push(error(
            path,
            format!("{total} voters survive no more than {} and stop sooner; use an odd number", total - 1),
        ));
    } else if total > MAX_VOTERS {
        errors
            .push(error(path, format!("{total} is more than the {MAX_VOTERS} voters that etcd serves well")));
    } else if total == 1 && !spec.allow_single_voter.unwrap_or(false) {
        errors.push(error(
            path,
            "one voter survives nothing; set spec.allowSingleVoter: true if that is wanted",
        ));
    }
    if given > total || (open == 0 && given != total) {
        errors.push(error(
            path,
            format!("the clusters' members add up to {given}, but {total} voters are asked for"),
        ));
        return Vec::new();
    }
    spread(spec, &explicit, total - given, errors)
}

/// Spreads the voters that no cluster claims: one each in turn, preferred clusters first.
fn spread(spec: &Spec, explicit: &[Option<u32>], rest: u32, errors: &mut Vec<SpecError>) -> Vec<u32> {
    if rest > MAX_VOTERS {
        return Vec::new(); // already refused; do not allocate what a typing error asks for
    }
    let mut shares: Vec<u32> = explicit.iter().map(|share| share.unwrap_or(0)).collect();
    let mut order: Vec<usize> =
        explicit.iter().enumerate().filter(|(_, share)| share.is_none()).map(|(i, _)| i).collect();
    // By name, not by place in the file: files that differ only in that have one digest, so they must mean the same.
    order.sort_by_key(|i| spec.clusters.get(*i).map(|c| (!c.preferred.unwrap_or(false), c.name.clone())));
    if order.is_empty() && rest > 0 {
        errors.push(error("spec.members", "no cluster is left to take the remaining voters"));
        return Vec::new();
    }
    for i in order.iter().cycle().take(rest as usize) {
        if let Some(share) = shares.get_mut(*i) {
            *share += 1;
        }
    }
    shares
}

fn slot(cluster: &ClusterSpec, ordinal: u32) -> Slot {
    let zones = cluster.zones.as_deref().unwrap_or_default();
    let zone = zones.get(ordinal as usize % zones.len().max(1)).cloned();
    Slot { site: cluster.name.clone(), ordinal, zone: zone.unwrap_or_else(default_zone) }
}

/// The zone of a site that names none.
#[expect(clippy::expect_used, reason = "a literal that is a DNS label; tested")]
pub fn default_zone() -> ZoneName {
    ZoneName::new("default").expect("a DNS label")
}

/// The first slot of the preferred cluster, else of the first one by name, among those that vote.
fn seed(spec: &Spec, slots: &[Slot]) -> Option<Slot> {
    let mut candidates: Vec<&ClusterSpec> = spec
        .clusters
        .iter()
        .filter(|c| !spec.skipped().contains(&c.name) && slots.iter().any(|s| s.site == c.name))
        .collect();
    candidates.sort_by_key(|c| (!c.preferred.unwrap_or(false), c.name.clone()));
    let site: &SiteName = &candidates.first()?.name;
    slots.iter().filter(|slot| slot.site == *site).min_by_key(|slot| slot.ordinal).cloned()
}

/// The strongest promise that the arithmetic allows.
fn survives(slots: &[Slot]) -> Option<Survive> {
    let n = slots.len();
    let spare = n - (n / 2 + 1);
    if spare == 0 {
        return None;
    }
    let most = |count: &dyn Fn(&Slot) -> usize| slots.iter().map(count).max().unwrap_or(0);
    let in_site = most(&|slot| slots.iter().filter(|s| s.site == slot.site).count());
    let in_zone = most(&|slot| slots.iter().filter(|s| s.site == slot.site && s.zone == slot.zone).count());
    Some(if in_site <= spare {
        Survive::Cluster
    } else if in_zone <= spare {
        Survive::Zone
    } else {
        Survive::Member
    })
}

fn cannot_survive(wanted: Survive, sites: usize, voters: usize) -> String {
    match wanted {
        Survive::Cluster if sites <= 2 => format!(
            "{sites} cluster(s) cannot survive the loss of either: a majority of {voters} voters sits in one of them; \
             add a third cluster with one voter"
        ),
        Survive::Cluster => {
            format!("{voters} voters are spread so that the loss of one cluster stops writes")
        }
        Survive::Zone => format!("{voters} voters are spread so that the loss of one zone stops writes"),
        Survive::Member => format!("{voters} voter(s) survive the loss of none"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(json: serde_json::Value) -> Spec {
        serde_json::from_value(json).unwrap()
    }

    fn shape(json: serde_json::Value) -> Vec<String> {
        spec(json).layout().unwrap().slots.iter().map(ToString::to_string).collect()
    }

    fn refusal(json: serde_json::Value) -> String {
        spec(json).layout().unwrap_err().iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn defaults_by_number_of_sites() {
        use serde_json::json;
        let one = json!({"clusters": [{"name": "a", "zones": ["x", "y", "z"]}]});
        assert_eq!(shape(one), ["a/x-0", "a/y-1", "a/z-2"]);
        let two = json!({"clusters": [{"name": "a"}, {"name": "b", "preferred": true}]});
        assert_eq!(shape(two), ["a/default-0", "b/default-0", "b/default-1"]);
        let three = json!({"clusters": [{"name": "a"}, {"name": "b"}, {"name": "c"}]});
        assert_eq!(shape(three.clone()).len(), 3);
        assert_eq!(spec(three).layout().unwrap().survives, Some(Survive::Cluster));
        let four = json!({"clusters": [{"name": "a"}, {"name": "b"}, {"name": "c"}, {"name": "d"}]});
        assert_eq!(shape(four).len(), 3);
        let five =
            json!({"clusters": [{"name": "a"}, {"name": "b"}, {"name": "c"}, {"name": "d"}, {"name": "e"}]});
        assert_eq!(shape(five).len(), 5);
    }

    #[test]
    fn mistakes_name_the_place_and_the_remedy() {
        use serde_json::json;
        let abc = json!([{"name": "a"}, {"name": "b"}, {"name": "c"}]);
        assert!(
            refusal(json!({"clusters": abc, "members": 4}))
                .contains("spec.members: 4 voters survive no more")
        );
        assert!(refusal(json!({"clusters": abc, "members": 1})).contains("allowSingleVoter"));
        assert!(refusal(json!({"clusters": abc, "members": 4_000_000_001_u32})).contains("more than the 7"));
        assert!(refusal(json!({"clusters": []})).contains("at least one cluster"));
        assert!(refusal(json!({"clusters": [{"name": "a"}, {"name": "a"}]})).contains("named twice"));
        assert!(
            refusal(json!({"clusters": [{"name": "a"}, {"name": "b"}], "survive": "Cluster"}))
                .contains("third")
        );
        assert!(refusal(json!({"clusters": abc, "version": "3.4"})).contains("spec.version"));
        assert!(refusal(json!({"clusters": abc, "etcd": {"electionMs": 300}})).contains("5 x the heartbeat"));
        assert!(
            refusal(json!({"clusters": [{"name": "a", "members": 2}, {"name": "b", "members": 2}]}))
                .contains('4')
        );
        let rule = json!({"rule": "I2", "operation": "x", "by": "y"});
        assert!(refusal(json!({"clusters": abc, "override": rule})).contains("I2 cannot be overridden"));
    }

    #[test]
    fn a_foreign_etcd_is_declared_by_one_of_the_sites() {
        use serde_json::json;
        let ca = "-----BEGIN CERTIFICATE-----";
        let with = |adopt: serde_json::Value| {
            let clusters = json!([{"name": "a"}, {"name": "b"}, {"name": "c"}]);
            json!({"clusters": clusters, "bootstrap": {"skipClusters": ["b"]}, "adopt": adopt})
        };
        let one = |cluster: &str, endpoints: &[&str], ca: &str| {
            with(json!({"cluster": cluster, "clusterId": "c1", "endpoints": endpoints, "peerCA": ca}))
        };
        assert_eq!(shape(one("a", &["https://[fd00::1]:2379", "https://old:2379"], ca)).len(), 3);
        assert!(refusal(one("d", &["https://h:1"], ca)).contains("spec.adopt.cluster: d is not one of"));
        assert!(refusal(one("b", &["https://h:1"], ca)).contains("cannot be skipped"));
        assert!(refusal(one("a", &[], ca)).contains("each foreign member"));
        for bad in ["http://h:2379", "https://h", "https://:2379", "https://h:x"] {
            assert!(refusal(one("a", &[bad], ca)).contains("https://host:port"), "{bad}");
        }
        assert!(refusal(one("a", &["https://h:1", "https://h:1"], ca)).contains("named twice"));
        assert!(refusal(one("a", &["https://h:1"], "ca.crt")).contains("as PEM"));
        assert!(
            refusal(one("a", &["https://h:1"], "-----BEGIN EC PRIVATE KEY-----")).contains("private key")
        );
    }

    #[test]
    fn the_order_of_sites_changes_neither_digest_nor_layout() {
        use serde_json::json;
        let key: crate::id::FederationKey =
            serde_json::from_value(json!({"namespace": "etcd", "name": "main"})).unwrap();
        let a = spec(json!({"clusters": [{"name": "a"}, {"name": "b"}]}));
        let b = spec(json!({"clusters": [{"name": "b"}, {"name": "a"}]}));
        assert_eq!(a.digest(&key), b.digest(&key));
        assert_eq!(a.layout().unwrap(), b.layout().unwrap());
        let c = spec(json!({"clusters": [{"name": "b"}, {"name": "a"}], "members": 3}));
        assert_ne!(a.digest(&key), c.digest(&key));
    }
}
