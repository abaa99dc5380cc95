//! Ranks as threads.

use super::*;
use crate::backend::Want;
use crate::engine::sampling::Sampling;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

const COUNT: usize = 3;

fn options(index: usize, patience: u64, id: Option<&str>) -> GroupOptions<'_> {
    GroupOptions {
        rank: Rank {
            index,
            count: COUNT,
        },
        patience: Duration::from_millis(patience),
        id,
        address: "",
    }
}

/// Nobody stops the wait.
fn never() -> Result<()> {
    Ok(())
}

fn model(name: &str) -> Work {
    Work::new("a model").said("the architecture", name)
}

/// What each of three ranks does after it has met the others.
fn ranks<T: Send>(patience: u64, work: impl Fn(usize, &Meeting) -> T + Sync) -> Vec<T> {
    let first = Group::new(&options(0, patience, None)).unwrap();
    let id = first.id().to_owned();
    let of_rank = |group: Group| {
        group.claim().unwrap();
        group.join(&model("llama"), &mut never).unwrap();
        let meeting = group.meeting().unwrap();
        group.leave(None);
        work(group.rank().index, &meeting)
    };
    std::thread::scope(|scope| {
        let others = (1..COUNT).map(|i| {
            let group = Group::new(&options(i, patience, Some(&id))).unwrap();
            scope.spawn(|| of_rank(group))
        });
        let others: Vec<_> = others.collect();
        let first = of_rank(first);
        let others = others.into_iter().map(|thread| thread.join().unwrap());
        [first].into_iter().chain(others).collect()
    })
}

fn step(position: usize, token: u32) -> Work {
    let want = Want::Choices {
        count: 1,
        sampling: Sampling::GREEDY,
    };
    Work::new("a step").row((position, 7), &[token], &want)
}

#[test]
fn ranks_agree_and_get_what_rank_0_gives() {
    let got = ranks(10_000, |rank, meeting| {
        let work = step(3, 4);
        let gift = if rank == 0 { &b"an id"[..] } else { &[] };
        let given = meeting.agree(Ok(&work), gift).unwrap();
        for position in 0..1000 {
            meeting.agree(Ok(&step(position, 5)), &[]).unwrap();
        }
        given
    });
    assert_eq!(got, [b"an id"; COUNT]);
}

#[test]
fn all_learn_what_differs_and_go_on() {
    let prompt = |tokens: &[u32]| Work::new("a prompt").row((0, 0), tokens, &Want::Evaluated);
    let two = |second: u32| {
        let want = Want::Evaluated;
        let work = Work::new("a step of several sessions").row((5, 6), &[1], &want);
        work.row((8, 9), &[second], &want)
    };
    let cases = [
        (
            step(3, 4),
            step(4, 4),
            "the position is 3 on rank 0 and 4 on rank 2",
        ),
        (
            step(3, 4),
            step(3, 5),
            "the tokens on rank 0 and on rank 2 are not the same",
        ),
        (
            prompt(&[1, 2]),
            step(0, 1),
            "the work is a prompt on rank 0 and a step on rank 2",
        ),
        (
            prompt(&[1]),
            prompt(&[1, 2]),
            "the number of tokens is 1 on rank 0 and 2",
        ),
        (
            two(3),
            two(4),
            "the tokens of row 1 on rank 0 and on rank 2 are not",
        ),
    ];
    ranks(10_000, |rank, meeting| {
        for (first, other, expected) in &cases {
            let work = if rank == 2 { other } else { first };
            let e = meeting.agree(Ok(work), &[]).unwrap_err();
            assert_eq!(e.status, Status::InvalidArgument);
            assert!(e.message.contains(expected), "{}", e.message);
            meeting.agree(Ok(&step(1, 1)), &[]).unwrap();
        }
    });
    let sampling = |seed| Want::Choices {
        count: 1,
        sampling: Sampling {
            seed,
            ..Sampling::GREEDY
        },
    };
    let [a, b] = [1, 2].map(|seed| Work::new("a step").row((0, 0), &[], &sampling(seed)));
    let what = a.differs(1, b.bytes()).unwrap();
    assert!(what.starts_with("the sampling on rank 0"), "{what}");
    for broken in [&b.bytes()[..9], &[], &[7; 30]] {
        assert!(a.differs(1, broken).is_some());
    }
}

