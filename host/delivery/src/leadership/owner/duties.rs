//! Which duties the owner claims, and which it gives back.

use super::Owner;
use crate::leadership::{DutyLease, Locks};
use event_host_core::leadership_proof::LeadershipProof;
use event_host_store::Duty;

impl Owner {
    /// Gives back the duties that are to be given back, and claims those that are waited for.
    pub(super) async fn do_duties(&mut self) {
        for duty in std::mem::take(&mut self.duties.releasing) {
            let Some(session) = &mut self.session else { return };
            match session.release_duty(duty).await {
                Ok(()) => drop(self.duties.held.remove(&duty)),
                Err(why) => return self.end_session(&why),
            }
        }
        if self.session.is_none() {
            return;
        }
        for duty in self.duties.claimable() {
            self.prove_if_due().await;
            let Some(session) = &mut self.session else { return };
            match session.claim_duty(duty).await {
                Ok(true) => self.grant_duty(duty),
                Ok(false) => self.duties.refuse(duty),
                Err(why) => return self.end_session(&why),
            }
        }
    }

    fn grant_duty(&mut self, duty: Duty) {
        // No task is left to do it; this task ends, and the session with it.
        let Some(requests) = self.requests.upgrade() else { return };
        let Some(session) = &self.session else { return };
        let told = self.leaderships.begin();
        let proof = LeadershipProof::new(told.clone(), session.proven_until.subscribe());
        self.duties.held.insert(duty, told.drop_guard());
        let locks = Locks { requests, leaderships: self.leaderships.clone() };
        self.duties.grant(DutyLease::new(duty, proof, locks));
    }
}
