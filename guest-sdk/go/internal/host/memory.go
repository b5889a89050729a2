//go:build !wasip1

package host

import "sync"

// Host is a host in memory.
type Host interface {
	Emit(Message) *Failed
	StateGet(key string) ([]byte, bool, *Failed)
	StateSet(key string, value []byte) *Failed
	StateDelete(key string) *Failed
	StateKeys(prefix string, limit uint32) ([]string, *Failed)
	Log(level uint8, line string)
	Group() string
	Tenant() string
	RemainingMS() uint64
	IsReplay() bool
	IsLate() bool
}

var (
	calls   sync.Mutex
	current Host
)

// Within runs one call with this host. Calls of other tests wait.
func Within(host Host, call func()) {
	calls.Lock()
	defer calls.Unlock()
	current = host
	defer func() { current = nil }()
	call()
}

func own() Host {
	if current == nil {
		panic("the host was asked outside of a call: tests call a handler by hosttest")
	}
	return current
}

// Emit emits an event.
func Emit(message Message) *Failed { return own().Emit(message) }

// StateGet reads a value.
func StateGet(key string) ([]byte, bool, *Failed) { return own().StateGet(key) }

// StateSet writes a value.
func StateSet(key string, value []byte) *Failed { return own().StateSet(key, value) }

// StateDelete removes a value.
func StateDelete(key string) *Failed { return own().StateDelete(key) }

// StateKeys lists keys.
func StateKeys(prefix string, limit uint32) ([]string, *Failed) {
	return own().StateKeys(prefix, limit)
}

// Log writes a line.
func Log(level uint8, line string) { own().Log(level, line) }

// Group is the group's name.
func Group() string { return own().Group() }

// Tenant is the tenant's name, or empty.
func Tenant() string { return own().Tenant() }

// RemainingMS is how many milliseconds are left.
func RemainingMS() uint64 { return own().RemainingMS() }

// IsReplay says whether the event was replayed.
func IsReplay() bool { return own().IsReplay() }

// IsLate says whether the event is late.
func IsLate() bool { return own().IsLate() }
