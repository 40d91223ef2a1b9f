//! One process merges the files of several writers. The merge leaves out files of dead writers, and
//! finds damaged files.

use std::fs;
use std::sync::Barrier;

use regrow::array::{Array, Dtype, Shape};
use regrow::engine::{Compression, Layout};
use regrow::location::{Location, ToLocation};
use regrow::monitor::Monitor;
use regrow::tree::{Leaf, Tree};
use regrow::{ErrorKind, SaveOptions};
use regrow_layouts::WriterRank;
use regrow_storage::PublishOptions;

use crate::common::cuts::{Cut, bytes_of, dict, options, save_by};

fn compressed() -> SaveOptions {
    SaveOptions { compression: Some(Compression::Zstd(1)), ..options() }
}

/// Long enough to be compressed.
fn long() -> Cut {
    Cut { shape: vec![40, 64], chunk: vec![20, 64], boxes: vec![1, 1] }
}

fn trees() -> Vec<Tree<Leaf>> {
    let step = Array::new(Dtype::UInt8, Shape::scalar(), vec![9].into()).unwrap();
    let tree = |rank| dict([("step".to_owned(), step.clone()), ("w".to_owned(), long().held_by(rank, 2))]);
    (0..2).map(tree).collect()
}

fn publish_options(monitor: &Monitor) -> PublishOptions<'_> {
    PublishOptions::of_new(monitor)
}

