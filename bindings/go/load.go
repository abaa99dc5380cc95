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

// GroupOptions say which place a rank has in a group.
type GroupOptions struct {
	Rank, RankCount int    // counted from 0; 2 to 8
	TimeoutMS       int    // how long ranks wait for each other; 0: 30 000
	Address         string // of rank 0: the IP address that it listens on; none: this machine alone
	ID              string // of the others: what ID of rank 0 gives
}

// Group is a rank's place in a group of processes that have one model together, each a share of every layer on its GPU; all make the
// same calls.
type Group struct{ handle }

// NewGroup takes a place in a group, without waiting for the other ranks.
func NewGroup(options GroupOptions) (*Group, error) {
	var a arena
	defer a.free()
	c := (*C.ember_group_options)(a.alloc(C.sizeof_ember_group_options))
	c.struct_size = C.sizeof_ember_group_options
	c.rank, c.rank_count, c.timeout_ms = C.uint32_t(options.Rank), C.uint32_t(options.RankCount), C.uint32_t(options.TimeoutMS)
	if options.Address != "" {
		c.address, c.address_len = a.text(options.Address)
	}
	if options.ID != "" {
		c.id, c.id_len = a.text(options.ID)
	}
	group := &Group{}
	var raw C.uintptr_t
	var err C.ember_error
	if e := check(C.go_ember_group_create(c, &raw, &err), &err); e != nil {
		return nil, e
	}
	group.raw.Store(uintptr(raw))
	runtime.SetFinalizer(group, func(group *Group) { _ = group.Close() })
	return group, nil
}

// ID gives what the other ranks need to join: a secret.
func (group *Group) ID() (string, error) {
	defer runtime.KeepAlive(group)
	return filledText(128, func(out *C.char, room C.size_t, n *C.size_t, err *C.ember_error) C.ember_status {
		return C.go_ember_group_id(group.get(), out, room, n, err)
	})
}

// Close frees the group; a model that was loaded with it keeps what it needs.
func (group *Group) Close() error {
	return group.close(func(raw C.uintptr_t) C.ember_status { return C.go_ember_group_free(raw) })
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
