//! The pool under many sizes, and under panics.

use super::*;
use crate::Status;

static NEVER: AtomicBool = AtomicBool::new(false);

#[test]
fn every_item_is_dealt_once_in_every_phase() {
    for threads in [1, 2, 3, 5] {
        let pool = Pool::new(threads).unwrap();
        for n in [0, 1, 2, 7, 100] {
            let hits: Vec<AtomicUsize> = (0..n).map(|_| AtomicUsize::new(0)).collect();
            let turn = pool.turn(&NEVER).unwrap();
            for _ in 0..20 {
                turn.run(|w| {
                    for phase in 0..5 {
                        w.ranges(n, 1 + 2 * phase, |range| {
                            for i in range {
                                hits[i].fetch_add(1, Relaxed);
                            }
                        });
                        if phase < 4 {
                            w.barrier();
                        }
                    }
                })
                .unwrap();
            }
            assert!(hits.iter().all(|h| h.load(Relaxed) == 100));
        }
    }
}

#[test]
fn a_barrier_waits_for_all_and_publishes() {
    let pool = Pool::new(4).unwrap();
    let slots: Vec<AtomicUsize> = (0..4).map(|_| AtomicUsize::new(0)).collect();
    pool.turn(&NEVER)
        .unwrap()
        .run(|w| {
            for round in 1..200 {
                slots[w.index].store(round, Relaxed);
                w.barrier();
                assert!(slots.iter().all(|s| s.load(Relaxed) == round));
                w.barrier();
            }
        })
        .unwrap();
}

#[test]
fn sleeping_threads_wake_up() {
    let pool = Pool::new(3).unwrap();
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(5));
        let ran = AtomicUsize::new(0);
        pool.turn(&NEVER)
            .unwrap()
            .run(|w| {
                if w.index == 1 {
                    std::thread::sleep(Duration::from_millis(3));
                }
                w.barrier();
                ran.fetch_add(1, Relaxed);
            })
            .unwrap();
        assert_eq!(ran.into_inner(), 3);
    }
}

#[test]
fn a_panic_on_any_thread_is_an_error_and_the_pool_works_on() {
    for threads in [1, 2, 4] {
        let pool = Pool::new(threads).unwrap();
        let turn = pool.turn(&NEVER).unwrap();
        for culprit in 0..threads {
            let error = turn
                .run(|w| {
                    w.barrier();
                    if w.index == culprit {
                        // Unlike panic!, this does not print.
                        resume_unwind(Box::new(format!("thread {culprit} fell")));
                    }
                    w.barrier();
                    w.ranges(10, 1, |_| ());
                    w.barrier();
                })
                .unwrap_err();
            assert_eq!(error.status, Status::Internal);
            assert!(
                error.message.contains(&format!("thread {culprit} fell")),
                "{error}"
            );
            let dealt = AtomicUsize::new(0);
            turn.run(|w| {
                w.barrier();
                w.ranges(10, 2, |r| _ = dealt.fetch_add(r.len(), Relaxed));
            })
            .unwrap();
            assert_eq!(dealt.into_inner(), 10);
        }
    }
}

#[test]
fn sessions_share_a_pool() {
    let pool = Pool::new(2).unwrap();
    let total = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let turn = pool.turn(&NEVER).unwrap();
                    turn.run(|w| {
                        w.barrier();
                        total.fetch_add(1, Relaxed);
                    })
                    .unwrap();
                }
            });
        }
    });
    assert_eq!(total.into_inner(), 300);
}

#[test]
fn silly_sizes_are_refused() {
    for threads in [0, MAX_THREADS + 1] {
        let error = Pool::new(threads).err().unwrap();
        assert_eq!(error.status, Status::InvalidArgument);
    }
}