fn names_in(at: &Location) -> Vec<String> {
    let mut names: Vec<String> =
        at.entries().unwrap().into_iter().map(|entry| entry.name.into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn files_of_dead_writers_are_not_merged() {
    let folder = tempfile::tempdir().unwrap();
    for (at, options) in [options(), compressed()].into_iter().enumerate() {
        let path = folder.path().join(format!("checkpoint_{at}"));
        for place in [path.display().to_string(), format!("memory://dead_writers/checkpoint_{at}")] {
            let at = place.to_location().unwrap();
            let monitor = Monitor::new();
            let publish = publish_options(&monitor);
            let trees = trees();
            let writers = options.layout.format().roles().many_writers.unwrap();
            let own = at.publish_folder(publish).unwrap();
            let ticket = own.ticket().unwrap();
            let join = || at.join_publication(&ticket, publish).unwrap();
            let write = |rank: u32, tree: usize| {
                let joined = join();
                let writer = WriterRank { rank, count: 2 };
                writers.write_share(&trees[tree], writer, &*joined, &options).unwrap();
                joined.finish_share().unwrap();
            };
            let signs = [0, 1].map(|number| format!("regrow.process_{number}.claim"));
            let (one, other) = (join(), join());
            assert!(one.claim(&signs[1]).unwrap());
            for joined in [&*one, &*other] {
                assert!(!joined.claim(&signs[1]).unwrap(), "two have the same number in {place}");
            }
            assert!(other.claim(&signs[0]).unwrap(), "an unused number");
            // The first writer of the second share dies when all of it is written; another one
            // takes its place.
            write(1, 1);
            write(0, 0);
            write(3, 1);
            writers.merge(&trees[0], &[0, 3], &*own, &options).unwrap();
            own.sweep("", &|name| signs.iter().any(|sign| sign == name)).unwrap();
            own.commit().unwrap();
            let found = bytes_of(&regrow::load(&*place).unwrap());
            assert_eq!(found["w"].1, long().whole().to_c_order().unwrap(), "{place}");
            assert_eq!(found["step"].1, [9]);
            assert!(regrow::verify(&*place).unwrap().is_ok());
            let is_of_a_writer = |name: &String| {
                name.starts_with("regrow.process") || name.ends_with(".safetensors") || name.contains("claim")
            };
            let names: Vec<String> = names_in(&at).into_iter().filter(is_of_a_writer).collect();
            let mut expected: Vec<String> =
                [0, 3].map(|number| format!("regrow.process_{number}.json")).into();
            expected.extend(
                ["model-00001-of-00002.safetensors", "model-00004-of-00002.safetensors"].map(str::to_owned),
            );
            if options.compression.is_some() {
                expected.extend([0, 3].map(|number| format!("regrow.process_{number}.zstd")));
            }
            expected.sort();
            assert_eq!(names, expected, "{place}");
            // Nothing is there that would keep it from being replaced.
            let over = SaveOptions { overwrite: true, ..options.clone() };
            save_by(2, &*place, &trees, &over).unwrap();
        }
    }
}

#[test]
fn a_sweep_keeps_files_of_live_writers() {
    // If every number is taken once, and none is left out, no process has died.
    let at = "memory://dead_writers/whole".to_location().unwrap();
    let monitor = Monitor::new();
    let own = at.publish_folder(publish_options(&monitor)).unwrap();
    own.write("notes.txt", b"mine").unwrap();
    let joined = at.join_publication(&own.ticket().unwrap(), publish_options(&monitor)).unwrap();
    joined.write("theirs.txt", b"theirs").unwrap();
    joined.finish_share().unwrap();
    own.sweep("", &|name| name == "theirs.txt").unwrap();
    assert_eq!(own.written("notes.txt").unwrap(), b"mine");
    assert_eq!(own.written("theirs.txt").unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn concurrent_reads_get_files_that_wait_to_be_written() {
    // Small files wait to be written together: a reader in that time waits for them too.
    let monitor = Monitor::new();
    for round in 0..20 {
        let at = format!("memory://asked_at_once/of_{round}").to_location().unwrap();
        let own = at.publish_folder(publish_options(&monitor)).unwrap();
        (0..500).for_each(|at| own.write(&format!("other_{at}.txt"), b"mine").unwrap());
        own.write("notes.txt", b"mine").unwrap();
        let start = Barrier::new(4);
        let ask = || {
            start.wait();
            own.written("notes.txt")
        };
        std::thread::scope(|scope| {
            let asked: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
            asked.into_iter().for_each(|asked| assert_eq!(asked.join().unwrap().unwrap(), b"mine"));
        });
    }
}

#[test]
fn a_flipped_byte_in_any_file_is_found() {
    for options in [options(), compressed()] {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("checkpoint");
        save_by(2, &target, &trees(), &options).unwrap();
        let mut files = Vec::new();
        let mut folders = vec![target.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() { folders.push(path) } else { files.push(path) }
            }
        }
        assert!(files.iter().any(|file| file.ends_with("regrow.process_1.json")));
        for file in files {
            let good = fs::read(&file).unwrap();
            for at in [0, good.len() / 2, good.len() - 1] {
                let mut bad = good.clone();
                bad[at] ^= 4;
                fs::write(&file, &bad).unwrap();
                let found = regrow::verify(&target).map_or(true, |report| !report.is_ok());
                assert!(found, "byte {at} of {}", file.display());
            }
            fs::remove_file(&file).unwrap();
            let found = regrow::verify(&target).map_or(true, |report| !report.is_ok());
            assert!(found, "without {}", file.display());
            fs::write(&file, &good).unwrap();
        }
    }
}

#[test]
fn a_record_that_differs_from_its_files_is_not_merged() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("checkpoint");
    let at = target.to_location().unwrap();
    let monitor = Monitor::new();
    let layout = Layout::default();
    let writers = layout.format().roles().many_writers.unwrap();
    let own = at.publish_folder(publish_options(&monitor)).unwrap();
    for (rank, tree) in (0..).zip(&trees()) {
        writers.write_share(tree, WriterRank { rank, count: 2 }, &*own, &options()).unwrap();
    }
    let record = own.local_folder().unwrap().join("regrow.process_1.json");
    let good = fs::read_to_string(&record).unwrap();
    fs::write(&record, good.replace("\"chunks\":[1]", "\"chunks\":[0]")).unwrap();
    let error = writers.merge(&trees()[0], &[0, 1], &*own, &options()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("regrow.process_1.json"), "{error}");
    fs::write(&record, &good).unwrap();
    writers.merge(&trees()[0], &[0, 1], &*own, &options()).unwrap();
}
