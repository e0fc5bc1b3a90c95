//! The guard of HTTP calls: its decision must not depend on the notation of a URL.

use std::net::IpAddr;

use proptest::prelude::*;
use tidegate_core::validate::Guard;
use url::{Host, Url};

use super::driver::{fuzz, soup, text};

/// Pieces of URLs.
const URL_PIECES: &[&str] = &[
    "http",
    "https",
    "HTTP",
    "ftp",
    "file",
    "://",
    ":",
    "/",
    "@",
    "#",
    "?",
    "\\",
    "[",
    "]",
    ".",
    "%2e",
    "metadata",
    "google.internal",
    "169.254.169.254",
    "::ffff:",
    "fe80::1",
    "0xa9fea9fe",
    "2852039166",
    "127.0.0.1",
    "\t",
    "\n",
    "é",
    "user:pw",
    "80",
];

#[test]
fn an_allowed_url_has_a_safe_host_and_stays_allowed() {
    let almost = soup(URL_PIECES, 8).prop_map(|rest| format!("http://{rest}"));
    let scheme = prop::sample::select(&["http", "HTTPS", "ftp", "gopher", "file"][..]);
    let host = prop::sample::select(&["127.0.0.1", "169.254.169.254", "metadata.goog.", "a.b"][..]);
    let whole = (scheme, host).prop_map(|(scheme, host)| format!("{scheme}://{host}"));
    let urls = prop_oneof![3 => almost, 2 => whole, 2 => soup(URL_PIECES, 10), 1 => text(30)];
    fuzz(urls, |written| {
        let checked = Guard::On.url(&written);
        let unchecked = Guard::Off.url(&written);
        let callable = Url::parse(&written)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https") && url.host().is_some());
        prop_assert_eq!(unchecked.as_ref().ok(), callable.as_ref());
        let Ok(url) = unchecked else {
            prop_assert!(checked.is_err());
            return Ok(());
        };
        prop_assert_eq!(checked.is_ok(), Guard::On.check_host("url", &url).is_ok());
        prop_assert_eq!(Guard::On.url(url.as_str()).is_ok(), checked.is_ok());
        match url.host() {
            Some(Host::Ipv4(ip)) => {
                prop_assert_eq!(Guard::On.address(ip.into()).is_ok(), checked.is_ok());
            }
            Some(Host::Ipv6(ip)) => {
                prop_assert_eq!(Guard::On.address(ip.into()).is_ok(), checked.is_ok());
            }
            _ => {}
        }
        Ok(())
    });
}

#[test]
fn an_address_is_checked_alike_in_a_url_and_when_resolved() {
    let ip = prop_oneof![
        any::<u32>().prop_map(|bits| IpAddr::V4(bits.into())),
        any::<u128>().prop_map(|bits| IpAddr::V6(bits.into())),
        (any::<u32>(), prop::sample::select(&[0, 0xffff << 32, 0x0064_ff9b << 96][..]))
            .prop_map(|(low, prefix)| IpAddr::V6((prefix | u128::from(low)).into())),
    ];
    fuzz(ip, |ip| {
        let host = if ip.is_ipv6() { format!("[{ip}]") } else { ip.to_string() };
        let url: Url = format!("http://{host}/").parse().unwrap();
        prop_assert_eq!(Guard::On.url(url.as_str()).is_ok(), Guard::On.address(ip).is_ok());
        prop_assert_eq!(Guard::Public.url(url.as_str()).is_ok(), Guard::Public.address(ip).is_ok());
        prop_assert!(Guard::On.address(ip).is_ok() || Guard::Public.address(ip).is_err());
        prop_assert!(Guard::Off.address(ip).is_ok());
        Ok(())
    });
}
