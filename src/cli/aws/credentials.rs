//! Credentials that are renewed before they expire, for a program that runs for hours. Those of a role
//! or of a single sign-on are valid for an hour.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use aws_credential_types::{
    Credentials,
    provider::{ProvideCredentials as _, SharedCredentialsProvider},
};
use object_store::{CredentialProvider, aws::AwsCredential};
use tidegate_core::{port::Clock, time::Timestamp};
use tokio::sync::Mutex;

/// How long before their end credentials are renewed.
const MARGIN: Duration = Duration::from_mins(5);

/// The credentials of a provider, each used until shortly before its end.
pub(super) struct LastingCredentials {
    provider: SharedCredentialsProvider,
    clock: Arc<dyn Clock>,
    /// The last ones, and when they end.
    known: Mutex<Option<(Arc<AwsCredential>, Option<Timestamp>)>>,
}

// The credentials are secret.
impl std::fmt::Debug for LastingCredentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LastingCredentials").finish_non_exhaustive()
    }
}

impl LastingCredentials {
    /// Those of `provider`, which is first called when they are needed.
    pub(super) fn new(provider: SharedCredentialsProvider, clock: Arc<dyn Clock>) -> Self {
        Self { provider, clock, known: Mutex::default() }
    }
}

#[async_trait]
impl CredentialProvider for LastingCredentials {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let mut known = self.known.lock().await;
        let is_valid =
            |end: &Option<Timestamp>| end.is_none_or(|end| self.clock.now() + MARGIN < end);
        if let Some((credential, _)) = known.as_ref().filter(|(_, end)| is_valid(end)) {
            return Ok(Arc::clone(credential));
        }
        let found = self.provider.provide_credentials().await;
        let found = found.map_err(|error| object_store::Error::Generic {
            store: "S3",
            source: Box::new(error),
        })?;
        let credential = Arc::new(AwsCredential {
            key_id: found.access_key_id().to_owned(),
            secret_key: found.secret_access_key().to_owned(),
            token: found.session_token().map(str::to_owned),
        });
        *known = Some((Arc::clone(&credential), end(&found)));
        Ok(credential)
    }
}

/// When `credentials` end; none if they do not.
fn end(credentials: &Credentials) -> Option<Timestamp> {
    let end = credentials.expiry()?.duration_since(std::time::UNIX_EPOCH).ok()?;
    i64::try_from(end.as_millis()).ok().map(Timestamp::from_millis)
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicU64, Ordering},
        time::UNIX_EPOCH,
    };

    use aws_credential_types::provider::{ProvideCredentials, future};
    use tidegate_engine::memory::FakeClock;

    use super::*;

    /// Each call returns other credentials, which end an hour after the epoch, two hours and so on.
    #[derive(Debug, Default)]
    struct Hourly(AtomicU64);

    impl ProvideCredentials for Hourly {
        fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
        where
            Self: 'a,
        {
            let number = self.0.fetch_add(1, Ordering::SeqCst) + 1;
            let end = UNIX_EPOCH + Duration::from_hours(number);
            let key = format!("key-{number}");
            future::ProvideCredentials::ready(Ok(Credentials::new(
                key,
                "s",
                None,
                Some(end),
                "test",
            )))
        }
    }

    #[tokio::test]
    async fn credentials_are_renewed_shortly_before_they_end() {
        let clock = Arc::new(FakeClock::new(Timestamp::EPOCH));
        let provider = SharedCredentialsProvider::new(Hourly::default());
        let credentials = LastingCredentials::new(provider, Arc::clone(&clock) as _);
        let mut keys = Vec::new();
        for _ in 0..4 {
            keys.push(credentials.get_credential().await.unwrap().key_id.clone());
            clock.advance(Duration::from_mins(29));
        }
        assert_eq!(keys, ["key-1", "key-1", "key-2", "key-2"]);
    }
}
