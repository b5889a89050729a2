//! Logs: text or JSON, quiet by default.
