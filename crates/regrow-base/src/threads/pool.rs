//! A few threads under one byte budget.
//!
//! ```text
//! items ──admit──▶ | queue | ──▶ worker ─┐
//!   ▲ while it fits |       | ──▶ worker ─┴─▶ results ──▶ consume, on the calling thread
//!   └──────────────── the cost is given back when the result is consumed ───┘
//! ```
//!
//! An item is admitted when its cost fits into the free part of the budget. An item larger than the
//! whole budget is admitted alone. If the system starts fewer threads, the started threads do all
//! the work. If it starts none, the calling thread does the work. At most 64 items for each thread
//! are in flight. Threads live within one call, so
//! a fork between calls breaks nothing.
//!
//! An item passes two queues, which takes about 1 us: submit small items in batches.

use std::any::Any;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::OnceLock;
use std::thread;

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::error::Result;

/// The largest default number of threads. More threads do not make a disk faster.
const THREADS_MAX: usize = 8;

/// The largest number of threads of one call. Threads that wait for a network can be more than the
/// processors of the machine.
const WAITING_THREADS_MAX: usize = 32;

/// The largest number of items in flight for each thread, also for items of little cost.
const ITEMS_PER_THREAD_MAX: usize = 64;

/// The default number of threads: the number of the machine's processors, at most 8.
pub fn thread_count() -> usize {
    // Ask the system once: it reads files of the process' group for the answer.
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| thread::available_parallelism().map_or(1, NonZeroUsize::get).min(THREADS_MAX))
}

/// Does `work` on all items in any order, on `threads` threads. The items in progress cost at most
/// `budget_bytes` together.
///
/// # Errors
/// The first error. Items in progress are finished, and each thread may begin one more item.
pub fn for_each_parallel<T: Send>(
    threads: usize,
    items: impl IntoIterator<Item = T>,
    budget_bytes: u64,
    cost: impl Fn(&T) -> u64,
    work: impl Fn(T) -> Result<()> + Sync,
) -> Result<()> {
    run(Order::Any, threads, items, budget_bytes, cost, work, |()| Ok(()))
}

/// Does `work` on the items on `threads` threads. Calls `consume` with the results on the calling
/// thread, in the order of the items. The items in progress and the waiting results cost at most
/// `budget_bytes` together.
///
/// # Errors
/// The error of the first failed item, in order. The results before it have been consumed.
pub fn map_ordered<T: Send, R: Send>(
    threads: usize,
    items: impl IntoIterator<Item = T>,
    budget_bytes: u64,
    cost: impl Fn(&T) -> u64,
    work: impl Fn(T) -> Result<R> + Sync,
    consume: impl FnMut(R) -> Result<()>,
) -> Result<()> {
    run(Order::Items, threads, items, budget_bytes, cost, work, consume)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Items,
    Any,
}

/// The result of an item: a value, an error, or a panic that is passed on.
type Outcome<R> = std::result::Result<Result<R>, Box<dyn Any + Send>>;

fn run<T: Send, R: Send>(
    order: Order,
    threads: usize,
    items: impl IntoIterator<Item = T>,
    budget_bytes: u64,
    cost: impl Fn(&T) -> u64,
    work: impl Fn(T) -> Result<R> + Sync,
    mut consume: impl FnMut(R) -> Result<()>,
) -> Result<()> {
    let mut items = items.into_iter().peekable();
    let Some(first) = items.next() else { return Ok(()) };
    if threads <= 1 || items.peek().is_none() {
        return std::iter::once(first).chain(items).try_for_each(|item| consume(work(item)?));
    }
    let mut items = std::iter::once(first).chain(items).peekable();
    let threads = threads.min(WAITING_THREADS_MAX);
    let (queue, to_do) = unbounded::<(u64, T)>();
    let (done, results) = unbounded::<(u64, Outcome<R>)>();
    let work = &work;
    thread::scope(|scope| {
        // The move makes every return from this closure close the queue, which ends the workers.
        let queue = queue;
        let results = results;
        let mut started = 0;
        for _ in 0..threads {
            let (to_do, done) = (to_do.clone(), done.clone());
            let worker = move || work_off(order, to_do, &done, work);
            let name = "regrow-pool".to_owned();
            if thread::Builder::new().name(name).spawn_scoped(scope, worker).is_err() {
                break;
            }
            started += 1;
        }
        drop((to_do, done));
        if started == 0 {
            // The system cannot start a thread, so this thread does the work.
            return items.try_for_each(|item| consume(work(item)?));
        }

        let mut admitted = Admitted::default();
        let mut next_index = 0;
        let mut waiting = BTreeMap::new();
        let mut next_in_turn = 0;
        let mut stopped = false;
        loop {
            while let Some(item) = items.peek().filter(|_| !stopped) {
                let cost_bytes = cost(item);
                if !admitted.has_room(cost_bytes, budget_bytes, started) {
                    break;
                }
                let Some(item) = items.next() else { break };
                admitted.add(next_index, cost_bytes);
                if queue.send((next_index, item)).is_err() {
                    break;
                }
                next_index += 1;
            }
            if admitted.is_empty() {
                return Ok(());
            }
            let Ok((index, outcome)) = results.recv() else { return Ok(()) };
            let result = outcome.unwrap_or_else(|panic| resume_unwind(panic));
            if order == Order::Any {
                consume(result?)?;
                admitted.remove(index);
                continue;
            }
            stopped |= result.is_err();
            waiting.insert(index, result);
            while let Some(result) = waiting.remove(&next_in_turn) {
                consume(result?)?;
                admitted.remove(next_in_turn);
                next_in_turn += 1;
            }
        }
    })
}

