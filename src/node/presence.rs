//! How an agent makes itself known: by the name of its connection to its node.
//!
//! `skald-agent:HOST:PORT[;zone=NAME][;rack=NAME]`, for CLIENT SETNAME. Nothing is written into the user's keys, and a dead
//! agent is gone with its connection. What is found this way is a hint, never a proof of identity.

/// What every such name begins with.
const PREFIX: &str = "skald-agent:";

/// What an agent says of itself at its node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Presence {
    /// Where others reach it, `host:port`.
    pub address: String,
    /// The zone that it and its node are in.
    pub zone: Option<String>,
    /// The rack.
    pub rack: Option<String>,
}

impl Presence {
    /// The connection's name; `None` when a part of it cannot be in one: the server takes no spaces, and `;` is ours.
    pub fn to_name(&self) -> Option<String> {
        let mut name = format!("{PREFIX}{}", self.address);
        for (key, value) in [("zone", &self.zone), ("rack", &self.rack)] {
            if let Some(value) = value {
                name += &format!(";{key}={value}");
            }
        }
        let parts = [Some(&self.address), self.zone.as_ref(), self.rack.as_ref()];
        let fits = |part: &String| {
            !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_graphic() && byte != b';')
        };
        parts.into_iter().flatten().all(fits).then_some(name)
    }

    /// Reads a connection's name; `None`: it is not an agent's. Parts that a later version may add are passed over.
    pub fn from_name(name: &str) -> Option<Self> {
        let mut parts = name.strip_prefix(PREFIX)?.split(';');
        let address = parts.next().filter(|address| !address.is_empty())?.to_owned();
        let mut presence = Presence { address, zone: None, rack: None };
        for part in parts {
            match part.split_once('=') {
                Some(("zone", zone)) => presence.zone = Some(zone.to_owned()),
                Some(("rack", rack)) => presence.rack = Some(rack.to_owned()),
                _ => {}
            }
        }
        Some(presence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn presence(address: &str, zone: Option<&str>, rack: Option<&str>) -> Presence {
        let own = |text: Option<&str>| text.map(str::to_owned);
        Presence { address: address.to_owned(), zone: own(zone), rack: own(rack) }
    }

    #[test]
    fn names_read_back_and_strangers_are_none() {
        for (zone, rack) in
            [(None, None), (Some("eu-1a"), None), (None, Some("r7")), (Some("a=b"), Some("{x}"))]
        {
            let one = presence("10.0.0.7:7600", zone, rack);
            assert_eq!(Presence::from_name(&one.to_name().unwrap()), Some(one));
        }
        assert_eq!(presence("h:1", None, None).to_name().unwrap(), "skald-agent:h:1");
        let newer = Presence::from_name("skald-agent:h:1;rack=r;shelf=9;odd");
        assert_eq!(newer, Some(presence("h:1", None, Some("r"))));
        for stranger in ["", "lib", "skald-agent:", "skald-agent:;zone=a"] {
            assert_eq!(Presence::from_name(stranger), None);
        }
        for odd in ["two words", "semi;colon", "", "ümlaut"] {
            assert_eq!(presence("h:1", Some(odd), None).to_name(), None);
        }
    }
}
