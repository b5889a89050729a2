//! What handlers.toml of the example allows, as the demonstration expects it. A test
//! compares the two.

/// Events a second that each may publish.
pub(super) const NOISY_INGESTED: u64 = 100;
pub(super) const HOSTILE_INGESTED: u64 = 15;

/// Attempts a second of the noisy tenant.
pub(super) const NOISY_ATTEMPTS: u64 = 50;

/// Attempts at once, and bytes of memory in MiB.
pub(super) const NOISY_CONCURRENCY: u64 = 2;
pub(super) const NOISY_MEMORY: u64 = 32;
pub(super) const HOSTILE_CONCURRENCY: u64 = 4;
pub(super) const HOSTILE_MEMORY: u64 = 64;

/// Seconds of CPU a second of the hostile tenant.
pub(super) const HOSTILE_CPU: f64 = 0.15;

/// Lines a second that its handler may write to the host's log.
pub(super) const HOSTILE_LOG_LINES: u64 = 20;

/// Dead letters that the hostile tenant may keep.
pub(super) const HOSTILE_DEAD_LETTERS: u64 = 80;

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of a table of handlers.toml.
    fn lines<'a>(settings: &'a str, table: &str) -> Vec<&'a str> {
        let head = format!("[{table}]");
        settings
            .lines()
            .skip_while(|line| *line != head)
            .skip(1)
            .take_while(|line| !line.starts_with('['))
            .collect()
    }

    #[test]
    fn the_ceilings_are_those_of_the_example() {
        let settings = include_str!("../../../../examples/platform/handlers.toml");
        for (table, expected) in [
            (
                "tenants.noisy",
                vec![
                    format!("ingested_per_second = {NOISY_INGESTED}"),
                    format!("events_per_second = {NOISY_ATTEMPTS}"),
                    format!("concurrency = {NOISY_CONCURRENCY}"),
                    format!("memory = \"{NOISY_MEMORY}MiB\""),
                ],
            ),
            ("tokens.hostile", vec![format!("rate = {HOSTILE_INGESTED}")]),
            (
                "tenants.hostile",
                vec![
                    format!("cpu = {HOSTILE_CPU}"),
                    format!("memory = \"{HOSTILE_MEMORY}MiB\""),
                    format!("concurrency = {HOSTILE_CONCURRENCY}"),
                    format!("dead_letters = {HOSTILE_DEAD_LETTERS}"),
                ],
            ),
            ("handlers.miner.limits", vec![format!("log_lines_per_second = {HOSTILE_LOG_LINES}")]),
        ] {
            let lines = lines(settings, table);
            for line in expected {
                assert!(lines.contains(&line.as_str()), "[{table}] has no line `{line}`");
            }
        }
    }
}
