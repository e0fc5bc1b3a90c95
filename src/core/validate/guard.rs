//! Which hosts may be called, checked when a URL is configured or enqueued, and at every call.
//!
//! Nothing is resolved here. A caller checks the addresses to which a name resolves for the
//! connection, so a name that resolves to another address later gains no access.

use core::net::IpAddr;

use url::{Host, Url};

use super::{ValidationError, private_address, unsafe_address, unsafe_host};

/// Which addresses are refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Guard {
    /// Unsafe, loopback and private addresses are refused: only the public internet may be called.
    Public,
    /// Unsafe addresses are refused. Loopback and private addresses may be called.
    #[default]
    On,
    /// Every address may be called.
    Off,
}

/// The URL or address may not be called.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

impl Guard {
    /// Parses `text`, which must be an HTTP URL whose literal host is not refused. A name is not
    /// resolved here.
    ///
    /// # Errors
    ///
    /// [`Refused`] with the reason.
    pub fn url(self, text: &str) -> Result<Url, Refused> {
        let url = Url::parse(text).map_err(|fault| Refused(format!("not a URL: {fault}")))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(Refused(format!("its scheme is {}, not http or https", url.scheme())));
        }
        self.host(&url.host().ok_or_else(|| Refused("it has no host".into()))?)?;
        Ok(url)
    }

    /// Checks the host of the URL in `field`, if it has one.
    ///
    /// # Errors
    ///
    /// A fault at `field` with the reason.
    pub fn check_host(self, field: &str, url: &Url) -> Result<(), ValidationError> {
        url.host().map_or(Ok(()), |host| self.host(&host)).map_err(|Refused(reason)| {
            ValidationError::new(field, format!("cannot be called: {reason}"))
        })
    }

    fn host(self, host: &Host<&str>) -> Result<(), Refused> {
        self.check(unsafe_host(host))?;
        match host {
            Host::Domain(name) if self == Self::Public && is_localhost(name) => {
                Err(Refused(format!("{name} is loopback or private")))
            }
            Host::Domain(_) => Ok(()),
            Host::Ipv4(ip) => self.check_private((*ip).into()),
            Host::Ipv6(ip) => self.check_private((*ip).into()),
        }
    }

    /// Checks whether `ip` may be called.
    ///
    /// # Errors
    ///
    /// [`Refused`] with the address and its kind.
    pub fn address(self, ip: IpAddr) -> Result<(), Refused> {
        self.check(unsafe_address(ip))?;
        self.check_private(ip)
    }

    fn check_private(self, ip: IpAddr) -> Result<(), Refused> {
        match private_address(ip) {
            Some(reason) if self == Self::Public => Err(Refused(reason)),
            _ => Ok(()),
        }
    }

    fn check(self, reason: Option<String>) -> Result<(), Refused> {
        reason.filter(|_| self != Self::Off).map_or(Ok(()), |reason| Err(Refused(reason)))
    }
}

