//! The JSON form of a CloudEvent.
