//! `--redis` and the password that belongs to it.

use std::path::{Path, PathBuf};

use crate::config::secret::Secret;
use crate::node::RedisAccess;

use super::exit::Failure;

/// Which Redis or Valkey.
#[derive(Debug, clap::Args)]
pub(crate) struct RedisArgs {
    /// Where it is: `redis://[user[:password]@]host[:port]`, of one server or of some nodes of a cluster
    #[arg(long, value_name = "URL[,URL…]", value_delimiter = ',', env = "REDIS_URL", hide_env_values = true)]
    redis: Vec<String>,
    /// A file that holds the password, better than one in the URL; else REDIS_PASSWORD is used
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
}

impl RedisArgs {
    /// How to reach it, and the seeds as `host:port`; `None` when no address was given.
    pub(crate) fn access(&self) -> Result<Option<(RedisAccess, Vec<String>)>, Failure> {
        if self.redis.is_empty() { Ok(None) } else { self.access_to(&self.redis).map(Some) }
    }

    /// The same for other addresses.
    pub(crate) fn access_to(&self, urls: &[String]) -> Result<(RedisAccess, Vec<String>), Failure> {
        let (mut access, seeds) = RedisAccess::from_urls(urls).map_err(Failure::usage)?;
        if access.password.is_none() {
            let password = match &self.password_file {
                Some(file) => Some(read_password(file)?),
                None => std::env::var("REDIS_PASSWORD").ok().filter(|password| !password.is_empty()),
            };
            access.password = password.map(Secret::new);
        }
        Ok((access, seeds))
    }
}

/// The first line of a file: editors end it with a newline that is not meant.
pub(crate) fn read_password(file: &Path) -> Result<String, Failure> {
    let text = std::fs::read_to_string(file).map_err(|error| {
        Failure::usage(format!("cannot read the password file {}: {error}", file.display()))
    })?;
    match text.lines().next() {
        Some(password) if !password.is_empty() => Ok(password.to_owned()),
        _ => Err(Failure::usage(format!("the password file {} is empty", file.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(redis: &[&str], password_file: Option<PathBuf>) -> RedisArgs {
        RedisArgs { redis: redis.iter().map(|url| (*url).to_owned()).collect(), password_file }
    }

    #[test]
    fn a_password_comes_from_the_url_or_from_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        std::fs::write(&file, "hunter2\n").unwrap();
        let (access, seeds) = args(&["redis://a:1", "b:2"], Some(file.clone())).access().unwrap().unwrap();
        assert_eq!(
            (access.password, seeds),
            (Some(Secret::new("hunter2")), vec!["a:1".into(), "b:2".into()])
        );
        let (access, _) = args(&["redis://:other@a:1"], Some(file.clone())).access().unwrap().unwrap();
        assert_eq!(access.password, Some(Secret::new("other")));
        std::fs::write(&file, "\n").unwrap();
        let failure = args(&["a:1"], Some(file)).access().unwrap_err();
        assert!(failure.to_string().ends_with("is empty"), "{failure}");
        assert!(args(&[], None).access().unwrap().is_none());
    }
}
