//! Redis globs: which keys a pattern names, by the rules of Redis' own `stringmatchlen` (`util.c`), on bytes.
//!
//! `*` any bytes, `?` one byte, `[abc]`, `[a-z]`, `[^a]` one byte of a set (or not of it), `\` takes the next byte
//! as it is. The rules in the corners are the server's too: a range may be written backwards; `]` ends a set
//! wherever it stands, so `[]` matches nothing and `[a-]` is a range up to `]`; a set that is not closed ends with
//! the pattern; the empty key is matched by `*` alone and by the empty pattern. One thing depends on the server's
//! processor: a range with one end above 0x7f. Here it is as on x86, where bytes above 0x7f count as negative.

mod lua;

pub use lua::to_lua_parts;

/// A pattern, read once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob {
    tokens: Vec<Token>,
    /// The pattern is exactly `*`: the commands have a short cut for it, which also takes the empty key.
    all: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    /// Any bytes. Two of them never stand side by side.
    Star,
    /// One byte, whichever.
    Any,
    /// This byte.
    Byte(u8),
    /// One byte of a set.
    Set(Box<ByteSet>),
}

/// A pattern's kind, for those who have a faster way for the simple ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GlobShape {
    /// `*`: every key.
    All,
    /// No wildcard: this one key.
    Literal(Vec<u8>),
    /// `prefix*`: every key that starts so.
    Prefix(Vec<u8>),
    /// Anything else.
    General,
}

impl Glob {
    /// Reads a pattern. Every byte string is one.
    pub fn new(pattern: &[u8]) -> Self {
        let mut tokens = Vec::with_capacity(pattern.len());
        let mut rest = pattern;
        while let Some((first, after)) = rest.split_first() {
            let (token, after) = match (first, after) {
                (b'*', after) => (Token::Star, after),
                (b'?', after) => (Token::Any, after),
                (b'[', after) => {
                    let (set, after) = ByteSet::read(after);
                    (set.into_token(), after)
                }
                (b'\\', [byte, after @ ..]) => (Token::Byte(*byte), after),
                (byte, after) => (Token::Byte(*byte), after),
            };
            if token != Token::Star || tokens.last() != Some(&Token::Star) {
                tokens.push(token);
            }
            rest = after;
        }
        Glob { tokens, all: pattern == b"*" }
    }

    /// Whether a key matches. Takes at most pattern length times key length steps.
    pub fn matches(&self, key: &[u8]) -> bool {
        if key.is_empty() {
            return self.all || self.tokens.is_empty();
        }
        let (mut token, mut at) = (0, 0);
        // Only the last star has to be tried again: a longer match of an earlier one leaves less for the rest.
        let mut last_star = None;
        while at < key.len() {
            match self.tokens.get(token) {
                Some(Token::Star) => {
                    token += 1;
                    last_star = Some((token, at));
                }
                Some(one) if one.takes(key[at]) => {
                    token += 1;
                    at += 1;
                }
                _ => {
                    let Some((after_star, start)) = last_star.as_mut() else { return false };
                    *start += 1;
                    (token, at) = (*after_star, *start);
                }
            }
        }
        self.tokens[token..].iter().all(|token| *token == Token::Star)
    }

    /// Which kind of pattern it is.
    pub fn shape(&self) -> GlobShape {
        if self.all {
            return GlobShape::All;
        }
        let (last, head) = match self.tokens.split_last() {
            Some((Token::Star, head)) => (true, head),
            _ => (false, self.tokens.as_slice()),
        };
        let bytes = head.iter().map(|token| match token {
            Token::Byte(byte) => Some(*byte),
            _ => None,
        });
        match bytes.collect::<Option<Vec<u8>>>() {
            // `**` does not take the empty key, as a prefix of nothing would.
            Some(bytes) if last && bytes.is_empty() => GlobShape::General,
            Some(bytes) if last => GlobShape::Prefix(bytes),
            Some(bytes) => GlobShape::Literal(bytes),
            None => GlobShape::General,
        }
    }
}

impl Token {
    fn takes(&self, byte: u8) -> bool {
        match self {
            Token::Star => false,
            Token::Any => true,
            Token::Byte(own) => *own == byte,
            Token::Set(set) => set.contains(byte),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct ByteSet([u64; 4]);

impl ByteSet {
    /// Reads what follows `[`; answers what follows the set.
    fn read(mut rest: &[u8]) -> (Self, &[u8]) {
        let mut set = ByteSet::default();
        let negated = rest.first() == Some(&b'^');
        if negated {
            rest = &rest[1..];
        }
        loop {
            rest = match rest {
                [b'\\', byte, after @ ..] => {
                    set.insert(*byte);
                    after
                }
                [b']', after @ ..] => {
                    rest = after;
                    break;
                }
                [] => break,
                [start, b'-', end, after @ ..] => {
                    // C's `char` is signed on x86.
                    let (start, end) = (*start as i8, *end as i8);
                    (start.min(end)..=start.max(end)).for_each(|byte| set.insert(byte as u8));
                    after
                }
                [byte, after @ ..] => {
                    set.insert(*byte);
                    after
                }
            };
        }
        if negated {
            set = ByteSet(set.0.map(|word| !word));
        }
        (set, rest)
    }

    fn into_token(self) -> Token {
        let mut bytes = (0..=u8::MAX).filter(|byte| self.contains(*byte));
        match (bytes.next(), bytes.next()) {
            (Some(byte), None) => Token::Byte(byte),
            _ if self.0 == [u64::MAX; 4] => Token::Any,
            _ => Token::Set(Box::new(self)),
        }
    }

    fn insert(&mut self, byte: u8) {
        self.0[usize::from(byte / 64)] |= 1 << (byte % 64);
    }

    fn contains(&self, byte: u8) -> bool {
        self.0[usize::from(byte / 64)] & 1 << (byte % 64) != 0
    }
}

#[cfg(test)]
mod tests;
