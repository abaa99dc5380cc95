//! Turns and seats under contention.

use super::*;
use crate::error::Status;
use std::sync::atomic::AtomicUsize;

#[test]
fn turns_exclude_each_other() {
    let turns = Turns::new(0);
    let (inside, total) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let _turn = turns.take(&AtomicBool::new(false)).unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    total.fetch_add(1, Ordering::SeqCst);
                    inside.fetch_sub(1, Ordering::SeqCst);
                }
            });
        }
    });
    assert_eq!(total.into_inner(), 800);
}

#[test]
fn turns_are_handed_over_in_order() {
    let turns = Turns::new(0);
    let order = Mutex::new(Vec::new());
    let never = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut first = Some(turns.take(&never).unwrap());
        for i in 0..4 {
            let (turns, order, never) = (&turns, &order, &never);
            scope.spawn(move || {
                let _turn = turns.take(never).unwrap();
                order.lock().unwrap().push(i);
            });
            while turns.state().waiting.len() <= i {
                std::thread::yield_now();
            }
            assert!(first.as_ref().unwrap().is_wanted());
        }
        drop(first.take());
    });
    assert_eq!(order.into_inner().unwrap(), [0, 1, 2, 3]);
}

#[test]
fn an_interrupted_waiter_leaves_the_queue() {
    let turns = Turns::new(0);
    let (never, set) = (AtomicBool::new(false), AtomicBool::new(true));
    let turn = turns.take(&never).unwrap();
    let error = turns.take(&set).err().unwrap();
    assert_eq!(error.status, Status::Interrupted);
    assert!(!turn.is_wanted());
    drop(turn);
    assert!(turns.take(&set).is_ok(), "a free turn is not refused");
}

#[test]
fn seats_are_for_those_who_may_take_one() {
    let never = AtomicBool::new(false);
    let turns = Turns::new(1);
    let stop = || false;
    let turn = turns.take(&never).unwrap();
    assert_eq!((turn.seat(), turns.users()), (None, 1));
    // Two users are enough for a seat if three threads are useful, but not if five are.
    let seated = turns.take_or_seat(3, stop).unwrap();
    assert_eq!((seated.seat(), turns.seats_taken()), (Some(0), 1));
    drop(seated);
    let error = turns.take_or_seat(5, || true).err().unwrap();
    assert_eq!(error.status, Status::Interrupted);
    assert_eq!((turns.users(), turns.seats_taken()), (1, 0));
    // A waiter who wants the turn itself does not keep another from the seat.
    std::thread::scope(|scope| {
        let (turns, never) = (&turns, &never);
        let first = scope.spawn(move || turns.take(never).unwrap().seat());
        while !turn.is_wanted() {
            std::thread::yield_now();
        }
        assert_eq!(turns.take_or_seat(3, stop).unwrap().seat(), Some(0));
        drop(turn);
        assert_eq!(first.join().unwrap(), None);
    });
    assert_eq!((turns.users(), turns.seats_taken()), (0, 0));
}