#[test]
fn the_error_of_one_is_that_of_all() {
    for failing in 0..COUNT {
        ranks(10_000, |rank, meeting| {
            let own = Error::new(Status::Interrupted, "interrupted before the step");
            let work = step(0, 1);
            let ready = if rank == failing {
                Err(own.clone())
            } else {
                Ok(&work)
            };
            let e = meeting.agree(ready, &[]).unwrap_err();
            assert_eq!(e.status, Status::Interrupted);
            match rank == failing {
                true => assert_eq!(e, own),
                false => {
                    let expected = format!("rank {failing} of 3: interrupted before the step");
                    assert_eq!(e.message, expected);
                }
            }
            meeting.agree(Ok(&work), &[]).unwrap();
        });
    }
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    for missing in 0..COUNT {
        ranks(300, |rank, meeting| {
            let work = step(0, 1);
            meeting.agree(Ok(&work), &[]).unwrap();
            if rank == missing {
                // Its process goes on, but does something else.
                std::thread::sleep(Duration::from_millis(1500));
                return;
            }
            let e = meeting.agree(Ok(&work), &[]).unwrap_err();
            assert_eq!(e.status, Status::DeviceLost);
            let expected = format!("rank {missing} of 3 did not come within 300 ms");
            assert!(e.message.contains(&expected), "{rank}: {}", e.message);
            assert_eq!(meeting.agree(Ok(&work), &[]).unwrap_err(), e);
            assert!(meeting.is_lost());
        });
    }
}

#[test]
fn rank_0_that_comes_late_may_wait_as_long_as_the_others() {
    ranks(1000, |rank, meeting| {
        std::thread::sleep(Duration::from_millis([700, 0, 1400][rank]));
        meeting.agree(Ok(&step(0, 1)), &[]).unwrap();
    });
}

