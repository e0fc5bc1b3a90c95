//! The cookies of a sign-in.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, header};

/// A cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cookie {
    /// The token of a user.
    Session,
    /// A sign-in under way.
    SignIn,
}

impl Cookie {
    /// Its name. With the prefix, browsers take it only from this very host, encrypted: no other
    /// host of the domain can set it.
    pub fn name(self, is_secure: bool) -> String {
        let prefix = if is_secure { "__Host-" } else { "" };
        let name = match self {
            Self::Session => "tidegate_session",
            Self::SignIn => "tidegate_sign_in",
        };
        format!("{prefix}{name}")
    }

    /// The value of `Set-Cookie`. The cookie of the way back from the provider must be sent with a
    /// navigation from there, so both are `Lax`.
    pub fn set(self, is_secure: bool, value: &str, age: Duration) -> String {
        let secure = if is_secure { "; Secure" } else { "" };
        let (name, seconds) = (self.name(is_secure), age.as_secs());
        format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}")
    }

    /// The value of `Set-Cookie` that deletes it.
    pub fn delete(self, is_secure: bool) -> String {
        self.set(is_secure, "", Duration::ZERO)
    }
}

/// The value of a cookie of a request.
pub(super) fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let lists = headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes);
    // Those of other programs may not be ASCII.
    let texts = lists.flat_map(|list| list.split(|byte| *byte == b';')).map(str::from_utf8);
    let mut pairs = texts.flatten().filter_map(|pair| pair.split_once('='));
    pairs.find(|(have, _)| have.trim() == name).map(|(_, value)| value.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_found_among_others() {
        let headers = ["a=1; tidegate_session=x.y.z", "b=2"].map(HeaderValue::from_static);
        let headers: HeaderMap = headers.into_iter().map(|value| (header::COOKIE, value)).collect();
        assert_eq!(cookie(&headers, "tidegate_session"), Some("x.y.z"));
        assert_eq!(cookie(&headers, "session"), None);
        let other = HeaderValue::from_bytes(b"caf\xe9=\xe9; tidegate_session=x").unwrap();
        let headers: HeaderMap = [(header::COOKIE, other)].into_iter().collect();
        assert_eq!(cookie(&headers, "tidegate_session"), Some("x"));
    }

    #[test]
    fn an_encrypted_server_binds_its_cookies_to_its_host() {
        let set = Cookie::Session.set(true, "x", Duration::from_mins(1));
        let expected =
            "__Host-tidegate_session=x; Path=/; Max-Age=60; HttpOnly; SameSite=Lax; Secure";
        assert_eq!(set, expected);
        let deleted = Cookie::SignIn.delete(false);
        assert_eq!(deleted, "tidegate_sign_in=; Path=/; Max-Age=0; HttpOnly; SameSite=Lax");
    }
}
