//! What a user asks for, before it becomes a job: the attachments of a `ChainJob` task, checked.

use serde::{Deserialize, Serialize};

use super::job::{Access, Builtin, Combine, JobSpec, Step, Target};

/// The longest job id: it is part of every marker's name.
pub const MAX_JOB_ID: usize = 128;
/// The longest pattern or single key, bytes.
pub const MAX_KEY_BYTES: usize = 64 << 10;
/// The longest script, bytes.
pub const MAX_SCRIPT_BYTES: usize = 256 << 10;
/// The most listed keys.
pub const MAX_LISTED_KEYS: usize = 1_000_000;

/// The attachments of a task of class `ChainJob`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobRequest {
    /// Where the cluster is: `redis://host:port` of one or more nodes. No password: that one is the Skald's own
    /// configuration, since attachments are stored and shown.
    pub redis: Vec<String>,
    /// The job; its id is the task's.
    pub job: JobSpec,
}

/// Why a job cannot be run as it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("job {field}: {problem}")]
pub struct JobError {
    /// Which part of the job.
    pub field: &'static str,
    /// What is wrong with it and what would be right.
    pub problem: String,
}

fn refuse<T>(field: &'static str, problem: impl Into<String>) -> Result<T, JobError> {
    Err(JobError { field, problem: problem.into() })
}

impl JobRequest {
    /// Checks the request as a whole.
    pub fn check(&self) -> Result<(), JobError> {
        if self.redis.is_empty() {
            return refuse("redis", "name at least one node, as redis://host:port");
        }
        if self.redis.iter().any(|url| url.split_once("://").is_some_and(|(_, rest)| rest.contains('@'))) {
            return refuse(
                "redis",
                "credentials do not belong here, attachments are stored and shown; \
                 set REDIS_USERNAME and REDIS_PASSWORD where the Skald runs",
            );
        }
        self.job.check()
    }
}

impl JobSpec {
    /// A job of one built-in with the combiner and access that go with it.
    pub fn builtin(id: impl Into<String>, target: Target, builtin: Builtin) -> Self {
        let access = match builtin {
            Builtin::Count | Builtin::CountBy { .. } | Builtin::Sum { .. } => Access::Read,
            Builtin::Expire { .. } | Builtin::Unlink => Access::IdempotentWrite,
        };
        JobSpec::new(id, target, Step::Builtin(builtin), Combine::Sum, access)
    }

    /// A job with the default policies and limits.
    pub fn new(id: impl Into<String>, target: Target, step: Step, combine: Combine, access: Access) -> Self {
        JobSpec {
            id: id.into(),
            target,
            step,
            combine,
            access,
            on_error: Default::default(),
            moving: Default::default(),
            agents: Default::default(),
            chains: None,
            limits: Default::default(),
            args: Default::default(),
            priority: 0,
        }
    }

    /// Checks everything that can be told without a server.
    pub fn check(&self) -> Result<(), JobError> {
        self.check_id()?;
        self.check_target()?;
        self.check_step()?;
        self.check_combine()?;
        self.check_limits()
    }

