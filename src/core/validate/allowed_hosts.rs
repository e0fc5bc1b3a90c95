//! The hosts that an operator allows: for targets, or for callbacks.

use core::{fmt, net::IpAddr, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use url::{Host, Url};

use super::ValidationError;

/// Most entries.
const MAX_ENTRIES: usize = 1000;

/// Hosts that may be called. Without an entry, every host may be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedHosts(Vec<AllowedHost>);

/// An entry: a name, all names below one, or a range of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
enum AllowedHost {
    /// `queue.example.com`, in lower case.
    Name(String),
    /// `*.example.com`: `.example.com`.
    Below(String),
    /// `10.0.0.0/8`, or one address.
    Range { first: IpAddr, prefix: u8 },
}

/// A text is no host, pattern or range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not allowed here: write a host such as `api.example.com`, `*.example.com` for all \
     hosts below it, an address, or a range such as `10.0.0.0/8`; at most {MAX_ENTRIES} of them"
)]
pub struct BadAllowedHost(String);

impl AllowedHosts {
    /// The hosts of these entries.
    ///
    /// # Errors
    ///
    /// [`BadAllowedHost`] with the first wrong entry.
    pub fn parse<T: AsRef<str>>(entries: &[T]) -> Result<Self, BadAllowedHost> {
        if let Some(surplus) = entries.get(MAX_ENTRIES) {
            return Err(BadAllowedHost(surplus.as_ref().to_owned()));
        }
        entries.iter().map(|entry| entry.as_ref().parse()).collect::<Result<_, _>>().map(Self)
    }

    /// Whether the host of `url` may be called. A range allows URLs that have an address, and not
    /// names that resolve to one.
    pub fn allow(&self, url: &Url) -> bool {
        let Some(host) = url.host() else { return false };
        self.0.is_empty() || self.0.iter().any(|entry| entry.matches(&host))
    }

    /// Checks that the host of `url` may be called.
    ///
    /// # Errors
    ///
    /// It may not: a fault of `field`.
    pub fn check(&self, field: &str, url: &Url) -> Result<(), ValidationError> {
        if self.allow(url) {
            return Ok(());
        }
        let host = url.host_str().unwrap_or_default();
        let message = format!("cannot be called: the server's settings do not allow {host}");
        Err(ValidationError::new(field, message))
    }
}

impl AllowedHost {
    fn matches(&self, host: &Host<&str>) -> bool {
        let address = match host {
            Host::Domain(name) => {
                let name = name.trim_end_matches('.').to_ascii_lowercase();
                return match self {
                    Self::Name(allowed) => name == *allowed,
                    Self::Below(end) => name.ends_with(end.as_str()),
                    Self::Range { .. } => false,
                };
            }
            Host::Ipv4(ip) => IpAddr::V4(*ip),
            Host::Ipv6(ip) => IpAddr::V6(*ip).to_canonical(),
        };
        let Self::Range { first, prefix } = self else { return false };
        let same = |difference: u128, bits: u8| {
            difference.checked_shr(u32::from(bits - prefix)).unwrap_or(0) == 0
        };
        match (first, address) {
            (IpAddr::V4(first), IpAddr::V4(ip)) => {
                same(u128::from(first.to_bits() ^ ip.to_bits()), 32)
            }
            (IpAddr::V6(first), IpAddr::V6(ip)) => same(first.to_bits() ^ ip.to_bits(), 128),
            _ => false,
        }
    }
}

impl FromStr for AllowedHost {
    type Err = BadAllowedHost;

