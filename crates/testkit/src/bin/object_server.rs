//! The test kit's object server as a process, for tests and benchmarks in other languages.
//!
//! It prints its endpoint as one line, and runs until it is stopped. With `--until-eof` it runs
//! until its standard input is closed. Requests under `/-/` control it.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use regrow_testkit::object_server::ObjectServer;

const USAGE: &str = "\
usage: object_server [--port PORT] [--bucket NAME]... [--latency-ms N] [--threads N] [--page-keys N]
                     [--access-key ID] [--bearer TOKEN] [--region NAME] [--deny-list] [--until-eof]";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let mut builder = ObjectServer::builder();
    let (mut buckets, mut latency_ms, mut until_eof) = (Vec::new(), 0, false);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--port" => builder = builder.port(value()?.parse()?),
            "--threads" => builder = builder.threads(value()?.parse()?),
            "--page-keys" => builder = builder.page_keys_max(value()?.parse()?),
            "--access-key" => builder = builder.access_key(&value()?),
            "--bearer" => builder = builder.bearer(&value()?),
            "--region" => builder = builder.region(&value()?),
            "--deny-list" => builder = builder.deny_list(),
            "--bucket" => buckets.push(value()?),
            "--latency-ms" => latency_ms = value()?.parse()?,
            "--until-eof" => until_eof = true,
            _ => return Err(format!("unknown argument {argument}").into()),
        }
    }
    let server = builder.start()?;
    buckets.iter().for_each(|bucket| server.create_bucket(bucket));
    server.latency(Duration::from_millis(latency_ms));
    let mut out = std::io::stdout();
    writeln!(out, "{}", server.endpoint())?;
    out.flush()?;
    if until_eof {
        std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    } else {
        loop {
            std::thread::park();
        }
    }
    Ok(())
}
