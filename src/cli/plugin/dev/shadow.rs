//! The shadow version that `tidegate plugin dev` pushes to a server: followed while the command
//! waits, and replaced at its end by the one from before.

use std::path::PathBuf;

use serde_json::json;
use tidegate_api::PluginView;

use super::{
    super::push,
    news::{Feed, News},
};
use crate::cli::{
    Context, ExitCode,
    client::{Client, Error},
    context::print_error,
};

/// The shadow version of a plugin, as far as this command has pushed one.
pub(super) struct PushedShadow {
    /// The plugin.
    name: String,
    pushed: Option<Pushed>,
    /// Whether the command waits for the answer to a push.
    is_pushing: bool,
    /// Why the latest requests failed; empty if they did not.
    problem: String,
}

/// What was pushed last.
struct Pushed {
    version: u32,
    /// The shadow version before the first push.
    before: Option<u32>,
    /// Whether it was the shadow when the server was called last.
    is_shadow: bool,
    feed: Feed,
}

impl PushedShadow {
    /// No version of the plugin `name` yet.
    pub(super) fn new(name: String) -> Self {
        Self { name, pushed: None, is_pushing: false, problem: String::new() }
    }

    /// Makes a component the shadow version.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or the server is unreachable or rejects the component. An earlier
    /// version stays the shadow then.
    pub(super) async fn push(&mut self, component: PathBuf, ctx: &Context) -> anyhow::Result<()> {
        let client = ctx.client()?;
        let before = match &self.pushed {
            Some(pushed) => pushed.before,
            None => shadow_of(&client, &self.name).await?,
        };
        self.is_pushing = true;
        let sent = push::send(push::Args::shadow(self.name.clone(), component), ctx).await;
        self.is_pushing = false;
        let (plugin, is_new) = sent?;
        let version = plugin.pushed.unwrap_or(plugin.live);
        let is_shadow = plugin.shadow == Some(version);
        if version == plugin.live {
            ctx.note(format_args!(
                "version {version} is live: there is no other one to compare it with"
            ));
        }
        let feed = match self.pushed.take() {
            Some(pushed) if pushed.version == version => pushed.feed,
            _ => Feed::new(version),
        };
        let pushed = self.pushed.insert(Pushed { version, before, is_shadow, feed });
        if !is_new && is_shadow {
            // What an earlier push of these bytes has brought is no news.
            pushed.feed.next(&client, &plugin).await?;
        }
        Ok(())
    }

    /// Prints what is new of the pushed version. Why that is not possible is printed once.
    ///
    /// # Errors
    ///
    /// The reader of the output is gone.
    pub(super) async fn show_news(&mut self, ctx: &Context) -> anyhow::Result<()> {
        let problem = match self.news(ctx).await {
            Ok(news) => {
                news.print(&self.name, ctx)?;
                String::new()
            }
            Err(error) => format!("{error:#}"),
        };
        if !problem.is_empty() && problem != self.problem {
            print_error(&problem);
        }
        self.problem = problem;
        Ok(())
    }

    /// Requests what is new of the pushed version; nothing while it is not the shadow.
    async fn news(&mut self, ctx: &Context) -> anyhow::Result<News> {
        let Some(pushed) = &mut self.pushed else { return Ok(News::default()) };
        let client = ctx.client()?;
        let answer = client.get(&["plugins", &self.name]).send().await?;
        let plugin: PluginView = answer.read()?;
        let was_shadow = pushed.is_shadow;
        pushed.is_shadow = plugin.shadow == Some(pushed.version);
        if pushed.is_shadow {
            return pushed.feed.next(&client, &plugin).await;
        }
        if was_shadow {
            let (version, name) = (pushed.version, &self.name);
            let place = if plugin.live == version { "is live" } else { "is no longer the shadow" };
            ctx.note(format_args!("version {version} of {name} {place}"));
        }
        Ok(News::default())
    }