    fn check_id(&self) -> Result<(), JobError> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:".contains(&byte);
        if self.id.is_empty() || self.id.len() > MAX_JOB_ID || !self.id.bytes().all(fits) {
            let shape = format!("1 to {MAX_JOB_ID} letters, digits or ._-: are allowed");
            return refuse("id", format!("{:?} cannot be part of a key: {shape}", self.id));
        }
        Ok(())
    }

    fn check_target(&self) -> Result<(), JobError> {
        let too_long = |key: &[u8]| key.len() > MAX_KEY_BYTES;
        match &self.target {
            Target::Pattern(pattern) if pattern.is_empty() => {
                refuse("target", "the pattern is empty, which matches no key; use * for all keys")
            }
            Target::Pattern(key) | Target::Walk(key) if too_long(key) => {
                refuse("target", format!("{} bytes are more than the {MAX_KEY_BYTES} allowed", key.len()))
            }
            Target::Keys(keys) | Target::OrderedKeys(keys) if keys.len() > MAX_LISTED_KEYS => {
                refuse("target", format!("{} keys are more than the {MAX_LISTED_KEYS} allowed", keys.len()))
            }
            Target::Keys(keys) | Target::OrderedKeys(keys) => match keys.iter().find(|key| too_long(key)) {
                Some(key) => {
                    refuse("target", format!("a key of {} bytes is over {MAX_KEY_BYTES}", key.len()))
                }
                None => Ok(()),
            },
            Target::Pattern(_) | Target::Walk(_) => Ok(()),
        }
    }

    fn check_step(&self) -> Result<(), JobError> {
        match &self.step {
            Step::Lua(text) | Step::Raw(text) if text.trim().is_empty() => {
                refuse("step", "the script is empty")
            }
            Step::Lua(text) | Step::Raw(text) if text.len() > MAX_SCRIPT_BYTES => refuse(
                "step",
                format!("a script of {} bytes is over the {MAX_SCRIPT_BYTES} allowed", text.len()),
            ),
            Step::Raw(_) if !matches!(self.target, Target::Pattern(_)) => {
                refuse("step", "a raw script takes a pattern and nothing else")
            }
            Step::Builtin(_) if matches!(self.target, Target::Walk(_)) => {
                refuse("step", "a walk needs a step with `next`: a Lua or a native one")
            }
            Step::Native(name) if name.is_empty() => refuse("step", "the native job has no name"),
            _ => Ok(()),
        }
    }

    fn check_combine(&self) -> Result<(), JobError> {
        match &self.combine {
            Combine::TopK { k: 0 } => refuse("combine", "top-k needs a k of at least 1"),
            Combine::Hll { precision } if !(4..=16).contains(precision) => {
                refuse("combine", format!("precision {precision} is outside 4 to 16"))
            }
            Combine::Histogram { bounds } if bounds.is_empty() => {
                refuse("combine", "a histogram needs at least one bound")
            }
            Combine::Histogram { bounds } if !bounds.windows(2).all(|pair| pair[0] < pair[1]) => {
                refuse("combine", "histogram bounds must be ascending numbers")
            }
            Combine::Merge if !matches!(self.step, Step::Lua(_) | Step::Native(_)) => {
                refuse("combine", "merge needs a step that defines it: a Lua or a native one")
            }
            _ => Ok(()),
        }
    }

    fn check_limits(&self) -> Result<(), JobError> {
        let limits = &self.limits;
        let within = |field, value: u64, least: u64, most: u64| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            refuse(field, format!("{value} is outside {least} to {most}"))
        };
        within("limits.maxBlockMicros", limits.max_block_micros.into(), 100, 1_000_000)?;
        within("limits.maxStateBytes", limits.max_state_bytes.into(), 4 << 10, 64 << 20)?;
        within("limits.nodeTimeoutMillis", limits.node_timeout_millis.into(), 100, 3_600_000)?;
        within("limits.retain", limits.retain.into(), 1, 2)?;
        within("priority", self.priority.into(), 0, 10)?;
        within("chains", self.chains.unwrap_or(1).into(), 1, 1_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(pattern: &str) -> JobSpec {
        JobSpec::builtin("job-1", Target::Pattern(pattern.into()), Builtin::Count)
    }

    fn problem(change: impl FnOnce(&mut JobSpec)) -> String {
        let mut job = count("*");
        change(&mut job);
        job.check().unwrap_err().to_string()
    }

    #[test]
    fn a_plain_job_is_fine_and_its_json_round_trips() {
        let request = JobRequest { redis: vec!["redis://localhost:7000".into()], job: count("order:*") };
        request.check().unwrap();
        let json = serde_json::to_string(&request).unwrap();
        assert_eq!(serde_json::from_str::<JobRequest>(&json).unwrap(), request);
    }

    #[test]
    fn keys_of_any_bytes_round_trip_through_json() {
        let keys = Target::Keys(vec![b"plain".to_vec(), b"\xff\0{x}\n".to_vec(), vec![]]);
        let json = serde_json::to_string(&keys).unwrap();
        assert_eq!(json, r#"{"keys":["plain",{"hex":"ff007b787d0a"},""]}"#);
        assert_eq!(serde_json::from_str::<Target>(&json).unwrap(), keys);
        assert!(serde_json::from_str::<Target>(r#"{"keys":[{"hex":"0"}]}"#).is_err());
        assert!(serde_json::from_str::<Target>(r#"{"keys":[{"hex":"zz"}]}"#).is_err());
    }

    #[test]
    fn what_cannot_work_is_refused_with_its_field() {
        assert!(problem(|job| job.id = "a{b}".into()).starts_with("job id: "));
        assert!(problem(|job| job.target = Target::Pattern(vec![])).contains("use * for all keys"));
        assert!(problem(|job| job.target = Target::Walk(b"a".to_vec())).contains("next"));
        assert!(problem(|job| job.step = Step::Lua(" \n".into())).contains("empty"));
        assert!(problem(|job| job.combine = Combine::Merge).contains("merge"));
        assert!(
            problem(|job| job.combine = Combine::Histogram { bounds: vec![1.0, 1.0] }).contains("ascending")
        );
        assert!(problem(|job| job.limits.max_block_micros = 1).contains("maxBlockMicros"));
        assert!(problem(|job| job.chains = Some(0)).contains("chains"));
    }

    #[test]
    fn a_password_in_the_attachments_is_refused_and_not_repeated() {
        let request = JobRequest { redis: vec!["redis://u:hunter2@h:1".into()], job: count("*") };
        let said = request.check().unwrap_err().to_string();
        assert!(said.contains("REDIS_PASSWORD") && !said.contains("hunter2"), "{said}");
    }
}
