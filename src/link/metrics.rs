//! Metrics: one registry with the prefix `quorate`, and what this crate itself has to show.
//!
//! Labels are bounded: sites, outcomes, reasons; never names of users' objects.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::clock::{self, Clock};
use crate::tls::TlsStore;
use crate::transport::serve::Counters;

/// The type of the text that [`Metrics::render`] gives.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All metrics of the process; cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<RwLock<Registry>>,
}

impl Metrics {
    /// An empty registry; every name gets the prefix `quorate_`.
    pub fn new() -> Self {
        Self { registry: Arc::new(RwLock::new(Registry::with_prefix("quorate"))) }
    }

    /// Registers metrics, at start.
    pub fn register<T>(&self, register: impl FnOnce(&mut Registry) -> T) -> T {
        register(&mut self.registry.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// When each certificate of a store ends, and whether its files have problems.
    pub fn certificates(&self, store: TlsStore) {
        self.register(|registry| registry.register_collector(Box::new(Certificates { store })));
    }

    /// What became of the connections of a listener.
    pub fn listener(&self, name: &'static str, counters: Arc<Counters>) {
        self.register(|registry| registry.register_collector(Box::new(Listener { name, counters })));
    }

    /// Everything as text.
    pub fn render(&self) -> String {
        let mut text = String::new();
        let registry = self.registry.read().unwrap_or_else(PoisonError::into_inner);
        if prometheus_client::encoding::text::encode(&mut text, &registry).is_err() {
            // A half of it would look like the whole.
            text.clear();
        }
        text
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// Records into a histogram, when dropped, how long it lived: also on the ways out that nobody thought of.
#[derive(Debug)]
pub struct Timer {
    histogram: Histogram,
    clock: Clock,
}

impl Timer {
    /// Begins now.
    pub fn start(histogram: Histogram) -> Self {
        Self { histogram, clock: Clock::start() }
    }

    /// How long it has lived so far.
    pub fn elapsed(&self) -> Duration {
        self.clock.elapsed()
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.histogram.observe(self.elapsed().as_secs_f64());
    }
}

#[derive(Debug)]
struct Certificates {
    store: TlsStore,
}

impl Collector for Certificates {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut family = encoder.encode_descriptor(
            "certificate_expiry_seconds",
            "Unix time at which a certificate ends",
            None,
            MetricType::Gauge,
        )?;
        for expiry in self.store.expiries() {
            let at = i64::try_from(clock::seconds(expiry.not_after)).unwrap_or(i64::MAX);
            let labels = [("certificate", expiry.what)];
            ConstGauge::new(at).encode(family.encode_family(&labels)?)?;
        }
        let problems = i64::try_from(self.store.problems().len()).unwrap_or(i64::MAX);
        let gauge = encoder.encode_descriptor(
            "certificate_problems",
            "Certificate files that cannot be used; the ones before stay in use",
            None,
            MetricType::Gauge,
        )?;
        ConstGauge::new(problems).encode(gauge)
    }
}

#[derive(Debug)]
struct Listener {
    name: &'static str,
    counters: Arc<Counters>,
}

impl Collector for Listener {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Counters { accepted, refused, limited } = &*self.counters;
        let name = format!("{}_connections", self.name);
        let help = "Incoming connections by outcome";
        let mut family = encoder.encode_descriptor(&name, help, None, MetricType::Counter)?;
        for (outcome, count) in [("accepted", accepted), ("refused", refused), ("limited", limited)] {
            let labels = [("outcome", outcome)];
            ConstCounter::new(count.load(Ordering::Relaxed)).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Site;

    #[tokio::test(start_paused = true)]
    async fn renders_what_was_registered() {
        let metrics = Metrics::new();
        let histogram = metrics.register(|registry| {
            let histogram = Histogram::new([1.0, 5.0]);
            registry.register("step_duration_seconds", "How long a step took", histogram.clone());
            histogram
        });
        let timer = Timer::start(histogram);
        tokio::time::advance(Duration::from_secs(2)).await;
        drop(timer);
        let counters = Arc::new(Counters::default());
        counters.refused.fetch_add(3, Ordering::Relaxed);
        metrics.listener("mesh", counters);
        let east = Site::new("east");
        metrics.certificates(east.store());
        let text = metrics.render();
        let text: Vec<_> = text
            .lines()
            .map(|line| line.split_once("_expiry_seconds{").map_or(line, |(start, _)| start))
            .collect();
        insta::assert_snapshot!(text.join("\n"));
        let ends = clock::seconds(east.store().expiries()[0].not_after);
        assert!(
            metrics
                .render()
                .contains(&format!("quorate_certificate_expiry_seconds{{certificate=\"leaf\"}} {ends}"))
        );
    }
}
