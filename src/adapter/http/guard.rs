//! Where requests may not go: addresses from which a machine hands out its own credentials, and addresses that name no machine.
//!
//! Loopback and private ranges are allowed, for workers live there. A name is judged by the
//! addresses it resolves to at the moment of connecting, so a name that points elsewhere later
//! gains nothing by it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use url::{Host, Url};

/// Names under which clouds offer their metadata, refused before they are resolved.
const METADATA_NAMES: [&str; 3] = ["metadata", "metadata.google.internal", "metadata.goog"];

/// Metadata services outside the link-local range: Alibaba's, Oracle's and Azure's.
const METADATA_V4: [Ipv4Addr; 3] = [Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(192, 0, 0, 192), Ipv4Addr::new(168, 63, 129, 16)];

/// Whether unsafe addresses are refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Guard {
    /// They are.
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
    /// The URL, if it is one of HTTP and its host is not refused as it is written. What a name resolves to is not known here.
    ///
    /// # Errors
    ///
    /// [`Refused`] says what is wrong with it.
    pub fn url(self, text: &str) -> Result<Url, Refused> {
        let url = Url::parse(text).map_err(|fault| Refused(format!("not a URL: {fault}")))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(Refused(format!("its scheme is {}, not http or https", url.scheme())));
        }
        match url.host() {
            Some(Host::Ipv4(ip)) => self.address(ip.into())?,
            Some(Host::Ipv6(ip)) => self.address(ip.into())?,
            Some(Host::Domain(name)) => self.name(name)?,
            None => return Err(Refused("it has no host".into())),
        }
        Ok(url)
    }

    /// Whether `ip` may be called.
    ///
    /// # Errors
    ///
    /// [`Refused`] names the address and its kind.
    pub fn address(self, ip: IpAddr) -> Result<(), Refused> {
        match kind(ip) {
            Some(kind) if self == Self::On => Err(Refused(format!("{ip} is {kind}"))),
            _ => Ok(()),
        }
    }

    fn name(self, name: &str) -> Result<(), Refused> {
        let name = name.trim_end_matches('.');
        if self == Self::On && METADATA_NAMES.iter().any(|known| known.eq_ignore_ascii_case(name)) {
            return Err(Refused(format!("{name} is a cloud metadata service")));
        }
        Ok(())
    }
}

/// What makes `ip` unsafe, if anything does.
fn kind(ip: IpAddr) -> Option<&'static str> {
    match ip {
        IpAddr::V4(ip) => kind_v4(ip),
        IpAddr::V6(ip) => kind_v6(ip),
    }
}

fn kind_v4(ip: Ipv4Addr) -> Option<&'static str> {
    if ip.octets()[0] == 0 {
        Some("unspecified")
    } else if ip.is_link_local() {
        Some("link-local")
    } else if METADATA_V4.contains(&ip) {
        Some("a cloud metadata service")
    } else if ip.is_multicast() || ip.is_broadcast() {
        Some("multicast")
    } else {
        None
    }
}

fn kind_v6(ip: Ipv6Addr) -> Option<&'static str> {
    let segments = ip.segments();
    if ip.is_unspecified() {
        Some("unspecified")
    } else if ip.is_unicast_link_local() {
        Some("link-local")
    } else if ip.is_multicast() {
        Some("multicast")
    } else if matches!(segments, [0xfd00, 0x0ec2, ..] | [0xfd20, 0x00ce, 0, 0, 0, 0, 0, 0x0254]) {
        // Amazon's (the whole of its prefix gives out something of the machine's) and Google's.
        Some("a cloud metadata service")
    } else {
        embedded(segments).filter(|_| !ip.is_loopback()).and_then(kind_v4)
    }
}

/// The IPv4 address that an IPv6 one stands for: mapped, compatible, translated (NAT64) or tunnelled (6to4).
fn embedded(segments: [u16; 8]) -> Option<Ipv4Addr> {
    let ([0, 0, 0, 0, 0, 0 | 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..]) = segments else {
        return None;
    };
    Some(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)))
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
        let refused = Guard::On.url(url).unwrap_err().to_string();
        assert!(refused.contains(reason), "{refused}");
    }

    #[rstest]
    #[case("http://127.0.0.1:9000/work")]
    #[case("http://[::1]:9000/work")]
    #[case("http://[::ffff:127.0.0.1]/")]
    #[case("http://10.1.2.3/")]
    #[case("http://172.16.0.9/")]
    #[case("http://192.168.1.1/")]
    #[case("http://[fd12:3456::1]/")]
    #[case("http://100.64.0.1/")]
    #[case("https://93.184.216.34/")]
    #[case("https://workers.example.com/metadata")]
    fn workers_may_live_on_loopback_in_private_networks_and_outside(#[case] url: &str) {
        assert!(Guard::On.url(url).is_ok());
    }

    #[test]
    fn switched_off_it_refuses_no_address_but_still_other_schemes() {
        assert!(Guard::Off.url("http://169.254.169.254/").is_ok());
        assert!(Guard::Off.url("http://metadata.google.internal/").is_ok());
        assert!(Guard::Off.url("gopher://127.0.0.1/").is_err());
    }
}
