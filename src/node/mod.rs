//! Running a job's step on one cache node.
