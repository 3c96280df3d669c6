//! From the words of `skald job run` to a job.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::Duration;

use crate::chain::job::{
    Access, AgentPolicy, Builtin, Combine, ExpireIf, JobSpec, Limits, MovingSlots, OnError, Step, Target,
};
use clap::{Args, ValueEnum};

/// What to run, on which keys, and how.
#[derive(Debug, Args)]
#[command(next_help_heading = "The job")]
pub(crate) struct JobArgs {
    /// A built-in: `count`, `count-by FIELD`, `sum FIELD`, `expire DURATION`, `unlink`
    #[arg(value_name = "BUILTIN", help_heading = "Arguments", num_args = 0.., conflicts_with_all = ["lua", "native", "raw"])]
    pub(crate) builtin: Vec<String>,
    /// A Lua file that defines each(key, acc), and optionally merge, finish and next. It runs inside Redis, on your
    /// own responsibility: no sandbox yet
    #[arg(long, value_name = "FILE", conflicts_with_all = ["native", "raw"])]
    pub(crate) lua: Option<PathBuf>,
    /// A Rust job that this program and the agents are built with, by its name (see examples/own_skald.rs)
    #[arg(long, value_name = "NAME", conflicts_with = "raw")]
    pub(crate) native: Option<String>,
    /// A Lua file run once per node as it is: pattern in `ARGV[1]`, what the nodes before gave in `ARGV[2]`. What it
    /// returns is folded into that by --combine (sum unless said otherwise): a script that sums returns its own node's
    /// share and does not add `ARGV[2]` too, or values are counted twice. Blocks each node for as long as it takes, and
    /// is not exact while slots move
    #[arg(long, value_name = "FILE", requires = "yes_blocking")]
    pub(crate) raw: Option<PathBuf>,
    /// Yes, --raw may block every node
    #[arg(long)]
    pub(crate) yes_blocking: bool,

    /// Keys that match this glob (*, ?, [a-z], \)
    #[arg(long = "match", value_name = "PATTERN", conflicts_with_all = ["keys_file", "start"])]
    pub(crate) pattern: Option<OsString>,
    /// Keys from a file, one a line
    #[arg(long, value_name = "FILE", conflicts_with = "start")]
    pub(crate) keys_file: Option<PathBuf>,
    /// Take --keys-file strictly in its order
    #[arg(long, requires = "keys_file")]
    pub(crate) ordered: bool,
    /// Walk: start at this key, the step's `next` names the next one
    #[arg(long, value_name = "KEY")]
    pub(crate) start: Option<OsString>,

    /// How results are folded: sum, min, max, top:K, union:CAP, hll or hll:PRECISION, histogram:B1,B2,…, concat:CAP, merge.
    /// To count, use the built-in `count`, or a step that adds 1 for each key, with sum
    #[arg(long, value_name = "HOW", value_parser = parse_combine)]
    pub(crate) combine: Option<Combine>,
    /// The Lua or native step writes keys
    #[arg(long)]
    pub(crate) write: bool,
    /// Its writes may be repeated without harm: no markers
    #[arg(long, requires = "write")]
    pub(crate) idempotent: bool,
    /// expire: only keys that have no TTL (none), would live shorter (lt) or longer (gt)
    #[arg(long, value_enum, value_name = "CONDITION")]
    pub(crate) only_if: Option<OnlyIf>,
    /// expire: up to this much longer, spread by key, as 10%
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    pub(crate) jitter: Option<u8>,
    /// An argument for the step, seen by Lua as args.NAME
    #[arg(long = "arg", value_name = "NAME=VALUE", value_parser = parse_pair)]
    pub(crate) args: Vec<(String, String)>,

