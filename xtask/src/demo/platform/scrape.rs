//! What `GET /metrics` said at one moment.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};

use crate::http::Http;

/// Who reads the metrics.
pub(super) struct Operator {
    http: Http,
    authorization: String,
}

impl Operator {
    pub(super) fn connect(address: SocketAddr, token: &str) -> Result<Self> {
        Ok(Self { http: Http::connect(address)?, authorization: format!("Bearer {token}") })
    }

    pub(super) fn scrape(&mut self) -> Result<Scrape> {
        let answer = self.http.get("/metrics", &[("Authorization", &self.authorization)])?;
        ensure!(answer.status == 200, "/metrics: {} {}", answer.status, answer.body);
        Ok(Scrape(answer.body))
    }
}

/// The text format of Prometheus.
pub(super) struct Scrape(String);

impl Scrape {
    /// The sum of all series of this name that have these labels; 0 without one.
    pub(super) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> Result<f64> {
        let mut sum = 0.0;
        for line in self.0.lines() {
            let Some(rest) = line.strip_prefix(name) else { continue };
            // A longer name begins alike.
            if !rest.starts_with(['{', ' ']) {
                continue;
            }
            let has = |(label, value): &(&str, &str)| {
                let label = format!("{label}=\"{value}\"");
                rest.contains(&format!("{{{label}")) || rest.contains(&format!(",{label}"))
            };
            if labels.iter().all(has) {
                let (_, value) = rest.rsplit_once(' ').context("a series has a value")?;
                sum += value.parse::<f64>().with_context(|| format!("no number: {line}"))?;
            }
        }
        Ok(sum)
    }

    /// The same of a counter, whose values are whole.
    pub(super) fn count(&self, name: &str, labels: &[(&str, &str)]) -> Result<u64> {
        let sum = self.sum(name, labels)?;
        ensure!(sum >= 0.0 && sum.fract() == 0.0, "{name} is {sum}, and no count");
        Ok(sum as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_added_up_by_their_labels() {
        let scrape = Scrape(
            "# TYPE handled counter\n\
             handled_total{group=\"a\",tenant=\"x\"} 3\n\
             handled_total{group=\"b\",tenant=\"x\"} 4\n\
             handled_total{group=\"c\",tenant=\"y\"} 5\n\
             handled_total_of_another 7\n\
             age 0.5\n"
                .to_owned(),
        );
        assert_eq!(scrape.count("handled_total", &[("tenant", "x")]).unwrap(), 7);
        let one = [("tenant", "x"), ("group", "b")];
        assert_eq!(scrape.count("handled_total", &one).unwrap(), 4);
        assert_eq!(scrape.count("handled_total", &[("tenant", "z")]).unwrap(), 0);
        assert!(scrape.count("age", &[]).is_err());
        assert_eq!(scrape.sum("age", &[]).unwrap(), 0.5);
    }
}
