//! `quorate-bench-plan`: how long the planner takes for one decision, over views of seven voters at five sites that
//! simulated agents had. The last line is JSON.

use std::hint::black_box;
use std::process::ExitCode;

use quorate_core::membership::plan;
use quorate_core::sim::history::play_with;
use quorate_core::sim::scenario::Scenario;
use quorate_core::sim::world::Options;

/// Views to collect.
const VIEWS: usize = 1_000;
/// Decisions per view in one measurement: one alone is near the clock's own step.
const TIMES: u32 = 20;

fn collect() -> Vec<(quorate_core::federation::view::View, quorate_core::federation::view::Wish)> {
    let mut views = Vec::new();
    for seed in 1..10_000 {
        if views.len() >= VIEWS {
            break;
        }
        let options = Options { backups: true, questions: 0, keep_views: 40 };
        let report = play_with(seed, None, false, options, Scenario::seven());
        views.extend(report.views.into_iter().filter(|(view, _)| view.voters().count() >= 7));
    }
    views
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn main() -> ExitCode {
    let views = collect();
    let mut times: Vec<f64> = Vec::with_capacity(views.len());
    for (view, wish) in &views {
        let start = std::time::Instant::now();
        for _ in 0..TIMES {
            black_box(plan::next(black_box(view), black_box(wish)));
        }
        times.push(start.elapsed().as_secs_f64() * 1e6 / f64::from(TIMES));
    }
    times.sort_by(f64::total_cmp);
    let at = |percent: usize| times.get(times.len() * percent / 100).copied().unwrap_or(0.0);
    let round = |us: f64| (us * 1_000.0).round() / 1_000.0;
    let line = serde_json::json!({
        "plan_us": round(at(50)),
        "plan_us_p99": round(at(99)),
        "views": views.len(),
    });
    println!("{line}");
    if views.len() >= VIEWS { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
