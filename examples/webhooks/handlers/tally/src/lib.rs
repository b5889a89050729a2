//! Counts what happens in each repository.
//!
//! Takes `com.github.*`. The counts are kept in the group's state, one key a
//! repository; since they are written together with the fact that the event is
//! done, they are exact. Each time a repository has had another 25 events, a
//! `tally.milestone` event says so.

use event_host_sdk::{Event, Failure, Message, emit, handler, state};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// How many events of a repository make a milestone.
const MILESTONE: u64 = 25;

/// What all webhooks have in common. Events of an organisation or an account
/// belong to no repository.
#[derive(Deserialize)]
struct Webhook {
    repository: Option<Repository>,
    organization: Option<Account>,
    sender: Option<Account>,
    commits: Option<Vec<serde::de::IgnoredAny>>,
}

#[derive(Deserialize)]
struct Repository {
    full_name: String,
}

#[derive(Deserialize)]
struct Account {
    login: String,
}

#[derive(Serialize, Deserialize, Default, Debug, PartialEq)]
struct Tally {
    events: u64,
    issues_opened: u64,
    pull_requests_opened: u64,
    commits: u64,
    last: String,
}

#[handler]
fn tally(event: Event) -> Result<(), Failure> {
    let webhook: Webhook = event.json()?;
    let owner = owner(&webhook);
    let key = format!("tally/{owner}");
    let mut tally: Tally = state::get(&key)?.unwrap_or_default();
    tally.events += 1;
    match event.event_type() {
        "com.github.issues.opened" => tally.issues_opened += 1,
        "com.github.pull_request.opened" => tally.pull_requests_opened += 1,
        "com.github.push" => tally.commits += webhook.commits.map_or(0, |c| c.len() as u64),
        _ => {}
    }
    event.time().clone_into(&mut tally.last);
    state::set(&key, &tally)?;
    if tally.events.is_multiple_of(MILESTONE) {
        let data = json!({ "repository": owner, "events": tally.events });
        emit(Message::new("tally.milestone").subject(owner).json(&data)?)?;
    }
    Ok(())
}

/// The repository, or else whose account the event is about.
fn owner(webhook: &Webhook) -> String {
    let account = webhook.organization.as_ref().or(webhook.sender.as_ref());
    match (&webhook.repository, account) {
        (Some(repository), _) => repository.full_name.clone(),
        (None, Some(account)) => account.login.clone(),
        (None, None) => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use event_host_sdk::testing;
    use serde_json::Value;

    fn webhook(event_type: &str, data: &Value) -> Event {
        Event::for_test(Message::new(event_type).json(data).unwrap())
    }

    #[test]
    fn each_repository_has_its_own_counts() {
        let dock = json!({ "repository": { "full_name": "harbour/dock" }, "commits": [{}, {}] });
        let beam = json!({ "repository": { "full_name": "lighthouse/beam" }, "commits": null });
        tally(webhook("com.github.push", &dock)).unwrap();
        tally(webhook("com.github.issues.opened", &dock)).unwrap();
        tally(webhook("com.github.push", &beam)).unwrap();
        let dock: Tally = state::get("tally/harbour/dock").unwrap().unwrap();
        assert_eq!((dock.events, dock.issues_opened, dock.commits), (2, 1, 2));
        let beam: Tally = state::get("tally/lighthouse/beam").unwrap().unwrap();
        assert_eq!((beam.events, beam.commits), (1, 0));
    }

    #[test]
    fn events_without_a_repository_count_for_the_account() {
        for data in [
            json!({ "organization": { "login": "harbour" }, "sender": { "login": "ada" } }),
            json!({ "repository": null, "sender": { "login": "ada" } }),
            json!({}),
        ] {
            tally(webhook("com.github.ping", &data)).unwrap();
        }
        let keys = state::keys("tally/", 10).unwrap();
        assert_eq!(keys, ["tally/ada", "tally/harbour", "tally/unknown"]);
    }

    #[test]
    fn a_milestone_is_emitted_once_each_25_events() {
        let data = json!({ "repository": { "full_name": "harbour/dock" } });
        for _ in 0..60 {
            tally(webhook("com.github.star.created", &data)).unwrap();
        }
        let milestones = testing::emitted();
        let events: Vec<u64> = milestones
            .iter()
            .map(|event| event.json::<Value>().unwrap()["events"].as_u64().unwrap())
            .collect();
        assert_eq!(events, [25, 50]);
    }
}
