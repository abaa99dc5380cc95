use super::*;
use crate::error::Status;
use std::ptr::null;

/// A struct as of today.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
struct Now {
    struct_size: u32,
    a: u32,
    b: u64,
    c: u64,
}

// SAFETY: 2 * 4 + 2 * 8 bytes without padding, numbers only, the size first.
unsafe impl Sized32 for Now {
    const NAME: &'static str = "now";
}

fn now(struct_size: u32) -> Now {
    Now {
        struct_size,
        a: 1,
        b: 2,
        c: 3,
    }
}

#[test]
fn options_of_every_age_are_read() {
    // SAFETY: each struct has as many bytes as it says.
    unsafe {
        assert_eq!(read_struct(null::<Now>()).unwrap(), Now::zeroed());
        assert_eq!(read_struct(&now(24)).unwrap(), now(24));
        // An older caller: what it does not know is zero.
        assert_eq!(read_struct(&now(16)).unwrap(), Now { c: 0, ..now(16) });
        assert_eq!(
            read_struct(&now(8)).unwrap(),
            Now {
                b: 0,
                c: 0,
                ..now(8)
            }
        );
        // A newer caller: what only it knows has to be zero.
        let mut newer = [now(40), now(0)];
        newer[1] = Now {
            struct_size: 0,
            a: 0,
            b: 0,
            c: 0,
        };
        assert_eq!(read_struct(newer.as_ptr()).unwrap(), now(40));
        newer[1].b = 1;
        let e = read_struct(newer.as_ptr()).unwrap_err();
        assert_eq!(e.status, Status::InvalidArgument);
        assert!(e.message.contains("byte 32"), "{}", e.message);
    }
}

#[test]
fn sizes_that_no_compiler_makes_are_refused() {
    for size in [0, 3, 7, 9, 23, 25, 1 << 20, u32::MAX] {
        let mut s = now(size);
        // SAFETY: only the first field is read before the size is refused.
        let read = unsafe { read_struct(&s) }.unwrap_err();
        // SAFETY: as above.
        let write = unsafe { OutStruct::new(&mut s) }.err().unwrap();
        for e in [read, write] {
            assert_eq!(e.status, Status::InvalidArgument);
            assert!(e.message.contains("sizeof(now)"), "{}", e.message);
        }
    }
}

/// A struct whose first version had no field of 8 bytes: programs compiled then have it at any multiple of 4, and in a size that is
/// no multiple of 8.
#[test]
fn a_struct_may_be_aligned_as_its_first_version_was() {
    let mut words = [9u32; 8];
    for at in [0, 1] {
        words[at..at + 3].copy_from_slice(&[12, 1, 2]);
        let place = words[at..].as_mut_ptr().cast::<Now>();
        // SAFETY: each struct has as many bytes as it says.
        let read = unsafe { read_struct(place) }.unwrap();
        let b = u64::from_ne_bytes([2u32.to_ne_bytes(), [0; 4]].concat().try_into().unwrap());
        assert_eq!((read.struct_size, read.a, read.b, read.c), (12, 1, b, 0));
        // SAFETY: as above.
        unsafe { OutStruct::new(place) }.unwrap().set(&now(24));
        assert_eq!((words[at], words[at + 1], words[at + 3]), (12, 1, 9));
        // SAFETY: two structs of 12 bytes.
        let all = unsafe { OutStructs::new(place, 2) }.unwrap();
        all.set(1, &now(24));
        assert_eq!((words[at + 3], words[at + 4], words[at + 6]), (12, 1, 9));
        words.fill(9);
    }
}

#[test]
fn details_are_written_as_far_as_the_caller_knows_them() {
    let value = Now {
        struct_size: 24,
        a: 7,
        b: 8,
        c: 9,
    };
    let mut older = now(16);
    // SAFETY: the structs have as many bytes as they say.
    unsafe { OutStruct::new(&mut older) }.unwrap().set(&value);
    assert_eq!(
        (older.struct_size, older.a, older.b, older.c),
        (16, 7, 8, 3)
    );
    let mut newer = [now(40), now(5)];
    // SAFETY: as above.
    unsafe { OutStruct::new(newer.as_mut_ptr()) }
        .unwrap()
        .set(&value);
    assert_eq!(
        newer[0],
        Now {
            struct_size: 40,
            ..value
        }
    );
    assert_eq!(
        (newer[1].struct_size, newer[1].a, newer[1].b, newer[1].c),
        (0, 0, 0, 3)
    );
}

