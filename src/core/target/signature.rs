//! Signatures of push requests and callbacks, as in
//! [Standard Webhooks](https://www.standardwebhooks.com).
//!
//! ```text
//! webhook-id:        the id of the message; the same in every try, to recognise repeats
//! webhook-timestamp: seconds since the Unix epoch
//! webhook-signature: v1,BASE64 v1,BASE64      one per secret, so that secrets can be rotated
//!
//! each signature = HMAC-SHA256(secret, "{id}.{timestamp}.{body}")
//! ```
//!
//! Pure: the caller passes the current time.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::time::Timestamp;

/// The name of the header with the id.
pub const ID: &str = "webhook-id";
/// The name of the header with the time.
pub const TIMESTAMP: &str = "webhook-timestamp";
/// The name of the header with the signatures.
pub const SIGNATURE: &str = "webhook-signature";
/// How far a signature's time may be from the receiver's before it counts as a replay.
pub const TOLERANCE: Duration = Duration::from_mins(5);

/// The prefix of a secret in base64.
const PREFIX: &str = "whsec_";

/// A secret cannot be used for signing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSecret {
    /// It is empty.
    #[error("a signing secret must not be empty")]
    Empty,
    /// The text after `whsec_` is not base64.
    #[error("what follows whsec_ in a signing secret must be base64")]
    NotBase64,
}

/// A request has no valid signature of any of the secrets at this time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSignature {
    /// The time is not a number of seconds.
    #[error("webhook-timestamp is not a number of seconds")]
    NotATime,
    /// The time is too far from now: the request is a replay, or clocks differ.
    #[error("webhook-timestamp is too far from the present")]
    TooFar,
    /// No signature matches a secret.
    #[error("no signature matches a secret")]
    NoneFits,
    /// A secret cannot be used.
    #[error(transparent)]
    BadSecret(#[from] BadSecret),
}

/// A signing secret: `whsec_` and base64, or any other text as it is.
pub struct Secret(Hmac<Sha256>);

impl Secret {
    /// Reads the secret from its text.
    ///
    /// # Errors
    ///
    /// [`BadSecret`] if it is empty, or if it has the prefix and is not base64.
    pub fn parse(text: &str) -> Result<Self, BadSecret> {
        let key = match text.strip_prefix(PREFIX) {
            Some(coded) => BASE64.decode(coded).map_err(|_| BadSecret::NotBase64)?,
            None => text.as_bytes().to_vec(),
        };
        if key.is_empty() {
            return Err(BadSecret::Empty);
        }
        Ok(Self(Hmac::new_from_slice(&key).expect("HMAC takes keys of any length")))
    }

    fn mac(&self, id: &str, timestamp: &str, body: &[u8]) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
            mac.update(part);
        }
        mac
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// The headers that sign `body` at `now` with each of `secrets`; none without secrets.
///
/// # Errors
///
/// [`BadSecret`] if one of them cannot be used.
pub fn sign(
    secrets: &[String],
    id: &str,
    now: Timestamp,
    body: &[u8],
) -> Result<Vec<(String, String)>, BadSecret> {
    if secrets.is_empty() {
        return Ok(Vec::new());
    }
    let timestamp = seconds(now).to_string();
    let signatures: Result<Vec<String>, BadSecret> = secrets
        .iter()
        .map(|secret| {
            Ok(format!(
                "v1,{}",
                BASE64.encode(
                    Secret::parse(secret)?.mac(id, &timestamp, body).finalize().into_bytes()
                )
            ))
        })
        .collect();
    Ok(vec![
        (ID.into(), id.into()),
        (TIMESTAMP.into(), timestamp),
        (SIGNATURE.into(), signatures?.join(" ")),
    ])
}

/// Checks that a signature matches one of `secrets` and its time is within [`TOLERANCE`] of `now`;
/// see [`verify_within`].
///
/// # Errors
///
/// [`BadSignature`] with the reason.
pub fn verify(
    secrets: &[String],
    id: &str,
    timestamp: &str,
    signatures: &str,
    body: &[u8],
    now: Timestamp,
) -> Result<(), BadSignature> {
    verify_within(TOLERANCE, secrets, id, timestamp, signatures, body, now)
}

/// Checks that a signature matches one of `secrets` and its time is within `tolerance` of `now`. A
/// worker calls this for every request.
///
/// `id`, `timestamp` and `signatures` are the values of the three headers. Signatures are compared
/// in constant time.
///
/// # Errors
///
/// [`BadSignature`] with the reason.
pub fn verify_within(
    tolerance: Duration,
    secrets: &[String],
    id: &str,
    timestamp: &str,
    signatures: &str,
    body: &[u8],
    now: Timestamp,
) -> Result<(), BadSignature> {
    let signed_at: i64 = timestamp.parse().map_err(|_| BadSignature::NotATime)?;
    if seconds(now).abs_diff(signed_at) > tolerance.as_secs() {
        return Err(BadSignature::TooFar);
    }
    let given: Vec<Vec<u8>> = signatures
        .split(' ')
        .filter_map(|one| one.strip_prefix("v1,"))
        .filter_map(|coded| BASE64.decode(coded).ok())
        .collect();
    for secret in secrets {
        let mac = Secret::parse(secret)?.mac(id, timestamp, body);
        if given.iter().any(|signature| mac.clone().verify_slice(signature).is_ok()) {
            return Ok(());
        }
    }
    Err(BadSignature::NoneFits)
}

