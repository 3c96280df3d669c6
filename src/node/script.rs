//! The text that runs in the engine: a prologue, the job's own text, the loop around it.
//!
//! The prologue stands on the same line as the text's first one, so line numbers in errors are the user's own. The
//! text runs with the rights of the Redis user that the agent connects as: it is on its owner's own responsibility.

use std::collections::BTreeMap;

use super::error::NodeError;
use super::reply::pack;
use crate::chain::job::{Builtin, ExpireIf, JobSpec, Step};
use crate::chain::value::Value;

const PROLOGUE: &str = include_str!("lua/prologue.lua");
/// One block of Lua in several files: the first opens it, the last closes it.
const LOOP: [&str; 5] = [
    include_str!("lua/loop.lua"),
    include_str!("lua/units.lua"),
    include_str!("lua/agent.lua"),
    include_str!("lua/sequence.lua"),
    include_str!("lua/modes.lua"),
];

/// A job's script and the arguments that it reads.
#[derive(Debug, Clone)]
pub(crate) struct Script {
    /// All of it.
    pub(crate) text: String,
    /// The job's own part alone, with the prologue: what is compiled first, so that a missing `end` is reported at
    /// the user's last line and not at ours.
    own: String,
    /// Lines of the job's own part.
    own_lines: u32,
    /// `args`, packed; empty when there are none.
    pub(crate) args: Vec<u8>,
}

impl Script {
    /// Puts a job's script together. `expire_conditions`: the server knows EXPIRE's NX, LT and GT (7.0 and later).
    pub(crate) fn new(job: &JobSpec, expire_conditions: bool) -> Self {
        let builtin = |text: &'static str, args: &[(&str, String)]| {
            (text, args.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect())
        };
        let (text, args): (&str, BTreeMap<String, String>) = match &job.step {
            Step::Lua(text) => (text, job.args.clone()),
            // Whole-node scripts are sent as they are; native steps need the loop's other modes only.
            Step::Native(_) | Step::Raw(_) => ("", BTreeMap::new()),
            Step::Builtin(Builtin::Count) => builtin(include_str!("lua/count.lua"), &[]),
            Step::Builtin(Builtin::CountBy { field }) => {
                builtin(include_str!("lua/count_by.lua"), &[("field", field.clone())])
            }
            Step::Builtin(Builtin::Sum { field }) => {
                builtin(include_str!("lua/sum.lua"), &[("field", field.clone())])
            }
            Step::Builtin(Builtin::Unlink) => builtin(include_str!("lua/unlink.lua"), &[]),
            Step::Builtin(Builtin::Expire { ttl_millis, only_if, jitter_percent }) => builtin(
                include_str!("lua/expire.lua"),
                &[
                    ("ttl_millis", ttl_millis.to_string()),
                    ("jitter_percent", jitter_percent.to_string()),
                    ("only_if", condition(*only_if).to_owned()),
                    ("emulate", if expire_conditions { "0" } else { "1" }.to_owned()),
                ],
            ),
        };
        let text = without_shebang(text);
        let end = if text.ends_with('\n') { "" } else { "\n" };
        let own = format!("{} {text}{end}", one_line(PROLOGUE));
        let args =
            args.into_iter().map(|(name, value)| (name.into_bytes(), Value::Bytes(value.into_bytes())));
        let args = if args.len() == 0 { Vec::new() } else { pack(&Value::Map(args.collect())) };
        Script {
            text: format!("{own}{}", LOOP.concat()),
            own_lines: u32::try_from(text.matches('\n').count() + 1).unwrap_or(u32::MAX),
            own,
            args,
        }
    }

    pub(crate) fn own(&self) -> &str {
        &self.own
    }

    /// An error of a script in words for its author: `line 3: …`, without what the server adds about the script. An
    /// error inside our own loop has no line that would mean anything.
    pub(crate) fn explain(&self, error: &str) -> String {
        let error = error.strip_prefix("ERR ").unwrap_or(error);
        let error = error.strip_prefix("Error compiling script (new function): ").unwrap_or(error);
        // "… script: <sha>, on @user_script:3." (Redis), "… script: on @user_script:3." (Valkey)
        let (message, tail) = match error.rfind(" script: ") {
            Some(at) if error[at..].contains("on @user_script:") => (&error[..at], &error[at..]),
            _ => (error, ""),
        };
        let number = |text: &str| {
            let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
            digits.parse::<u32>().ok()
        };
        let (line, message) = match message.strip_prefix("user_script:") {
            Some(rest) => (number(rest), rest.split_once(": ").map_or(rest, |(_, message)| message)),
            None => {
                (tail.rsplit("user_script:").next().filter(|_| !tail.is_empty()).and_then(number), message)
            }
        };
        let hint = if message.contains("Attempt to modify a readonly table") {
            " (declare helper functions and variables with `local`)"
        } else if message.contains("nonexistent global variable") {
            " (is it declared with `local` above, and spelled right?)"
        } else if message.contains("non local key") {
            " (a step may only touch keys of the slot of the key that it is given)"
        } else if message.contains("Write commands are not allowed from read-only scripts") {
            " (say --write if it is meant to)"
        } else {
            ""
        };
        match line {
            Some(line) if line <= self.own_lines => format!("line {line}: {message}{hint}"),
            _ => format!("{message}{hint}"),
        }
    }
}

