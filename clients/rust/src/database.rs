//! Enqueue in a transaction of the application, in the Postgres database of the servers.
//!
//! The application executes the statement on its own connection, so this names no driver.

use serde::Serialize;
use tidegate_api::{JobOptions, Timestamp, TypeName};

use crate::{error::Error, job::NewJob, trace::traceparent};

/// The header of a job with its trace context.
const TRACEPARENT: &str = "traceparent";
/// The arguments of the SQL function. Each value goes as a text: a driver need not know the types of the
/// others.
const ARGUMENTS: &str = "type => $1::text, data => $2::text::json, delay => $3::text::interval, \
     run_at => $4::text::timestamptz, options => $5::text::json";

/// A statement that enqueues a job; see [`NewJob::statement`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// The text, with the parameters `$1` to `$5`. It returns one row, whose one column `id` is the id of
    /// the job as a text.
    pub sql: String,
    /// The values of the parameters, texts or NULL: type, data, delay, `run_at`, options.
    pub parameters: [Option<String>; 5],
}

/// The fields of a job that are no arguments of the SQL function.
#[derive(Serialize)]
struct Fields<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    correlation_key: Option<&'a str>,
    #[serde(flatten)]
    options: JobOptions,
}

impl NewJob {
    /// Returns the statement that enqueues the job in a transaction of the application, in the Postgres
    /// database of the servers. The job exists if and only if the transaction commits.
    ///
    /// `schema` is that of the servers: `tidegate`, unless `--store` names another one. If a job with the
    /// same unique key answers the request, no job has the returned id. What only a server can check
    /// becomes a dead letter.
    ///
    /// ```no_run
    /// # use serde_json::json;
    /// # use tidegate_client::{BoxError, NewJob, Statement};
    /// # async fn order(transaction: &tokio_postgres::Transaction<'_>) -> Result<String, BoxError> {
    /// let Statement { sql, parameters: [kind, data, delay, run_at, options] } =
    ///     NewJob::new("invoice", &json!({"order": 17})).statement("tidegate")?;
    /// let row = transaction.query_one(&*sql, &[&kind, &data, &delay, &run_at, &options]).await?;
    /// # Ok(row.get("id"))
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for an argument that no database would accept: there it would end the
    /// transaction. An id is refused, because the database makes it; a critical job, because it needs a
    /// token.
    pub fn statement(&self, schema: &str) -> Result<Statement, Error> {
        self.check()?;
        self.check_in_transaction(schema)?;
        let mut options = self.options.clone();
        let is_traced =
            options.headers.keys().any(|header| header.eq_ignore_ascii_case(TRACEPARENT));
        if let Some(trace) = traceparent().filter(|_| !is_traced) {
            options.headers.insert(TRACEPARENT.to_owned(), trace);
        }
        let fields = Fields {
            expires_at: self.expires_at,
            correlation_key: self.correlation_key.as_deref(),
            options,
        };
        let fields = serde_json::to_string(&fields).map_err(|err| {
            Error::argument(format_args!("the options of the job are not JSON values: {err}"))
        })?;
        let delay = self.delay_seconds.map(|span| {
            let millis = span.millis();
            format!("{}.{:03} seconds", millis / 1000, millis % 1000)
        });
        Ok(Statement {
            sql: format!("SELECT \"{schema}\".enqueue({ARGUMENTS}) AS id"),
            parameters: [
                Some(self.job_type.clone()),
                Some(self.data.get().to_owned()),
                delay,
                self.run_at.map(|at| at.to_string()),
                Some(fields),
            ],
        })
    }

    fn check_in_transaction(&self, schema: &str) -> Result<(), Error> {
        let refused = |text: &str| Err(Error::argument(text));
        if !is_schema(schema) {
            return refused("the schema must be 1 to 63 of a-z 0-9 _, and begin with a letter");
        }
        if let Err(err) = self.job_type.parse::<TypeName>() {
            return Err(Error::argument(format_args!("the job type {err}")));
        }
        if self.id.is_some() {
            return refused("the id must not be given, because the database makes it");
        }
        if self.options.critical {
            return refused("the job must not be critical, because that needs a token");
        }
        if self.delay_seconds.is_some() && self.run_at.is_some() {
            return refused("the delay must not be given with run_at");
        }
        Ok(())
    }
}

