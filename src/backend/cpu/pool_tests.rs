//! The pool under many sizes, with helpers that are late or never come, and under panics.

use super::*;
use crate::Status;
use std::panic::resume_unwind;

static NEVER: AtomicBool = AtomicBool::new(false);

/// Work that as many threads as possible share.
fn work(items: usize, grain: usize) -> Work {
    Work {
        items,
        grain,
        cost: 1_000_000,
    }
}

/// Runs phases and sees to it that each item is done just once in each, and that a phase sees what
/// the one before it did.
fn phases_are_complete(pool: &Pool, n: usize, grain: usize, phases: usize) {
    let hits: Vec<AtomicUsize> = (0..n).map(|_| AtomicUsize::new(0)).collect();
    let turn = pool.turn(&NEVER).unwrap();
    for phase in 0..phases {
        turn.ranges(work(n, grain), |_, range| {
            for i in range {
                let mirrored = hits[n - 1 - i].load(Relaxed);
                assert!(mirrored == phase || mirrored == phase + 1);
                assert_eq!(hits[i].fetch_add(1, Relaxed), phase);
            }
        })
        .unwrap();
        assert!(hits.iter().all(|h| h.load(Relaxed) == phase + 1));
    }
}

#[test]
fn every_item_is_done_once_in_every_phase() {
    for threads in [1, 2, 3, 5, 8] {
        let pool = Pool::new(threads).unwrap();
        for n in [0, 1, 2, 7, 100, 70_000] {
            phases_are_complete(&pool, n, 1 + n / 50, 40);
        }
        // More pieces than a share counts: they become larger.
        phases_are_complete(&pool, 200_000, 1, 2);
    }
}

#[test]
fn the_leader_finishes_alone_if_no_helper_comes() {
    let pool = Pool::new(4).unwrap();
    let open = Arc::new(AtomicBool::new(false));
    let gate = open.clone();
    pool.set_hook(Some(Arc::new(move |_, moment| {
        while moment == Moment::Seen && !gate.load(SeqCst) {
            std::thread::yield_now();
        }
    })));
    phases_are_complete(&pool, 100, 3, 200);
    // They have seen a phase that is long over, and take nothing of the present one for it.
    open.store(true, SeqCst);
    phases_are_complete(&pool, 100, 3, 200);
}

#[test]
fn a_helper_that_is_late_with_a_piece_is_waited_for_and_then_left_out() {
    let pool = Pool::new(2).unwrap();
    let late = Arc::new(AtomicUsize::new(0));
    let (count, shared) = (late.clone(), pool.shared.clone());
    pool.set_hook(Some(Arc::new(move |_, moment| {
        if moment == Moment::Taken && count.fetch_add(1, SeqCst) == 0 {
            // The leader has done all the rest, and waits.
            while !shared.board.leader_sleeps() {
                std::thread::yield_now();
            }
        }
    })));
    let helped = || {
        let turn = pool.turn(&NEVER).unwrap();
        let helped = AtomicBool::new(false);
        turn.ranges(work(64, 1), |worker, _| {
            if worker.index != 0 {
                helped.store(true, SeqCst);
            } else {
                // So that the helper gets something.
                std::thread::yield_now();
            }
        })
        .unwrap();
        (helped.into_inner(), turn.threads())
    };
    while late.load(SeqCst) == 0 {
        helped();
    }
    // It was left out from the next phase on.
    assert_eq!(lock(&pool.crew).banned, 1);
    // Once it is forgiven, it takes part again.
    lock(&pool.crew).bans[0].until = Some(Instant::now());
    while !helped().0 {}
    pool.set_hook(None);
}

#[test]
fn late_helpers_do_not_change_what_is_done() {
    for threads in [2, 3, 5] {
        let pool = Pool::new(threads).unwrap();
        let calls = AtomicUsize::new(0);
        pool.set_hook(Some(Arc::new(move |index, moment| {
            // Some arrive late, some are held up with a piece, each in a pattern of its own.
            let call = calls.fetch_add(1, SeqCst);
            let late = match moment {
                Moment::Seen => call.is_multiple_of(2 + index),
                Moment::Taken => call.is_multiple_of(5 + index),
            };
            for _ in 0..if late { 20 } else { 0 } {
                std::thread::yield_now();
            }
        })));
        for n in [3, 40] {
            phases_are_complete(&pool, n, 2, 300);
        }
    }
}

