//! Metrics of the agent, prefix `quorate_`; labels are sites, kinds and reasons, never keys of users.

use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use quorate_core::condition::Status;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindResult {
    kind: String,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Named {
    federation: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Peer {
    peer: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Certificate {
    certificate: String,
}

/// All metrics of one agent.
#[derive(Debug)]
pub struct Metrics {
    registry: Mutex<Registry>,
    intents: Family<KindResult, Counter>,
    refusals: Family<ReasonLabel, Counter>,
    rejected: Family<Kind, Counter>,
    events: Family<Kind, Counter>,
    voters: Family<Named, Gauge>,
    alive: Family<Named, Gauge>,
    margin: Family<Named, Gauge>,
    leads: Family<Named, Gauge>,
    peer_age: Family<Peer, Gauge<f64, AtomicU64>>,
    peer_rtt: Family<Peer, Gauge<f64, AtomicU64>>,
    certificates: Family<Certificate, Gauge>,
    restarts: Counter,
    /// How long one turn of a federation's loop takes, waits aside.
    pub loop_seconds: Histogram,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("quorate");
        macro_rules! add {
            ($name:literal, $help:literal, $metric:expr) => {{
                let metric = $metric;
                registry.register($name, $help, metric.clone());
                metric
            }};
        }
        let intents = add!("intents", "Steps by kind and how they ended", Family::default());
        let refusals = add!("refusals", "Waits and refusals by reason", Family::default());
        let rejected =
            add!("rejected_plans", "Steps that the independent check refused: bugs", Family::default());
        let events = add!("events", "Transitions by kind", Family::default());
        let voters = add!("voters", "Voters of a federation", Family::default());
        let alive = add!("voters_alive", "Alive voters of a federation", Family::default());
        let margin =
            add!("margin", "Alive voters minus quorum; negative means quorum lost", Family::default());
        let leads = add!("leader", "Whether a member of this site leads", Family::default());
        let restarts = add!("supervisor_restarts", "Supervisors that were started again", Counter::default());
        let seconds = || exponential_buckets(0.000_1, 4.0, 9);
        let loop_seconds = Histogram::new(seconds());
        registry.register_with_unit(
            "loop",
            "One turn of a federation's loop",
            Unit::Seconds,
            loop_seconds.clone(),
        );
        let peer_age = Family::default();
        registry.register_with_unit(
            "peer_age",
            "Age of what a peer said last",
            Unit::Seconds,
            peer_age.clone(),
        );
        let peer_rtt = Family::default();
        registry.register_with_unit(
            "peer_rtt",
            "Round-trip time to a peer's agent",
            Unit::Seconds,
            peer_rtt.clone(),
        );
        let certificates = Family::default();
        let help = "Time until a certificate ends";
        registry.register_with_unit("certificate_expiry", help, Unit::Seconds, certificates.clone());
        Self {
            registry: Mutex::new(registry),
            intents,
            refusals,
            rejected,
            events,
            voters,
            alive,
            margin,
            leads,
            peer_age,
            peer_rtt,
            certificates,
            restarts,
            loop_seconds,
        }
    }
}

impl Metrics {
    /// Shared by all parts of the agent.
    pub fn shared() -> Arc<Self> {
        Arc::default()
    }

    /// A step ended.
    pub fn intent(&self, kind: &str, result: &'static str) {
        self.intents.get_or_create(&KindResult { kind: kind.to_owned(), result }).inc();
    }

    /// Something was refused or has to wait.
    pub fn refused(&self, reason: &str) {
        self.refusals.get_or_create(&ReasonLabel { reason: reason.to_owned() }).inc();
    }

    /// The independent check refused a step.
    pub fn rejected(&self, kind: &str) {
        self.rejected.get_or_create(&Kind { kind: kind.to_owned() }).inc();
    }

    /// A transition happened.
    pub fn event(&self, kind: &str) {
        self.events.get_or_create(&Kind { kind: kind.to_owned() }).inc();
    }

    /// A supervisor was started again.
    pub fn restarted(&self) {
        self.restarts.inc();
    }

    /// What a peer said last is so old, and so far away is it if that is known.
    pub fn peer(&self, site: &str, age_seconds: f64, rtt_seconds: Option<f64>) {
        let peer = Peer { peer: site.to_owned() };
        self.peer_age.get_or_create(&peer).set(age_seconds);
        if let Some(rtt_seconds) = rtt_seconds {
            self.peer_rtt.get_or_create(&peer).set(rtt_seconds);
        }
    }

    /// A certificate ends in so many seconds.
    pub fn certificate(&self, name: &str, seconds: i64) {
        self.certificates.get_or_create(&Certificate { certificate: name.to_owned() }).set(seconds);
    }

    /// The state of a federation.
    pub fn federation(&self, status: &Status) {
        let named = Named { federation: format!("{}/{}", status.namespace, status.name) };
        let whole = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        self.voters.get_or_create(&named).set(whole(status.arithmetic.voters));
        self.alive.get_or_create(&named).set(whole(status.arithmetic.alive));
        self.margin.get_or_create(&named).set(status.arithmetic.margin);
        let leads = status.executor.as_deref() == Some(status.observed_from.as_str());
        self.leads.get_or_create(&named).set(i64::from(leads));
    }

    /// Everything in the text format of Prometheus.
    pub fn render(&self) -> String {
        let mut text = String::new();
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        match prometheus_client::encoding::text::encode(&mut text, &registry) {
            Ok(()) => text,
            // A String takes everything; the text would end in the middle of a line.
            Err(std::fmt::Error) => String::new(),
        }
    }
}
