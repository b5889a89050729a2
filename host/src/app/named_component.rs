//! The component that `host dlq replay --digest` names.
//!
//! Only what lies in the database can be named: whichever host leads the group
//! when the event's turn comes has to find it. Where handlers.toml has the
//! group's handler, the component is loaded here first, with the handler's
//! settings, so that what cannot run is refused before anything changes.

use std::collections::HashSet;
use std::str::FromStr;

use anyhow::{Context as _, bail};

use super::loading::Loader;
use super::{Say, Show};
use crate::config::{Config, HandlerSettings};
use event_host_core::digest::Digest;
use event_host_core::event::{GroupName, Tenant};
use event_host_store::{DeadLetter, Deployments};

/// How many components a message lists that a few digits may mean.
const LISTED: usize = 5;

/// A digest as people give one: `sha256:` and its digits, or the first few of
/// them, with or without the prefix.
#[derive(Debug, Clone)]
pub(crate) struct DigestPrefix(String);

/// A text with which no digest begins.
#[derive(Debug, thiserror::Error)]
#[error("a digest is `sha256:` and 64 of the digits 0 to 9 and a to f; the first few of them do")]
pub(crate) struct InvalidDigestPrefix;

impl FromStr for DigestPrefix {
    type Err = InvalidDigestPrefix;

    fn from_str(text: &str) -> Result<Self, InvalidDigestPrefix> {
        let digits = text.strip_prefix("sha256:").unwrap_or(text);
        let fits = (1..=64).contains(&digits.len())
            && digits.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'a'..=b'f'));
        if fits { Ok(Self(format!("sha256:{digits}"))) } else { Err(InvalidDigestPrefix) }
    }
}

/// Finds the component for one dead letter after the other.
pub(crate) struct NamedComponent<'a> {
    start: &'a DigestPrefix,
    store: &'a dyn Deployments,
    /// The settings, if there are any that hold.
    config: Option<Config>,
    say: Say,
    show: Show,
    loader: Option<Loader>,
    checked: HashSet<(GroupName, Digest)>,
}

impl<'a> NamedComponent<'a> {
    /// `config`: the settings, if there are any; without them nothing is checked. `say`
    /// receives what is not checked, `show` shows what is compiled.
    pub(crate) fn new(
        start: &'a DigestPrefix,
        store: &'a dyn Deployments,
        config: Option<Config>,
        say: Say,
        show: Show,
    ) -> Self {
        Self { start, store, config, say, show, loader: None, checked: HashSet::new() }
    }

    /// The one component of the dead letter's tenant whose digest begins so.
    ///
    /// # Errors
    /// When there is none or more than one, and when the handler of the dead
    /// letter's group could not run it.
    pub(crate) async fn of(&mut self, letter: &DeadLetter) -> anyhow::Result<Digest> {
        let digest = self.found(&letter.tenant).await?;
        if self.checked.insert((letter.group.clone(), digest.clone())) {
            self.check(letter, &digest).await?;
        }
        Ok(digest)
    }

    async fn found(&self, tenant: &Tenant) -> anyhow::Result<Digest> {
        let start = &self.start.0;
        let mut fitting = self.store.digests(tenant, start, LISTED + 1).await?;
        match fitting.len() {
            1 => Ok(fitting.remove(0)),
            0 => bail!(
                "the database has no component {start}{}: only what was deployed can be named; `host deploy NAME FILE` stores a file, and under a name that no handler has it does nothing else",
                if tenant.is_none() { String::new() } else { format!(" of tenant `{tenant}`") }
            ),
            many => {
                let listed: Vec<&str> = fitting.iter().take(LISTED).map(Digest::as_str).collect();
                let more = if many > LISTED { ", and others" } else { "" };
                bail!("{start} may be {}{more}: give more digits", listed.join(", "))
            }
        }
    }

    /// Loads it as a host would.
    async fn check(&mut self, letter: &DeadLetter, digest: &Digest) -> anyhow::Result<()> {
        let Some(config) = &self.config else { return Ok(()) };
        let of_group = |settings: &&HandlerSettings| {
            settings.group == letter.group && settings.tenant == letter.tenant
        };
        let Some(settings) = config.handlers.iter().find(of_group) else {
            (self.say)(&format!(
                "note: {} has no handler in group `{}`: whether the component can run there is not checked",
                config.path.display(),
                letter.group
            ));
            return Ok(());
        };
        let loader = match &mut self.loader {
            Some(loader) => loader,
            none => none.insert(Loader::new(&config.compilation, self.show)?),
        };
        loader
            .replay_component(settings, digest, self.store)
            .await
            .with_context(|| format!("handler `{}` cannot run {digest}", settings.name))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_digits_of_a_digest_will_do_and_nothing_else() {
        let whole = Digest::of(b"").to_string();
        for good in [&whole, &whole[7..], &whole[..8], &whole[7..8], &whole[..40]] {
            let start = good.parse::<DigestPrefix>().unwrap();
            assert!(whole.starts_with(&start.0) && start.0.ends_with(good), "{good}");
        }
        let longer = format!("{whole}0");
        for bad in ["", "sha256:", "sha512:ab", "AB", "a%", "sha256:sha256:ab", &longer] {
            assert!(bad.parse::<DigestPrefix>().is_err(), "{bad}");
        }
    }
}