/// Whether `name` is loopback wherever it is resolved (RFC 6761, section 6.3).
fn is_localhost(name: &str) -> bool {
    let name = name.trim_end_matches('.');
    let last = name.rsplit('.').next().unwrap_or(name);
    last.eq_ignore_ascii_case("localhost")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("http://169.254.169.254/latest", "link-local")]
    #[case("http://169.254.1.1", "link-local")]
    #[case("http://0xA9FEA9FE/", "link-local")]
    #[case("http://2852039166/", "link-local")]
    #[case("http://[fe80::1]:80/", "link-local")]
    #[case("http://[febf::1]/", "link-local")]
    #[case("http://[::ffff:169.254.169.254]/", "link-local")]
    #[case("http://[::169.254.169.254]/", "link-local")]
    #[case("http://[64:ff9b::169.254.169.254]/", "link-local")]
    #[case("http://[2002:a9fe:a9fe::1]/", "link-local")]
    #[case("http://[64:ff9b:1::a9fe:a9fe]/", "translated")]
    #[case("http://[64:ff9b:1:a9fe:a9:fe00::]/", "translated")]
    #[case("http://[::ffff:0:169.254.169.254]/", "translated")]
    #[case("http://[2001:0:7f00:1::1]/", "tunnelled")]
    #[case("http://[fec0::1]/", "site-local")]
    #[case("http://[feff::1]/", "site-local")]
    #[case("http://240.0.0.1/", "reserved")]
    #[case("http://[::ffff:250.1.2.3]/", "reserved")]
    #[case("http://100.100.100.200", "metadata")]
    #[case("http://[::ffff:100.100.100.200]", "metadata")]
    #[case("http://168.63.129.16", "metadata")]
    #[case("http://[fd00:ec2::254]/", "metadata")]
    #[case("http://[fd20:ce::254]/", "metadata")]
    #[case("https://METADATA.google.internal./computeMetadata", "metadata")]
    #[case("http://0.0.0.0:8080", "unspecified")]
    #[case("http://0.1.2.3", "unspecified")]
    #[case("http://[::]:8080", "unspecified")]
    #[case("http://[::ffff:0.0.0.0]/", "unspecified")]
    #[case("http://224.0.0.1", "multicast")]
    #[case("http://255.255.255.255", "multicast")]
    #[case("http://[ff02::1]", "multicast")]
    #[case("http://[::ffff:239.1.1.1]", "multicast")]
    #[case("ftp://127.0.0.1/", "scheme")]
    #[case("file:///etc/passwd", "scheme")]
    #[case("not a url", "not a URL")]
    fn an_unsafe_url_is_refused_with_its_reason(#[case] url: &str, #[case] reason: &str) {
        for guard in [Guard::On, Guard::Public] {
            let refused = guard.url(url).unwrap_err().to_string();
            assert!(refused.contains(reason), "{refused}");
        }
    }

    #[rstest]
    #[case("http://127.0.0.1:9000/work")]
    #[case("http://127.8.8.8/")]
    #[case("http://2130706433/")]
    #[case("http://[::1]:9000/work")]
    #[case("http://[::ffff:127.0.0.1]/")]
    #[case("http://10.1.2.3/")]
    #[case("http://172.16.0.9/")]
    #[case("http://192.168.1.1/")]
    #[case("http://[fd12:3456::1]/")]
    #[case("http://100.64.0.1/")]
    #[case("http://100.127.255.255/")]
    #[case("http://[::ffff:10.1.2.3]/")]
    #[case("http://[64:ff9b::127.0.0.1]/")]
    #[case("http://[2002:c0a8:101::1]/")]
    #[case("http://LocalHost:9000/work")]
    #[case("http://worker.localhost./")]
    fn only_the_public_guard_refuses_loopback_and_private(#[case] url: &str) {
        assert!(Guard::On.url(url).is_ok());
        let refused = Guard::Public.url(url).unwrap_err().to_string();
        assert!(refused.contains("loopback or private"), "{refused}");
    }

    #[rstest]
    #[case("http://[2001:1::1]/")]
    #[case("http://[64:ff9b:2::1]/")]
    #[case("http://[64:ff9b::93.184.216.34]/")]
    #[case("http://100.63.0.1/")]
    #[case("http://172.32.0.1/")]
    #[case("https://93.184.216.34/")]
    #[case("https://workers.example.com/metadata")]
    #[case("https://localhost.example.com/")]
    fn public_addresses_are_allowed(#[case] url: &str) {
        assert!(Guard::Public.url(url).is_ok());
    }

    #[test]
    fn a_disabled_guard_allows_all_addresses_but_not_all_schemes() {
        assert!(Guard::Off.url("http://169.254.169.254/").is_ok());
        assert!(Guard::Off.url("http://metadata.google.internal/").is_ok());
        assert!(Guard::Off.url("gopher://127.0.0.1/").is_err());
    }
}
