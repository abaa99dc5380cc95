package emberlm

// #include "shim.h"
import "C"

import (
	"errors"
	"runtime"
)

// Event is something that an event loop can wait for. See Session.SetEvent and StartLoad.
type Event struct{ handle }

// NewEvent creates an event that is not set.
func NewEvent() (*Event, error) {
	event := &Event{}
	var raw C.uintptr_t
	var err C.ember_error
	if e := check(C.go_ember_event_create(&raw, &err), &err); e != nil {
		return nil, e
	}
	event.raw.Store(uintptr(raw))
	runtime.SetFinalizer(event, func(event *Event) { _ = event.Close() })
	return event, nil
}

// Fd gives a file descriptor that can be read while the event is set, on Windows a HANDLE. It stays the library's.
func (event *Event) Fd() (int64, error) {
	defer runtime.KeepAlive(event)
	var handle C.int64_t
	var err C.ember_error
	e := check(C.go_ember_event_handle(event.get(), &handle, &err), &err)
	return int64(handle), e
}

// Clear makes the next wait sleep until the event is set again.
func (event *Event) Clear() error {
	defer runtime.KeepAlive(event)
	var err C.ember_error
	return check(C.go_ember_event_clear(event.get(), &err), &err)
}

// Close frees the event; sessions and loads that have it keep it.
func (event *Event) Close() error {
	return event.close(func(raw C.uintptr_t) C.ember_status { return C.go_ember_event_free(raw) })
}

// Loading is a load in the background.
type Loading struct{ handle }

// StartLoad starts what Load does and returns at once. Progress of the options is not called. event, which may be nil, is set
// at the end.
func StartLoad(path string, options *ModelOptions, event *Event) (*Loading, error) {
	defer runtime.KeepAlive(event)
	var a arena
	defer a.free()
	var silent ModelOptions
	if options != nil {
		silent = *options
	}
	silent.Progress = nil
	name, length := a.text(path)
	var other, raw C.uintptr_t
	if event != nil {
		other = event.get()
	}
	var err C.ember_error
	if e := check(C.go_ember_model_load_start(name, length, silent.c(&a, 0), other, &raw, &err), &err); e != nil {
		return nil, e
	}
	l := &Loading{}
	l.raw.Store(uintptr(raw))
	runtime.SetFinalizer(l, func(l *Loading) { _ = l.Close() })
	return l, nil
}

// Poll gives the model, once, or nil while the load is running, and the share that is done. It never blocks.
func (l *Loading) Poll() (model *Model, fraction float32, e error) {
	defer runtime.KeepAlive(l)
	var share C.float
	var raw C.uintptr_t
	var err C.ember_error
	e = check(C.go_ember_load_poll(l.get(), &share, &raw, &err), &err)
	if errors.Is(e, StatusPending) {
		return nil, float32(share), nil
	}
	if e != nil {
		return nil, 0, e
	}
	return newModel(raw), float32(share), nil
}

// Cancel has the load end soon with StatusCancelled.
func (l *Loading) Cancel() error {
	defer runtime.KeepAlive(l)
	return check(C.go_ember_load_cancel(l.get()), nil)
}

// Close frees the load. It waits for one that is still running, which it cancels.
func (l *Loading) Close() error {
	return l.close(func(raw C.uintptr_t) C.ember_status { return C.go_ember_load_free(raw) })
}
