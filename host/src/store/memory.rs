//! A store in memory, for the tests of `delivery` alone.