#[test]
fn bad_pointers_are_named() {
    let words = [0u32; 4];
    let odd = words.as_ptr().cast::<u8>().wrapping_add(1);
    // SAFETY: each pointer is refused before it is used.
    unsafe {
        let e = slice::<u32>(null(), 1, "tokens").unwrap_err();
        assert_eq!(
            (e.status, e.message.as_str()),
            (Status::NullPointer, "tokens is NULL")
        );
        let e = slice::<u32>(odd.cast(), 1, "tokens").unwrap_err();
        assert_eq!(e.status, Status::InvalidArgument);
        let e = slice::<u32>(words.as_ptr(), usize::MAX / 2, "tokens").unwrap_err();
        assert_eq!(e.status, Status::InvalidArgument);
        assert!(slice::<u32>(null(), 0, "tokens").unwrap().is_empty());
        let e = slice_mut::<u32>(std::ptr::null_mut(), 1, "out").unwrap_err();
        assert_eq!(e.status, Status::NullPointer);
        let e = Out::<u64>::new(std::ptr::null_mut(), "count")
            .err()
            .unwrap();
        assert_eq!(
            (e.status, e.message.as_str()),
            (Status::NullPointer, "count is NULL")
        );
        let e = OutStruct::<Now>::new(std::ptr::null_mut()).err().unwrap();
        assert_eq!(e.status, Status::NullPointer);
        let e = read_struct::<Now>(odd.cast()).unwrap_err();
        assert_eq!(e.status, Status::InvalidArgument);
        let bytes = b"ab\xff";
        let e = text(bytes.as_ptr().cast(), 3, "path").unwrap_err();
        assert_eq!(e.status, Status::InvalidUtf8);
        assert!(
            e.message.contains("path") && e.message.contains("byte 2"),
            "{}",
            e.message
        );
    }
}

#[test]
fn a_buffer_too_small_stays_as_it_was() {
    let mut needed = 0usize;
    // SAFETY: `needed` is a local.
    let count = unsafe { Out::new(&mut needed, "count") }.unwrap();
    let mut buffer = [9u32; 2];
    let e = fill(&[1, 2, 3], &mut buffer, &count, "tokens").unwrap_err();
    assert_eq!(e.status, Status::BufferTooSmall);
    assert_eq!((buffer, needed), ([9, 9], 3));
    fill(&[1], &mut buffer, &count, "tokens").unwrap();
    assert_eq!((buffer, needed), ([1, 9], 1));
}

#[test]
fn a_panic_becomes_a_status() {
    let mut err = ember_error {
        code: -1,
        index: 1,
        message: [1; 1016],
    };
    // SAFETY: `err` is a local.
    let status = unsafe { call(&mut err, || panic!("a wheel came off")) };
    assert_eq!((status, err.code), (32, 32));
    // SAFETY: `call` has ended the message with a NUL.
    let text = unsafe { std::ffi::CStr::from_ptr(err.message.as_ptr()) };
    assert!(text.to_str().unwrap().contains("a wheel came off"));
    // SAFETY: as above.
    assert_eq!(unsafe { call(&mut err, || Ok(())) }, 0);
}

/// In a process of its own, because all calls of the process are refused then.
#[test]
fn calls_are_refused_while_memory_is_low() {
    const MARK: &str = "EMBERLM_TEST_LOW_MEMORY";
    if std::env::var_os(MARK).is_none() {
        let out = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "ffi::boundary::tests::calls_are_refused_while_memory_is_low",
            ])
            .env(MARK, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    memory::use_up();
    let mut err = MaybeUninit::<ember_error>::uninit();
    // SAFETY: a place for an error; NULL is allowed.
    unsafe {
        let status = call(err.as_mut_ptr(), || panic!("not called"));
        assert_eq!(status, Status::OutOfMemory as i32);
        let err = err.assume_init_ref();
        let text = std::ffi::CStr::from_ptr(err.message.as_ptr());
        assert_eq!((err.code, text.to_str().unwrap()), (status, memory::IS_LOW));
        assert_eq!(call_always(std::ptr::null_mut(), || Ok(())), 0);
    }
}
