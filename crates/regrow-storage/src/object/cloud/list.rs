//! Listings: all objects below a prefix, objects whose keys begin with a text, or one level of
//! folders.

use futures_util::StreamExt;
use object_store::ObjectStore;
use object_store::list::PaginatedListOptions;
use object_store::path::Path as StorePath;

use super::error::Action;
use super::{Bucket, ObjectInfo, Service, invalid_key, path_of};
use crate::error::Result;

/// Keys that one page of a listing holds at most, on every store.
const PAGE_KEYS: usize = 1000;

/// The objects below a prefix.
#[derive(Debug, Clone, Default)]
pub(crate) struct Listing {
    /// Sorted by the bytes of their keys.
    pub(crate) objects: Vec<ObjectInfo>,
    /// Whether the limit was reached and there are more objects.
    pub(crate) is_cut: bool,
}

impl Bucket {
    /// The objects at any depth below the folder `prefix` (all, if it is empty), sorted by key.
    /// With a `limit`, only the first ones.
    pub(crate) fn list(&self, prefix: &str, limit: Option<usize>) -> Result<Listing> {
        let folder = folder_of(self, prefix)?;
        let limit = limit.unwrap_or(usize::MAX);
        let mut objects: Vec<ObjectInfo> = Vec::new();
        let mut page_token = None;
        let has_more = loop {
            // One object more than the limit shows whether there are more.
            let missing = limit.saturating_add(1).saturating_sub(objects.len());
            let max_keys = Some(missing.clamp(1, PAGE_KEYS));
            let options = PaginatedListOptions { max_keys, page_token, ..PaginatedListOptions::default() };
            let folder = &folder;
            let page = self.run(Action::List, prefix, 0, |client| async move {
                match &client.pages {
                    Some(pages) => {
                        let prefix = (!folder.is_empty()).then_some(folder.as_str());
                        let page = pages.list_paginated(prefix, options).await?;
                        Ok((page.result.objects, page.page_token))
                    }
                    None => {
                        let path = StorePath::parse(folder)?;
                        let all: Vec<_> = client.store.list(Some(&path)).collect().await;
                        Ok((all.into_iter().collect::<object_store::Result<_>>()?, None))
                    }
                }
            })?;
            let (found, next) = page;
            objects.extend(
                found.into_iter().map(ObjectInfo::of).filter(|info| info.key.starts_with(folder.as_str())),
            );
            match next {
                Some(next) if objects.len() <= limit => page_token = Some(next),
                next => break next.is_some(),
            }
        };
        objects.sort_unstable_by(|a, b| a.key.as_bytes().cmp(b.key.as_bytes()));
        without_markers(&mut objects);
        let is_cut = has_more || objects.len() > limit;
        objects.truncate(limit);
        Ok(Listing { objects, is_cut })
    }

    /// The objects whose keys begin with this text, which may end inside a name. With `is_page`,
    /// only the objects of the first page. Also returns whether these are all.
    pub(crate) fn list_beginning(&self, begins: &str, is_page: bool) -> Result<(Vec<ObjectInfo>, bool)> {
        let mut objects: Vec<ObjectInfo> = Vec::new();
        let mut page_token = None;
        loop {
            let options = PaginatedListOptions { page_token, ..PaginatedListOptions::default() };
            let page = self.run(Action::List, begins, 0, |client| async move {
                let Some(pages) = &client.pages else { return Ok((Vec::new(), None)) };
                let page = pages.list_paginated(Some(begins), options).await?;
                Ok((page.result.objects, page.page_token))
            })?;
            let (found, next) = page;
            objects.extend(found.into_iter().map(ObjectInfo::of));
            match next {
                Some(next) if !is_page => page_token = Some(next),
                next => {
                    // On Azure, `object_store` omits the object whose name equals the prefix.
                    let is_left_out = self.service() == Service::Azure && !begins.ends_with('/');
                    if is_left_out && objects.iter().all(|object| object.key != begins) {
                        objects.extend(self.head(begins)?);
                    }
                    return Ok((objects, next.is_none()));
                }
            }
        }
    }

    /// The objects directly in the folder `prefix`, and the folders in it. Both are sorted. The
    /// folders are whole keys without a slash at the end.
    pub(crate) fn list_level(&self, prefix: &str) -> Result<(Vec<ObjectInfo>, Vec<String>)> {
        let folder = folder_of(self, prefix)?;
        let path = StorePath::parse(&folder).map_err(|error| invalid_key(self, prefix, &error))?;
        let found = self.run(Action::List, prefix, 0, |client| async move {
            client.store.list_with_delimiter((!path.is_root()).then_some(&path)).await
        })?;
        let mut objects: Vec<ObjectInfo> = found
            .objects
            .into_iter()
            .map(ObjectInfo::of)
            .filter(|info| info.key.starts_with(&folder))
            .collect();
        objects.sort_unstable_by(|a, b| a.key.as_bytes().cmp(b.key.as_bytes()));
        let mut folders: Vec<String> = found.common_prefixes.into_iter().map(String::from).collect();
        folders.sort_unstable();
        folders.dedup();
        Ok((objects, folders))
    }
}

/// The prefix of a folder: `a/b/` for `a/b` and `a/b/`; empty for the whole bucket.
fn folder_of(bucket: &Bucket, prefix: &str) -> Result<String> {
    let name = prefix.strip_suffix('/').unwrap_or(prefix);
    if name.is_empty() {
        return Ok(String::new());
    }
    path_of(bucket, name)?;
    Ok(format!("{name}/"))
}

/// Removes empty objects that represent folders: `a/b/` is listed as `a/b`, beside the objects in
/// it.
fn without_markers(objects: &mut Vec<ObjectInfo>) {
    let is_marker = |at: usize, info: &ObjectInfo| {
        info.len_bytes == 0 && {
            let folder = format!("{}/", info.key);
            let rest = objects.get(at..).unwrap_or_default();
            let first = rest.partition_point(|other| other.key.as_bytes() < folder.as_bytes());
            rest.get(first).is_some_and(|other| other.key.starts_with(&folder))
        }
    };
    let markers: Vec<bool> = objects.iter().enumerate().map(|(at, info)| is_marker(at, info)).collect();
    let mut markers = markers.into_iter();
    objects.retain(|_| !markers.next().unwrap_or(false));
}
