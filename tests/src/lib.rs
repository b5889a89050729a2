//! Black-box and fault tests of the host program.