    /// When the step fails on a key: end the job, or report the key and go on
    #[arg(long, value_enum, default_value_t = ErrorPolicy::Stop)]
    pub(crate) on_error: ErrorPolicy,
    /// While slots move: go on and plan again (adaptive), or do not start (stable)
    #[arg(long, value_enum, default_value_t = MovingPolicy::Adaptive)]
    pub(crate) moving: MovingPolicy,
    /// Who runs it: auto, off (this process), require, or HOST:PORT,…
    #[arg(long, value_name = "WHO", default_value = "auto", value_parser = parse_agents)]
    pub(crate) agents: AgentPolicy,
    /// How many chains; chosen by cost when left out
    #[arg(long, value_name = "N")]
    pub(crate) chains: Option<u16>,
    /// No call should hold a node longer than this
    #[arg(long, value_name = "DURATION", default_value = "2ms", value_parser = humantime::parse_duration)]
    pub(crate) max_block: Duration,
    /// How long a node may answer nothing
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = humantime::parse_duration)]
    pub(crate) node_timeout: Duration,
    /// How often in a row what is left is planned again without anything having been done; the waits in between grow to
    /// five seconds
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) max_replans: u16,
    /// How many hops back agents keep a state: with 2, a chain goes on from there when an agent and its disk are lost
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub(crate) retain: u8,
    /// 0 (lowest) to 10
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=10))]
    pub(crate) priority: u8,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum OnlyIf {
    None,
    Lt,
    Gt,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum ErrorPolicy {
    Stop,
    Skip,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum MovingPolicy {
    Adaptive,
    Stable,
}

impl JobArgs {
    /// The job these words describe. The error is a usage error.
    pub(crate) fn into_spec(self, id: String) -> Result<JobSpec, String> {
        let target = self.target()?;
        let (step, default_combine, default_access) = self.step()?;
        let access = match (&step, self.write, self.idempotent) {
            (Step::Builtin(_), true, _) => return Err("--write is for --lua and --native steps".into()),
            (_, true, true) => Access::IdempotentWrite,
            (_, true, false) => Access::Write,
            (_, false, _) => default_access,
        };
        let mut job = JobSpec::new(id, target, step, self.combine.unwrap_or(default_combine), access);
        job.on_error = match self.on_error {
            ErrorPolicy::Stop => OnError::Stop,
            ErrorPolicy::Skip => OnError::Skip,
        };
        job.moving = match self.moving {
            MovingPolicy::Adaptive => MovingSlots::Adaptive,
            MovingPolicy::Stable => MovingSlots::Stable,
        };
        job.agents = self.agents;
        job.chains = self.chains;
        job.priority = self.priority;
        job.limits = Limits {
            max_block_micros: u32::try_from(self.max_block.as_micros()).unwrap_or(u32::MAX),
            node_timeout_millis: u32::try_from(self.node_timeout.as_millis()).unwrap_or(u32::MAX),
            max_replans: self.max_replans,
            retain: self.retain,
            ..Limits::default()
        };
        for (name, value) in self.args {
            if job.args.insert(name.clone(), value).is_some() {
                return Err(format!("--arg {name} is given twice"));
            }
        }
        job.check().map_err(|error| error.to_string())?;
        Ok(job)
    }

    fn target(&self) -> Result<Target, String> {
        match (&self.pattern, &self.keys_file, &self.start) {
            (Some(pattern), None, None) => Ok(Target::Pattern(pattern.clone().into_vec())),
            (None, Some(path), None) => {
                let keys = read_keys(path)?;
                Ok(if self.ordered { Target::OrderedKeys(keys) } else { Target::Keys(keys) })
            }
            (None, None, Some(key)) => Ok(Target::Walk(key.clone().into_vec())),
            _ => Err("say which keys: --match PATTERN, --keys-file FILE or --start KEY".into()),
        }
    }

    fn step(&self) -> Result<(Step, Combine, Access), String> {
        if let Some(path) = &self.lua {
            return Ok((Step::Lua(read_script(path)?), Combine::Sum, Access::Read));
        }
        if let Some(path) = &self.raw {
            return Ok((Step::Raw(read_script(path)?), Combine::Sum, Access::Read));
        }
        if let Some(name) = &self.native {
            return Ok((Step::Native(name.clone()), Combine::Sum, Access::Read));
        }
        let builtin = self.builtin()?;
        let job = JobSpec::builtin("", Target::Keys(vec![]), builtin);
        Ok((job.step, job.combine, job.access))
    }

    fn builtin(&self) -> Result<Builtin, String> {
        let words: Vec<&str> = self.builtin.iter().map(String::as_str).collect();
        if !matches!(words[..], ["expire", ..]) && (self.only_if.is_some() || self.jitter.is_some()) {
            return Err("--only-if and --jitter belong to `expire`".into());
        }
        match words[..] {
            ["count"] => Ok(Builtin::Count),
            ["count-by", field] => Ok(Builtin::CountBy { field: field.into() }),
            ["sum", field] => Ok(Builtin::Sum { field: field.into() }),
            ["unlink"] => Ok(Builtin::Unlink),
            ["expire", duration] => {
                let ttl = humantime::parse_duration(duration)
                    .map_err(|error| format!("expire {duration:?}: {error}; use for example 1day or 90s"))?;
                Ok(Builtin::Expire {
                    ttl_millis: u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX),
                    only_if: match self.only_if {
                        None => ExpireIf::Always,
                        Some(OnlyIf::None) => ExpireIf::None,
                        Some(OnlyIf::Lt) => ExpireIf::Less,
                        Some(OnlyIf::Gt) => ExpireIf::Greater,
                    },
                    jitter_percent: self.jitter.unwrap_or(0),
                })
            }
            [] => Err("say what to do: a built-in, --lua FILE, --native NAME or --raw FILE".into()),
            ["count-by" | "sum"] => Err(format!("{} needs the name of a hash field", words[0])),
            ["expire"] => Err("expire needs a duration, as 1day or 90s".into()),
            _ => Err(format!(
                "{:?} is no built-in; there are: count, count-by FIELD, sum FIELD, expire DURATION, unlink",
                words.join(" ")
            )),
        }
    }
}

fn read_keys(path: &PathBuf) -> Result<Vec<Vec<u8>>, String> {
    let text =
        std::fs::read(path).map_err(|error| format!("cannot read keys from {}: {error}", path.display()))?;
    let lines = text.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    Ok(lines.filter(|line| !line.is_empty()).map(<[u8]>::to_vec).collect())
}

fn read_script(path: &PathBuf) -> Result<String, String> {
    std::fs::read_to_string(path)
        .map_err(|error| format!("cannot read the script {}: {error}", path.display()))
}

fn parse_pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

fn parse_percent(text: &str) -> Result<u8, String> {
    let number = text.strip_suffix('%').unwrap_or(text);
    match number.parse() {
        Ok(percent @ 0..=100) => Ok(percent),
        _ => Err("expected a percentage from 0% to 100%".into()),
    }
}

fn parse_agents(text: &str) -> Result<AgentPolicy, String> {
    Ok(match text {
        "auto" => AgentPolicy::Auto,
        "off" => AgentPolicy::Off,
        "require" => AgentPolicy::Require,
        list => {
            let addresses: Vec<String> = list.split(',').map(|address| address.trim().to_owned()).collect();
            if let Some(bad) = addresses.iter().find(|address| !address.contains(':')) {
                return Err(format!("{bad:?} is not auto, off, require or HOST:PORT"));
            }
            AgentPolicy::At(addresses)
        }
    })
}

fn parse_combine(text: &str) -> Result<Combine, String> {
    let (name, argument) = match text.split_once(':') {
        Some((name, argument)) => (name, Some(argument)),
        None => (text, None),
    };
    let number = |what: &str| -> Result<u32, String> {
        argument
            .ok_or_else(|| format!("{name} needs a number: {name}:{what}"))?
            .parse()
            .map_err(|_| format!("{name}:{what} needs a whole number"))
    };
    Ok(match name {
        "sum" | "min" | "max" | "merge" if argument.is_some() => {
            return Err(format!("{name} takes no argument"));
        }
        "sum" => Combine::Sum,
        "min" => Combine::Min,
        "max" => Combine::Max,
        "merge" => Combine::Merge,
        "top" => Combine::TopK { k: number("K")? },
        "union" => Combine::Union { cap: number("CAP")? },
        "concat" => Combine::Concat { cap: number("CAP")? },
        "hll" if argument.is_none() => Combine::Hll { precision: 14 },
        "hll" => Combine::Hll { precision: u8::try_from(number("PRECISION")?).unwrap_or(u8::MAX) },
        "histogram" => Combine::Histogram {
            bounds: argument
                .unwrap_or_default()
                .split(',')
                .map(|bound| bound.trim().parse().map_err(|_| format!("{bound:?} is not a number")))
                .collect::<Result<_, _>>()?,
        },
        // A count of values and a value that is to be counted look the same, so counts could not be folded further.
        "count" => {
            return Err("use the built-in `count`, or a step that adds 1 for each key, with sum".into());
        }
        _ => {
            return Err(
                "expected sum, min, max, top:K, union:CAP, hll, histogram:B1,B2,…, concat:CAP or merge"
                    .into(),
            );
        }
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        job: JobArgs,
    }

    fn spec(line: &str) -> Result<JobSpec, String> {
        let words = std::iter::once("job").chain(line.split_whitespace());
        let parsed = Line::try_parse_from(words).map_err(|error| error.to_string())?;
        parsed.job.into_spec("j".into())
    }

    #[test]
    fn built_ins_parse() {
        let job = spec("count-by status --match order:*").unwrap();
        assert_eq!(job.step, Step::Builtin(Builtin::CountBy { field: "status".into() }));
        assert_eq!(job.target, Target::Pattern(b"order:*".to_vec()));
        let job = spec("expire 1day --match user:* --only-if gt --jitter 10%").unwrap();
        let expire =
            Builtin::Expire { ttl_millis: 86_400_000, only_if: ExpireIf::Greater, jitter_percent: 10 };
        assert_eq!((job.step, job.access), (Step::Builtin(expire), Access::IdempotentWrite));
    }

    #[test]
    fn patterns_and_first_keys_may_hold_any_byte() {
        for (flag, target) in
            [("--match", Target::Pattern(b"\xff*".to_vec())), ("--start", Target::Walk(b"\xff*".to_vec()))]
        {
            let words = ["job", "--lua", "/dev/null", flag].map(OsString::from);
            let words = words.into_iter().chain([OsString::from_vec(b"\xff*".to_vec())]);
            let parsed = Line::try_parse_from(words).map_err(|error| error.to_string()).unwrap();
            assert_eq!(parsed.job.target(), Ok(target));
        }
    }

    #[test]
    fn combiners_parse() {
        assert!(parse_combine("count").unwrap_err().contains("built-in"));
        assert_eq!(parse_combine("top:10").unwrap(), Combine::TopK { k: 10 });
        assert_eq!(parse_combine("histogram:1,2.5").unwrap(), Combine::Histogram { bounds: vec![1.0, 2.5] });
        assert!(
            parse_combine("top").is_err() && parse_combine("sum:1").is_err() && parse_combine("x").is_err()
        );
    }

    #[test]
    fn mistakes_say_what_would_be_right() {
        assert!(spec("count").unwrap_err().contains("--match"));
        assert!(spec("--match *").unwrap_err().contains("--lua"));
        assert!(spec("frobnicate --match *").unwrap_err().contains("count-by FIELD"));
        assert!(spec("count --match * --jitter 1%").unwrap_err().contains("expire"));
        assert!(spec("count --match * --write").unwrap_err().contains("--lua"));
        assert!(spec("--raw x.lua --match *").unwrap_err().contains("yes-blocking"));
        assert!(spec("--lua /nonexistent.lua --match *").unwrap_err().contains("/nonexistent.lua"));
    }
}
