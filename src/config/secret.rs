//! Text that must not be printed.

use std::fmt;

/// A password, or a URL that holds one. `Debug` and `Display` hide it.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secret(String);

impl Secret {
    /// Takes it in.
    pub fn new(text: impl Into<String>) -> Self {
        Secret(text.into())
    }

    /// The text itself: for the connection that needs it, and nothing else.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// A URL keeps all but the password between `user:` and `@`; anything else becomes `***`.
impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        let Some((scheme, rest)) = self.0.split_once("://") else { return f.write_str("***") };
        // A password may hold an unescaped `/` or `@`: whatever stands before the last `@` is hidden.
        match rest.rfind('@') {
            None => write!(f, "{scheme}://{}", without_query(rest)),
            Some(at) => {
                let user = rest[..at].split_once(':').map_or("", |(user, _)| user);
                write!(f, "{scheme}://{user}:***{}", without_query(&rest[at..]))
            }
        }
    }
}

/// Options may hold secrets too.
fn without_query(url: &str) -> &str {
    url.split('?').next().unwrap_or(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_secret_is_printed() {
        for (text, shown) in [
            ("hunter2", "***"),
            ("", ""),
            ("mongodb://root:root@localhost:27017/", "mongodb://root:***@localhost:27017/"),
            ("mongodb://a:p@ss/w@h:1/db?authSource=x", "mongodb://a:***@h:1/db"),
            ("redis://:hunter2@h:1", "redis://:***@h:1"),
            ("redis://hunter2@h:1", "redis://:***@h:1"),
            ("mongodb://localhost:27017/", "mongodb://localhost:27017/"),
        ] {
            assert_eq!(Secret::new(text).to_string(), shown);
            assert_eq!(format!("{:?}", Secret::new(text)), format!("{shown:?}"));
        }
    }
}
