//! A copy of an object within its bucket.

use std::sync::Arc;

use super::{Object, Objects, Tag};
use crate::bytes::limits::work_space;
use crate::error::Result;

/// Shows that this process may still write.
pub(super) type Check<'c> = &'c (dyn Fn() -> Result<()> + Sync);

/// Makes `to` a copy of this version of an object. The bucket itself makes the copy if it can. If
/// the object is too long for that, this process reads and writes it, a few parts at a time. Calls
/// `check` before each request that writes.
///
/// # Errors
/// `Replaced` if the key has another version by now; errors of `check` and of the bucket.
pub(super) fn copy_within(
    objects: &Arc<dyn Objects>,
    from: &Object,
    to: &str,
    check: Check<'_>,
) -> Result<Tag> {
    check()?;
    if from.len_bytes <= objects.facts().copy_len_max_bytes {
        return objects.copy(from, to);
    }
    let mut upload = objects.upload(to, from.len_bytes)?;
    let mut at = 0;
    while at < from.len_bytes {
        let len_bytes = (from.len_bytes - at).min(upload.part_len_bytes() as u64);
        let mut part = work_space(len_bytes)?;
        objects.read(from, at, &mut part)?;
        check()?;
        upload.part(part.into())?;
        at += len_bytes;
    }
    check()?;
    upload.finish()
}

/// As `copy_within`, but only if nothing is at `to`; `None` if an object exists there. If the copy
/// has more than one part, another writer can still write `to` between the check and the end, as in
/// [`Upload::finish_in_place_of`](super::Upload::finish_in_place_of).
pub(super) fn copy_new_within(
    objects: &Arc<dyn Objects>,
    from: &Object,
    to: &str,
    check: Check<'_>,
) -> Result<Option<Tag>> {
    let mut upload = objects.upload(to, from.len_bytes)?;
    if from.len_bytes > upload.part_len_bytes() as u64 {
        return match objects.head(to)? {
            Some(_) => Ok(None),
            None => copy_within(objects, from, to, check).map(Some),
        };
    }
    let mut bytes = work_space(from.len_bytes)?;
    objects.read(from, 0, &mut bytes)?;
    upload.part(bytes.into())?;
    check()?;
    upload.finish_in_place_of(None)
}

#[cfg(test)]
mod tests {
    use super::super::MemoryObjects;
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn what_is_too_long_for_the_bucket_is_copied_in_parts() {
        let objects: Arc<dyn Objects> = Arc::new(MemoryObjects::with_copies_up_to("parts", 1000));
        let part_len_bytes = objects.upload("none", 0).unwrap().part_len_bytes();
        for len_bytes in [0, 1, 1000, 1001, part_len_bytes, part_len_bytes + 1, 2 * part_len_bytes + 5] {
            let bytes: Vec<u8> = (0..len_bytes).map(|at| (at % 251) as u8).collect();
            objects.put("from", bytes.clone().into()).unwrap();
            let from = objects.head("from").unwrap().unwrap();
            let tag = copy_within(&objects, &from, "to", &|| Ok(())).unwrap();
            let (copied, object) = objects.get("to").unwrap().unwrap();
            assert!(copied == bytes && object.tag.is_same(&tag), "{len_bytes}");
        }
        for len_bytes in [0, 1, part_len_bytes, part_len_bytes + 1] {
            objects.put("from", vec![7; len_bytes].into()).unwrap();
            let from = objects.head("from").unwrap().unwrap();
            objects.delete(&["new".to_owned()]).unwrap();
            let tag = copy_new_within(&objects, &from, "new", &|| Ok(())).unwrap().unwrap();
            let (copied, object) = objects.get("new").unwrap().unwrap();
            assert!(copied == vec![7; len_bytes] && object.tag.is_same(&tag), "{len_bytes}");
            objects.put("new", b"another".as_slice().into()).unwrap();
            assert!(copy_new_within(&objects, &from, "new", &|| Ok(())).unwrap().is_none(), "{len_bytes}");
            assert_eq!(&*objects.get("new").unwrap().unwrap().0, b"another");
        }
        let replaced = objects.head("from").unwrap().unwrap();
        objects.put("from", vec![1; 5000].into()).unwrap();
        assert_eq!(
            copy_within(&objects, &replaced, "to", &|| Ok(())).unwrap_err().kind(),
            ErrorKind::Replaced
        );
    }
}
