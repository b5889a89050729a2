//! The first load of what a host runs.
//!
//! What is loaded within a second starts together. What takes longer, because it has to be
//! compiled, is followed like every other change ([`Reloader`](super::reload::Reloader)),
//! and holds up nothing else: not what is loaded, and not what is smaller. What is refused
//! within that second is said together, and then nothing was run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::Say;
use super::loading::{Loaded, Loader, NotAllLoaded, NotLoaded};
use super::loads::{Loads, Progress};
use super::wanted::Wanted;
use crate::config::{Config, HandlerSettings};
use event_host_core::event::{GroupName, HandlerName};
use event_host_store::Deployed;

/// How long a host that starts waits for what it loads, before it runs what is loaded.
const MOMENT: Duration = Duration::from_secs(1);

/// What of the start is still being loaded.
#[derive(Debug)]
pub(crate) struct Starting {
    left: BTreeSet<HandlerName>,
    /// Cancelled once nothing is left.
    over: CancellationToken,
    /// Cancelled once the groups are registered.
    registered: CancellationToken,
}

impl Starting {
    /// These are still being loaded.
    pub(crate) fn new(left: impl Iterator<Item = HandlerName>) -> Self {
        let (over, registered) = (CancellationToken::new(), CancellationToken::new());
        let mut starting = Self { left: left.collect(), over, registered };
        starting.keep(|_| true);
        starting
    }

    /// Cancelled once nothing is left.
    pub(crate) fn over(&self) -> CancellationToken {
        self.over.clone()
    }

    /// Cancelled once the groups are registered.
    pub(crate) fn registered(&self) -> CancellationToken {
        self.registered.clone()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.left.is_empty()
    }

    /// Whether this handler is left.
    pub(crate) fn has(&self, handler: &HandlerName) -> bool {
        self.left.contains(handler)
    }

    /// Only these handlers are left of those that were.
    pub(crate) fn keep(&mut self, mut is_left: impl FnMut(&HandlerName) -> bool) {
        self.left.retain(|handler| is_left(handler));
        if self.left.is_empty() {
            self.over.cancel();
        }
    }

    /// What `status` is to say of the groups of what is left.
    pub(crate) fn notes(&self, config: &Config, note: &str) -> BTreeMap<GroupName, String> {
        let left = config.handlers.iter().filter(|settings| self.has(&settings.name));
        left.map(|settings| (settings.group.clone(), note.to_owned())).collect()
    }
}

/// Begins to load handlers, the smallest components first, and gives those that are loaded
/// within a moment.
///
/// # Errors
/// When one is refused by then. All that are refused are said.
pub(crate) async fn load<'a>(
    handlers: impl Iterator<Item = &'a HandlerSettings> + Clone,
    active: &[Deployed],
    loader: &Loader,
    loads: &mut Loads,
    config: &Config,
    say: &Say,
) -> Result<Vec<Loaded>, NotAllLoaded> {
    let mut refused = BTreeMap::new();
    let mut wanted = Vec::new();
    for settings in handlers.clone() {
        match loader.look(settings, active).await {
            Ok(look) => wanted.push((settings, look)),
            Err(why) => drop(refused.insert(&settings.name, why)),
        }
    }
    begin(wanted, |settings, wanted| {
        loads.begin(settings, wanted, true);
    });
    loads.wait(MOMENT).await;
    let mut loaded = Vec::new();
    let mut is_refused = false;
    for settings in handlers {
        let why = match refused.get(&settings.name) {
            Some(why) => why,
            None => match loads.progress(settings).await {
                Progress::Loaded(one) => {
                    loaded.push(*one);
                    continue;
                }
                Progress::UnderWay => continue,
                Progress::Refused(why) => why,
            },
        };
        if !why.is_waited_for() {
            say(&why.message(config, settings));
            is_refused = true;
        }
    }
    if is_refused { Err(NotAllLoaded) } else { Ok(loaded) }
}

/// Begins loads in the order in which they hold up one another least: those of small
/// files first.
pub(crate) fn begin<'a>(
    mut wanted: Vec<(&'a HandlerSettings, (Wanted, Option<u64>))>,
    mut begin: impl FnMut(&'a HandlerSettings, Wanted),
) {
    wanted.sort_by_key(|(_, (_, bytes))| bytes.unwrap_or(u64::MAX));
    for (settings, (wanted, _)) in wanted {
        begin(settings, wanted);
    }
}

/// Says everything that is refused of what is left, with what is found within a moment.
/// Whether anything is.
pub(crate) async fn is_refused(
    starting: &Starting,
    loads: &mut Loads,
    config: &Config,
    say: &Say,
) -> bool {
    let ends = |why: &&NotLoaded| !why.is_waited_for();
    let mut is_refused = false;
    for handler in &starting.left {
        is_refused |= loads.refused(handler).await.is_some_and(|why| ends(&why));
    }
    if !is_refused {
        return false;
    }
    loads.wait(MOMENT).await;
    for settings in config.handlers.iter().filter(|settings| starting.has(&settings.name)) {
        if let Some(why) = loads.refused(&settings.name).await.filter(ends) {
            say(&why.message(config, settings));
        }
    }
    true
}
