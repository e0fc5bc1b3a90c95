//! `tidegate token --store`: the tokens in a database, whether servers run on it or not.
//!
//! A server that runs reads them again every two seconds. It may be one of an earlier release, so the
//! tables are not changed.

use std::path::PathBuf;

use super::{ExitCode, UsageError};
use tidegate_api::{NewTokenBody, Scope, TokenPage, TokenView};
use tidegate_backends::system::SystemEntropy;
use tidegate_core::time::Timestamp;
use tidegate_engine::Engine;
use tidegate_server::{
    auth::{InvalidToken, TokenItem, stored},
    runtime::{open_in_use, unsealed_engine},
    settings::Settings,
};

/// The value of an option without one: the setting has it.
const OF_SETTINGS: &str = "";

/// Where the tokens are, if not at the server.
#[derive(Debug, Default, clap::Args)]
pub struct StoreArgs {
    /// The database of servers on Postgres, instead of the server at --url [default URL: the server's
    /// setting `store`].
    #[arg(long, value_name = "URL", num_args = 0..=1, default_missing_value = OF_SETTINGS)]
    store: Option<String>,
    /// With --store: a TOML file with the server's settings.
    #[arg(long, env = "TIDEGATE_CONFIG")]
    config: Option<PathBuf>,
}

impl StoreArgs {
    /// The engine on the database; none if no database is named. Its tables are made if there are none.
    ///
    /// # Errors
    ///
    /// The address or another setting is wrong; the database cannot be used, or another release has made
    /// or changed its tables. Then they stay as they are.
    pub async fn engine(&self) -> anyhow::Result<Option<Engine>> {
        let Some(address) = &self.store else { return Ok(None) };
        let settings = Settings::load(self.config.as_deref(), &())?;
        let settings = match address.as_str() {
            OF_SETTINGS => settings,
            address => Settings { store: Some(address.to_owned()), ..settings },
        };
        let database = settings.database().map_err(|fault| UsageError(fault.to_string()))?;
        let Some(database) = database else {
            let missing = "name the database with --store URL, or set `store`";
            return Err(UsageError(missing.into()).into());
        };
        let side = open_in_use(database).await?;
        let engine = unsealed_engine(&side);
        // It refuses a database that a later release has written to.
        let catalog = engine.catalog().await?;
        catalog.schema.1.check_in_use()?;
        Ok(Some(engine))
    }
}

fn wrong(invalid: &InvalidToken) -> UsageError {
    UsageError(invalid.to_string())
}

/// A new token and its text.
///
/// # Errors
///
/// [`UsageError`] for a value out of its bounds.
pub fn new_token(new: NewTokenBody, now: Timestamp) -> Result<(TokenItem, String), UsageError> {
    TokenItem::create(new, now, &SystemEntropy).map_err(|invalid| wrong(&invalid))
}

/// Checks that a token may be the only one of an administrator.
///
/// # Errors
///
/// [`UsageError`] unless it is one for good.
pub fn check_first(item: &TokenItem) -> Result<(), UsageError> {
    item.check_first().map_err(|invalid| wrong(&invalid))
}

/// Stores a token. Without another one of an administrator for good, it must be one.
///
/// # Errors
///
/// [`UsageError`] if it is none; the store's.
pub async fn add(engine: &Engine, item: TokenItem, text: String) -> anyhow::Result<TokenView> {
    if !stored::all(engine).await?.iter().any(TokenItem::is_lasting_admin) {
        check_first(&item)?;
    }
    let catalog = engine.catalog().await?;
    engine.record_schema(catalog).await?;
    stored::put(engine, &item).await?;
    Ok(item.view(None, Some(text)))
}

/// All tokens, by id, without their secrets.
///
/// # Errors
///
/// The store's.
pub async fn list(engine: &Engine) -> anyhow::Result<TokenPage> {
    let mut uses = stored::uses(engine).await?;
    let view = |item: TokenItem| {
        let used_at = uses.remove(&item.id);
        item.view(used_at, None)
    };
    let mut tokens: Vec<TokenView> = stored::all(engine).await?.into_iter().map(view).collect();
    tokens.sort_unstable_by(|one, other| one.id.cmp(&other.id));
    Ok(TokenPage { tokens, next_cursor: None })
}

/// Removes a token. That of the last administrator is kept, unless `force` is true.
///
/// # Errors
///
/// The store's; the token is kept.
pub async fn revoke(
    engine: &Engine,
    id: &str,
    force: bool,
    now: Timestamp,
) -> anyhow::Result<ExitCode> {
    let tokens = stored::all(engine).await?;
    let is_admin = |item: &TokenItem| item.scopes.allow(Scope::Admin) && item.is_valid(now);
    let is_last = tokens.iter().any(|item| item.id == id && is_admin(item))
        && !tokens.iter().any(|item| item.id != id && item.is_lasting_admin());
    anyhow::ensure!(
        force || !is_last,
        "there is no other token with scope admin that does not expire: create one first, or give \
         --force"
    );
    Ok(if stored::remove(engine, id).await? { ExitCode::Ok } else { ExitCode::NotFound })
}
