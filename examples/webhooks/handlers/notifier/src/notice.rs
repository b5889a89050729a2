//! What each kind of event becomes: a line of text and, if there is one, a link.

use serde::{Deserialize, Serialize};

#[derive(Serialize)]
pub(crate) struct Notice {
    pub(crate) text: String,
    pub(crate) url: Option<String>,
}

#[derive(Deserialize)]
pub(crate) struct PullRequestOpened {
    pull_request: PullRequest,
    repository: Repository,
    sender: Option<Account>,
}

#[derive(Deserialize)]
struct PullRequest {
    number: u64,
    title: String,
    html_url: Option<String>,
}

#[derive(Deserialize)]
struct Repository {
    full_name: String,
}

#[derive(Deserialize)]
struct Account {
    login: String,
}

impl From<PullRequestOpened> for Notice {
    fn from(PullRequestOpened { pull_request, repository, sender }: PullRequestOpened) -> Self {
        let repository = repository.full_name;
        let sender = sender.map_or_else(|| "somebody".to_owned(), |account| account.login);
        let PullRequest { number, title, html_url } = pull_request;
        Self {
            text: format!("{repository}#{number}: {sender} opened “{title}”"), url: html_url
        }
    }
}

#[derive(Deserialize)]
pub(crate) struct ReleasePublished {
    release: Release,
    repository: Repository,
}

/// A release often has no name, and always a tag.
#[derive(Deserialize)]
struct Release {
    tag_name: String,
    name: Option<String>,
    html_url: Option<String>,
}

impl From<ReleasePublished> for Notice {
    fn from(ReleasePublished { release, repository }: ReleasePublished) -> Self {
        let Release { tag_name, name, html_url } = release;
        let name = name.filter(|name| !name.is_empty()).unwrap_or(tag_name);
        Self { text: format!("{} has released {name}", repository.full_name), url: html_url }
    }
}

/// What `triage` emits.
#[derive(Deserialize)]
pub(crate) struct Labelled {
    repository: String,
    issue: u64,
    title: String,
    url: Option<String>,
    labels: Vec<String>,
}

impl From<Labelled> for Notice {
    fn from(Labelled { repository, issue, title, url, labels }: Labelled) -> Self {
        Self { text: format!("{repository}#{issue}: “{title}” is {}", labels.join(", ")), url }
    }
}

/// What `tally` emits.
#[derive(Deserialize)]
pub(crate) struct Milestone {
    repository: String,
    events: u64,
}

impl From<Milestone> for Notice {
    fn from(Milestone { repository, events }: Milestone) -> Self {
        Self { text: format!("{repository} has had {events} events"), url: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_release_without_a_name_goes_by_its_tag() {
        let release = |name| {
            let data = json!({
                "release": { "tag_name": "v1.2", "name": name },
                "repository": { "full_name": "harbour/dock" },
            });
            Notice::from(serde_json::from_value::<ReleasePublished>(data).unwrap()).text
        };
        assert_eq!(release(None), "harbour/dock has released v1.2");
        assert_eq!(release(Some("")), "harbour/dock has released v1.2");
        assert_eq!(release(Some("Spring")), "harbour/dock has released Spring");
    }

    #[test]
    fn what_the_other_handlers_emit_becomes_a_notice() {
        let labelled = json!({
            "repository": "harbour/dock", "issue": 7, "title": "Crash", "url": null,
            "labels": ["bug", "security"],
        });
        let notice = Notice::from(serde_json::from_value::<Labelled>(labelled).unwrap());
        assert_eq!(notice.text, "harbour/dock#7: “Crash” is bug, security");
        let milestone = json!({ "repository": "harbour/dock", "events": 25 });
        let notice = Notice::from(serde_json::from_value::<Milestone>(milestone).unwrap());
        assert_eq!(notice.text, "harbour/dock has had 25 events");
    }
}
