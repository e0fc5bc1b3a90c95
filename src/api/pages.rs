//! Lists: pages, followed by their cursors up to a limit.

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{DeserializeOwned, Error as _, MapAccess, Visitor},
    ser::SerializeMap as _,
};
use serde_json::value::RawValue;

use crate::{
    SortedJobs,
    client::{Client, Error, Request},
};

/// The field of a list of jobs with the ids of those that cannot be read.
const UNREADABLE: &str = "unreadable";
/// The field of a sorted list of jobs that says which were compared.
const SORTED: &str = "sorted";
/// Most items of one request.
const MAX_PAGE_ITEMS: usize = 1000;

/// A list, or a page of one. Its only array but `unreadable` is the list, whatever the name of the
/// field. Serialised again it is one page with all collected items.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// The name of the field that has the list.
    name: String,
    /// The items, each as it was received.
    pub items: Vec<Box<RawValue>>,
    /// The ids of jobs that cannot be read.
    pub unreadable: Vec<String>,
    /// Which jobs were compared for a sorted list, in the latest page.
    pub sorted: Option<SortedJobs>,
    /// Where the next page starts; `None` on the last.
    pub next_cursor: Option<String>,
}

/// Collects at most `limit` items; `request` makes the request that each page's cursor is added to.
///
/// # Errors
///
/// The server is unreachable or refuses.
pub async fn collect<'a>(
    request: impl Fn(&'a Client) -> Request<'a>,
    client: &'a Client,
    limit: usize,
) -> Result<Page, Error> {
    let mut all = Page::default();
    loop {
        let rest = (limit - all.items.len()).min(MAX_PAGE_ITEMS);
        let mut request = request(client).query("limit", &rest.to_string());
        if let Some(cursor) = &all.next_cursor {
            request = request.query("cursor", cursor);
        }
        let page: Page = request.send().await?.read()?;
        // An empty page need not be the last. An empty page with the same cursor would repeat for
        // ever.
        let over = page.next_cursor.is_none()
            || (page.items.is_empty() && page.next_cursor == all.next_cursor);
        all = Page {
            name: page.name,
            items: [all.items, page.items].concat(),
            unreadable: [all.unreadable, page.unreadable].concat(),
            sorted: page.sorted,
            next_cursor: page.next_cursor,
        };
        if over || all.items.len() >= limit {
            // Pages of some stores repeat those of the page before.
            all.unreadable.sort_unstable();
            all.unreadable.dedup();
            return Ok(all);
        }
    }
}

impl Page {
    /// The items, read as `T`.
    ///
    /// # Errors
    ///
    /// One of them is not a `T`.
    pub fn read<T: DeserializeOwned>(&self, client: &Client) -> Result<Vec<T>, Error> {
        let read = |raw: &RawValue| serde_json::from_str(raw.get());
        let items: Result<_, _> = self.items.iter().map(|raw| read(raw)).collect();
        items.map_err(|err| Error::Strange { url: client.base().clone(), cause: err.to_string() })
    }
}

impl Serialize for Page {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry(&self.name, &self.items)?;
        if !self.unreadable.is_empty() {
            map.serialize_entry(UNREADABLE, &self.unreadable)?;
        }
        if let Some(sorted) = &self.sorted {
            map.serialize_entry(SORTED, sorted)?;
        }
        if let Some(cursor) = &self.next_cursor {
            map.serialize_entry("next_cursor", cursor)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Page {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Page;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a page of a list")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Page, A::Error> {
                let mut page = Page::default();
                while let Some((name, value)) = map.next_entry::<String, Box<RawValue>>()? {
                    if name == "next_cursor" {
                        page.next_cursor =
                            serde_json::from_str(value.get()).map_err(A::Error::custom)?;
                    } else if name == UNREADABLE {
                        page.unreadable =
                            serde_json::from_str(value.get()).map_err(A::Error::custom)?;
                    } else if name == SORTED {
                        page.sorted =
                            serde_json::from_str(value.get()).map_err(A::Error::custom)?;
                    } else if value.get().starts_with('[') {
                        page.items = serde_json::from_str(value.get()).map_err(A::Error::custom)?;
                        page.name = name;
                    }
                }
                Ok(page)
            }
        }
        deserializer.deserialize_map(Fields)
    }
}