    fn from_str(text: &str) -> Result<Self, BadAllowedHost> {
        let bad = || BadAllowedHost(text.to_owned());
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix.parse::<u8>().map_err(|_| bad())?)),
            None => (text, None),
        };
        if let Ok(first) = address.trim_matches(['[', ']']).parse::<IpAddr>() {
            let bits = if first.is_ipv4() { 32 } else { 128 };
            let prefix = prefix.unwrap_or(bits);
            // The address of a URL is compared in its canonical form, which for these is IPv4.
            let is_mapped = first.to_canonical() != first;
            return match prefix {
                96..=128 if is_mapped => {
                    Ok(Self::Range { first: first.to_canonical(), prefix: prefix - 96 })
                }
                _ if prefix <= bits && !is_mapped => Ok(Self::Range { first, prefix }),
                _ => Err(bad()),
            };
        }
        let name = text.strip_prefix("*.").unwrap_or(text);
        // The parser of URLs decides which text is a name.
        match Host::parse(name) {
            Ok(Host::Domain(name)) if prefix.is_none() && !name.contains('*') => {
                let name = name.trim_end_matches('.').to_ascii_lowercase();
                Ok(if text.starts_with("*.") {
                    Self::Below(format!(".{name}"))
                } else {
                    Self::Name(name)
                })
            }
            _ => Err(bad()),
        }
    }
}

impl fmt::Display for AllowedHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Below(end) => write!(f, "*{end}"),
            Self::Range { first, prefix } => write!(f, "{first}/{prefix}"),
        }
    }
}

impl Serialize for AllowedHosts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(ToString::to_string))
    }
}

impl<'de> Deserialize<'de> for AllowedHosts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&Vec::<String>::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allow(entries: &[&str], url: &str) -> bool {
        AllowedHosts::parse(entries).unwrap().allow(&url.parse().unwrap())
    }

    #[test]
    fn a_host_is_allowed_by_its_name_a_pattern_or_a_range() {
        for (entry, url, is_allowed) in [
            ("api.example.com", "https://API.Example.com./x", true),
            ("api.example.com", "https://api.example.com.evil.test/", false),
            ("api.example.com", "https://xapi.example.com/", false),
            ("*.example.com", "https://a.b.example.com/", true),
            ("*.example.com", "https://example.com/", false),
            ("*.example.com", "https://evilexample.com/", false),
            ("10.0.0.0/8", "http://10.255.0.1/", true),
            ("10.0.0.0/8", "http://0x0aff0001/", true),
            ("10.0.0.0/8", "http://[::ffff:10.1.1.1]/", true),
            ("10.0.0.0/8", "http://11.0.0.1/", false),
            ("10.0.0.0/8", "http://localhost/", false),
            ("::ffff:10.0.0.0/104", "http://10.255.0.1/", true),
            ("::ffff:10.0.0.0/104", "http://[::ffff:10.1.1.1]/", true),
            ("::ffff:10.0.0.0/104", "http://11.0.0.1/", false),
            ("[::ffff:10.1.2.3]", "http://10.1.2.3/", true),
            ("10.1.2.3", "http://10.1.2.3/", true),
            ("10.1.2.3", "http://10.1.2.2/", false),
            ("0.0.0.0/0", "http://192.0.2.1/", true),
            ("0.0.0.0/0", "http://[::1]/", false),
            ("fd00::/8", "http://[fd12::1]/", true),
            ("fd00::/8", "http://[fe12::1]/", false),
            ("[::1]", "http://[::1]:9/", true),
            ("::/0", "http://[2001:db8::1]/", true),
            ("127.0.0.1", "data:text", false),
        ] {
            assert_eq!(allow(&[entry], url), is_allowed, "{entry} {url}");
        }
        assert!(allow(&["a.example", "b.example"], "http://b.example/"));
        assert!(allow(&[], "http://anything/"), "without an entry, all are allowed");
    }

    #[test]
    fn an_entry_that_is_no_host_is_refused() {
        let bad = ["", "*", "*.", "a b", "a/b", "a.example/8", "10.0.0.0/33", "http://a", "a.*.b"];
        let mapped = ["::ffff:10.0.0.0/95", "::ffff:10.0.0.0/129"];
        for entry in bad.into_iter().chain(mapped) {
            assert!(AllowedHosts::parse(&[entry]).is_err(), "{entry}");
        }
        assert!(AllowedHosts::parse(&["a.example"; MAX_ENTRIES + 1]).is_err());
        let hosts = AllowedHosts::parse(&["A.example", "*.b.example", "10.0.0.0/8"]).unwrap();
        let json = serde_json::to_string(&hosts).unwrap();
        assert_eq!(json, r#"["a.example","*.b.example","10.0.0.0/8"]"#);
        assert_eq!(serde_json::from_str::<AllowedHosts>(&json).unwrap(), hosts);
    }
}
