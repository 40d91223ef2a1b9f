#![allow(warnings, clippy::all, clippy::pedantic, clippy::restriction)]

pub fn run() -> regrow::Result<()> {
let folder = tempfile::tempdir().unwrap();
std::env::set_current_dir(&folder).unwrap();
let model = vec![0.5_f32; 100];
let monitor = regrow::Monitor::new();
let options = regrow::SaveOptions {
    monitor: monitor.clone(),
    ..Default::default()
};
let thread = std::thread::spawn(move || {
    regrow::save_with("runs/step_300", &model, &options)
});
println!("{:?}", monitor.progress());
monitor.cancel(); // the save ends with ErrorKind::Cancelled
let ended = thread.join().unwrap();
assert!(ended.is_ok() || ended.unwrap_err().kind() == regrow::ErrorKind::Cancelled);
Ok(())
}