    /// Makes the version from before the first push the shadow again, or removes the shadow; unless
    /// the pushed version is no longer the shadow. What may stay is printed. Returns the exit code of
    /// the command.
    pub(super) async fn end(&self, ctx: &Context) -> ExitCode {
        let code = match &self.pushed {
            Some(pushed) => self.end_of(pushed, ctx).await,
            None => ExitCode::Ok,
        };
        if !self.is_pushing {
            return code;
        }
        // The server may still compile the component.
        let name = &self.name;
        print_error(format_args!(
            "a push was interrupted, and its version may be the shadow of {name}; `tidegate plugin \
             shadow {name} off` removes it"
        ));
        ExitCode::Refused
    }

    async fn end_of(&self, pushed: &Pushed, ctx: &Context) -> ExitCode {
        let (name, version) = (&self.name, pushed.version);
        match self.restore(pushed, ctx).await {
            Ok(Restored::Nothing) => ExitCode::Ok,
            Ok(Restored::Before(before)) => {
                let place = match before {
                    Some(before) => format!("version {before} is the shadow of {name} again"),
                    None => format!("{name} has no shadow version any more"),
                };
                ctx.note(format_args!(
                    "{place}; `tidegate plugin promote {name} --to {version}` makes version \
                     {version} live"
                ));
                ExitCode::Ok
            }
            Err(error) => {
                print_error(format_args!(
                    "version {version} stays the shadow of {name}: {error:#}; `tidegate plugin \
                     shadow {name} off` removes it"
                ));
                ExitCode::of(&error)
            }
        }
    }

    async fn restore(&self, pushed: &Pushed, ctx: &Context) -> anyhow::Result<Restored> {
        let client = ctx.client()?;
        let answer = client.get(&["plugins", &self.name]).send().await?;
        let plugin: PluginView = answer.read()?;
        let Pushed { version, before, .. } = *pushed;
        // It was promoted, another version was made the shadow, or it was the shadow before.
        if plugin.shadow != Some(version) || before == Some(version) {
            return Ok(Restored::Nothing);
        }
        let path = ["plugins", self.name.as_str(), "shadow"];
        // The one from before may have been promoted.
        let before = before.filter(|before| *before != plugin.live);
        let request = match before {
            Some(before) => client.put(&path).json(&json!({"version": before})),
            None => client.delete(&path),
        };
        request.send().await?;
        Ok(Restored::Before(before))
    }
}

/// What the end of the command changed.
enum Restored {
    /// Nothing.
    Nothing,
    /// This version is the shadow, or none.
    Before(Option<u32>),
}