/// Works on the items of a queue until it is closed. With `Order::Any`, the first failure ends the
/// work of this thread.
fn work_off<T, R>(
    order: Order,
    to_do: Receiver<(u64, T)>,
    done: &Sender<(u64, Outcome<R>)>,
    work: &impl Fn(T) -> Result<R>,
) {
    for (index, item) in to_do {
        let outcome = catch_unwind(AssertUnwindSafe(|| work(item)));
        let failed = !matches!(outcome, Ok(Ok(_)));
        if done.send((index, outcome)).is_err() || failed && order == Order::Any {
            break;
        }
    }
}

/// The items between admission and consumption, and what they cost.
#[derive(Default)]
struct Admitted {
    cost_bytes: u64,
    costs: BTreeMap<u64, u64>,
}

impl Admitted {
    fn has_room(&self, cost_bytes: u64, budget_bytes: u64, threads: usize) -> bool {
        let fits = self.cost_bytes.checked_add(cost_bytes).is_some_and(|sum| sum <= budget_bytes);
        self.is_empty() || fits && self.costs.len() < threads * ITEMS_PER_THREAD_MAX
    }

    fn add(&mut self, index: u64, cost_bytes: u64) {
        self.cost_bytes = self.cost_bytes.saturating_add(cost_bytes);
        self.costs.insert(index, cost_bytes);
    }

    fn remove(&mut self, index: u64) {
        self.cost_bytes -= self.costs.remove(&index).unwrap_or(0);
    }

    fn is_empty(&self) -> bool {
        self.costs.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::error::Error;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn results_come_in_order_and_under_the_budget(
            costs in prop::collection::vec(0_u64..100, 0..80),
            budget in 0_u64..150,
            threads in 0_usize..6,
            failing in prop::option::of(0_usize..100),
        ) {
            let in_flight = AtomicU64::new(0);
            let items = costs.iter().copied().enumerate();
            let mut seen = Vec::new();
            let result = map_ordered(threads, items, budget, |(_, cost)| *cost, |(index, cost)| {
                let sum = in_flight.fetch_add(cost, Ordering::SeqCst) + cost;
                assert!(sum <= budget || sum == cost, "{sum} of {budget}");
                if index % 7 == 0 {
                    thread::yield_now();
                }
                if Some(index) == failing { Err(Error::corrupt(index.to_string())) } else { Ok((index, cost)) }
            }, |(index, cost)| {
                in_flight.fetch_sub(cost, Ordering::SeqCst);
                seen.push(index);
                Ok(())
            });
            let fails = failing.filter(|index| *index < costs.len());
            prop_assert_eq!(result.map_err(|error| error.what().to_owned()), match fails {
                Some(index) => Err(index.to_string()),
                None => Ok(()),
            });
            prop_assert_eq!(seen, (0..fails.unwrap_or(costs.len())).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_first_of_two_errors_in_order_is_told() {
        let work = |index: u64| -> Result<u64> {
            // The delay makes the later item fail first.
            if index == 3 {
                thread::sleep(Duration::from_millis(20));
            }
            if index == 3 || index == 5 { Err(Error::corrupt(index.to_string())) } else { Ok(index) }
        };
        let mut seen = Vec::new();
        let error = map_ordered(
            4,
            0..1000,
            1 << 20,
            |_| 1,
            work,
            |index| {
                seen.push(index);
                Ok(())
            },
        );
        assert_eq!(error.unwrap_err().what(), "3");
        assert_eq!(seen, [0, 1, 2]);
    }

    #[test]
    fn all_items_are_worked_on_by_several_threads() {
        let sum = AtomicU64::new(0);
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        for_each_parallel(
            4,
            1..=100_u64,
            3,
            |_| 1,
            |item| {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                thread::sleep(Duration::from_micros(300));
                sum.fetch_add(item, Ordering::SeqCst);
                now.fetch_sub(1, Ordering::SeqCst);
                Ok(())
            },
        )
        .unwrap();
        assert_eq!(sum.into_inner(), 5050);
        let most = most.into_inner();
        assert!((2..=3).contains(&most), "{most}");
    }

    #[test]
    fn an_error_stops_the_rest() {
        let begun = AtomicUsize::new(0);
        let error = for_each_parallel(
            2,
            0..100_000,
            u64::MAX,
            |_| 0,
            |item| {
                begun.fetch_add(1, Ordering::SeqCst);
                if item == 10 { Err(Error::corrupt("ten")) } else { Ok(()) }
            },
        );
        assert_eq!(error.unwrap_err().what(), "ten");
        assert!(begun.into_inner() < 1000);
        let error = map_ordered(
            2,
            0..100_000,
            64,
            |_| 1,
            Ok,
            |item: i32| {
                if item == 10 { Err(Error::corrupt("full")) } else { Ok(()) }
            },
        );
        assert_eq!(error.unwrap_err().what(), "full");
    }

    #[test]
    #[should_panic(expected = "a bug in the work")]
    fn a_panic_is_passed_on_and_does_not_hang() {
        let _ = map_ordered(
            3,
            0..100,
            10,
            |_| 1,
            |item| if item == 20 { panic!("a bug in the work") } else { Ok(item) },
            |_| Ok(()),
        );
    }
}
