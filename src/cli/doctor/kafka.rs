//! What the doctor says of Kafka.

use crate::backend::EventQueue;
use crate::cli::exit::Failure;
use crate::cli::kafka::KafkaArgs;
use crate::cli::runtime;

use super::{Finding, Verdict};

/// Asks the brokers that were named, if any were.
pub(super) fn look(args: &KafkaArgs) -> Result<Finding, Failure> {
    let events = match args.open() {
        Ok(Some(events)) => events,
        Ok(None) => return Ok(Finding::new(Verdict::Absent, "kafka", "none is named (--kafka)")),
        Err(error) => return Ok(Finding::new(Verdict::Failed, "kafka", error.to_string())),
    };
    Ok(match runtime()?.block_on(events.ping()) {
        Ok(took) => {
            Finding::new(Verdict::Ok, "kafka", format!("it answers within {} ms", took.as_millis() + 1))
        }
        Err(error) => Finding::new(Verdict::Failed, "kafka", error.to_string()),
    })
}
