//! Which events may run now. Pure.
