//! Who runs which group.
