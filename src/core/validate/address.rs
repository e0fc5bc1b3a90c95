//! Hosts that requests must not go to: addresses at which a machine gives out its own credentials,
//! and addresses that belong to no machine.
//!
//! Nothing is resolved or called here. When a name is called, the same rule checks the addresses
//! that it resolves to. Loopback and private ranges are safe, because workers run there; a caller
//! that accepts only public addresses also asks [`private_address`].

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use url::Host;

/// Names of metadata services of clouds, refused before they are resolved.
const METADATA_NAMES: [&str; 3] = ["metadata", "metadata.google.internal", "metadata.goog"];

/// Metadata services outside the link-local range: Alibaba's, Oracle's and Azure's.
const METADATA_V4: [Ipv4Addr; 3] = [
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(192, 0, 0, 192),
    Ipv4Addr::new(168, 63, 129, 16),
];

/// Why a host must not be called, if its text shows it.
pub fn unsafe_host(host: &Host<&str>) -> Option<String> {
    match host {
        Host::Ipv4(ip) => unsafe_address((*ip).into()),
        Host::Ipv6(ip) => unsafe_address((*ip).into()),
        Host::Domain(name) => {
            let name = name.trim_end_matches('.');
            let known = METADATA_NAMES.iter().any(|known| known.eq_ignore_ascii_case(name));
            known.then(|| format!("{name} is a cloud metadata service"))
        }
    }
}

/// Why `ip` must not be called; none if it may be.
pub fn unsafe_address(ip: IpAddr) -> Option<String> {
    let kind = match ip {
        IpAddr::V4(ip) => kind_v4(ip),
        IpAddr::V6(ip) => kind_v6(ip),
    };
    kind.map(|kind| format!("{ip} is {kind}"))
}

/// Why `ip` is no address of the public internet; none if it is one, or if it is unsafe.
pub fn private_address(ip: IpAddr) -> Option<String> {
    let private = match ip {
        IpAddr::V4(ip) => private_v4(ip),
        IpAddr::V6(ip) => {
            ip.is_loopback()
                || ip.is_unique_local()
                || embedded(ip.segments()).is_some_and(private_v4)
        }
    };
    private.then(|| format!("{ip} is loopback or private"))
}

/// Loopback, the private ranges of RFC 1918, and the shared range of RFC 6598.
fn private_v4(ip: Ipv4Addr) -> bool {
    ip.is_loopback() || ip.is_private() || matches!(ip.octets(), [100, 64..=127, ..])
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
    } else if ip.octets()[0] >= 240 {
        Some("reserved")
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
        // Amazon's, whose whole prefix serves data of the machine, and Google's.
        Some("a cloud metadata service")
    } else if matches!(segments, [0x64, 0xff9b, 1, ..] | [0, 0, 0, 0, 0xffff, 0, ..]) {
        // RFC 8215 and RFC 2765. Where the IPv4 address is inside depends on the network.
        Some("translated to an IPv4 address")
    } else if matches!(segments, [0x2001, 0, ..]) {
        // Teredo, RFC 4380.
        Some("tunnelled to an IPv4 address")
    } else if segments[0] & 0xffc0 == 0xfec0 {
        // RFC 3879.
        Some("site-local")
    } else {
        embedded(segments).filter(|_| !ip.is_loopback()).and_then(kind_v4)
    }
}

/// The IPv4 address in an IPv6 one: mapped, compatible, translated (NAT64) or tunnelled (6to4).
fn embedded(segments: [u16; 8]) -> Option<Ipv4Addr> {
    let ([0, 0, 0, 0, 0, 0 | 0xffff, high, low]
    | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
    | [0x2002, high, low, ..]) = segments
    else {
        return None;
    };
    Some(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)))
}
