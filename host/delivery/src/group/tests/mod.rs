//! The group loop against the store in memory, scripted handlers and paused
//! time.

mod basics;
mod batch_calls;
mod batches;
mod chaos;
mod commits;
mod keys;
mod lanes;
mod large;
mod overtaking;
mod quotas;
mod refused;
mod replays;
mod rig;
mod scripts;
mod trips;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

use async_trait::async_trait;
use jiff::Timestamp;
use proptest::prelude::*;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use rig::*;
use scripts::*;

use super::*;
use crate::admission::{Admission, Demand, FairExecutor, TIME_SLICE, TenantQuota};
use crate::ordering::Ordering;
use event_host_core::digest::Digest;
use event_host_core::event::{Attempt, Event, GroupName, LogEvent, Tenant};
use event_host_core::failure::{Failure, FailureKind};
use event_host_core::handler::{BatchCall, BatchReport, Call, Outcome, Report, Usage};
use event_host_core::leadership_proof::LeadershipProof;
use event_host_core::retry::RetryPolicy;
use event_host_core::subscription::Subscription;
use event_host_core::troubles::Troubles;
use event_host_store::memory::{Fault, MemoryStore, Operation};
use event_host_store::traits::*;
use event_host_store::{Cursor, DeadLetterFilter, Fetch, GroupRegistration, HostIdentity, Start};

/// A deadline. Time is paused: a day passes at once when nothing else happens.
const DAY: Duration = Duration::from_secs(86_400);

/// Long against every poll.
const MINUTE: Duration = Duration::from_secs(60);
