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
use crate::delivery::admission::{Admission, Demand, FairExecutor, TIME_SLICE, TenantQuota};
use crate::digest::Digest;
use crate::event::{Attempt, Event, LogEvent};
use crate::failure::{Failure, FailureKind};
use crate::handler::{BatchCall, BatchReport, Call, Outcome, Report, Usage};
use crate::leadership_proof::LeadershipProof;
use crate::store::memory::{Fault, MemoryStore, Operation};
use crate::store::traits::*;
use crate::store::{Cursor, DeadLetterFilter, Fetch, GroupRegistration, HostIdentity, Start};
use crate::troubles::Troubles;

/// A deadline. Time is paused: a day passes at once when nothing else happens.
const DAY: Duration = Duration::from_secs(86_400);

/// Long against every poll.
const MINUTE: Duration = Duration::from_secs(60);
