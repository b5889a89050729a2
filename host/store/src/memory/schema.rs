//! A store in memory has no schema, and no home.

use async_trait::async_trait;

use super::MemoryStore;
use crate::{Adopted, Schema, StoreError};

#[async_trait]
impl Schema for MemoryStore {
    async fn migrate(&self) -> Result<Vec<String>, StoreError> {
        Ok(Vec::new())
    }

    async fn adopt(&self) -> Result<Adopted, StoreError> {
        Err(StoreError::Refused("there is nothing to adopt in memory".to_owned()))
    }
}
