//! Running a step that is written in Rust: its reads, then its writes with the unit's marker in one script.

use super::error::NodeError;
use super::ledger::Gain;
use super::native::{Command, StepContext, StepError};
use super::reply::Fields;
use super::site::Site;
use crate::chain::job::Access;
use crate::chain::value::{MAX_DEPTH, Value};

/// What a step came to.
pub(crate) struct Stepped {
    pub(crate) value: Value,
    pub(crate) writes: Vec<Command>,
    pub(crate) failures: Vec<(Vec<u8>, String)>,
}

/// What became of a step's writes.
pub(crate) enum Written {
    /// Applied; these keys were refused.
    Done(Vec<(Vec<u8>, String)>),
    /// The slot is not wholly here.
    Refused(String),
    /// The marker says something else than expected: they, or later ones, have been applied before.
    Already(Vec<u8>),
}

/// The answer of [`Site::existing`]: the unit's marker and the keys that exist, or why the slot is not here.
pub(crate) type Existing = Result<(Option<Vec<u8>>, Vec<Vec<u8>>), String>;

impl Site {
    fn context(&self, acc: Option<Value>) -> StepContext<'_> {
        StepContext {
            node: &self.engine.node,
            args: &self.job.args,
            acc,
            writes: Vec::new(),
            failures: Vec::new(),
        }
    }

    pub(crate) async fn native_step(
        &self,
        keys: &[Vec<u8>],
        acc: Option<Value>,
    ) -> Result<Stepped, StepError> {
        let Some(native) = &self.native else { return Err(StepError::Job("no native step".into())) };
        let mut context = self.context(acc);
        let value = native.step(&mut context, keys).await?;
        let StepContext { writes, failures, .. } = context;
        if value.is_too_deep() {
            return Err(StepError::Job(format!("a value nests deeper than {MAX_DEPTH} levels; flatten it")));
        }
        if !writes.is_empty() && self.job.access == Access::Read {
            return Err(StepError::Job(format!(
                "the step {:?} wants to write, and the job's access is read",
                native.name()
            )));
        }
        Ok(Stepped { value, writes, failures })
    }

    pub(crate) async fn native_next(&self, key: &[u8], acc: Value) -> Result<Option<Vec<u8>>, StepError> {
        let Some(native) = &self.native else { return Ok(None) };
        let mut context = self.context(Some(acc));
        let next = native.next(&mut context, key).await?;
        match context.writes.is_empty() {
            true => Ok(next.filter(|key| !key.is_empty())),
            false => Err(StepError::Job("a native step writes in `step`, not in `next`".into())),
        }
    }

    pub(crate) fn step_error(&self, error: StepError) -> NodeError {
        match error {
            StepError::Node(error) => error,
            StepError::Elsewhere(reason) | StepError::Job(reason) => NodeError::job(&self.job.id, reason),
        }
    }

    /// Which keys of one slot exist.
    pub(crate) async fn existing(
        &mut self,
        tag: &str,
        suffix: &str,
        keys: &[Vec<u8>],
    ) -> Result<Existing, NodeError> {
        let ran = self.engine.run("existing", |command| {
            command.arg(tag).arg(suffix);
            command.arg(keys);
        });
        let mut fields = Fields::new(ran.await?.values);
        let unreadable = |reason: String| self.engine.unreadable(reason);
        if fields.bytes().map_err(unreadable)? == b"refused" {
            return Ok(Err(self.refusal(fields.text().map_err(unreadable)?)?));
        }
        let marker = fields.bytes_or_none().map_err(unreadable)?;
        Ok(Ok((marker, fields.all_bytes().map_err(unreadable)?)))
    }

    /// Applies writes. A writing job's marker goes from `before` (empty: none) to `after` in the same script.
    pub(crate) async fn native_write(
        &mut self,
        tag: &str,
        suffix: &str,
        before: &[u8],
        after: &[u8],
        writes: &[Command],
    ) -> Result<Written, NodeError> {
        // Without a marker there is nothing to be said when nothing is written.
        if writes.is_empty() && self.job.access != Access::Write {
            return Ok(Written::Done(Vec::new()));
        }
        let before = if self.job.access == Access::Write { before } else { b"" };
        let ran = self.engine.run("write", |command| {
            command.arg(tag).arg(suffix).arg(before).arg(after);
            for write in writes {
                command.arg(write.parts.len());
                command.arg(&write.parts);
            }
        });
        let mut fields = Fields::new(ran.await?.values);
        let unreadable = |reason: String| self.engine.unreadable(reason);
        match &fields.bytes().map_err(unreadable)?[..] {
            b"refused" => Ok(Written::Refused(self.refusal(fields.text().map_err(unreadable)?)?)),
            b"marker" => {
                Ok(Written::Already(fields.bytes_or_none().map_err(unreadable)?.unwrap_or_default()))
            }
            _ => {
                let mut wrong = Gain::default();
                for mut row in fields.rows().map_err(unreadable)? {
                    let index = row.count().map_err(unreadable)? as usize;
                    let reason = self.engine.key_failure(&row.text().map_err(unreadable)?)?;
                    let key = writes.get(index).and_then(|write| write.parts.get(1));
                    wrong.fail(key.map_or(b"", |key| &key[..]), reason);
                }
                Ok(Written::Done(wrong.failures))
            }
        }
    }
}
