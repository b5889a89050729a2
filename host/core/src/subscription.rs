//! Which event types are meant, by patterns.

/// A set of event types, such as those that a group receives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscription {
    /// Patterns: a type, or a prefix followed by `*`. Never empty.
    patterns: Vec<String>,
}

/// A subscription that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSubscription {
    /// No pattern at all.
    #[error("a subscription names at least one event type; `*` is all of them")]
    Empty,
    /// A pattern that is empty or has a `*` before its end.
    #[error("`{0}` is no event type: give a type, a prefix that ends in `*`, or `*` for all")]
    Pattern(String),
}

impl Subscription {
    /// Checks the patterns.
    ///
    /// # Errors
    /// When there is none, or one is empty or has a `*` before its end.
    pub fn new<S: Into<String>>(
        patterns: impl IntoIterator<Item = S>,
    ) -> Result<Self, InvalidSubscription> {
        let patterns: Vec<String> = patterns.into_iter().map(Into::into).collect();
        if patterns.is_empty() {
            return Err(InvalidSubscription::Empty);
        }
        for pattern in &patterns {
            let body = pattern.strip_suffix('*').unwrap_or(pattern);
            if pattern.is_empty() || body.contains('*') {
                return Err(InvalidSubscription::Pattern(pattern.clone()));
            }
        }
        Ok(Self { patterns })
    }

    /// Every event type.
    #[must_use]
    pub fn all() -> Self {
        Self { patterns: vec!["*".to_owned()] }
    }

    /// The patterns as they were given.
    #[must_use]
    pub fn patterns(&self) -> &[String] {
        &self.patterns
    }

    /// Whether every type matches.
    #[must_use]
    pub fn is_all(&self) -> bool {
        self.patterns.iter().any(|pattern| pattern == "*")
    }

    /// Whether an event type matches.
    #[must_use]
    pub fn matches(&self, event_type: &str) -> bool {
        self.patterns.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(prefix) => event_type.starts_with(prefix),
            None => event_type == pattern,
        })
    }
}
