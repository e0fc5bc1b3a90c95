//! SSRF hosts, against a reference that compares numeric ranges.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use url::{Host, Url};

use super::driver::{fuzz, soup, text};
use crate::validate::{Guard, unsafe_address};

/// Forbidden IPv4 ranges: first address and prefix length.
const V4: [(u32, u32); 9] = [
    (0x0000_0000, 8),
    (0xf000_0000, 4),
    (0xa9fe_0000, 16),
    (0xe000_0000, 4),
    (0xffff_ffff, 32),
    (0x6464_64c8, 32),
    (0xc000_00c0, 32),
    (0xa83f_8110, 32),
    (0x0000_0000, 32),
];

fn forbidden_v4(ip: u32) -> bool {
    V4.iter()
        .any(|(first, length)| (ip ^ first).checked_shr(32 - length).unwrap_or(ip ^ first) == 0)
}

/// The IPv4 address inside an IPv6 address: mapped, compatible, NAT64 or 6to4.
fn inner(ip: u128) -> Option<u32> {
    let low = ip as u32;
    match ip >> 32 {
        0 | 0xffff | 0x0064_ff9b_0000_0000_0000_0000 => Some(low),
        _ if ip >> 112 == 0x2002 => Some((ip >> 80) as u32),
        _ => None,
    }
}

fn forbidden(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => forbidden_v4(ip.to_bits()),
        IpAddr::V6(ip) if ip == Ipv6Addr::LOCALHOST => false,
        IpAddr::V6(ip) => {
            let bits = ip.to_bits();
            bits == 0
                || bits >> 118 == 0xfe80 >> 6
                || bits >> 120 == 0xff
                || bits >> 118 == 0xfec0 >> 6
                || bits >> 80 == 0x0064_ff9b_0001
                || bits >> 32 == 0xffff_0000
                || bits >> 96 == 0x2001_0000
                || bits >> 96 == 0xfd00_0ec2
                || bits == 0xfd20_00ce_0000_0000_0000_0000_0000_0254
                || inner(bits).is_some_and(forbidden_v4)
        }
    }
}

/// An IPv4 address, most of them in or next to a forbidden range.
fn near() -> impl Strategy<Value = u32> {
    let edge = (prop::sample::select(&V4[..]), any::<u32>(), -1i64..=1).prop_map(
        |((first, length), bits, off)| {
            let rest = 1u64.checked_shl(32 - length).unwrap_or(0).wrapping_sub(1) as u32;
            (i64::from(first | (bits & rest)) + off) as u32
        },
    );
    prop_oneof![edge, any::<u32>()]
}

fn address() -> impl Strategy<Value = IpAddr> {
    let v6 = (near(), any::<u128>(), 0..10u8).prop_map(|(v4, noise, form)| {
        let v4 = u128::from(v4);
        match form {
            0 => 0xffff << 32 | v4,
            1 => v4,
            2 => 0x0064_ff9b << 96 | v4,
            3 => 0x2002 << 112 | v4 << 80 | noise >> 48,
            4 => 0xfe80 << 112 | noise >> 8,
            5 => 0xfec0 << 112 | noise >> 10,
            6 => 0x0064_ff9b_0001 << 80 | noise >> 47,
            7 => 0xffff_0000 << 32 | v4,
            8 => 0x2001 << 112 | noise >> 15,
            _ => 0xfd00_0ec2 << 96 | noise >> 31,
        }
    });
    prop_oneof![
        near().prop_map(|ip| Ipv4Addr::from_bits(ip).into()),
        v6.prop_map(|ip| Ipv6Addr::from_bits(ip).into()),
    ]
}

#[test]
fn addresses_are_refused_as_the_ranges_say() {
    fuzz(address(), |ip| {
        prop_assert_eq!(unsafe_address(ip).is_some(), forbidden(ip), "{}", ip);
        Ok(())
    });
}

#[test]
fn every_spelling_of_an_address_is_judged_alike() {
    fuzz((near(), 0..8u8), |(bits, form)| {
        let [a, b, c, d] = bits.to_be_bytes();
        let (last, wide) = (bits & 0xff_ffff, bits & 0xffff);
        let host = match form {
            0 => format!("{bits}"),
            1 => format!("0x{bits:X}"),
            2 => format!("0{bits:o}"),
            3 => format!("{a}.{last}"),
            4 => format!("{a}.{b}.{wide}"),
            5 => format!("0x{a:x}.0{b:o}.{c}.{d}."),
            6 => format!("%3{}.{b}.{c}.{d}", a % 10),
            _ => format!("{a}。{b}．{c}.{d}"),
        };
        let Ok(url) = Url::parse(&format!("http://{host}/")) else { return Ok(()) };
        let ip = match url.host() {
            Some(Host::Ipv4(ip)) => ip,
            other => return Err(TestCaseError::fail(format!("{host} is {other:?}"))),
        };
        if form != 6 {
            prop_assert_eq!(ip.to_bits(), bits, "{}", host);
        }
        prop_assert_eq!(
            Guard::On.check_host("url", &url).is_err(),
            forbidden_v4(ip.to_bits()),
            "{}",
            host
        );
        Ok(())
    });
}

#[test]
fn a_url_is_judged_by_its_host_however_it_is_written() {
    const PARTS: &[&str] = &[
        "http",
        "https",
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
        "..",
        "%2e",
        "%00",
        "metadata",
        "METADATA",
        "google",
        "internal",
        "goog",
        "169.254",
        "169.254.169.254",
        "::",
        "ffff:",
        "fe80::1",
        "0x",
        "a9fe",
        "2852039166",
        "0",
        "255",
        "localhost",
        "\t",
        "\n",
        " ",
        "é",
        "①",
        "user:pw",
        "80",
    ];
    let scheme = prop::sample::select(&["http", "https", "ftp", "other"][..]);
    let name = prop::sample::select(&["metadata", "METADATA.google.Internal", "Metadata.goog"][..]);
    let end = prop::sample::select(&["", ".", ":80", "./x", "x", ".example"][..]);
    let service =
        (scheme, name, end).prop_map(|(scheme, name, end)| format!("{scheme}://{name}{end}"));
    fuzz(
        prop_oneof![
            service,
            soup(PARTS, 12),
            soup(PARTS, 9).prop_map(|rest| format!("http://{rest}")),
            text(30)
        ],
        |written| {
            let Ok(url) = Url::parse(&written) else { return Ok(()) };
            let refused = Guard::On.check_host("url", &url).is_err();
            let expected = match url.host() {
                Some(Host::Ipv4(ip)) => forbidden(ip.into()),
                Some(Host::Ipv6(ip)) => forbidden(ip.into()),
                Some(Host::Domain(name)) => {
                    let name = name.to_lowercase();
                    let name = name.trim_end_matches('.');
                    ["metadata", "metadata.google.internal", "metadata.goog"].contains(&name)
                }
                None => false,
            };
            prop_assert_eq!(refused, expected);
            // What is stored is the URL as it is printed: it must be judged alike.
            let again: Url = url
                .as_str()
                .parse()
                .map_err(|error| TestCaseError::fail(format!("{url}: {error}")))?;
            prop_assert_eq!(again, url);
            Ok(())
        },
    );
}
