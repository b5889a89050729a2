//! Which of a row of failures are said.
//!
//! What is waited out fails again and again, for one reason or for several one after
//! the other, and each new reason may be the one that tells what to do. So each is
//! said when it comes, and none more often than once in a while, however many take
//! turns. What varies from one time to the next, such as a process id, makes no other
//! reason of it.

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

/// A reason that went and comes back is not said again within this.
const AGAIN_AFTER: Duration = Duration::from_secs(60);

/// How many reasons are remembered.
const MOST: usize = 16;

/// The reasons for which one thing does not work.
#[derive(Debug, Default)]
pub struct Repeats {
    /// The present one, if it does not work.
    now: Option<String>,
    said: Vec<(String, Instant)>,
}

impl Repeats {
    /// Whether this failure is to be said: its reason is not the one before's, and was
    /// not said lately.
    pub fn is_news(&mut self, why: &dyn fmt::Display) -> bool {
        let why = without_numbers(&why.to_string());
        if self.now.as_ref() == Some(&why) {
            return false;
        }
        self.now = Some(why.clone());
        let now = Instant::now();
        self.said.retain(|(_, at)| now.duration_since(*at) < AGAIN_AFTER);
        if self.said.iter().any(|(said, _)| *said == why) {
            return false;
        }
        if self.said.len() >= MOST {
            self.said.remove(0);
        }
        self.said.push((why, now));
        true
    }

    /// It works. Whether it did not before.
    pub fn over(&mut self) -> bool {
        self.said.clear();
        self.now.take().is_some()
    }
}

/// A text with each number as a `#`.
fn without_numbers(text: &str) -> String {
    let mut same = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '0'..='9' if same.ends_with('#') => {}
            '0'..='9' => same.push('#'),
            _ => same.push(character),
        }
    }
    same
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_reason_is_said_when_it_comes_and_seldom_again() {
        let mut repeats = Repeats::default();
        assert!(!repeats.over(), "nothing was wrong");
        assert!(repeats.is_news(&"no answer for 5 s"));
        assert!(!repeats.is_news(&"no answer for 10 s"), "the same but for a number");
        assert!(repeats.is_news(&"the server only reads"));
        for _ in 0..100 {
            assert!(!repeats.is_news(&"no answer for 5 s"));
            assert!(!repeats.is_news(&"the server only reads"));
        }
        tokio::time::advance(AGAIN_AFTER).await;
        assert!(!repeats.is_news(&"the server only reads"), "it is the one before's");
        assert!(repeats.is_news(&"no answer for 5 s"));
        assert!(repeats.over());
        assert!(repeats.is_news(&"no answer for 5 s"), "it is another row of failures");
    }

    #[test]
    fn any_number_of_reasons_takes_little_memory() {
        let mut repeats = Repeats::default();
        for n in 0..1_000_u32 {
            let letters: String = n.to_string().chars().map(|c| (c as u8 + 50) as char).collect();
            assert!(repeats.is_news(&letters));
        }
        assert!(repeats.said.len() <= MOST);
    }
}
