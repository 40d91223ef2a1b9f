//! The only async runtime. It is made at the first request, never at import, and made again in a
//! forked child.
//!
//! A child of `fork` has no threads of its parent, so waiting for the parent's runtime would never
//! end. The state records the process that made it. A child does not touch the parent's runtime and
//! sockets, and makes its own. The check uses no lock, because another thread of the parent may
//! have held the lock during the fork.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use object_store::ClientOptions;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::Semaphore;

use super::client::Client;
use crate::error::{Error, ErrorKind, Result};

/// Threads that drive sockets and timers. The callers' threads process the bytes.
const WORKERS: usize = 2;
/// Total size of upload parts in flight in this process, in KiB.
pub(super) const UPLOAD_BUDGET_KIB: u32 = 512 << 10;

/// Longest time to ask S3 for the region of a bucket.
const REGION_LIMIT: Duration = Duration::from_secs(5);

/// The state of one process: a runtime, its clients, and the budget that all uploads share.
pub(crate) struct State {
    process: u32,
    runtime: Runtime,
    clients: Mutex<HashMap<Arc<str>, Arc<Client>>>,
    /// Clients of web servers, by name.
    web_clients: Mutex<HashMap<String, reqwest::Client>>,
    /// Regions of AWS buckets, if the options do not give them.
    regions: Mutex<HashMap<String, Option<String>>>,
    /// The budget of all uploads, in KiB.
    pub(super) budget: Arc<Semaphore>,
}

/// The state of the process that made it last. An old state is never freed: threads of other
/// runtimes may still read it.
static STATE: AtomicPtr<State> = AtomicPtr::new(std::ptr::null_mut());

pub(crate) fn state() -> Result<&'static State> {
    let process = std::process::id();
    let found = STATE.load(Ordering::Acquire);
    // SAFETY: every stored pointer comes from `Box::leak` below and is never freed. The state
    // behind it is changed only under its own locks.
    if let Some(state) = unsafe { found.as_ref() }
        && state.process == process
    {
        return Ok(state);
    }
    // The program may have installed another crypto provider already. That provider works as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .thread_name("regrow-cloud")
        .enable_all()
        .build()
        .map_err(|error| {
            Error::new(ErrorKind::Io, format!("cannot start the threads for object stores: {error}"))
                .help("check the limits of this process on threads and open files")
        })?;
    let made = Box::new(State {
        process,
        runtime,
        clients: Mutex::default(),
        web_clients: Mutex::default(),
        regions: Mutex::default(),
        budget: Arc::new(Semaphore::new(UPLOAD_BUDGET_KIB as usize)),
    });
    let made: *mut State = Box::leak(made);
    match STATE.compare_exchange(found, made, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: `made` was leaked above, and is never freed.
        Ok(_) => Ok(unsafe { &*made }),
        Err(theirs) => {
            // Another thread was faster. Its state belongs to this process, because threads do not
            // survive a fork. SAFETY: no other code has seen `made`.
            let ours = unsafe { Box::from_raw(made) };
            ours.runtime.shutdown_background();
            // SAFETY: the thread that was faster has leaked and stored `theirs`.
            Ok(unsafe { &*theirs })
        }
    }
}

impl State {
    /// Waits for `future` on this thread. The runtime's threads drive sockets and timers.
    ///
    /// A thread inside a runtime of another library must not block on this runtime. In this case
    /// the future runs on a thread of its own.
    pub(crate) fn block_on<F>(&self, future: F) -> Result<F::Output>
    where
        F: Future + Send,
        F::Output: Send,
    {
        let handle = self.runtime.handle();
        if Handle::try_current().is_err() {
            return Ok(handle.block_on(future));
        }
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new()
                .name("regrow-cloud-call".to_owned())
                .spawn_scoped(scope, || handle.block_on(future))
                .map_err(|error| Error::new(ErrorKind::Io, format!("cannot start a thread: {error}")))?;
            thread
                .join()
                .map_err(|_| Error::new(ErrorKind::Internal, "a request to an object store panicked"))
        })
    }

    /// The region of a bucket, from S3; `None` if S3 does not answer soon. S3 is asked once for
    /// each bucket.
    pub(super) fn region(&self, bucket: &str) -> Result<Option<String>> {
        let known =
            |state: &Self| state.regions.lock().unwrap_or_else(PoisonError::into_inner).get(bucket).cloned();
        if let Some(region) = known(self) {
            return Ok(region);
        }
        let region = self.block_on(async {
            let options = ClientOptions::new().with_timeout(REGION_LIMIT).with_connect_timeout(REGION_LIMIT);
            let asked = object_store::aws::resolve_bucket_region(bucket, &options);
            tokio::time::timeout(REGION_LIMIT, asked).await.ok()?.ok()
        })?;
        self.regions.lock().unwrap_or_else(PoisonError::into_inner).insert(bucket.to_owned(), region.clone());
        Ok(region)
    }

    pub(super) fn handle(&self) -> &Handle {
        self.runtime.handle()
    }

    /// The bucket client with this name, made once.
    pub(super) fn client(
        &self,
        name: &Arc<str>,
        make: impl FnOnce() -> Result<Client>,
    ) -> Result<Arc<Client>> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(name) {
            return Ok(client.clone());
        }
        let _inside = self.runtime.enter();
        let client = Arc::new(make()?);
        clients.insert(name.clone(), client.clone());
        Ok(client)
    }

    /// The HTTP client for web servers with this name, made once.
    pub(crate) fn web_client(
        &self,
        name: &str,
        make: impl FnOnce() -> Result<reqwest::Client>,
    ) -> Result<reqwest::Client> {
        let mut clients = self.web_clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(name) {
            return Ok(client.clone());
        }
        let _inside = self.runtime.enter();
        let client = make()?;
        clients.insert(name.to_owned(), client.clone());
        Ok(client)
    }
}

/// Sleeps before another try: 0.2 s if `tried` is 0, then 0.4 s, 0.8 s, ..., at most 5 s.
pub(crate) async fn pause(tried: u32) {
    let millis = 200_u64.saturating_mul(1 << tried.min(5)).min(5000);
    tokio::time::sleep(Duration::from_millis(millis)).await;
}
