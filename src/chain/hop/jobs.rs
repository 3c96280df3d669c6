//! What an agent remembers of each job.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{Link, Record};
use crate::chain::message::{ChainId, RefuseReason};
use crate::chain::state::HopId;
use crate::core::task::Millis;

/// One job.
#[derive(Debug, Clone, Default)]
pub(super) struct Job {
    /// Lower epochs are refused.
    pub(super) fence: u32,
    /// The highest incarnation that has attached.
    pub(super) incarnation: u64,
    /// The coordinator's connection.
    pub(super) conn: Option<u64>,
    /// Since when there has been none.
    pub(super) alone_since: Millis,
    /// Chains that were recalled, by epoch and number, of epochs from the fence on.
    pub(super) recalled: BTreeSet<(u32, u16)>,
    /// Its end.
    pub(super) ended: Option<Ended>,
}

/// A job's end, as far as this agent has come with it.
#[derive(Debug, Clone, Default, Hash)]
pub(super) struct Ended {
    pub(super) retryable: bool,
    pub(super) durable: bool,
    /// Who wants to hear of it when it is durable and nothing runs any more.
    pub(super) reply_to: Vec<Link>,
}

/// All jobs known here. Live ones are those of which something is held, or to which somebody has attached and has not
/// said yet that they have ended; of ended ones there is a limit: beyond it the oldest is forgotten.
#[derive(Debug, Clone)]
pub(super) struct Jobs {
    jobs: BTreeMap<String, Job>,
    ended: VecDeque<String>,
    keep_ended: usize,
}

impl Jobs {
    pub(super) fn new(keep_ended: usize) -> Self {
        Jobs { jobs: BTreeMap::new(), ended: VecDeque::new(), keep_ended: keep_ended.max(1) }
    }

    pub(super) fn get(&self, job: &str) -> Option<&Job> {
        self.jobs.get(job)
    }

    pub(super) fn get_mut(&mut self, job: &str) -> Option<&mut Job> {
        self.jobs.get_mut(job)
    }

    /// The job's entry; a new one has been alone since `now`.
    pub(super) fn entry(&mut self, now: Millis, job: &str) -> &mut Job {
        if !self.jobs.contains_key(job) {
            self.jobs.insert(job.to_owned(), Job { alone_since: now, ..Job::default() });
        }
        // cannot fail: inserted above
        self.jobs.get_mut(job).expect("the job has just been inserted")
    }

    /// Forgets a job that nothing is held of, nobody is attached to, and the outbox says nothing of. A fence or a recall
    /// stays until the job's end: the outbox keeps it, and a hop that were taken behind it would be acknowledged, and
    /// lost in a crash.
    pub(super) fn forget(&mut self, job: &str) {
        if self.jobs.get(job).is_some_and(|job| {
            let noted = job.fence > 0 || job.incarnation > 0 || !job.recalled.is_empty();
            job.ended.is_none() && job.conn.is_none() && !noted
        }) {
            self.jobs.remove(job);
        }
    }

    /// Why a hop is not taken, whatever room there is.
    pub(super) fn refusal(&self, hop: &HopId) -> Option<RefuseReason> {
        let job = self.jobs.get(&hop.job)?;
        if job.ended.is_some() {
            return Some(RefuseReason::Ended);
        }
        if hop.epoch < job.fence {
            return Some(RefuseReason::StaleEpoch { current: job.fence });
        }
        if job.recalled.contains(&(hop.epoch, hop.chain)) {
            return Some(RefuseReason::StaleEpoch { current: hop.epoch.saturating_add(1) });
        }
        None
    }

    /// Notes the end. Says whether it is news.
    pub(super) fn end(&mut self, now: Millis, job: &str, retryable: bool) -> bool {
        let entry = self.entry(now, job);
        entry.recalled.clear();
        if let Some(ended) = &mut entry.ended {
            // An end for good is not taken back by an earlier one for now.
            let news = ended.retryable && !retryable;
            ended.retryable &= retryable;
            ended.durable &= !news;
            return news;
        }
        entry.ended = Some(Ended { retryable, ..Ended::default() });
        self.ended.push_back(job.to_owned());
        while self.ended.len() > self.keep_ended {
            let Some(oldest) = self.ended.pop_front() else { break };
            if self.jobs.get(&oldest).is_some_and(|job| job.ended.is_some()) {
                self.jobs.remove(&oldest);
            }
        }
        true
    }

    /// Raises the fence; takes up an ended job again under a higher incarnation. `None`: it has ended for good, or
    /// the incarnation is lower than one seen before; else whether anything is new.
    pub(super) fn fence(&mut self, now: Millis, job: &str, epoch: u32, incarnation: u64) -> Option<bool> {
        let entry = self.entry(now, job);
        if incarnation < entry.incarnation {
            return None;
        }
        if let Some(ended) = &entry.ended {
            if !ended.retryable || incarnation == entry.incarnation {
                return None;
            }
            entry.ended = None;
            entry.alone_since = now;
            self.ended.retain(|other| other != job);
        }
        let entry = self.entry(now, job);
        let news = epoch > entry.fence || incarnation > entry.incarnation;
        entry.fence = entry.fence.max(epoch);
        entry.incarnation = incarnation;
        let fence = entry.fence;
        entry.recalled.retain(|(epoch, _)| *epoch >= fence);
        Some(news)
    }

    /// Notes a recall. Says whether it is news.
    pub(super) fn recall(&mut self, now: Millis, chain: &ChainId) -> bool {
        let entry = self.entry(now, &chain.job);
        entry.ended.is_none()
            && chain.epoch >= entry.fence
            && entry.recalled.insert((chain.epoch, chain.chain))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&String, &Job)> {
        self.jobs.iter()
    }

    /// The records from which [`Jobs`] comes back, ended ones in their order.
    pub(super) fn snapshot(&self, records: &mut Vec<Record>) {
        for (name, job) in &self.jobs {
            // The record of an end names the incarnation itself.
            if job.fence > 0 || (job.incarnation > 0 && job.ended.is_none()) {
                records.push(Record::Fence {
                    job: name.clone(),
                    epoch: job.fence,
                    incarnation: job.incarnation,
                });
            }
            records.extend(job.recalled.iter().map(|(epoch, chain)| Record::Recalled {
                chain: ChainId { job: name.clone(), epoch: *epoch, chain: *chain },
            }));
        }
        for name in &self.ended {
            let Some(job) = self.jobs.get(name) else { continue };
            let Some(ended) = &job.ended else { continue };
            records.push(Record::Ended {
                job: name.clone(),
                incarnation: job.incarnation,
                retryable: ended.retryable,
            });
        }
    }
}
