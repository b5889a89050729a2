//! handlers.toml: read, checked whole, and turned into typed settings.