#[test]
fn a_rank_that_is_gone_is_named_at_once() {
    for gone in 0..COUNT {
        let begun = Instant::now();
        let first = Group::new(&options(0, 60_000, None)).unwrap();
        let id = first.id().to_owned();
        std::thread::scope(|scope| {
            let groups = (1..COUNT).map(|i| Group::new(&options(i, 60_000, Some(&id))).unwrap());
            for group in groups.chain([first]) {
                scope.spawn(move || {
                    group.join(&model("llama"), &mut never).unwrap();
                    let meeting = group.meeting().unwrap();
                    group.leave(None);
                    if group.rank().index == gone {
                        return;
                    }
                    // In the middle of work, as the watch asks.
                    while meeting.check().is_ok() {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    let e = meeting.agree(Ok(&step(0, 1)), &[]).unwrap_err();
                    assert_eq!(e.status, Status::DeviceLost);
                    let expected = format!("rank {gone} of 3 is gone");
                    assert!(e.message.contains(&expected), "{}", e.message);
                });
            }
        });
        assert!(begun.elapsed() < Duration::from_secs(30));
    }
}

#[test]
fn a_rank_that_leaves_waits_for_the_work_of_the_others() {
    for slow in 0..COUNT {
        let is_done = AtomicBool::new(false);
        ranks(60_000, |rank, meeting| {
            meeting.agree(Ok(&step(0, 1)), &[]).unwrap();
            if rank == slow {
                // The others have left in the meantime, which is no reason to end this work.
                std::thread::sleep(Duration::from_millis(100));
                meeting.check().unwrap();
                is_done.store(true, Ordering::SeqCst);
            }
            meeting.farewell();
            assert!(is_done.load(Ordering::SeqCst), "rank {rank} did not wait");
            assert!(meeting.is_lost());
        });
    }
}

#[test]
fn work_behind_a_rank_that_leaves_is_an_error() {
    for leaving in 0..COUNT {
        ranks(60_000, |rank, meeting| {
            meeting.agree(Ok(&step(0, 1)), &[]).unwrap();
            if rank == leaving {
                return meeting.farewell();
            }
            let e = meeting.agree(Ok(&step(1, 2)), &[]).unwrap_err();
            assert_eq!(e.status, Status::DeviceLost);
            let expected = format!("rank {leaving} of 3 is gone");
            assert!(e.message.contains(&expected), "{}", e.message);
        });
    }
}

#[test]
fn the_failure_of_one_is_told_to_the_others() {
    for failing in 0..COUNT {
        ranks(60_000, |rank, meeting| {
            if rank == failing {
                meeting.fail(&Error::new(Status::DeviceError, "the GPU fell off the bus"));
            }
            let e = meeting.agree(Ok(&step(0, 1)), &[]).unwrap_err();
            assert_eq!(e.status, Status::DeviceLost);
            let expected = format!("rank {failing} of 3: the GPU fell off the bus");
            assert!(e.message.contains(&expected), "{}", e.message);
        });
    }
}

/// What each rank's load ends with: rank 2 comes with another model, fails before it has met the others or not at all.
#[test]
fn loads_that_fail_end_on_all_ranks() {
    let cases = [
        (
            "gemma",
            Status::InvalidArgument,
            "the architecture is llama on rank 0 and gemma on rank 2",
        ),
        ("fails", Status::FileNotFound, "rank 2 of 3: no such file"),
        (
            "late",
            Status::DeviceLost,
            "rank 2 of 3 did not come within 400 ms",
        ),
        (
            "out of memory",
            Status::OutOfMemory,
            "rank 2 of 3: no memory",
        ),
    ];
    for (what, status, expected) in cases {
        let first = Group::new(&options(0, 400, None)).unwrap();
        let id = first.id().to_owned();
        std::thread::scope(|scope| {
            let groups = (1..COUNT).map(|i| Group::new(&options(i, 400, Some(&id))).unwrap());
            for group in groups.chain([first]) {
                scope.spawn(move || {
                    let is_odd = group.rank().index == 2;
                    let load = || {
                        match what {
                            "fails" if is_odd => fail!(FileNotFound, "no such file"),
                            "gemma" if is_odd => group.join(&model("gemma"), &mut never)?,
                            _ => group.join(&model("llama"), &mut never)?,
                        }
                        let meeting = group.meeting()?;
                        if is_odd {
                            fail!(OutOfMemory, "no memory");
                        }
                        meeting.agree(Ok(&Work::new("the end of a load")), &[])
                    };
                    if what == "late" && is_odd {
                        return;
                    }
                    let loaded = load();
                    group.leave(loaded.as_ref().err());
                    let e = loaded.unwrap_err();
                    assert_eq!(e.status, status, "{what}: {}", e.message);
                    match is_odd && status != Status::InvalidArgument {
                        true => assert!(expected.contains(&e.message), "{}", e.message),
                        false => assert!(e.message.contains(expected), "{what}: {}", e.message),
                    }
                });
            }
        });
    }
}

#[test]
fn strangers_and_second_ranks_are_sent_away() {
    let first = Group::new(&options(0, 10_000, None)).unwrap();
    let id = first.id().to_owned();
    let (_, secret, address) = parse(&id).unwrap();
    // Some say nothing, nonsense, too much, or have another secret.
    let _silent = TcpStream::connect(address).unwrap();
    let mut wrong = secret;
    wrong[15] ^= 1;
    for bytes in [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        [&[24, 0, 0, 0][..], &wrong, &[1, 0, 0, 0, 3, 0, 0, 0]].concat(),
        [&[24, 0, 0, 0][..], &secret, &[9, 0, 0, 0, 3, 0, 0, 0]].concat(),
        [&[24, 0, 0, 0][..], &secret, &[1, 0, 0, 0, 2, 0, 0, 0]].concat(),
        vec![255; 100],
    ] {
        TcpStream::connect(address)
            .unwrap()
            .write_all(&bytes)
            .unwrap();
    }
    std::thread::scope(|scope| {
        let join = |i| {
            let group = Group::new(&options(i, 10_000, Some(&id))).unwrap();
            scope.spawn(move || {
                let joined = group.join(&model("llama"), &mut never);
                (joined, group)
            })
        };
        let first = scope.spawn(|| first.join(&model("llama"), &mut never));
        let ones = [join(1), join(1)];
        // As long as one is missing, rank 0 answers.
        while !ones.iter().any(|one| one.is_finished()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let last = join(2);
        first.join().unwrap().unwrap();
        let joined = ones.map(|one| one.join().unwrap().0);
        let mut twice = joined.iter().filter_map(|joined| joined.as_ref().err());
        let e = twice.next().expect("two have the same number");
        assert_eq!(e.status, Status::InvalidArgument, "{}", e.message);
        assert!(
            e.message.contains("rank 1 of 3 is there already"),
            "{}",
            e.message
        );
        assert!(twice.next().is_none());
        last.join().unwrap().0.unwrap();
    });
}

#[test]
fn places_that_cannot_be_are_refused() {
    let first = Group::new(&options(0, 0, None)).unwrap();
    assert_eq!(first.patience(), PATIENCE);
    assert!(first.id().len() < 128);
    let id = first.id();
    let good = options(1, 0, Some(id));
    Group::new(&good).unwrap();
    let of = |index, count| GroupOptions {
        rank: Rank { index, count },
        ..good
    };
    let with = |address| GroupOptions {
        address,
        ..options(0, 0, None)
    };
    let cut = &id[..id.len() - 7];
    let long = format!("{id}/1");
    for (options, expected) in [
        (of(0, 3), "rank 0 has an id"),
        (of(3, 3), "ranks are counted from 0"),
        (of(1, 4), "of a group of 3 ranks"),
        (of(0, 1), "2 to 8 ranks"),
        (of(1, 9), "2 to 8 ranks"),
        (options(1, 0, None), "rank 1 has no id"),
        (options(1, 0, Some("")), "id is none"),
        (
            options(1, 0, Some("emberlm-2/3/00/127.0.0.1:1")),
            "id is none",
        ),
        (options(1, 0, Some(cut)), "id is none"),
        (options(1, 0, Some(&long)), "id is none"),
        (with("somewhere"), "is no IP address"),
        (with("0.0.0.0"), "does not say where"),
        (with("203.0.113.7"), "address 203.0.113.7"),
        (
            GroupOptions {
                address: "127.0.0.1",
                ..good
            },
            "only rank 0 listens",
        ),
    ] {
        let e = Group::new(&options).unwrap_err();
        assert_eq!(e.status, Status::InvalidArgument, "{}", e.message);
        assert!(e.message.contains(expected), "{expected}: {}", e.message);
    }
    let ids = [(), ()].map(|()| Group::new(&options(0, 0, None)).unwrap().id().to_owned());
    assert_ne!(parse(&ids[0]).unwrap().1, parse(&ids[1]).unwrap().1);
    first.claim().unwrap();
    assert!(first.claim().is_err());
    // Rank 0 is gone before the others come.
    let other = Group::new(&good).unwrap();
    drop(first);
    let e = other.join(&model("llama"), &mut never).unwrap_err();
    assert_eq!(e.status, Status::DeviceLost);
    assert!(e.message.contains("rank 0 of 3"), "{}", e.message);
}

/// A frame as it is sent.
fn frame(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_le_bytes()[..], bytes].concat()
}

/// What a rank says first.
fn hello(secret: &[u8], index: u32, count: u32) -> Vec<u8> {
    frame(&[secret, &index.to_le_bytes(), &count.to_le_bytes()].concat())
}

/// What no rank sends, and what others say of who has sent it. The kinds of frames are those of `meeting`.
fn nonsense() -> Vec<(Vec<u8>, Status, &'static str)> {
    let refused = |status: i32| frame(&[&[2], &status.to_le_bytes()[..], b"\xff\0no"].concat());
    vec![
        (vec![255; 9], Status::DeviceLost, "has sent what is no"),
        (vec![0, 0, 0, 1], Status::DeviceLost, "has sent what is no"),
        (vec![9, 0, 0, 0, 1], Status::DeviceLost, "is gone"),
        (vec![1, 0], Status::DeviceLost, "is gone"),
        (vec![], Status::DeviceLost, "is gone"),
        // Of a status that is none, or no error.
        (refused(-1), Status::DeviceError, "no"),
        (refused(0), Status::DeviceError, "no"),
        (refused(1), Status::DeviceError, "no"),
        (frame(&[2]), Status::DeviceError, ""),
    ]
}

#[test]
fn what_no_rank_sends_ends_with_an_error() {
    let described = [
        frame(&[]),
        frame(&[77, 1, 2]),
        frame(&[1, 0, 255, 255, 255, 255]),
        frame(&[1, 0, 1, 0, 0, 0, 255]),
    ];
    let votes = described.map(|bytes| (bytes, Status::InvalidArgument, "in another way"));
    let votes = votes.into_iter().enumerate().map(|(i, case)| match i {
        0 | 1 => (case.0, Status::DeviceError, "rank 2 of 3"),
        _ => case,
    });
    for (bytes, status, expected) in nonsense().into_iter().chain(votes) {
        let first = Group::new(&options(0, 60_000, None)).unwrap();
        let second = Group::new(&options(1, 60_000, Some(first.id()))).unwrap();
        let (_, secret, address) = parse(first.id()).unwrap();
        std::thread::scope(|scope| {
            let joins = [first, second].map(|group| {
                scope.spawn(move || {
                    let joined = group.join(&model("llama"), &mut never);
                    group.leave(joined.as_ref().err());
                    joined.unwrap_err()
                })
            });
            let mut third = TcpStream::connect(address).unwrap();
            third.write_all(&hello(&secret, 2, 3)).unwrap();
            third.write_all(&bytes).unwrap();
            third.shutdown(std::net::Shutdown::Write).unwrap();
            for (rank, join) in joins.into_iter().enumerate() {
                let e = join.join().unwrap();
                assert_eq!(e.status, status, "{rank} {bytes:?}: {}", e.message);
                assert!(e.message.contains(expected), "{bytes:?}: {}", e.message);
                assert!(e.message.contains("rank 2"), "{bytes:?}: {}", e.message);
            }
        });
    }
}

#[test]
fn a_rank_0_that_is_none_ends_with_an_error() {
    let waits = frame(&[4]).repeat(100);
    let mut cases = nonsense();
    cases.push((frame(&[]), Status::DeviceLost, "has sent what is no"));
    cases.push((frame(&[77]), Status::DeviceLost, "has sent what is no"));
    cases.push(([waits, vec![3]].concat(), Status::DeviceLost, "is gone"));
    for (bytes, status, expected) in cases {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let id = format!("{VERSION}/3/{}/{address}", "0a".repeat(SECRET_BYTES));
        let group = Group::new(&options(1, 60_000, Some(&id))).unwrap();
        std::thread::scope(|scope| {
            let join = scope.spawn(|| group.join(&model("llama"), &mut never));
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(&bytes).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let e = join.join().unwrap().unwrap_err();
            assert_eq!(e.status, status, "{bytes:?}: {}", e.message);
            assert!(e.message.contains(expected), "{bytes:?}: {}", e.message);
        });
    }
}

#[test]
fn a_rank_0_that_only_says_that_it_waits_is_not_waited_for_for_ever() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let id = format!("{VERSION}/3/{}/{address}", "0a".repeat(SECRET_BYTES));
    let group = Group::new(&options(1, 200, Some(&id))).unwrap();
    std::thread::scope(|scope| {
        let join = scope.spawn(|| group.join(&model("llama"), &mut never));
        let (mut stream, _) = listener.accept().unwrap();
        while stream.write_all(&frame(&[4])).is_ok() && !join.is_finished() {
            std::thread::sleep(Duration::from_millis(50));
        }
        let e = join.join().unwrap().unwrap_err();
        assert_eq!(e.status, Status::DeviceLost, "{}", e.message);
        assert!(e.message.contains("rank 0 of 3 did not"), "{}", e.message);
    });
}

