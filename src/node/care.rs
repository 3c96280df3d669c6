//! What is done about calls that are sent and never answered: the key that they die of is found and set aside.
//!
//! A step may hang on one key of a batch, or kill the server with it. Tried again as it is, the batch would be lost
//! for ever. So what a lost call was about is done piece by piece, and the piece that is lost again and again is named.

use super::access::RedisAccess;
use super::error::NodeError;

/// So many calls about one single thing are lost before it is set aside.
const STRIKES: u32 = 3;

/// Calls that were lost in a row.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Care {
    alone: bool,
    strikes: u32,
}

impl Care {
    /// A call was lost. The first one may have been about several things; from now on they are done one at a time.
    pub(crate) fn lost(&mut self) {
        self.strikes += u32::from(self.alone);
        self.alone = true;
    }

    /// A call was answered: what it was about is not at fault.
    pub(crate) fn answered(&mut self) {
        self.strikes = 0;
    }

    /// Whether things are to be done one at a time.
    pub(crate) fn alone(&self) -> bool {
        self.alone
    }

    /// Whether what is at hand is to be set aside.
    pub(crate) fn is_out(&self) -> bool {
        self.strikes >= STRIKES
    }
}

/// Why a key was set aside.
pub(crate) fn set_aside() -> String {
    format!("the step got no answer, {STRIKES} times with this key alone")
}

/// Ends the script that has held a node for longer than its `busy-reply-threshold`: the only thing that such a node
/// listens to. It ends whichever script that is, so it is asked for only when a call of ours was lost there.
///
/// # Errors
/// When the node does not answer, or the script has written: then it cannot be ended without losing data.
pub(crate) async fn end_script(address: &str, access: &RedisAccess) -> Result<(), NodeError> {
    let mut connection = access.connect(address).await?;
    let mut kill = redis::cmd("SCRIPT");
    kill.arg("KILL");
    let action = "end the script that holds it";
    match tokio::time::timeout(access.call_timeout, kill.query_async::<()>(&mut connection)).await {
        Ok(ended) => ended.map_err(|error| NodeError::from_redis(address, action, &error)),
        Err(_) => Err(NodeError::lost(address, action, access.call_timeout)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thing_is_set_aside_when_it_was_lost_alone_three_times_in_a_row() {
        let mut care = Care::default();
        for _ in 0..3 {
            care.lost();
            assert!(care.alone() && !care.is_out());
        }
        let mut innocent = care;
        innocent.answered();
        care.lost();
        assert!(care.is_out());
        innocent.lost();
        assert!(!innocent.is_out());
    }
}
