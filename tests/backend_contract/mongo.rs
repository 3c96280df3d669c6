//! `MongoStorage` on a real server: the contract of storages, and what only a server can do to us.

use std::sync::Arc;

use skalds::backend::mongo::{MongoOptions, MongoStorage};

use crate::storage;
use crate::support::MongoDatabase;

async fn open(database: &MongoDatabase) -> MongoStorage {
    let options = MongoOptions { database: database.name.clone(), ..MongoOptions::new(&database.url) };
    MongoStorage::connect(options).await.unwrap()
}

#[tokio::test]
async fn mongodb_keeps_the_contract() {
    let database = MongoDatabase::new();
    storage::all(Arc::new(open(&database).await)).await;
}
