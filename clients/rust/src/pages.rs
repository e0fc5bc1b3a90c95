//! Lists, page by page.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    marker::PhantomData,
};

use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::{client::Client, error::Error, transport::Request};

/// The items of a list; see [`Client::pages`].
pub struct Pages<T> {
    client: Client,
    path: String,
    items: String,
    query: Vec<(String, String)>,
    /// Items that were read and not returned yet.
    read: VecDeque<Box<RawValue>>,
    cursor: Option<String>,
    is_over: bool,
    item: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Pages<T> {
    pub(crate) fn new<'q>(
        client: Client,
        path: &str,
        items: &str,
        query: impl IntoIterator<Item = (&'q str, &'q str)>,
    ) -> Self {
        Self {
            client,
            path: path.to_owned(),
            items: items.to_owned(),
            query: query.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
            read: VecDeque::new(),
            cursor: None,
            is_over: false,
            item: PhantomData,
        }
    }

    /// Returns the next item; none after the last one.
    ///
    /// # Errors
    ///
    /// A page was refused, or not answered, or is not a list of such items.
    pub async fn next(&mut self) -> Result<Option<T>, Error> {
        loop {
            if let Some(raw) = self.read.pop_front() {
                let item = serde_json::from_str(raw.get());
                return item.map(Some).map_err(|err| Error::UnexpectedAnswer(err.to_string()));
            }
            if self.is_over {
                return Ok(None);
            }
            self.read_page().await?;
        }
    }

    async fn read_page(&mut self) -> Result<(), Error> {
        let mut request = Request::get(&self.path);
        for (name, value) in &self.query {
            request = request.query(name, value);
        }
        if let Some(cursor) = &self.cursor {
            request = request.query("cursor", cursor);
        }
        let answer = self.client.request(request).await?;
        let mut page: BTreeMap<String, Box<RawValue>> = answer.read()?;
        let wrong = |err: serde_json::Error| Error::UnexpectedAnswer(err.to_string());
        if let Some(items) = page.remove(&self.items) {
            self.read = serde_json::from_str(items.get()).map_err(wrong)?;
        }
        let cursor = page.remove("next_cursor");
        self.cursor =
            cursor.map_or(Ok(None), |raw| serde_json::from_str(raw.get())).map_err(wrong)?;
        self.is_over = self.cursor.is_none();
        Ok(())
    }
}

impl<T> fmt::Debug for Pages<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pages").field("path", &self.path).finish_non_exhaustive()
    }
}
