//! Full and read-only disks: the error has its own kind, and existing files do not change.
//!
//! With the right to mount, the tests use small file systems in memory. Without this right they use
//! a length that no disk has, `/dev/full`, and a folder without write permission.

use std::fs;
use std::path::Path;
use std::process::Command;

use regrow::ErrorKind;
use regrow_storage::NewFolder;
use regrow_storage::local::Staged;
use regrow_store::{DirectWriter, LocalStore, Store, StoreExt};

/// A file system of its own, as long as this lives.
struct Mount(tempfile::TempDir);

impl Mount {
    fn new(options: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "regrow-test"])
            .arg(folder.path())
            .output()
            .is_ok_and(|output| output.status.success());
        mounted.then_some(Self(folder))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn make_read_only(&self) {
        let remount = Command::new("mount").args(["-o", "remount,ro"]).arg(self.path()).status();
        assert!(remount.unwrap().success());
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

const MIB: u64 = 1 << 20;

#[test]
fn a_full_disk_is_an_error_before_the_first_write() {
    // Without a mount of its own: more than any disk has left.
    let mount = Mount::new("size=8m");
    let elsewhere = tempfile::tempdir().unwrap();
    let (folder, too_much) = match &mount {
        Some(mount) => (mount.path(), 16 * MIB),
        None => (elsewhere.path(), 1 << 60),
    };
    let path = folder.join("file");
    let error = DirectWriter::create(&path, too_much, 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    assert!(error.help_text().is_some());
    assert!(!path.exists());
}

#[test]
fn a_disk_that_fills_up_while_writing_leaves_the_old_checkpoint() {
    let Some(mount) = Mount::new("size=8m") else {
        // The device that is always full stands in for the disk.
        let device = Path::new("/dev/full");
        let error = regrow::Error::io("cannot write", device, fs::write(device, b"x").unwrap_err());
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        return;
    };
    let target = mount.path().join("step");
    let staged = Staged::of_folder(&target, false).unwrap();
    staged.write("_METADATA", b"old").unwrap();
    staged.commit().unwrap();

    regrow_layouts::tell_storage();
    let staged = Staged::of_folder(&target, true).unwrap();
    staged.write("_METADATA", b"new").unwrap();
    // No length is announced, so nothing is reserved: the disk is found to be full on the way.
    let mut writer = staged.writer("data", 0, 0).unwrap();
    let block = vec![1; MIB as usize];
    let written = (0..32).try_for_each(|_| writer.write(&block)).and_then(|()| writer.finish().map(drop));
    assert_eq!(written.unwrap_err().kind(), ErrorKind::StorageFull);
    let error = staged.write("more", &vec![1; 9 << 20]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    drop(staged);

    assert_eq!(fs::read(target.join("_METADATA")).unwrap(), b"old");
    assert_eq!(fs::read_dir(mount.path()).unwrap().count(), 1);

    let store = LocalStore::new(&target);
    let error = store.put(b"_METADATA", vec![1; 9 << 20].into()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    assert_eq!(store.get_whole(b"_METADATA").unwrap().unwrap(), "old");
    assert_eq!(store.list(b"").unwrap(), [b"_METADATA"]);
}

#[test]
fn a_read_only_file_system_refuses_and_can_be_read() {
    let Some(mount) = Mount::new("size=1m") else {
        // Without the right to mount we are no root either, and a folder's mode binds us.
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o555)).unwrap();
        let error = Staged::of_folder(&folder.path().join("step"), false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        return;
    };
    let target = mount.path().join("step");
    let staged = Staged::of_folder(&target, false).unwrap();
    staged.write("_METADATA", b"old").unwrap();
    staged.commit().unwrap();
    regrow_layouts::tell_storage();
    mount.make_read_only();

    for (path, overwrite) in [(target.clone(), true), (mount.path().join("a/b"), false)] {
        let error = Staged::of_folder(&path, overwrite).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        assert!(error.help_text().unwrap().contains("read-only"));
    }
    let error = DirectWriter::create(&mount.path().join("file"), 0, 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    let store = LocalStore::new(&target);
    assert_eq!(store.put(b"x", vec![1].into()).unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert_eq!(store.get_whole(b"_METADATA").unwrap().unwrap(), "old");
    assert_eq!(store.map(b"_METADATA").unwrap().unwrap(), "old");
}
