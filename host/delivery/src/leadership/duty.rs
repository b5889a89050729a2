//! A duty that this host has.

use super::Locks;
use super::owner::Request;
use event_host_core::leadership_proof::LeadershipProof;
use event_host_store::Duty;

/// A duty that this host has. Dropping it gives the duty back, a little later.
#[derive(Debug)]
pub struct DutyLease {
    duty: Duty,
    proof: LeadershipProof,
    locks: Locks,
}

impl DutyLease {
    pub(super) fn new(duty: Duty, proof: LeadershipProof, locks: Locks) -> Self {
        Self { duty, proof, locks }
    }

    pub(super) fn duty(&self) -> Duty {
        self.duty
    }

    /// The proof that the session has it.
    #[must_use]
    pub fn proof(&self) -> &LeadershipProof {
        &self.proof
    }
}

impl Drop for DutyLease {
    fn drop(&mut self) {
        if !self.proof.is_lost() {
            // Fails only when the owner has ended, and has released everything.
            let _ = self.locks.requests.send(Request::ReleaseDuty(self.duty, self.proof.clone()));
        }
    }
}