/// Whether the servers accept the name for their schema.
fn is_schema(name: &str) -> bool {
    (1..=63).contains(&name.len())
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use serde_json::{Value, json};

    use super::*;
    use crate::trace::with_traceparent;

    fn options(statement: &Statement) -> Value {
        serde_json::from_str(statement.parameters[4].as_deref().unwrap()).unwrap()
    }

    fn texts(statement: &Statement) -> [Option<&str>; 5] {
        statement.parameters.each_ref().map(Option::as_deref)
    }

    #[test]
    fn a_statement_has_the_arguments_of_the_function() {
        let job = NewJob::new("invoice", &json!({"order": 17}))
            .delay(Duration::from_millis(90_500))
            .priority(7)
            .expires_at(SystemTime::UNIX_EPOCH)
            .correlation_key("o-17")
            .job_header("tenant", "a");
        let statement = job.statement("tidegate").unwrap();
        assert_eq!(
            statement.sql,
            "SELECT \"tidegate\".enqueue(type => $1::text, data => $2::text::json, \
             delay => $3::text::interval, run_at => $4::text::timestamptz, \
             options => $5::text::json) AS id"
        );
        let [job_type, data, delay, run_at, _] = texts(&statement);
        assert_eq!([job_type, data], [Some("invoice"), Some(r#"{"order":17}"#)]);
        assert_eq!([delay, run_at], [Some("90.500 seconds"), None]);
        let expected = json!({
            "expires_at": "1970-01-01T00:00:00.000Z", "correlation_key": "o-17", "priority": 7,
            "critical": false, "headers": {"tenant": "a"},
        });
        assert_eq!(options(&statement), expected);
    }

    #[test]
    fn a_statement_without_options_has_their_defaults() {
        let at = SystemTime::UNIX_EPOCH + Duration::from_millis(1_893_553_445_678);
        let statement = NewJob::new("invoice", &()).run_at(at).statement("jobs_2").unwrap();
        assert!(statement.sql.starts_with("SELECT \"jobs_2\".enqueue("), "{}", statement.sql);
        assert_eq!(
            texts(&statement)[..4],
            [Some("invoice"), Some("null"), None, Some("2030-01-02T03:04:05.678Z")]
        );
        assert_eq!(options(&statement), json!({"critical": false}));
    }

    #[test]
    fn a_wrong_argument_is_named() {
        let job = || NewJob::new("invoice", &());
        let now = SystemTime::UNIX_EPOCH;
        for (job, schema, named) in [
            (NewJob::new("a b", &()), "tidegate", "job type must be"),
            (job(), "a\".b", "schema"),
            (job(), "", "schema"),
            (job(), "1a", "schema"),
            (job().id("one"), "tidegate", "id"),
            (job().critical(), "tidegate", "critical"),
            (job().delay(Duration::ZERO).run_at(now), "tidegate", "delay"),
            (job().attribute("tenant", json!([])), "tidegate", "tenant"),
        ] {
            let refused = job.statement(schema).unwrap_err();
            assert!(matches!(refused, Error::InvalidArgument(_)), "{refused}");
            assert!(refused.to_string().contains(named), "{refused}");
        }
    }

    #[tokio::test]
    async fn an_enqueue_of_a_handler_carries_its_trace_on() {
        with_traceparent("00-1-2-01", async {
            let job = NewJob::new("invoice", &()).job_header("tenant", "a");
            let statement = job.statement("tidegate").unwrap();
            let expected = json!({"tenant": "a", "traceparent": "00-1-2-01"});
            assert_eq!(options(&statement)["headers"], expected);
            let job = NewJob::new("invoice", &()).job_header("Traceparent", "00-3-4-01");
            let statement = job.statement("tidegate").unwrap();
            assert_eq!(options(&statement)["headers"], json!({"Traceparent": "00-3-4-01"}));
        })
        .await;
    }
}