#[test]
fn small_phases_stay_with_the_leader() {
    let pool = Pool::new(4).unwrap();
    let turn = pool.turn(&NEVER).unwrap();
    let small = Work {
        items: 100,
        grain: 1,
        cost: 4 * COST_PER_SQUARE - 1,
    };
    for _ in 0..100 {
        turn.ranges(small, |worker, range| {
            assert_eq!((worker.index, range), (0, 0..100));
        })
        .unwrap();
    }
    assert_eq!(useful_threads(0), 1);
    assert_eq!(useful_threads(100 * COST_PER_SQUARE), 10);
}

#[test]
fn sleeping_helpers_wake_up() {
    let pool = Pool::new(3).unwrap();
    for _ in 0..3 {
        let asleep = |i: usize| pool.shared.helpers[i].0.asleep.load(SeqCst);
        while !(asleep(0) && asleep(1)) {
            std::thread::yield_now();
        }
        let seen = [const { AtomicBool::new(false) }; 3];
        while !seen.iter().all(|s| s.load(SeqCst)) {
            let turn = pool.turn(&NEVER).unwrap();
            turn.ranges(work(300, 1), |worker, _| {
                seen[worker.index].store(true, SeqCst);
                std::thread::yield_now();
            })
            .unwrap();
            forgive(&turn);
        }
    }
}

/// Takes all helpers in again, however slow this machine is.
fn forgive(turn: &PoolTurn) {
    let mut crew = turn.crew.as_ref().unwrap().borrow_mut();
    crew.bans.fill(Ban::default());
    crew.rank(&turn.pool.shared);
}

#[test]
fn a_panic_on_any_thread_is_an_error_and_the_pool_works_on() {
    for threads in [1, 2, 4] {
        let pool = Pool::new(threads).unwrap();
        for culprit in 0..threads {
            // Until that thread gets something to do.
            let error = loop {
                let turn = pool.turn(&NEVER).unwrap();
                let done = turn.ranges(work(400, 1), |w, _| {
                    if w.index == culprit {
                        // Unlike panic!, this does not print.
                        resume_unwind(Box::new(format!("thread {culprit} fell")));
                    }
                    std::thread::yield_now();
                });
                match done {
                    Err(error) => break error,
                    Ok(()) => forgive(&turn),
                }
            };
            assert_eq!(error.status, Status::Internal);
            assert!(
                error.message.contains(&format!("thread {culprit} fell")),
                "{error}"
            );
            phases_are_complete(&pool, 10, 2, 3);
        }
    }
}

#[test]
fn sessions_share_a_pool() {
    let pool = Pool::new(3).unwrap();
    let total = AtomicUsize::new(0);
    let used = [const { AtomicBool::new(false) }; 3 + SEATS];
    std::thread::scope(|scope| {
        for i in 0..6 {
            let (pool, total, used) = (&pool, &total, &used);
            scope.spawn(move || {
                for _ in 0..100 {
                    let turn = match i {
                        0 | 1 => pool.turn(&NEVER).unwrap(),
                        _ => pool.turn_or_alone(usize::MAX, &NEVER).unwrap(),
                    };
                    let index = turn.index();
                    turn.ranges(work(30, 1), |worker, range| {
                        // The leader's threads, or this one alone.
                        assert!(worker.index == index || index == 0 && worker.index < 3);
                        // Nobody else has its index at the same time.
                        assert!(!used[worker.index].swap(true, SeqCst));
                        total.fetch_add(range.len(), Relaxed);
                        assert!(used[worker.index].swap(false, SeqCst));
                    })
                    .unwrap();
                }
            });
        }
    });
    assert_eq!(total.into_inner(), 18_000);
    assert!(!pool.is_used());
}

#[test]
fn a_session_that_finds_the_pool_taken_runs_alone() {
    let pool = Pool::new(2).unwrap();
    let leader = pool.turn(&NEVER).unwrap();
    assert_eq!(leader.threads(), 2);
    let alone = pool.turn_or_alone(2, &NEVER).unwrap();
    assert_eq!((alone.seat(), alone.threads(), alone.index()), (1, 1, 2));
    // Together they use two threads.
    assert_eq!(leader.threads(), 1);
    drop(alone);
    assert_eq!(leader.threads(), 2);
    // As many as there are seats; the next one waits for the turn or a seat.
    let seats: Vec<_> = (0..SEATS)
        .map(|_| pool.turn_or_alone(2, &NEVER).unwrap())
        .collect();
    assert_eq!(leader.threads(), 1);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| pool.turn_or_alone(2, &NEVER).unwrap().seat());
        while !leader.is_wanted() {
            std::thread::yield_now();
        }
        drop(seats);
        assert!(waiting.join().unwrap() > 0);
    });
}

#[test]
fn silly_sizes_are_refused() {
    for threads in [0, MAX_THREADS + 1] {
        let error = Pool::new(threads).err().unwrap();
        assert_eq!(error.status, Status::InvalidArgument);
    }
}
