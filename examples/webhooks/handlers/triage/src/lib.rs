//! Labels new issues by rules, and says so with a `triage.labelled` event.
//!
//! Takes `com.github.issues.opened`. Labels that the issue already has are not
//! set again; an issue that no rule fits and nobody labelled gets
//! `needs-triage`, so that none is overlooked.

mod rules;

use event_host_sdk::{Event, Failure, Message, emit, handler, log};
use serde::Deserialize;
use serde_json::json;

#[derive(Deserialize)]
struct Opened {
    issue: Issue,
    repository: Repository,
}

#[derive(Deserialize)]
struct Issue {
    number: u64,
    title: String,
    body: Option<String>,
    labels: Option<Vec<Label>>,
    html_url: Option<String>,
}

#[derive(Deserialize)]
struct Label {
    name: String,
}

#[derive(Deserialize)]
struct Repository {
    full_name: String,
}

#[handler]
fn triage(event: Event) -> Result<(), Failure> {
    let Opened { issue, repository } = event.json()?;
    let present: Vec<String> =
        issue.labels.unwrap_or_default().into_iter().map(|label| label.name).collect();
    let labels = rules::labels(&issue.title, issue.body.as_deref().unwrap_or(""), &present);
    let subject = format!("{}#{}", repository.full_name, issue.number);
    if labels.is_empty() {
        log::debug!("{subject} has every label already");
        return Ok(());
    }
    log::debug!("{subject}: {}", labels.join(", "));
    let data = json!({
        "repository": repository.full_name,
        "issue": issue.number,
        "title": issue.title,
        "url": issue.html_url,
        "labels": labels,
    });
    emit(Message::new("triage.labelled").subject(subject).json(&data)?)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use event_host_sdk::testing;
    use serde_json::Value;

    fn opened(data: &Value) -> Event {
        Event::for_test(Message::new("com.github.issues.opened").json(data).unwrap())
    }

    #[test]
    fn an_issue_is_labelled_by_its_title_and_body() {
        let data = json!({
            "issue": { "number": 7, "title": "It crashes", "body": "with a password in the log" },
            "repository": { "full_name": "harbour/dock" },
        });
        triage(opened(&data)).unwrap();
        let emitted = testing::emitted();
        assert_eq!(emitted[0].event_type(), "triage.labelled");
        assert_eq!(emitted[0].subject(), Some("harbour/dock#7"));
        let labelled: Value = emitted[0].json().unwrap();
        assert_eq!(labelled["labels"], json!(["bug", "security"]));
    }

    #[test]
    fn nulls_and_missing_fields_are_no_failure() {
        let data = json!({
            "issue": { "number": 7, "title": "Hm", "body": null, "labels": null },
            "repository": { "full_name": "harbour/dock" },
        });
        triage(opened(&data)).unwrap();
        let labelled: Value = testing::emitted()[0].json().unwrap();
        assert_eq!(labelled["labels"], json!(["needs-triage"]));
    }

    #[test]
    fn an_issue_with_every_label_causes_no_event() {
        let data = json!({
            "issue": { "number": 7, "title": "Crash", "labels": [{ "name": "bug" }] },
            "repository": { "full_name": "harbour/dock" },
        });
        triage(opened(&data)).unwrap();
        assert!(testing::emitted().is_empty());
    }

    #[test]
    fn an_event_without_an_issue_is_rejected() {
        let failure = triage(opened(&json!({ "zen": "Design for failure." }))).unwrap_err();
        assert!(!failure.is_retry());
        assert!(failure.reason().contains("missing field `issue`"), "{failure}");
    }
}
