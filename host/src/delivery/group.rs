//! The loop of one group: fetch, handle, settle.