fn seconds(at: Timestamp) -> i64 {
    at.millis().div_euclid(1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    // The vector of the specification's own libraries.
    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const MESSAGE: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
    const BODY: &[u8] = br#"{"test": 2432232314}"#;
    const EXPECTED: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";

    fn at() -> Timestamp {
        Timestamp::from_millis(1_614_265_330_999)
    }

    fn secrets(texts: &[&str]) -> Vec<String> {
        texts.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_vector_of_the_specification_is_met() {
        let headers = sign(&secrets(&[SECRET]), MESSAGE, at(), BODY).unwrap();
        let expected = [(ID, MESSAGE), (TIMESTAMP, "1614265330"), (SIGNATURE, EXPECTED)];
        assert_eq!(headers, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!(
            verify(&secrets(&[SECRET]), MESSAGE, "1614265330", EXPECTED, BODY, at()),
            Ok(())
        );
    }

    #[test]
    fn a_plain_secret_is_taken_as_it_is() {
        // echo -n 'j1.1614265330.{}' | openssl dgst -sha256 -hmac 'it is me' -binary | base64
        let headers = sign(&secrets(&["it is me"]), "j1", at(), b"{}").unwrap();
        assert_eq!(headers[2].1, "v1,MFj88fr4JwqIFPkh0ic2RHLtBJeaacYCNh+6pR19P/o=");
    }

    #[test]
    fn while_a_secret_is_replaced_either_side_may_be_first() {
        let both = secrets(&[SECRET, "the new one"]);
        let signatures = sign(&both, MESSAGE, at(), BODY).unwrap()[2].1.clone();
        assert!(
            signatures.starts_with(EXPECTED) && signatures.matches("v1,").count() == 2,
            "{signatures}"
        );
        for one in [SECRET, "the new one"] {
            assert_eq!(
                verify(&secrets(&[one]), MESSAGE, "1614265330", &signatures, BODY, at()),
                Ok(())
            );
        }
        assert_eq!(verify(&both, MESSAGE, "1614265330", EXPECTED, BODY, at()), Ok(()));
    }

    #[test]
    fn whatever_differs_from_what_was_signed_does_not_fit() {
        let check = |secret, id, timestamp, signature, body: &[u8]| {
            verify(&secrets(&[secret]), id, timestamp, signature, body, at())
        };
        let misfit = Err(BadSignature::NoneFits);
        assert_eq!(check("another", MESSAGE, "1614265330", EXPECTED, BODY), misfit);
        assert_eq!(check(SECRET, "msg_other", "1614265330", EXPECTED, BODY), misfit);
        assert_eq!(check(SECRET, MESSAGE, "1614265331", EXPECTED, BODY), misfit);
        assert_eq!(check(SECRET, MESSAGE, "1614265330", EXPECTED, b"{}"), misfit);
        let other_scheme = EXPECTED.replace("v1,", "v1a,");
        for signature in ["", "v1,", "v1,AAAA", &other_scheme, &EXPECTED[3..]] {
            assert_eq!(
                check(SECRET, MESSAGE, "1614265330", signature, BODY),
                misfit,
                "{signature}"
            );
        }
        assert_eq!(check(SECRET, MESSAGE, "soon", EXPECTED, BODY), Err(BadSignature::NotATime));
    }

    #[test]
    fn a_signature_of_another_time_is_a_replay() {
        let check = |now| verify(&secrets(&[SECRET]), MESSAGE, "1614265330", EXPECTED, BODY, now);
        assert_eq!(check(at() + TOLERANCE), Ok(()));
        assert_eq!(check(at() + TOLERANCE + Duration::from_secs(1)), Err(BadSignature::TooFar));
        assert_eq!(check(at() - TOLERANCE - Duration::from_secs(1)), Err(BadSignature::TooFar));
    }

    #[test]
    fn an_unusable_secret_is_refused_and_none_signs_nothing() {
        assert_eq!(Secret::parse("").unwrap_err(), BadSecret::Empty);
        assert_eq!(Secret::parse("whsec_").unwrap_err(), BadSecret::Empty);
        assert_eq!(Secret::parse("whsec_not base64").unwrap_err(), BadSecret::NotBase64);
        assert_eq!(sign(&[], "j1", at(), b"{}"), Ok(Vec::new()));
        assert!(!format!("{:?}", Secret::parse(SECRET).unwrap()).contains("MfKQ"));
    }
}
