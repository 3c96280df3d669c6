//! What is kept of jobs so that another process can go on with them.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::actors::outbox::{Commit, Outbox, OutboxError, OutboxOptions};
use crate::chain::frame::{self, FrameError};
use crate::chain::run::RunRecord;

/// All records are of one kind; the byte leaves room for another one.
const KIND: u8 = 1;

/// The jobs of one process; cheap to clone.
#[derive(Clone)]
pub struct JobStore {
    outbox: Outbox,
    /// What was there at the start and nobody has asked for yet.
    held: Arc<Mutex<HashMap<String, RunRecord>>>,
}

/// Why a job cannot be kept or gone on with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobStoreError {
    /// The disk, or another process.
    #[error(transparent)]
    Outbox(#[from] OutboxError),
    /// A record is of another version, or too large.
    #[error("the record of job {job} cannot be used: {error}")]
    Record {
        /// The job.
        job: String,
        /// Why.
        error: FrameError,
    },
}

impl JobStore {
    /// Opens the store in a directory of its own. Blocking, for start-up.
    ///
    /// # Errors
    /// When the directory is in use by another process or damaged, or holds a job of another version.
    pub fn open(dir: &Path) -> Result<Self, JobStoreError> {
        let (outbox, records) = Outbox::open(dir, OutboxOptions::default())?;
        let mut held = HashMap::with_capacity(records.len());
        for record in records {
            let job = String::from_utf8_lossy(&record.key).into_owned();
            let run = frame::decode_run(&record.body)
                .map_err(|error| JobStoreError::Record { job: job.clone(), error })?;
            held.insert(job, run);
        }
        Ok(JobStore { outbox, held: Arc::new(Mutex::new(held)) })
    }

    /// What was kept of a job; once.
    pub(super) fn take(&self, job: &str) -> Option<RunRecord> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).remove(job)
    }

    /// Keeps a job's record; the answer resolves when it is durable.
    pub(super) fn put(&self, record: &RunRecord) -> Result<Commit, JobStoreError> {
        let job = &record.spec.id;
        let mut body = Vec::new();
        frame::encode_run(record, &mut body)
            .map_err(|error| JobStoreError::Record { job: job.clone(), error })?;
        Ok(self.outbox.start_put(job.as_bytes(), KIND, &body)?)
    }

    /// Forgets a job whose report is kept elsewhere.
    pub fn forget(&self, job: &str) -> Result<(), JobStoreError> {
        self.take(job);
        Ok(self.outbox.remove_lazily(job.as_bytes())?)
    }
}

impl std::fmt::Debug for JobStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JobStore").finish_non_exhaustive()
    }
}