#[test]
fn connections_that_say_nothing_keep_no_rank_away() {
    let first = Group::new(&options(0, 60_000, None)).unwrap();
    let id = first.id().to_owned();
    let (_, secret, address) = parse(&id).unwrap();
    std::thread::scope(|scope| {
        let join = scope.spawn(|| first.join(&model("llama"), &mut never));
        let connect = |_| TcpStream::connect(address).unwrap();
        let _silent: Vec<TcpStream> = (0..200).map(connect).collect();
        // Of a group with another number of ranks.
        let mut other = TcpStream::connect(address).unwrap();
        other.write_all(&hello(&secret, 1, 2)).unwrap();
        let mut told = Vec::new();
        other.read_to_end(&mut told).unwrap();
        let told = String::from_utf8_lossy(&told).into_owned();
        assert!(told.contains("the group has 3 ranks, not 2"), "{told}");
        let others = [1, 2].map(|i| {
            let group = Group::new(&options(i, 60_000, Some(&id))).unwrap();
            scope.spawn(move || group.join(&model("llama"), &mut never))
        });
        for joined in others.into_iter().chain([join]) {
            joined.join().unwrap().unwrap();
        }
    });
}

/// A load that is cancelled while it waits ends at once, and so do the others, once they know it.
#[test]
fn a_wait_can_be_stopped() {
    for stopped in 0..COUNT {
        let first = Group::new(&options(0, 60_000, None)).unwrap();
        let id = first.id().to_owned();
        let is_stopped = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let others = [1, 2].map(|i| Group::new(&options(i, 60_000, Some(&id))).unwrap());
            let joins = [first].into_iter().chain(others).map(|group| {
                let is_stopped = &is_stopped;
                scope.spawn(move || {
                    let index = group.rank().index;
                    // The one after it comes when it has been stopped.
                    while index == (stopped + 1) % COUNT && !is_stopped.load(Ordering::Relaxed) {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    let begun = Instant::now();
                    let load = || {
                        group.join(&model("llama"), &mut || {
                            if index == stopped && begun.elapsed() > Duration::from_millis(50) {
                                fail!(Cancelled, "the load was stopped");
                            }
                            Ok(())
                        })?;
                        let meeting = group.meeting()?;
                        meeting.agree(Ok(&Work::new("the end of a load")), &[])
                    };
                    let loaded = load();
                    if index == stopped {
                        is_stopped.store(true, Ordering::Relaxed);
                    }
                    group.leave(loaded.as_ref().err());
                    (index, loaded.unwrap_err())
                })
            });
            let joins: Vec<_> = joins.collect();
            for join in joins {
                let (index, e) = join.join().unwrap();
                let is_rank_0_gone = stopped == 0 && e.status == Status::DeviceLost;
                assert!(
                    e.status == Status::Cancelled || is_rank_0_gone,
                    "{stopped} {index}: {}",
                    e.message
                );
                let expected = match index == stopped {
                    true => "the load was stopped".into(),
                    false => format!("rank {stopped} of 3"),
                };
                assert!(e.message.contains(&expected), "{index}: {}", e.message);
            }
        });
    }
}
