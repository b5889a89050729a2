//! Patterns of event types.

use super::document::Text;
use super::section::Section;
use event_host_core::subscription::{InvalidSubscription, Subscription};

/// Reads patterns of event types; there is at least one. `None` after a problem.
pub(super) fn event_types(
    section: &Section<'_>,
    texts: Vec<Option<Text<'_>>>,
) -> Option<Subscription> {
    let whole = texts.iter().all(Option::is_some);
    let texts: Vec<Text<'_>> = texts.into_iter().flatten().collect();
    let mut fit = true;
    for text in &texts {
        if let Err(InvalidSubscription::Pattern(_)) = Subscription::new([&*text.value]) {
            fit = false;
            section.problem(
                text.at,
                format!(
                    "{} is no event type: write a type, a beginning that ends in `*`, or `*` for all",
                    text.quoted()
                ),
            );
        }
    }
    if whole && fit { Subscription::new(texts.into_iter().map(|t| t.value)).ok() } else { None }
}
