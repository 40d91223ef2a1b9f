//! Living in a shell: completions, help, closed pipes, the demonstration.

use std::io::Read;
use std::process::{Command, Stdio};

use crate::common::{command, regrow, saved, text};

#[test]
fn completions_for_every_shell_name_the_commands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let run = regrow(["completions", shell]);
        assert_eq!(run.code, 0);
        for word in ["info", "verify", "doctor"] {
            assert!(run.stdout.contains(word), "{shell} lacks {word}");
        }
    }
    assert_eq!(regrow(["completions", "no-such-shell"]).code, 2);
}

#[test]
fn options_of_every_command_stand_on_one_page() {
    let page = regrow(["help", "options"]);
    assert_eq!(page.code, 0, "{page:?}");
    for option in ["--json", "--step <N>", "--trusted-key", "--cache-size", "--sizes"] {
        assert!(page.stdout.contains(option), "{page:?}");
    }
    assert_eq!(regrow(["options"]).stdout, page.stdout);
    for arguments in [&["--help"][..], &["ls", "--help"], &["diff", "-h"], &["help", "convert"]] {
        let help = regrow(arguments).stdout;
        assert!(help.contains("regrow help options") && !help.contains("--trusted-key"), "{help}");
        assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
    }
}

#[test]
fn help_of_a_command_fits_one_screen_and_has_an_example() {
    let commands = regrow(["--help"]).stdout;
    assert!(commands.lines().count() <= 50, "{commands}");
    let names = commands.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = names.take_while(|line| !line.is_empty()).filter_map(|line| line.split_whitespace().next());
    let names: Vec<&str> = names.filter(|name| !["options", "help"].contains(name)).collect();
    assert!(names.len() >= 19, "{names:?}");
    for name in names {
        let help = regrow([name, "--help"]).stdout;
        assert!(help.lines().count() <= 60 && help.contains("Examples:\n  "), "{help}");
        assert!(help.lines().next().unwrap().chars().count() <= 66, "{help}");
        assert_eq!(help, regrow([name, "-h"]).stdout);
    }
}

#[test]
fn mistyped_words_and_words_of_other_tools_have_a_suggestion() {
    for (word, command) in [
        ("show", "info"),
        ("inspect", "info"),
        ("overview", "info"),
        ("list", "ls"),
        ("compare", "diff"),
        ("check", "verify"),
        ("verfy", "verify"),
    ] {
        let run = regrow([word, "x"]);
        assert_eq!(run.code, 2);
        assert!(run.stderr.contains(&format!("exists: '{command}'")), "{run:?}");
    }
    let run = regrow(["ls", "x", "--dept", "2"]);
    assert!(run.code == 2 && run.stderr.contains("'--depth'"), "{run:?}");
    for (old, new) in [("--bare", "'--arrays-only'"), ("--strict", "'--lost-files error'")] {
        let run = regrow(["ls", "x", old]);
        assert!(run.code == 2 && run.stderr.contains(new), "{run:?}");
    }
    // Also of options that the help of the command does not show.
    let run = regrow(["ls", "x", "--ignore-seals"]);
    assert!(run.code == 2 && run.stderr.contains("'--ignore-seal'"), "{run:?}");
}

#[test]
fn help_and_version_are_no_failures() {
    let help = regrow(["--help"]);
    assert_eq!(help.code, 0);
    assert!(help.stdout.contains("Exit codes: 0 fine"));
    assert_eq!(regrow(["cat", "--help"]).code, 0);
    assert_eq!(regrow(["--version"]).code, 0);
}

#[test]
fn a_closed_pipe_ends_quietly() {
    let (_folder, path) = saved();
    // Far more than a pipe holds, so that writing must fail once the reader has gone.
    let paths = vec![text(&path); 3000];
    let mut child = Command::new(command().get_program())
        .arg("verify")
        .args(paths)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!((child.wait().unwrap().code(), stderr.as_str()), (Some(0), ""));
}

#[test]
fn the_demonstration_finds_its_own_damage() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("kept");
    let run = regrow(["demo", "--keep", text(&kept)]);
    assert_eq!(run.code, 0, "{run:?}");
    assert!(run.stdout.contains("no wrong number reached the program"), "{run:?}");
    assert_eq!(regrow(["verify", text(&kept.join("step_1")), text(&kept.join("step_1_orbax"))]).code, 0);
    assert_eq!(regrow(["verify", text(&kept.join("step_1_damaged"))]).code, 1);
    // The folder is there already; nothing in it may be written over.
    assert_eq!(regrow(["demo", "--keep", text(&kept)]).code, 2);

    let run = regrow(["demo", "--json"]);
    assert_eq!(run.json()["damage_found"], true);
}