/// The job's own text compiles, and does not when our loop follows it.
pub(crate) fn returns_early(job: &str) -> NodeError {
    NodeError::job(
        job,
        "the script must not end with a return at its top level; it only defines each(key, acc)",
    )
}

fn condition(only_if: ExpireIf) -> &'static str {
    match only_if {
        ExpireIf::Always => "",
        ExpireIf::None => "NX",
        ExpireIf::Less => "LT",
        ExpireIf::Greater => "GT",
    }
}

/// Our loop touches keys of many slots, which a script with a shebang may not: the line stays, empty.
fn without_shebang(text: &str) -> &str {
    match text.strip_prefix("#!") {
        Some(rest) => rest.find('\n').map_or("", |end| &rest[end..]),
        None => text,
    }
}

fn one_line(text: &str) -> String {
    text.lines().filter(|line| !line.starts_with("--")).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::job::{Access, Combine, Target};

    fn script(text: &str) -> Script {
        let target = Target::Pattern(b"*".to_vec());
        let job = JobSpec::new("j", target, Step::Lua(text.into()), Combine::Sum, Access::Read);
        Script::new(&job, true)
    }

    #[test]
    fn the_users_lines_keep_their_numbers() {
        for text in ["local x\nfunction each()\nend", "#!lua flags=no-writes\nfunction each()\nend"] {
            let script = script(text);
            assert!(script.text.lines().nth(1).unwrap().starts_with("function each()"));
            assert!(!script.text.contains("#!"));
        }
    }

    #[test]
    fn errors_name_the_users_line_and_no_other() {
        let script = script("function each(key, acc)\n  return acc + nil\nend");
        for (error, words) in [
            ("user_script:2: attempt to perform arithmetic on a nil value", "line 2: attempt to perform"),
            ("ERR Error compiling script (new function): user_script:3: '<eof>' expected", "line 3: '<eof>'"),
            ("user_script:40: bad argument #2 to 'unpack'", "bad argument"),
            (
                "ERR Unknown Redis command called from script script: c9de, on @user_script:2.",
                "line 2: Unknown",
            ),
            ("ERR x script: on @user_script:1.", "line 1: x"),
            ("WRONGTYPE Operation against a key", "WRONGTYPE Operation"),
        ] {
            let said = script.explain(error);
            assert!(said.starts_with(words), "{error}: {said}");
        }
        assert!(
            script.explain("user_script:1: Attempt to modify a readonly table").ends_with("with `local`)")
        );
    }
}
