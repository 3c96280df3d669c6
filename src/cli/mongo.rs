//! `--mongo`: the tasks in MongoDB.

use std::convert::Infallible;
use std::sync::Arc;

use crate::backend::DiskStorage;
use crate::backend::mongo::{MongoOptions, MongoStorage};
use crate::config::secret::Secret;

use super::exit::Failure;

/// Which MongoDB, if any.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Backends")]
pub(crate) struct MongoArgs {
    /// Keep the tasks in this MongoDB, where Skalds on other machines and of the Python package find them:
    /// `mongodb://[user:password@]host[:port][,host…]/[?option=value&…]`
    #[arg(long, value_name = "URL", env = "MONGO_HOST", hide_env_values = true, value_parser = secret)]
    mongo: Option<Secret>,
    /// The database
    #[arg(long, value_name = "NAME", env = "DB_NAME", default_value = "skalds")]
    database: String,
}

fn secret(text: &str) -> Result<Secret, Infallible> {
    Ok(Secret::new(text))
}

impl MongoArgs {
    pub(crate) fn is_given(&self) -> bool {
        self.options().is_some()
    }

    /// The storage; `None` when no address was given.
    pub(crate) async fn connect(&self) -> Result<Option<Arc<dyn DiskStorage>>, Failure> {
        let Some(options) = self.options() else { return Ok(None) };
        let storage = MongoStorage::connect(options).await.map_err(Failure::failed)?;
        Ok(Some(Arc::new(storage)))
    }

    /// An address that is empty is none, as with the other variables.
    pub(crate) fn options(&self) -> Option<MongoOptions> {
        let url = self.mongo.as_ref().filter(|url| !url.is_empty())?;
        Some(MongoOptions { database: self.database.clone(), ..MongoOptions::new(url.expose()) })
    }
}
