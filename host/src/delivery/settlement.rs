//! Outcomes of a batch -> what to commit. Pure.
