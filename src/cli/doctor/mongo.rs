//! What the doctor says of MongoDB.

use super::{Finding, Verdict};
use crate::backend::mongo::MongoStorage;
use crate::cli::exit::Failure;
use crate::cli::mongo::MongoArgs;

/// Connects as a controller would, and changes nothing.
pub(super) fn look(args: &MongoArgs) -> Result<Finding, Failure> {
    let Some(options) = args.options() else {
        let said = "no address was given (--mongo or MONGO_HOST); tasks are kept in a folder";
        return Ok(Finding::new(Verdict::Absent, "mongo", said));
    };
    let looked = super::super::runtime()?.block_on(MongoStorage::look(options));
    Ok(match looked {
        Ok(said) => Finding::new(Verdict::Ok, "mongo", said),
        Err(error) => Finding::new(Verdict::Failed, "mongo", error.to_string()),
    })
}
