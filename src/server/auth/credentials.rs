//! The credentials of a request: its `Authorization` header.

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};

use super::AuthError;

/// Maximum bytes of a secret.
pub(crate) const MAX_BYTES: usize = 16 << 10;

/// A secret, or none. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials(Option<String>);

impl Credentials {
    /// No credentials.
    pub fn anonymous() -> Self {
        Self(None)
    }

    /// The credentials in an `Authorization` header: `Bearer` and a token, or `Basic` with the
    /// token as the password and any user.
    ///
    /// # Errors
    ///
    /// [`AuthError::Refused`] if it is neither.
    pub(crate) fn from_header(header: Option<&str>) -> Result<Self, AuthError> {
        let Some(header) = header else {
            return Ok(Self::anonymous());
        };
        let (scheme, rest) = header.trim().split_once(' ').unwrap_or((header, ""));
        let secret = match scheme.to_ascii_lowercase().as_str() {
            "bearer" => rest.trim().to_owned(),
            "basic" => password(rest.trim())
                .ok_or_else(|| AuthError::refused("the Basic credentials cannot be read"))?,
            _ => {
                return Err(AuthError::refused("the Authorization header must be Bearer or Basic"));
            }
        };
        if secret.is_empty() || secret.len() > MAX_BYTES {
            return Err(AuthError::refused("the Authorization header has no token"));
        }
        Ok(Self(Some(secret)))
    }

    /// The token in the cookie of a user who has signed in.
    pub(crate) fn from_cookie(token: String) -> Self {
        Self(Some(token))
    }

    /// The secret, if there is one.
    pub fn secret(&self) -> Option<&str> {
        self.0.as_deref()
    }

    /// Whether the secret has the form of a JWT: three parts with dots between them.
    pub(crate) fn is_jwt(&self) -> bool {
        self.secret().is_some_and(|secret| secret.split('.').count() == 3)
    }
}

fn password(coded: &str) -> Option<String> {
    let text = String::from_utf8(BASE64.decode(coded).ok()?).ok()?;
    Some(text.split_once(':')?.1.to_owned())
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "Credentials(..)" } else { "Credentials(none)" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_comes_as_bearer_or_as_the_password_of_basic() {
        for header in
            ["Bearer tg_1_2", "bearer  tg_1_2 ", "Basic YW55Ym9keTp0Z18xXzI=", "BASIC OnRnXzFfMg=="]
        {
            assert_eq!(
                Credentials::from_header(Some(header)).unwrap().secret(),
                Some("tg_1_2"),
                "{header}"
            );
        }
        // A colon may be part of the password, never of the user.
        assert_eq!(Credentials::from_header(Some("Basic YTpiOmM=")).unwrap().secret(), Some("b:c"));
        assert_eq!(Credentials::from_header(None).unwrap(), Credentials::anonymous());
    }

    #[test]
    fn anything_else_is_refused() {
        let long = format!("Bearer {}", "x".repeat(MAX_BYTES + 1));
        for header in [
            "",
            "Bearer",
            "Bearer ",
            "Digest x",
            "tg_1_2",
            "Basic %%",
            "Basic bm9jb2xvbg==",
            "Basic YTo=",
            &long,
        ] {
            assert!(
                matches!(Credentials::from_header(Some(header)), Err(AuthError::Refused(_))),
                "{header}"
            );
        }
    }

    #[test]
    fn a_secret_is_never_shown() {
        assert_eq!(
            format!("{:?}", Credentials::from_header(Some("Bearer tg_1_2")).unwrap()),
            "Credentials(..)"
        );
    }
}