/// The shadow version of a plugin, which may not exist yet.
async fn shadow_of(client: &Client, name: &str) -> anyhow::Result<Option<u32>> {
    match client.get(&["plugins", name]).send().await {
        Ok(answer) => Ok(answer.read::<PluginView>()?.shadow),
        Err(Error::Problem(problem)) if problem.status == 404 => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;
    use serde_json::Value;

    use super::*;
    use crate::cli::testing::{FakeServer, SeenRequest, sample};

    /// A server with a plugin, whose view a test changes; a push makes version 3 the shadow.
    async fn server(plugin: Option<Value>) -> (FakeServer, Arc<Mutex<Option<Value>>>) {
        let stored = Arc::new(Mutex::new(plugin));
        let answered = Arc::clone(&stored);
        let server = FakeServer::answering(move |request| {
            let mut plugin = answered.lock();
            match (request.method.as_str(), request.path.as_str()) {
                ("PUT", "/v1/plugins/share?shadow=true") => {
                    let live = plugin.as_ref().map_or(json!(1), |plugin| plugin["live"].clone());
                    let pushed = if plugin.is_some() { json!(3) } else { json!(1) };
                    let shadow = if plugin.is_some() { json!(3) } else { Value::Null };
                    *plugin = Some(sample::plugin(json!({"live": live, "shadow": shadow})));
                    let changes = json!({"live": live, "shadow": shadow, "pushed": pushed});
                    (201, sample::plugin(changes))
                }
                (_, "/v1/plugins/share" | "/v1/plugins/share/shadow") => match &*plugin {
                    Some(plugin) => (200, plugin.clone()),
                    None => (404, json!({"title": "No plugin", "code": "plugin_not_found"})),
                },
                _ => (500, Value::Null),
            }
        });
        (server.await, stored)
    }

    /// Pushes a component, changes the plugin with `then`, and ends the command. Returns the exit
    /// code and the last request.
    async fn ended(
        plugin: Option<Value>,
        then: impl FnOnce(&mut Option<Value>),
    ) -> (ExitCode, SeenRequest) {
        let (server, stored) = server(plugin).await;
        let ctx = server.context(server.parsed(&["plugin", "list"]).global);
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut shadow = PushedShadow::new("share".to_owned());
        shadow.push(file.path().to_owned(), &ctx).await.unwrap();
        then(&mut stored.lock());
        let code = shadow.end(&ctx).await;
        (code, server.seen().pop().unwrap())
    }

    fn plugin(live: u32, shadow: Option<u32>) -> Value {
        sample::plugin(json!({"live": live, "shadow": shadow}))
    }

    #[tokio::test]
    async fn the_end_restores_the_shadow_from_before() {
        let cases = [
            (Some(plugin(1, None)), "DELETE /v1/plugins/share/shadow", Value::Null),
            (Some(plugin(1, Some(2))), "PUT /v1/plugins/share/shadow", json!({"version": 2})),
            // It is the first version, which is live.
            (None, "GET /v1/plugins/share", Value::Null),
            // The same bytes were the shadow.
            (Some(plugin(1, Some(3))), "GET /v1/plugins/share", Value::Null),
        ];
        for (before, line, body) in cases {
            let (code, last) = ended(before, |_| {}).await;
            assert_eq!((code, last.line().as_str(), &last.body), (ExitCode::Ok, line, &body));
        }
    }

    #[tokio::test]
    async fn a_shadow_that_others_set_stays() {
        for (live, shadow) in [(3, None), (1, Some(4)), (1, None)] {
            let others = |stored: &mut Option<Value>| *stored = Some(plugin(live, shadow));
            let (code, last) = ended(Some(plugin(1, None)), others).await;
            assert_eq!((code, last.line().as_str()), (ExitCode::Ok, "GET /v1/plugins/share"));
        }
        // The shadow from before was promoted.
        let promoted = |stored: &mut Option<Value>| *stored = Some(plugin(2, Some(3)));
        let (_, last) = ended(Some(plugin(1, Some(2))), promoted).await;
        assert_eq!(last.line(), "DELETE /v1/plugins/share/shadow");
    }

    #[tokio::test]
    async fn an_interrupted_push_is_reported() {
        let server = FakeServer::answering_slowly(|request| async move {
            if request.method == "PUT" {
                std::future::pending::<()>().await;
            }
            (404, json!({"title": "No plugin", "code": "plugin_not_found"}))
        });
        let server = server.await;
        let ctx = server.context(server.parsed(&["plugin", "list"]).global);
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut shadow = PushedShadow::new("share".to_owned());
        tokio::select! {
            _ = shadow.push(file.path().to_owned(), &ctx) => panic!("the server does not answer"),
            _ = server.saw(|request| request.method == "PUT") => {}
        }
        assert_eq!(shadow.end(&ctx).await, ExitCode::Refused);
    }

    #[tokio::test]
    async fn a_shadow_that_stays_is_reported() {
        let (code, _) = ended(Some(plugin(1, None)), |stored| *stored = None).await;
        assert_eq!(code, ExitCode::NotFound);
        let (server, _) = server(None).await;
        let ctx = server.context(server.parsed(&["plugin", "list"]).global);
        assert_eq!(PushedShadow::new("share".to_owned()).end(&ctx).await, ExitCode::Ok);
        assert!(server.seen().is_empty(), "without a push there is nothing to restore");
    }
}
