package emberlm

// #include "callbacks.h"
import "C"

import (
	"errors"
	"io"
	"runtime/cgo"
	"sync"
	"unsafe"
)

// A callback's function, and what came of it: an error of its own, or a panic, which must not cross C.
type callback struct {
	progress func(fraction float32) error
	readAt   io.ReaderAt
	write    io.Writer
	read     io.Reader
	piece    func(text string, token Token) error

	err      error
	panicked any
}

// Calls f of the callback that the number stands for; the status for C is 0 if it went well.
func enter(user C.uintptr_t, f func(c *callback) error) (status C.int32_t) {
	c := cgo.Handle(user).Value().(*callback)
	status = 1
	if c.err != nil || c.panicked != nil {
		return
	}
	defer func() {
		if r := recover(); r != nil {
			c.panicked = r
		}
	}()
	if c.err = f(c); c.err == nil {
		status = 0
	}
	return
}

// Runs a call with a callback: panics of the callback go on behind it, and its error takes precedence over the call's.
func (c *callback) run(call func(user C.uintptr_t) error) error {
	handle := cgo.NewHandle(c)
	defer handle.Delete()
	err := call(C.uintptr_t(handle))
	if c.panicked != nil {
		panic(c.panicked)
	}
	if c.err != nil {
		return c.err
	}
	return err
}

//export emberlmGoProgress
func emberlmGoProgress(user C.uintptr_t, fraction C.float) C.int32_t {
	return enter(user, func(c *callback) error { return c.progress(float32(fraction)) })
}

//export emberlmGoReadAt
func emberlmGoReadAt(user C.uintptr_t, offset C.uint64_t, bytes unsafe.Pointer, count C.size_t) C.int32_t {
	return enter(user, func(c *callback) error {
		to := unsafe.Slice((*byte)(bytes), int(count))
		n, err := c.readAt.ReadAt(to, int64(offset))
		if n == len(to) {
			return nil
		}
		return err
	})
}

//export emberlmGoWrite
func emberlmGoWrite(user C.uintptr_t, bytes unsafe.Pointer, count C.size_t) C.int32_t {
	return enter(user, func(c *callback) error {
		_, err := c.write.Write(unsafe.Slice((*byte)(bytes), int(count)))
		return err
	})
}

//export emberlmGoRead
func emberlmGoRead(user C.uintptr_t, bytes unsafe.Pointer, capacity C.size_t, count *C.size_t) C.int32_t {
	return enter(user, func(c *callback) error {
		n, err := io.ReadFull(c.read, unsafe.Slice((*byte)(bytes), int(capacity)))
		*count = C.size_t(n)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		}
		return err
	})
}

//export emberlmGoPiece
func emberlmGoPiece(user C.uintptr_t, text *C.char, length C.size_t, token *C.ember_token) C.int32_t {
	return enter(user, func(c *callback) error { return c.piece(C.GoStringN(text, C.int(length)), goToken(token)) })
}

var log struct {
	sync.RWMutex
	function func(level LogLevel, message string)
}

//export emberlmGoLog
func emberlmGoLog(level C.int32_t, message *C.char, length C.size_t) {
	log.RLock()
	function := log.function
	log.RUnlock()
	defer func() { _ = recover() }()
	if function != nil {
		function(LogLevel(level), C.GoStringN(message, C.int(length)))
	}
}
