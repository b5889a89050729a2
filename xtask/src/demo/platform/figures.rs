//! Figures, and the bounds that they must be within.

use std::fmt::Display;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// Latencies of the quiet tenant's events, in one situation.
pub(super) struct Latencies(Vec<Duration>);

impl Latencies {
    pub(super) fn of(mut latencies: Vec<Duration>) -> Result<Self> {
        ensure!(!latencies.is_empty(), "no latency was measured");
        latencies.sort_unstable();
        Ok(Self(latencies))
    }

    /// The latency within which so many of a hundred events were handled; of fewer than a
    /// hundred events the 99th is the longest.
    pub(super) fn percentile(&self, percent: usize) -> Result<Duration> {
        let rank = (self.0.len() * percent).div_ceil(100).max(1);
        self.0.get(rank - 1).copied().context("a percentile is 100 at most")
    }

    pub(super) fn events(&self) -> usize {
        self.0.len()
    }
}

/// What the latency of the quiet tenant may be beside the others: so many times what it was
/// alone, and this on top, for a machine that does other work too.
pub(super) struct LatencyBound {
    pub(super) percent: usize,
    pub(super) times: u32,
    pub(super) slack: Duration,
}

/// The README has them.
pub(super) const LATENCY_BOUNDS: [LatencyBound; 2] = [
    LatencyBound { percent: 50, times: 3, slack: Duration::from_millis(50) },
    LatencyBound { percent: 99, times: 3, slack: Duration::from_millis(500) },
];

impl LatencyBound {
    pub(super) fn beside(&self, alone: &Latencies) -> Result<Duration> {
        Ok(alone.percentile(self.percent)? * self.times + self.slack)
    }
}

/// Milliseconds, as they are shown.
pub(super) fn ms(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

/// Every figure that has a bound, with whether it is within.
#[derive(Debug, Default)]
pub(super) struct Checks {
    broken: Vec<String>,
    /// Each with what it is, what it was, what it had to be, and whether it was.
    rows: Vec<[String; 4]>,
}

impl Checks {
    /// What must be at most this.
    pub(super) fn at_most(&mut self, what: &str, figure: f64, bound: f64, unit: &str) {
        let most = format!("at most {}", shown(bound, unit));
        self.add(what, shown(figure, unit), most, figure <= bound);
    }

    /// What must be at least this.
    pub(super) fn at_least(&mut self, what: &str, figure: f64, bound: f64, unit: &str) {
        let least = format!("at least {}", shown(bound, unit));
        self.add(what, shown(figure, unit), least, figure >= bound);
    }

    /// What must have happened.
    pub(super) fn some(&mut self, what: &str, figure: u64) {
        self.add(what, figure.to_string(), "at least 1".to_owned(), figure > 0);
    }

    /// What must be exactly this.
    pub(super) fn exactly<T: Display + PartialEq>(&mut self, what: &str, figure: T, wanted: T) {
        let holds = figure == wanted;
        self.add(what, figure.to_string(), wanted.to_string(), holds);
    }

    fn add(&mut self, what: &str, figure: String, wanted: String, holds: bool) {
        if !holds {
            self.broken.push(format!("{what}: {figure}, and not {wanted}"));
        }
        let verdict = if holds { "ok" } else { "BROKEN" };
        self.rows.push([what.to_owned(), figure, wanted, verdict.to_owned()]);
    }

    /// All of them, to be shown.
    pub(super) fn rows(&self) -> &[[String; 4]] {
        &self.rows
    }

    /// Fails, and says which, unless every figure is within its bound.
    pub(super) fn conclude(&self) -> Result<()> {
        let Self { broken, rows } = self;
        ensure!(
            broken.is_empty(),
            "{} of {} figures are out of their bounds:\n  {}",
            broken.len(),
            rows.len(),
            broken.join("\n  ")
        );
        Ok(())
    }
}

/// A figure with its unit; one without is a count.
fn shown(figure: f64, unit: &str) -> String {
    if unit.is_empty() { format!("{:.0}", figure.floor()) } else { format!("{figure:.1} {unit}") }
}

/// Rows below their heads, each column as wide as its widest cell.
pub(super) fn table<const N: usize>(heads: [&str; N], rows: &[[String; N]]) -> String {
    let mut widths = heads.map(|head| head.chars().count());
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: [&str; N]| {
        let padded: Vec<String> =
            cells.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        format!("  {}\n", padded.join("  ").trim_end())
    };
    let mut text = line(heads);
    for row in rows {
        text.push_str(&line(std::array::from_fn(|n| row[n].as_str())));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_the_latency_of_the_event_of_that_rank() {
        let times = |times: &[u64]| {
            Latencies::of(times.iter().map(|ms| Duration::from_millis(*ms)).collect())
        };
        let latencies = times(&[40, 10, 30, 20]).unwrap();
        assert_eq!(latencies.percentile(50).unwrap(), Duration::from_millis(20));
        assert_eq!(latencies.percentile(99).unwrap(), Duration::from_millis(40));
        let hundred: Vec<u64> = (1..=200).collect();
        let hundred = times(&hundred).unwrap();
        assert_eq!(hundred.percentile(99).unwrap(), Duration::from_millis(198));
        assert!(times(&[]).is_err());
    }

    #[test]
    fn a_figure_out_of_its_bound_fails_all_and_is_named() {
        let mut checks = Checks::default();
        checks.at_most("seconds", 2.0, 2.0, "s");
        checks.some("refusals", 1);
        checks.exactly("handled", 45, 45);
        checks.at_least("CPU", 0.5, 0.5, "s");
        checks.conclude().unwrap();
        checks.at_most("seconds", 2.35, 2.0, "s");
        checks.some("refusals", 0);
        checks.exactly("handled", 46, 45);
        checks.at_most("attempts", 51.0, 50.9, "");
        let why = checks.conclude().unwrap_err().to_string();
        assert!(why.starts_with("4 of 8 figures"), "{why}");
        for broken in [
            "seconds: 2.4 s, and not at most 2.0 s",
            "refusals: 0",
            "46, and not 45",
            "attempts: 51, and not at most 50",
        ] {
            assert!(why.contains(broken), "{why}");
        }
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["1".to_owned(), "µs".to_owned()], ["100".to_owned(), "s".to_owned()]];
        assert_eq!(table(["n", "unit"], &rows), "  n    unit\n  1    µs\n  100  s\n");
    }
}
