//! Runs the groups of a config: start, watch, stop.
