//! The names by which a machine reaches itself.

use std::net::IpAddr;

use url::{Host, Url};

/// Whether a host name, in lower case and without a dot at its end, leads to the machine that uses
/// it.
pub fn is_this_machine(name: &str) -> bool {
    let is_loopback = || {
        let ip = name.trim_matches(['[', ']']).parse::<IpAddr>();
        ip.is_ok_and(|ip| ip.to_canonical().is_loopback())
    };
    name == "localhost" || name.ends_with(".localhost") || is_loopback()
}

/// Whether secrets may be sent to `url`: it is encrypted, or does not leave the machine.
pub fn is_confidential(url: &Url) -> bool {
    url.scheme() == "https" || is_local(url)
}

/// Whether `url` leads to the machine that uses it.
pub fn is_local(url: &Url) -> bool {
    url.host().is_some_and(|host| match host {
        Host::Domain(name) => is_this_machine(name.trim_end_matches('.')),
        Host::Ipv4(ip) => ip.is_loopback(),
        Host::Ipv6(ip) => IpAddr::V6(ip).to_canonical().is_loopback(),
    })
}
